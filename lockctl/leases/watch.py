"""The gentle test for a dead holder: make its lease lapse, and see whether it comes back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from lockctl import clock
from lockctl.errors import UnreachableError
from lockctl.leases import operations
from lockctl.leases.line import Line
from lockctl.leases.operations import LockedTable
from lockctl.records import LeaseResult, LockRow

_PERIOD_S = 0.25
_LOOK_WITHIN_S = 10.0


def watch(
    line: Line, table: LockedTable, forced: LeaseResult, watch_ms: int, on_look: Callable[[float], None]
) -> LeaseResult:
    """Look at the row that was `forced` to expire for `watch_ms`, by one small read four times a second.

    Outcomes: `revived` as soon as its holder has renewed it; else `expired`, with the row as it stands: another's who
    took it (told at once), the lapsed one, or None when somebody deleted it. `on_look` gets the seconds left.
    A lost connection is replaced while there is time; then UnreachableError.
    """
    assert forced.lock is not None
    shown, end = forced.lock, clock.Deadline.after(watch_ms)
    while True:
        last = end.passed
        try:
            session = line.session()
            with session.within(clock.Deadline(clock.now() + _LOOK_WITHIN_S)):
                row = operations.read(session, table, shown.key)
        except UnreachableError:
            if last:
                raise
        else:
            if last or decided(shown, row):
                return LeaseResult(_outcome(shown, row), row, forced.previous, renewed=forced.renewed, note=forced.note)
        left = end.remaining() or 0.0
        on_look(left)
        time.sleep(min(left, _PERIOD_S * random.uniform(0.8, 1.2)))


def decided(shown: LockRow, row: LockRow | None) -> bool:
    """Is there nothing more to see? The holder came back, another took it, or the row is gone."""
    return row is None or row.holder != shown.holder or _outcome(shown, row) == "revived"


def _outcome(shown: LockRow, row: LockRow | None) -> str:
    # A renewal too short to be seen alive still left another expiry.
    back = row is not None and row.holder == shown.holder and (row.live or row.expires_at != shown.expires_at)
    return "revived" if back else "expired"
