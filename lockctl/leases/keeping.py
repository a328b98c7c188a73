"""Keeping a lease alive: a thread that renews it at a third of its TTL, on a connection of its own.

A lease counts as ours until the expiry that the server last confirmed, as a distance on `clock.now()` from *before*
the confirming statement was sent: the answer may have taken long, and the machine may have slept.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from lockctl import clock, durations
from lockctl.errors import BlockedError, LockctlError
from lockctl.leases import operations
from lockctl.leases.line import Line
from lockctl.leases.operations import LockedTable
from lockctl.records import LeaseResult, LockRow

SHORTEST_TTL_MS = 1_000
"""Below this a third of the TTL is no time for a connection to be replaced."""
_LONGEST_TRY_S = 10.0
_SHORTEST_TRY_S = 0.1
_CANCEL_GRACE_S = 0.2
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LONGEST_SLEEP_S = 1.0
"""Threads' waits count no suspended time: nobody oversleeps by more than this."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The lease that is kept: what renewing it takes. `margin_s`: so long before the expiry its command must end."""

    table: LockedTable
    key: tuple[str, ...]
    holder: str
    ttl_ms: int
    margin_s: float


def confirmed_until(sent: float, row: LockRow) -> float:
    """Until when (on `clock.now()`) the lease that `row` shows is surely ours; inf when it never expires."""
    return math.inf if row.remaining_ms is None else sent + row.remaining_ms / 1000


class Keeper:
    """Renews one lease until `stop`. `on_change` is called from its thread when something here changed."""

    def __init__(
        self, line: Line, kept: Kept, until: float, on_change: Callable[[], None], warn: Callable[[str], None]
    ) -> None:
        self.until = until
        """The last confirmed expiry, on `clock.now()`; inf for never."""
        self.lost: LeaseResult | None = None
        """Set when the row is another's or gone, with the row that was found."""
        self.late = False
        """Set when a confirmation came only after the command had to end."""
        self.trouble: str | None = None
        """Why the last renewal failed; None when it did not."""
        self._line, self._kept, self._on_change, self._warn = line, kept, on_change, warn
        self._told: set[str] = set()
        self._stopping = threading.Event()
        self._next = clock.now() + kept.ttl_ms / 3000
        self._thread = threading.Thread(target=self._run, name="lockctl-keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Renew no more; True when the thread has ended within `seconds`, and the line is free for other use."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while self._sleep_until(self._next):
            try:
                self._renew()
            except Exception as error:  # whatever it was, the lease must be renewed
                self._failed(error if isinstance(error, LockctlError) else LockctlError(repr(error)))
                self._next = clock.now() + min(pause, self._left() / 8) * random.uniform(0.8, 1.2)
                pause = min(_LONGEST_PAUSE_S, pause * 2)
            else:
                pause = _FIRST_PAUSE_S
            self._on_change()
            if self.lost is not None:
                return

    def _sleep_until(self, moment: float) -> bool:
        """False when it is time to stop."""
        while not self._stopping.is_set():
            left = moment - clock.now()
            if left <= 0:
                return True
            self._stopping.wait(min(left, _LONGEST_SLEEP_S))
        return False

    def _left(self) -> float:
        """Seconds until the command must end, or, after that, until the expiry; never less than a short try."""
        now, kept = clock.now(), self._kept
        until = min(self.until, now + kept.ttl_ms / 1000)
        left = until - kept.margin_s - now
        return max(_SHORTEST_TRY_S, left if left > 0 else until - now)

    def _renew(self) -> None:
        """One renewal; a connection that does not answer is given half of the time that is left, then replaced."""
        kept = self._kept
        deadline = clock.Deadline(clock.now() + min(_LONGEST_TRY_S, self._left() / 2))
        session = self._line.session(deadline)
        sent = clock.now()
        with session.within(deadline, grace=_CANCEL_GRACE_S, sample=False):
            result = operations.renew(session, kept.table, kept.key, kept.holder, kept.ttl_ms, revive=True)
        if result.outcome != "extended" or result.lock is None:
            self.lost = result
            return
        self.late = self.late or sent > self.until - kept.margin_s
        self.until = confirmed_until(sent, result.lock)
        self._next = sent + kept.ttl_ms / 3000
        if self.trouble is not None:
            self.trouble = None
            self._told.clear()
            self._warn("the lease is renewed again")

    def _failed(self, error: LockctlError) -> None:
        self.trouble = error.message
        if not isinstance(error, BlockedError):
            self._line.drop()  # also one that answers, but is read-only: the next may lead to the new primary
        if error.message not in self._told:
            self._told.add(error.message)
            left = self.until - clock.now()
            still = f"held for another {durations.show(int(left * 1000))}" if 0 < left < math.inf else "not held surely"
            self._warn(f"the lease could not be renewed ({error.message}); trying again, {still}")
