"""Acquire so that afterwards the lease is held and somebody knows its token, or nobody has it.

A connection can be cut after the server granted the lease and before its answer arrived; a signal can arrive then too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from lockctl import clock
from lockctl.db import Database, Session
from lockctl.errors import Interrupted, LockctlError, UnreachableError
from lockctl.leases import operations
from lockctl.leases.line import Line
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import holder_value, key_values
from lockctl.records import LeaseResult

# Finding out and giving back may take this long after the command's own deadline.
_CLEANUP_MS = 5_000


class Request(NamedTuple):
    """What an acquire asks for; `ttl_ms` in milliseconds."""

    key: tuple[str, ...]
    holder: str
    ttl_ms: int


def request(table: LockedTable, key: Sequence[str], holder: str | None, ttl_ms: int) -> Request:
    """A request with its values as the columns store them. Raises UsageError."""
    owner = operations.new_holder(table.shape) if holder is None else holder_value(table.shape, holder)
    return Request(key_values(table.shape, key), owner, ttl_ms)


class Acquirer:
    """Takes one lease over a connection that may break, and knows whether there may be something to give back."""

    def __init__(self, line: Line, table: LockedTable, request: Request) -> None:
        self.line, self.table, self.request = line, table, request
        self.sent: float | None = None
        """`clock.now()` from before the first statement that may have been granted; None when none was."""

    def attempt(self) -> LeaseResult:
        """One attempt. When the connection is lost, reconnects and looks whether the lease was granted.

        Raises UnreachableError when it was not, or when that could not be found out.
        """
        session = self.line.session()
        if self.sent is not None:  # an earlier attempt whose end nobody knows
            found = self._granted(session, self.sent)
            if found is not None:
                return found
        sent = self.sent = clock.now()
        try:
            request = self.request
            result = operations.acquire(session, self.table, request.key, request.holder, request.ttl_ms)
        except UnreachableError as lost:
            if not session.closed:
                self.sent = None
                raise  # the server answered: it is read-only
            result = self._look_again(lost, sent)
        except LockctlError:
            self.sent = None
            raise
        if result.outcome != "acquired":
            self.sent = None
        return result

    def _look_again(self, lost: LockctlError, sent: float) -> LeaseResult:
        try:
            with _again(self.line.database) as fresh:
                end_former(fresh, self.line.database.name)
                found = self._granted(fresh, sent)
        except LockctlError as error:
            raise UnreachableError(
                f"{lost.message}; whether the lease was granted could not be found out ({error.message})",
                hint=f"if it was, its holder is {self.request.holder!r} and it lapses by itself",
            ) from None
        if found is None:
            self.sent = None
            raise UnreachableError(
                f"{lost.message}; looked again: the lease was not granted", hint="nothing was taken; try again"
            ) from None
        return found

    def _granted(self, session: Session, sent: float) -> LeaseResult | None:
        request = self.request
        return operations.granted_since(session, self.table, request.key, request.holder, request.ttl_ms, sent)

    def give_back(self) -> bool:
        """Release what may have been granted; True when a row was deleted. Never raises LockctlError."""
        return self.sent is not None and give_back(self.line.database, self.table, self.request, self.sent)


Take = Callable[[Acquirer], LeaseResult]
"""How the attempts are made; at the end `sent` of the Acquirer tells when the granted one was."""


def acquire(
    database: Database,
    session: Session,
    table: LockedTable,
    request: Request,
    deliver: Callable[[LeaseResult], None],
    take: Take = Acquirer.attempt,
) -> LeaseResult:
    """Acquire, by one attempt or as `take` makes them, and hand the result to `deliver` (which writes the token)."""
    line = Line(database, session)
    try:
        return deliver_lease(Acquirer(line, table, request), deliver, take)
    finally:
        line.drop_unless(session)


def deliver_lease(
    acquirer: Acquirer, deliver: Callable[[LeaseResult], None], take: Take = Acquirer.attempt
) -> LeaseResult:
    """Acquire, and hand the result to `deliver`.

    When `deliver` raises OSError or a signal arrives, a lease that was granted is given back before the error goes on.
    """
    try:
        result = take(acquirer)
        try:
            deliver(result)
        except OSError as error:
            raise _undelivered(error, result, acquirer.give_back()) from error
    except Interrupted:
        acquirer.give_back()
        raise
    return result


def _undelivered(error: OSError, result: LeaseResult, given_back: bool) -> LockctlError:
    written = f"the result could not be written ({error.strerror or error})"
    if result.lease is None:
        return LockctlError(written)
    if given_back:
        return LockctlError(f"{written}: the lease was given back")
    return LockctlError(f"{written}, and the lease could not be given back: it lapses by itself")


def give_back(database: Database, table: LockedTable, request: Request, sent: float) -> bool:
    """Release what an acquire sent at `sent` may have got; True when a row was deleted. Never raises LockctlError."""
    with suppress(LockctlError), _again(database) as fresh:
        end_former(fresh, database.name)
        found = operations.granted_since(fresh, table, request.key, request.holder, request.ttl_ms, sent)
        if found is not None:
            return operations.release(fresh, table, request.key, request.holder).outcome == "released"
    return False


def _again(database: Database) -> Session:
    """A new session with a little time of its own: the command's may be over."""
    deadline = clock.Deadline.after(_CLEANUP_MS)
    return replace(
        database,
        deadline=deadline,
        connect_timeout_ms=_CLEANUP_MS,
        lock_timeout_ms=_CLEANUP_MS,
        statement_timeout_ms=_CLEANUP_MS,
    ).connect()


def end_former(session: Session, name: str) -> None:
    """End what the lost connection has in the server, so that it can't be granted anything later.

    Its session may be idle while the statement is still on its way: only a pooler's, which others use, is spared then.
    Raises UnreachableError when it does not go away.
    """
    deadline = clock.Deadline.after(_CLEANUP_MS)
    while True:
        rows = session.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = left(%s::text, 63) AND pid <> pg_backend_pid()"
            " AND usename = session_user AND (state IS DISTINCT FROM 'idle' OR NOT %s)",
            (name, session.pooled),
        )
        if not rows:
            return
        if deadline.passed:
            raise UnreachableError("the lost connection's session is still running in the server")
        time.sleep(0.02)
