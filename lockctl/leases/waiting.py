"""Waiting for a lease: small reads, and an attempt only when the row is free or has lapsed.

A waiter holds no transaction and no row lock while it waits. It wakes at the moment at which the current lease
lapses by the server's clock, not only on its period. A hundred waiters that wake at one lapse are spread over a few
hundredths of a second and read before they write: the first takes the lease, the others see that it is held.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from lockctl import clock
from lockctl.errors import BlockedError, LockctlError, UnreachableError
from lockctl.leases import operations
from lockctl.leases.grant import Acquirer
from lockctl.records import LeaseResult, LockRow

DEFAULT_DELAY_MS = 250
_JITTER = 0.2
_SPREAD_S = 0.02
"""Waking at a lapse comes up to this much later, at random: far below what anybody notices as latency."""
_LOOK_WITHIN_S = 10.0
"""A read that takes longer is cancelled, and where that does not answer either, made again on a new connection."""
_SHORTEST_S = 0.001

OnLook = Callable[[LockRow, clock.Deadline], None]
"""Called after each look that found the lease held: the row, and when the waiting ends."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait: until `wait_ms` are over or `attempts` were made, whichever ends first; `delay_ms` between.

    With neither of the two: one attempt.
    """

    wait_ms: int | None = None
    attempts: int | None = None
    delay_ms: int = DEFAULT_DELAY_MS

    @property
    def once(self) -> bool:
        return self.wait_ms is None and (self.attempts is None or self.attempts == 1)

    @property
    def longest_ms(self) -> int:
        """What the waiting can add to the time of a command."""
        if self.once:
            return 0
        tries_ms = None if self.attempts is None else int(self.attempts * self.delay_ms * (1 + _JITTER))
        return min(ms for ms in (self.wait_ms, tries_ms) if ms is not None)


def take(acquirer: Acquirer, patience: Patience, on_look: OnLook = lambda _row, _end: None) -> LeaseResult:
    """Acquire with `patience`. Outcomes: `acquired`, `held` (with the row as it was last seen).

    A lost connection is made anew while there is time. Raises what the last attempt raised when the time is over:
    UnreachableError or BlockedError; at once UsageError, DeniedError, BehindError.
    """
    if patience.once:
        return acquirer.attempt()
    end = clock.Deadline.after(patience.wait_ms)
    tries = 0
    while True:
        tries += 1
        last = end.passed or tries == patience.attempts
        next_try = clock.Deadline(clock.now() + _jittered(patience.delay_ms))
        while True:
            result, failure = _look(acquirer)
            if result is not None and result.outcome == "acquired":
                return result
            if last:
                return _finally(result, failure)
            if result is not None and result.lock is not None:
                on_look(result.lock, end)
            if not _sleep(result, next_try, end):
                break


def _jittered(delay_ms: int) -> float:
    """Seconds; waiters that began together drift apart."""
    return delay_ms / 1000 * random.uniform(1 - _JITTER, 1 + _JITTER)


def _finally(result: LeaseResult | None, failure: LockctlError | None) -> LeaseResult:
    if result is not None:
        return result
    assert failure is not None
    raise failure


def _look(acquirer: Acquirer) -> tuple[LeaseResult | None, LockctlError | None]:
    """Read, and attempt when nobody holds the lease; the failure when the next look may fare better."""
    try:
        session = acquirer.line.session()
        with session.within(_sooner(acquirer.line.database.deadline, _LOOK_WITHIN_S)):
            row = operations.read(session, acquirer.table, acquirer.request.key)
        ours = acquirer.sent is not None and row is not None and row.holder == acquirer.request.holder
        if row is not None and row.live and not ours:
            return LeaseResult("held", row), None
        return acquirer.attempt(), None
    except (UnreachableError, BlockedError) as error:
        # A server that is there and still refuses is read-only: waiting helps nothing.
        refused = isinstance(error, UnreachableError) and acquirer.line.connected
        if refused or acquirer.line.database.deadline.passed:
            raise
        return None, error


def _sooner(deadline: clock.Deadline, seconds: float) -> clock.Deadline:
    own = clock.now() + seconds
    return deadline if deadline.at is not None and deadline.at <= own else clock.Deadline(own)


def _sleep(result: LeaseResult | None, next_try: clock.Deadline, end: clock.Deadline) -> bool:
    """Sleep until the next try, the end, or the moment of the lapse; True when it was the lapse that came first."""
    pauses = [left for left in (next_try.remaining(), end.remaining()) if left is not None]
    pause, early = min(pauses), False
    left_ms = result.lock.remaining_ms if result is not None and result.lock is not None else None
    if left_ms is not None:
        # The row was read a little before now, and its milliseconds are rounded down.
        lapse = max(_SHORTEST_S, (left_ms + 1) / 1000) + random.uniform(0, _SPREAD_S)
        pause, early = (lapse, True) if lapse < pause else (pause, False)
    time.sleep(pause)
    return early
