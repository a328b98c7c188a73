"""How the steps of a migration are attempted: each in a transaction of its own, under a lock timeout.

A step knows how to run itself once; what is around an attempt (limits, order, what is told) is here, for
alembic revisions and for whatever else becomes a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockctl import clock
from lockctl.errors import BlockedError, LockctlError
from lockctl.migrations.records import Event, Notify
from lockctl.records import Blocker


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an attempt in milliseconds: for each wait for a lock, and for each statement (None: no bound)."""

    lock_timeout_ms: int = 5_000
    statement_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step: `run` makes one attempt in a fresh transaction and commits it, or raises and leaves nothing."""

    name: str
    title: str
    run: Callable[[], None]


@dataclass(slots=True)
class Progress:
    """What became of the steps: the names of those committed, and the error at which the rest was left."""

    done: list[str]
    attempts: int = 0
    waited_ms: int = 0
    error: LockctlError | None = None

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        return tuple(self.error.details.get("blockers", ())) if self.error else ()

    @property
    def outcome(self) -> str:
        if isinstance(self.error, BlockedError):
            return "blocked"
        if self.error is not None:
            return "failed"
        return "done" if self.done else "nothing"


def run(steps: Sequence[Step], notify: Notify) -> Progress:
    """Run `steps` in order until one fails. What was committed before it stays, and is in the progress."""
    progress = Progress([])
    for step in steps:
        progress.attempts += 1
        started = clock.now()
        notify(Event("step", step.title, step.name, 1))
        try:
            step.run()
        except LockctlError as error:
            progress.error = error
            if isinstance(error, BlockedError):
                progress.waited_ms += round((clock.now() - started) * 1000)
            notify(Event("blocked" if isinstance(error, BlockedError) else "failed", error.message, step.name, 1))
            break
        progress.done.append(step.name)
        notify(Event("committed", f"{step.name} committed", step.name, 1))
    return progress
