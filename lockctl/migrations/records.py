"""What the migration operations return and report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockctl.errors import LockctlError
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
    """A result, and the error that ended it early: steps committed before an error stay, and both must be told."""

    result: MigrationResult
    error: LockctlError | None = None


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

    `event` is `step` (an attempt begins), `created`, `adopted`, `dropped`, `left` (a table), `committed`, `blocked` or
    `failed` (a step).
    """

    event: str
    message: str
    revision: str | None = None
    attempt: int | None = None


Notify = Callable[[Event], None]


def quiet(_event: Event) -> None:
    """Tell nobody."""
