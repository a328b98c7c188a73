"""What the migration operations return and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockctl.errors import Interrupted, LockctlError
from lockctl.records import Blocker


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a component; `is_current` tells that the database is at it.

    `component` and `doc` are None for a revision that this lockctl does not know (the database is ahead).
    """

    component: str | None
    revision: str
    is_head: bool
    is_current: bool
    doc: str | None


@dataclass(frozen=True, slots=True)
class MigrationResult:
    """What a migration did: `from_` and `to` are the revisions before and after, `steps` those that were committed.

    `outcome` is `done`, `nothing`, `blocked`, `partial`, `busy` or `failed`. `waited_ms` is the time of the
    attempts that ended at a lock, in milliseconds.
    """

    outcome: str
    from_: tuple[str, ...]
    to: tuple[str, ...]
    steps: tuple[str, ...]
    attempts: int
    waited_ms: int
    blockers: tuple[Blocker, ...]


@dataclass(frozen=True, slots=True)
class MigrationRun:
    """A result, and the error or signal that ended it early: what was committed before it stays, so both are told."""

    result: MigrationResult
    error: LockctlError | Interrupted | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """`outcome` is `current`, `behind` or `ahead`; `detail` says in a sentence what differs."""

    outcome: str
    expected: tuple[str, ...]
    found: tuple[str, ...]
    detail: str | None = None

    @property
    def code(self) -> int:
        """The exit code of the outcome."""
        return {"current": 0, "behind": 8, "ahead": 9}[self.outcome]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened during a migration, told as it happens.

    `event` is `step` (an attempt begins), `created`, `adopted`, `dropped`, `left` (a table, an index), `undone` (what
    this attempt told of them), `committed`, `blocked`, `failed`, `partial` or `interrupted` (a step), `waiting` (for
    whom; again when that changes), `retry` (an attempt ended at a lock, another follows), `runner` (about the runner's
    lock), `cancelled`, `terminated`, `spared` (what --on-block did), `output` (a line that somebody else's code
    printed), `warning`. `progress` comes ten times a second while something is waited for, and is for a line that is
    kept up to date on a terminal, not for a log.

    `step` of `steps` counts from 1; `waited_ms` is what this attempt has waited for locks so far.
    """

    event: str
    message: str
    revision: str | None = None
    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    waited_ms: int | None = None
    blockers: tuple[Blocker, ...] = ()


Notify = Callable[[Event], None]


def quiet(_event: Event) -> None:
    """Tell nobody."""
