"""How the steps of a migration are attempted: in order, each under the limits, and again when a lock was in the way.

A step knows how to make one attempt; the limits of a transaction are in `attempts`, the bound of its total wait in
`monitor`, the pause in `backoff`. What is around them (order, retries, the end, what is told) is here, for alembic
revisions, SQL files and foreign commands alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from lockctl import clock, durations
from lockctl.db import Session
from lockctl.errors import BlockedError, BusyError, Interrupted, LockctlError, PartialError
from lockctl.migrations import backoff
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.monitor import Monitor
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event, Notify
from lockctl.records import Blocker

RETRIED = ("lock", "deadlock")
"""Causes of a BlockedError after which the same attempt can succeed: 55P03, our own bound, and 40P01."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `run` makes one attempt and commits it, or raises and leaves nothing.

    What it leaves all the same (a statement outside a transaction) it puts into the attempt's `stands`. It raises
    BlockedError with the cause `lock` or `deadlock` to be tried again.
    """

    name: str
    title: str
    run: Callable[[Attempt], None]


@dataclass(slots=True)
class Progress:
    """What became of the steps: the names of those committed, and the error or signal at which the rest was left."""

    done: list[str] = field(default_factory=list)
    attempts: int = 0
    waited_ms: int = 0
    error: LockctlError | Interrupted | None = None
    partial: bool = False

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        return tuple(self.error.details.get("blockers", ())) if isinstance(self.error, LockctlError) else ()

    @property
    def outcome(self) -> str:
        if self.partial:
            return "partial"
        if isinstance(self.error, BlockedError):
            return "blocked"
        if isinstance(self.error, BusyError):
            return "busy"
        if self.error is not None:
            return "failed"
        return "done" if self.done else "nothing"


class Engine:
    """Runs steps on one session. `check` is called before each attempt, and raises when it must not begin (the
    runner's lock was lost)."""

    def __init__(
        self, session: Session, policy: Policy, notify: Notify, check: Callable[[], None] = lambda: None
    ) -> None:
        self.session = session
        self.policy = policy
        self.notify = notify
        self.check = check

    def run(self, steps: Sequence[Step], *, before: int = 0) -> Progress:
        """Run `steps` in order until one fails. What was committed before it stays, and is in the progress.

        `before` is how many steps of the whole are done already: the events count on from there.

        SIGINT and SIGTERM (Interrupted) end it like an error: psycopg has cancelled the statement in the server by
        then, its transaction is rolled back, and what stands is told. Raises UnreachableError when the second
        connection, which bounds the total wait, can't be made: nothing was begun then.
        """
        progress = Progress()
        deadline = clock.Deadline.after(self.policy.deadline_ms)
        with Monitor(self.session, self.policy, self.notify) as monitor:
            if steps:
                self._advise(monitor)
            for number, step in enumerate(steps, before + 1):
                if not self._step(step, (number, before + len(steps)), progress, monitor, deadline):
                    break
        return progress

    def _step(
        self, step: Step, place: tuple[int, int], progress: Progress, monitor: Monitor, deadline: clock.Deadline
    ) -> bool:
        for number in count(1):
            attempt = Attempt(self.session, self.policy, monitor, self.notify, step.name, number)
            try:
                self.check()
                progress.attempts += 1
                self.notify(Event("step", _title(step, place, number), step.name, number, *place))
                step.run(attempt)
                progress.waited_ms += monitor.waited_ms
                progress.done.append(step.name)
                self.notify(Event("committed", f"{step.name} committed", step.name, number, *place))
                return True
            except LockctlError as error:
                if isinstance(error, BlockedError) and error.cause in RETRIED:
                    monitor.gave_up()
                progress.waited_ms += monitor.waited_ms
                failure = attempt.explained(error)
                left = attempt.left_behind()
                if not left and self._again(failure, number, deadline):
                    try:
                        self._pause(failure, step, number, place, monitor, deadline)
                    except Interrupted as signal:
                        return self._end(step, progress, signal, [])
                    if not deadline.passed or monitor.gone():
                        continue
                return self._end(step, progress, self._counted(failure, number, deadline), left)
            except Interrupted as signal:
                progress.waited_ms += monitor.waited_ms
                return self._end(step, progress, signal, attempt.left_behind())
        raise AssertionError("unreachable")

    def _again(self, failure: LockctlError, number: int, deadline: clock.Deadline) -> bool:
        return (
            isinstance(failure, BlockedError)
            and failure.cause in RETRIED
            and number <= self.policy.retries
            and not deadline.passed
        )

    def _pause(
        self,
        failure: LockctlError,
        step: Step,
        number: int,
        place: tuple[int, int],
        monitor: Monitor,
        deadline: clock.Deadline,
    ) -> None:
        left = deadline.remaining()
        seconds = backoff.length(number)
        when = "next attempt in {} or when that ends"
        if left is not None and left <= seconds:
            seconds, when = left, "--deadline is near: another attempt only if that ends within {}"
        message = f"{failure.message}; {when.format(durations.show(max(1, round(seconds * 1000))))}"
        self.notify(
            Event(
                "retry",
                message,
                step.name,
                number,
                *place,
                monitor.waited_ms,
                tuple(failure.details.get("blockers", ())),
            )
        )
        backoff.pause(seconds, monitor.gone)

    def _end(self, step: Step, progress: Progress, error: LockctlError | Interrupted, left: list[str]) -> bool:
        """The step ended without its commit: say what stands. Always False: no further step runs."""
        progress.error = error
        progress.partial = bool(left)
        what = "nothing of this step stands" if not left else f"of this step there stands: {'; '.join(left)}"
        if isinstance(error, Interrupted):
            self.notify(Event("interrupted", f"interrupted: {step.name} was cancelled, {what}", step.name))
            return False
        if left:
            progress.error = PartialError(
                f"{error.message}; {what}", hint=error.hint, **{"stands": list(left), **error.details}
            )
            self.notify(Event("partial", progress.error.message, step.name))
            return False
        self.notify(Event("blocked" if isinstance(error, BlockedError) else "failed", error.message, step.name))
        return False

    def _counted(self, failure: LockctlError, number: int, deadline: clock.Deadline) -> LockctlError:
        """`failure` with how many attempts there were, and why there were no more of them than --retries."""
        if not isinstance(failure, BlockedError):
            return failure
        attempts = f"after {number} attempt{'s' * (number > 1)}"
        if failure.cause in RETRIED and number <= self.policy.retries and deadline.passed:
            attempts += f" (--deadline {durations.show(self.policy.deadline_ms)} is over)"
        elif number == 1:
            return failure
        return BlockedError(f"{attempts}: {failure.message}", hint=failure.hint, cause=failure.cause, **failure.details)

    def _advise(self, monitor: Monitor) -> None:
        """A lock timeout that is too short for the server to send an autovacuum away is worth a word.

        The server asks an autovacuum to yield when a waiter's deadlock_timeout is over (proc.c, ProcSleep).
        """
        row = monitor.watch.one("SELECT setting::int FROM pg_settings WHERE name = 'deadlock_timeout'")
        if self.policy.limits.lock_timeout_ms <= row[0]:
            self.notify(
                Event(
                    "warning",
                    f"--lock-timeout {durations.show(self.policy.limits.lock_timeout_ms)} is not above the server's"
                    f" deadlock_timeout ({durations.show(row[0])}): an ordinary autovacuum in the way will not yield",
                )
            )


def _title(step: Step, place: tuple[int, int], number: int) -> str:
    attempt = f", attempt {number}" if number > 1 else ""
    return f"step {place[0]} of {place[1]}{attempt}: {step.title}"
