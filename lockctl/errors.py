"""One class per exit code; nothing here knows a database or a terminal.

The codes and words are the contract that scripts rely on (README, "Exit codes").
A class carries the code and the word; an instance carries the sentence, a hint that says
what to do, and details for the JSON form of the error.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LockctlError(Exception):
    """Anything that ends a command without its result.

    `message` is one plain sentence, `hint` what to do about it, and `details` are extra JSON fields
    (for `blocked` the blocking sessions).
    """

    code: ClassVar[int] = 1
    word: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details
        self.exit_code = self.code
        """The class's code, unless an option of the command gave another."""


class UsageError(LockctlError):
    """Bad arguments, a value the column can't take, or a missing `--yes`."""

    code = 2
    word = "usage"


class HeldError(LockctlError):
    """Another holder has the lease."""

    code = 3
    word = "held"


class NotHeldError(LockctlError):
    """No live lease there; no such run or work item."""

    code = 4
    word = "not_held"


class LostError(LockctlError):
    """Somebody took or deleted the row of a lease that was being held."""

    code = 5
    word = "lost"


class UnreachableError(LockctlError):
    """No connection, a connection lost, or a read-only server where a write is needed."""

    code = 6
    word = "unreachable"


class BlockedError(LockctlError):
    """A lock timeout, a statement timeout or the deadline; `details["blockers"]` says by whom.

    `cause` is `lock` (a lock timeout, or all waits together took too long), `deadlock`, `cancelled` (a statement
    timeout, or somebody cancelled it) or `deadline`: waiting for a lock may be tried again, the rest not.
    """

    code = 7
    word = "blocked"

    def __init__(self, message: str, *, hint: str | None = None, cause: str = "lock", **details: Any) -> None:
        super().__init__(message, hint=hint, **details)
        self.cause = cause


class BehindError(LockctlError):
    """The schema is behind, a table is missing or its shape differs."""

    code = 8
    word = "behind"


class AheadError(LockctlError):
    """The schema is ahead of, or diverged from, what is expected."""

    code = 9
    word = "ahead"


class DeniedError(LockctlError):
    """A privilege is missing; the message names it."""

    code = 10
    word = "denied"


class PartialError(LockctlError):
    """The failing step itself left something behind; the message says what stands."""

    code = 11
    word = "partial"


class BusyError(LockctlError):
    """Another lockctl migration holds the runner's lock."""

    code = 12
    word = "busy"


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM arrived; the exit code is 128 + the signal's number.

    A KeyboardInterrupt, because psycopg cancels the running statement in the server for that, and because
    no handler for ordinary errors may swallow it.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum

    @property
    def code(self) -> int:
        return 128 + self.signum


ALL: tuple[type[LockctlError], ...] = (
    LockctlError,
    UsageError,
    HeldError,
    NotHeldError,
    LostError,
    UnreachableError,
    BlockedError,
    BehindError,
    AheadError,
    DeniedError,
    PartialError,
    BusyError,
)
