"""One attempt at a step: fresh transactions on the migration's session, each under the limits, which are read back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import sql

from lockctl import clock, durations
from lockctl.db import Session, describe
from lockctl.errors import BlockedError, LockctlError, UnreachableError, UsageError
from lockctl.migrations import indexes
from lockctl.migrations.monitor import Monitor
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event, Notify


class Attempt:
    """What a step works with. `number` counts from 1; `stands` is what the attempt has committed although the step
    did not end: with anything in it the step is not attempted again. `body` tells that the step itself has begun, after
    what prepares for it and may be committed by itself (alembic makes its version table so)."""

    def __init__(
        self, session: Session, policy: Policy, monitor: Monitor, notify: Notify, step: str = "", number: int = 1
    ) -> None:
        self.session = session
        self.policy = policy
        self.monitor = monitor
        self.notify = notify
        self.step = step
        self.number = number
        self.stands: list[str] = []
        self.body = False
        self._rebuilding: indexes.Target | None = None
        self._altered = False
        monitor.attempt()

    @property
    def limits(self) -> Limits:
        return self.policy.limits

    @contextmanager
    def lent(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """The session's connection while this attempt makes the transactions on it, watched by the monitor."""
        try:
            with self.session.lend(self.monitor.tick) as conn:
                yield conn
        finally:
            if self._altered and not self.session.closed:
                self._altered = False
                with suppress(LockctlError):
                    # To what the session began with.
                    self.session.query("RESET lock_timeout")
                    self.session.query("RESET statement_timeout")

    # -- transactions of SQL ----------------------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A fresh transaction under the limits, committed at the end; `execute` runs statements in it.

        Raises ours of `Session.failure`; UnreachableError says when it is not known whether it was committed.
        """
        with self.lent() as conn:
            committing = False
            try:
                conn.autocommit = False
                self.begin()
                yield
                committing = True
                self.session.begin_statement()
                conn.commit()
            except psycopg.Error as error:
                failure = self.session.failure(error)
                if committing and isinstance(failure, UnreachableError):
                    raise UnreachableError(
                        f"{failure.message}; whether the step was committed is not known",
                        hint="look at the schema version (`lockctl migrate current`) before running it again",
                    ) from None
                raise failure from None

    def execute(self, statement: str) -> None:
        """Run one statement of text, as it stands, in the transaction that is open."""
        self.session.begin_statement()
        try:
            self.session.conn.execute(statement.encode())
        except psycopg.Error as error:
            raise self.session.failure(error) from None

    def alone(self, statement: str) -> None:
        """Run one statement outside a transaction (CREATE INDEX CONCURRENTLY, VACUUM); afterwards it stands."""
        with self.lent() as conn:
            conn.autocommit = True
            try:
                self.before_alone(statement)
                self.session.begin_statement()
                conn.execute(statement.encode())
                self.after_alone(statement)
            except psycopg.Error as error:
                raise self.session.failure(error) from None

    # -- what the transactions of somebody else call (bridge) -------------------------------------------------------

    def begin(self) -> None:
        """A transaction begins on the session: its settings, the limits, and its budget of waiting."""
        self.session.settle()
        put(self.session, self.limits.lock_timeout_ms, self.limits.statement_timeout_ms)
        self.monitor.begin(self.limits.lock_timeout_ms)

    def before_alone(self, statement: str) -> None:
        """A statement outside a transaction comes: its own limits, and our INVALID index of before out of its way.

        Raises UsageError behind a pooler, where a setting would go to whoever gets the connection next.
        """
        if self.session.pooled:
            raise UsageError(
                "a statement outside a transaction needs a direct connection, and this one goes through a pooler",
                hint="connect to PostgreSQL itself for this migration",
            )
        self._altered = True
        target = indexes.target(self.session, statement)
        if target is None and not indexes.concurrent(statement):
            put(self.session, self.limits.lock_timeout_ms, self.limits.statement_timeout_ms)
            self.monitor.begin(self.limits.lock_timeout_ms)
            return
        # It makes nobody wait while it waits for old snapshots; building may take hours.
        put(self.session, self.limits.index_lock_timeout_ms or 0, None)
        self.monitor.begin(self.limits.index_lock_timeout_ms or self.policy.deadline_ms)
        if target is not None:
            self._rebuilding = target
            for name in indexes.leftovers(self.session, target):
                self.session.begin_statement()
                self.session.conn.execute(sql.SQL("DROP INDEX CONCURRENTLY {}").format(name))
                message = f"the INVALID index {name.as_string()} of an earlier try was dropped: it is built anew"
                self.notify(Event("dropped", message, self.step, self.number))
            target.others = indexes.invalid(self.session, target)

    def after_alone(self, statement: str) -> None:
        """The statement outside a transaction went through."""
        self._rebuilding = None
        if indexes.changes(statement):
            self.stands.append(indexes.summary(statement))

    # -- what an error means -----------------------------------------------------------------------------------------

    def left_behind(self) -> list[str]:
        """What the attempt has left although it failed, in words: what it committed, and a new INVALID index."""
        left = list(self.stands)
        if self._rebuilding is not None:
            try:
                found = indexes.invalid(self.monitor.watch, self._rebuilding) - self._rebuilding.others
            except LockctlError as error:
                return [*left, f"perhaps an INVALID index (can't look: {error.message})"]
            ours = self._rebuilding.index is not None
            what = "a new run drops it and builds it anew" if ours else "DROP INDEX CONCURRENTLY takes it away"
            left += [f"the INVALID index {name} ({what})" for name in sorted(found)]
        return left

    def explained(self, error: LockctlError) -> LockctlError:
        """`error` with what the monitor knows of it: who cancelled, and who stood in the way."""
        if not isinstance(error, BlockedError):
            return error
        message, cause = error.message, error.cause
        detail = message.partition("; blocked by ")[2]
        blockers = error.details.get("blockers") or list(self.monitor.blockers)
        if cause == "cancelled" and self.monitor.exceeded:
            cause = "lock"
            message = f"gave up after waiting {durations.show(self.monitor.waited_ms)} for locks together"
        elif cause == "cancelled":
            timeout = self.limits.statement_timeout_ms
            slow = timeout is not None and (clock.now() - self.session.started) * 1000 >= timeout
            message = "the statement timeout passed" if slow else "somebody cancelled the statement"
        else:
            message = message.partition("; blocked by ")[0]
        if blockers:
            message += f"; blocked by {detail or ', '.join(map(describe, blockers))}"
        notes = [blocker.note for blocker in blockers if blocker.root and blocker.note]
        return BlockedError(message, hint="; ".join(dict.fromkeys(notes)) or error.hint, cause=cause, blockers=blockers)


def put(session: Session, lock_timeout_ms: int, statement_timeout_ms: int | None) -> None:
    """Put the limits on what begins (nought: none), and read them back: they are never assumed.

    Local to the transaction where there is one, so that a pooler or a rollback carries nothing over. Raises
    LockctlError when the server shows other values.
    """
    wanted = {"lock_timeout": str(lock_timeout_ms), "statement_timeout": str(statement_timeout_ms or 0)}
    local = sql.Literal(not session.conn.autocommit)
    calls = [
        sql.SQL("set_config({}, {}, {})").format(sql.Literal(name), sql.Literal(value), local)
        for name, value in wanted.items()
    ]
    session.conn.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls)))
    shown = dict(
        session.conn.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(wanted),)).fetchall()
    )
    if shown != wanted:
        raise LockctlError(f"the limits of the migration are not in force: the server shows {shown}, not {wanted}")
