"""Sessions: statements on one connection, with the same settings whatever stands between us and the server.

Settings go in as startup options (no extra round trip). A pooler in transaction mode refuses them, or drops them
silently: then the same settings are made inside every transaction. Nothing is ever prepared, so that a pooler may
hand each transaction to another server connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from lockctl import clock
from lockctl.db import failures, refusals
from lockctl.db.connection import Connection
from lockctl.db.percents import percents
from lockctl.db.refusals import Needs
from lockctl.errors import BlockedError, DeniedError, LockctlError, UnreachableError, UsageError

if TYPE_CHECKING:
    from lockctl.db.database import Database
    from lockctl.records import Blocker

Query = sql.Composable | str
Params = Sequence[Any] | Mapping[str, Any] | None
Sampler = Callable[["Session", int], "list[Blocker]"]

MARK = "lockctl.session"
_NEWER = {
    # The server gives up a statement whose client is gone. A holder of leases is idle for a third of its TTL.
    140000: (("client_connection_check_interval", "2s"), ("idle_session_timeout", "0")),
    170000: (("transaction_timeout", "0"),),
}
"""Settings by the version that brought them: as startup options they would be fatal where they are unknown."""
_READ_ONLY = ("default_transaction_read_only", "on")
"""Only ever tightened: a role that is read-only by default stays so. No startup option either: libpq would take the
server for read-only, and choose the wrong one of several by target_session_attrs."""
_FIRST_SAMPLE = 0.2
_NEXT_SAMPLE = 0.5
_CANCEL_GRACE = 3.0


class Session:
    """One connection. Statements run in autocommit, or grouped by `transaction`; failures come out as our errors."""

    def __init__(self, database: Database, conn: Connection, settings: Mapping[str, str], read_only: bool) -> None:
        self.database = database
        self.conn = conn
        self.settings = dict(settings)
        self.read_only = read_only
        self.pooled = False
        self.blockers: list[Blocker] = []
        self._pid: int | None = None
        self._watch: Session | None = None
        self._in_transaction = False
        self._borrower: Callable[[], None] | None = None
        self.started = 0.0
        self._sample_at = 0.0
        self._cancelled_at: float | None = None
        self._deadline = database.deadline
        self._cancel_grace = _CANCEL_GRACE
        self._samples = database.sampler is not None
        conn.on_wait = self._tick
        conn.on_resume = self._resumed

    # -- making the session ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read back whether the startup options arrived, and set what can't be one of them."""
        mark = sql.SQL("current_setting({}, true)").format(sql.Literal(MARK))
        version = self.conn.info.server_version
        pairs = [pair for since, newer in _NEWER.items() if version >= since for pair in newer]
        if self.read_only:
            pairs.append(_READ_ONLY)
        calls = [sql.SQL("set_config({}, {}, false)").format(*map(sql.Literal, pair)) for pair in pairs]
        check = sql.SQL("CASE WHEN {} = '1' THEN ARRAY[{}]::text[] END").format(mark, sql.SQL(", ").join(calls))
        self.conn.on_wait = self._tick
        self.begin_statement()
        try:
            row = self.conn.execute(sql.SQL("SELECT {}, {}").format(mark, check)).fetchone()
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidParameterValue):
            row = ("1", None)  # one of them is not available on this server's platform
            if self.read_only:
                self.conn.execute("SELECT set_config(%s, %s, false)", _READ_ONLY)
        except psycopg.Error as error:
            raise self.failure(error, None) from None
        self.pooled = row is None or row[0] != "1"
        if self.pooled:
            self.conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            self.conn.read_only = self.read_only
        elif self.conn.info.parameter_status("TimeZone") != "UTC" or not str(
            self.conn.info.parameter_status("DateStyle")
        ).startswith("ISO"):
            # PGTZ and PGDATESTYLE win over startup options.
            self.conn.execute("SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO', false)")

    @property
    def server_version(self) -> int:
        """As PostgreSQL numbers it: 150018 for 15.18."""
        return self.conn.info.server_version

    @property
    def pid(self) -> int:
        """The server process behind this session; through a pooler, that of the running transaction."""
        if self.pooled:
            return self._pid or 0
        return self.conn.info.backend_pid

    @property
    def closed(self) -> bool:
        return self.conn.closed or self.conn.broken

    def close(self) -> None:
        """End the connection, and the helper that watched it."""
        if self._watch is not None:
            self._watch.close()
        with suppress(psycopg.Error):
            self.conn.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def limit(self, deadline: clock.Deadline) -> None:
        """From now on statements end by `deadline`."""
        self._deadline = deadline

    @contextmanager
    def within(self, deadline: clock.Deadline, *, grace: float = _CANCEL_GRACE, sample: bool = True) -> Iterator[None]:
        """Statements inside end by `deadline` instead of the command's: cancelled in the server, and where that does
        not answer within `grace` seconds, with the connection. Without `sample` nobody looks who blocks them, which
        can take seconds on a network that is stuck."""
        former = self._deadline, self._cancel_grace, self._samples
        self._deadline, self._cancel_grace, self._samples = deadline, grace, sample
        try:
            yield
        finally:
            self._deadline, self._cancel_grace, self._samples = former

    # -- lending -------------------------------------------------------------------------------------------------

    @contextmanager
    def lend(self, tick: Callable[[], None] | None = None) -> Iterator[Connection]:
        """The connection, for somebody who makes the transactions on it (SQLAlchemy, an attempt of a migration).

        The borrower calls `settle` when a transaction begins, `begin_statement` before each statement, and `failure`
        for what psycopg raises. `tick` is called ten times a second while a statement waits, and takes the place of
        our own look at who blocks it; it may set `blockers`. Queries of the session's own join the transaction.
        Afterwards nothing is open, and the session is in autocommit again, or closed where that failed.
        """
        self._borrower = tick
        try:
            yield self.conn
        finally:
            self._borrower = None
            self._in_transaction = False
            try:
                self.conn.rollback()
                self.conn.autocommit = True
            except psycopg.Error:
                # A statement that was left in the middle: the server undoes it when the connection goes.
                self.conn.close()

    def settle(self) -> None:
        """A transaction of the borrower begins: make the settings that a pooler does not keep."""
        if self.pooled:
            self._settings_in_transaction()
        self._in_transaction = True

    # -- statements ----------------------------------------------------------------------------------------------

    def query(self, statement: Query, params: Params = None, *, needs: Needs | None = None) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows (an empty list for a statement without rows)."""
        self.begin_statement()
        try:
            if self.pooled and not self._in_transaction:
                with self.conn.transaction():
                    self._settings_in_transaction()
                    return self._execute(statement, params)
            return self._execute(statement, params)
        except psycopg.Error as error:
            raise self.failure(error, needs) from None
        except UnicodeEncodeError as error:
            raise UsageError(f"{error.object!a} is not valid UTF-8") from None

    def one(self, statement: Query, params: Params = None, *, needs: Needs | None = None) -> tuple[Any, ...]:
        """The only row of a statement that always has one."""
        return self.query(statement, params, needs=needs)[0]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of a few statements; never wait for anything but the database inside."""
        self.begin_statement()
        try:
            with self.conn.transaction():
                self._in_transaction = True
                if self.pooled:
                    self._settings_in_transaction()
                yield
        except psycopg.Error as error:
            raise self.failure(error, None) from None
        finally:
            self._in_transaction = False

    def _execute(self, statement: Query, params: Params) -> list[tuple[Any, ...]]:
        if params is not None and isinstance(statement, sql.Composable):
            statement = percents(statement)
        with self.conn.cursor(binary=True) as cursor:
            cursor.execute(statement, params)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def _settings_in_transaction(self) -> None:
        calls = [
            sql.SQL("set_config({}, {}, true)").format(sql.Literal(name), sql.Literal(value))
            for name, value in self.settings.items()
            if not name.startswith("default_transaction")
        ]
        row = self.conn.execute(sql.SQL("SELECT pg_backend_pid(), {}").format(sql.SQL(", ").join(calls))).fetchone()
        self._pid = row[0] if row else None

    # -- while waiting -------------------------------------------------------------------------------------------

    def begin_statement(self) -> None:
        """The clocks of a statement start: when to look who blocks it, and its deadline."""
        self.blockers = []
        self.started = clock.now()
        self._sample_at = self.started + _FIRST_SAMPLE
        self._cancelled_at = None

    def _tick(self) -> None:
        now = clock.now()
        if self._cancelled_at is not None:
            if now > self._cancelled_at + self._cancel_grace:
                # The server does not even answer the cancel: nothing will come over this connection.
                self.conn.pgconn.finish()
                raise psycopg.OperationalError("the server stopped answering")
            return
        if self._borrower is not None:
            self._borrower()
        elif now >= self._sample_at or (self._deadline.passed and not self.blockers):
            self._sample_at = now + _NEXT_SAMPLE
            self._sample()
        if self._deadline.passed:
            self._cancelled_at = now
            with suppress(psycopg.Error):
                self.conn.cancel_safe(timeout=self._cancel_grace)

    def _resumed(self) -> None:
        # A signal came, and psycopg has tried to cancel: what remains is bounded like a cancel of our own.
        self._cancelled_at = clock.now()

    def _sample(self) -> None:
        """Remember who blocks us now: after the error it is too late to ask."""
        if self.database.sampler is None or not self._samples or not self.pid:
            return
        with suppress(LockctlError):
            if self._watch is None or self._watch.closed:
                self._watch = self.database.watcher()
            if found := self.database.sampler(self._watch, self.pid):
                self.blockers = found

    # -- failures ------------------------------------------------------------------------------------------------

    def failure(self, error: psycopg.Error, needs: Needs | None = None) -> LockctlError:
        """The error of ours for what a statement on this connection raised."""
        failure = failures.translate(error, closed=self.closed)
        if isinstance(failure, BlockedError):
            passed = f"the deadline passed{self._whose_deadline}" if self._cancelled_at is not None else None
            return refusals.blocked(failure, self.blockers, passed)
        if isinstance(failure, DeniedError) and needs is not None and not self.closed:
            return refusals.denied(self, failure, needs)
        if isinstance(failure, UnreachableError) and self._cancelled_at is not None:
            return UnreachableError(f"the server did not answer{self._whose_deadline}")
        return failure

    @property
    def _whose_deadline(self) -> str:
        return " (--timeout)" if self._deadline is self.database.deadline else ""
