"""Sessions: every connection of lockctl is made by `Database.connect`, with the same settings and the same manners.

Settings go in as startup options (no extra round trip). A pooler in transaction mode refuses them, or drops them
silently: then the same settings are made inside every transaction. Nothing is ever prepared, so that a pooler may
hand each transaction to another server connection.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import pq, sql
from psycopg.adapt import Loader

from lockctl import clock
from lockctl.db import conninfo, failures
from lockctl.errors import BlockedError, DeniedError, LockctlError, UnreachableError
from lockctl.records import Blocker

Query = sql.Composable | str
Params = Sequence[Any] | Mapping[str, Any] | None
Sampler = Callable[["Session", int], list[Blocker]]

_MARK = "lockctl.session"
_FIRST_SAMPLE = 0.2
_NEXT_SAMPLE = 0.5
_CANCEL_GRACE = 3.0
_PG_EPOCH = 946_684_800_000_000
_TICK = 0.1


class Micros(Loader):
    """A binary timestamp as microseconds since 1970 UTC; a zoneless one is taken as UTC; ±infinity as floats.

    Exact, independent of the session's DateStyle and TimeZone, and without the year limits of `datetime`.
    """

    format = pq.Format.BINARY
    _unpack = struct.Struct("!q").unpack

    def load(self, data: Any) -> float:
        value: int = self._unpack(data)[0]
        if value == 0x7FFFFFFFFFFFFFFF:
            return math.inf
        if value == -0x8000000000000000:
            return -math.inf
        return value + _PG_EPOCH


class _Connection(psycopg.Connection[tuple[Any, ...]]):
    """psycopg's connection, whose waits call back ten times a second: for deadlines, and to see who blocks us."""

    connect_deadline = clock.NEVER
    on_wait: Callable[[], None] | None = None

    @classmethod
    def _connect_gen(cls, conninfo: str = "", **kwargs: Any) -> Generator[Any, Any, Any]:
        # psycopg rounds connect_timeout up to two seconds; the deadline of a command is exact.
        def expire() -> None:
            if cls.connect_deadline.passed:
                raise psycopg.errors.ConnectionTimeout("connection timeout expired")

        return _ticking(super()._connect_gen(conninfo, **kwargs), expire)

    def wait(self, gen: Any, interval: float = _TICK, timeout: float | None = None) -> Any:
        if self.on_wait is not None:
            gen = _ticking(gen, self.on_wait)
        return super().wait(gen, interval, timeout)


def _ticking(gen: Generator[Any, Any, Any], tick: Callable[[], None]) -> Generator[Any, Any, Any]:
    """`gen`, calling `tick` each time that the wait under it timed out with nothing to read."""
    state = next(gen, _DONE := object())
    if state is _DONE:
        return None
    try:
        while True:
            ready = yield state
            if not ready:
                tick()
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value


@dataclass(frozen=True, slots=True)
class Needs:
    """The privileges that a statement needs on a table, to name the missing one when the server refuses."""

    relation: str
    oid: int
    privileges: tuple[str, ...]


@dataclass(slots=True)
class Database:
    """A database that a command works on; it makes every connection to it.

    `command` becomes part of `application_name`; `deadline` is the command's; `lock_timeout_ms` bounds each wait
    for a lock and `statement_timeout_ms` each statement (None: no bound of that kind). `sampler` reads who blocks
    a session, and is called while one of ours waits.
    """

    dsn: str
    source: str
    command: str
    connect_timeout_ms: int = 30_000
    deadline: clock.Deadline = clock.NEVER
    lock_timeout_ms: int | None = 30_000
    statement_timeout_ms: int | None = None
    sampler: Sampler | None = None
    name: str = field(default="")

    def __post_init__(self) -> None:
        if not self.name:
            # The process comes first: PostgreSQL cuts the name at 63 bytes, and a host name is the longest part.
            host = socket.gethostname().encode("ascii", "replace").decode()[:20]
            self.name = f"lockctl {self.command} {os.getpid()}.{secrets.token_hex(3)}@{host}"

    def settings(self, *, read_only: bool) -> dict[str, str]:
        """The server's settings of every session, by name."""
        settings = {
            "TimeZone": "UTC",
            "DateStyle": "ISO",
            "IntervalStyle": "postgres",
            "lock_timeout": str(self.lock_timeout_ms or 0),
            "statement_timeout": str(self.statement_timeout_ms or 0),
            "idle_in_transaction_session_timeout": "60000",
            "default_transaction_isolation": "read committed",
        }
        if read_only:
            # Only ever tightened: a role that is read-only by default stays so.
            settings["default_transaction_read_only"] = "on"
        return settings

    def connect(self, *, read_only: bool = False, raw_times: bool = True, role: str = "") -> Session:
        """A new session in autocommit mode.

        `read_only` for commands that only read; `raw_times` gives timestamps as microseconds (`Micros`); `role`
        marks a helper session in its name. Raises UnreachableError, UsageError or DeniedError.
        """
        params = conninfo.parse(self.dsn, self.source)
        settings = self.settings(read_only=read_only)
        deadline = self._connect_deadline()
        try:
            conn = self._open(params, {**settings, _MARK: "1"}, deadline, role)
        except psycopg.Error as error:
            if "unsupported startup parameter" not in str(error):
                raise failures.connect_failure(error, self.source) from None
            try:
                conn = self._open(params, None, deadline, role)
            except psycopg.Error as again:
                raise failures.connect_failure(again, self.source) from None
        if raw_times:
            conn.adapters.register_loader("timestamptz", Micros)
            conn.adapters.register_loader("timestamp", Micros)
        session = Session(self, conn, settings, read_only)
        try:
            session.prepare()
        except BaseException:
            session.close()
            raise
        return session

    def _connect_deadline(self) -> clock.Deadline:
        own = clock.Deadline.after(self.connect_timeout_ms)
        if self.deadline.at is None or own.at is None:
            return own
        return clock.Deadline(min(own.at, self.deadline.at))

    def _open(
        self, params: Mapping[str, str], settings: Mapping[str, str] | None, deadline: clock.Deadline, role: str
    ) -> _Connection:
        merged: dict[str, str] = {"keepalives_idle": "15", "keepalives_interval": "5", "keepalives_count": "3", **params}
        if settings is None:
            merged.pop("options", None)
        else:
            merged["options"] = conninfo.startup_options(params, settings)
        merged["application_name"] = f"{self.name} {role}".strip()
        merged["client_encoding"] = "UTF8"
        if "connect_timeout" not in params and "PGCONNECT_TIMEOUT" not in os.environ:
            merged["connect_timeout"] = str(max(2, math.ceil(deadline.remaining() or 2)))
        bounded = type("_Bounded", (_Connection,), {"connect_deadline": deadline})
        conn: _Connection = bounded.connect("", autocommit=True, prepare_threshold=None, **merged)
        conn.add_notice_handler(lambda _diag: None)
        return conn


class Session:
    """One connection. Statements run in autocommit, or grouped by `transaction`; failures come out as our errors."""

    def __init__(self, database: Database, conn: _Connection, settings: Mapping[str, str], read_only: bool) -> None:
        self.database = database
        self.conn = conn
        self.settings = dict(settings)
        self.read_only = read_only
        self.pooled = False
        self.blockers: list[Blocker] = []
        self._pid: int | None = None
        self._watch: Session | None = None
        self._in_transaction = False
        self._started = 0.0
        self._sample_at = 0.0
        self._cancelled_at: float | None = None
        conn.on_wait = self._tick

    # -- making the session ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Read back whether the startup options arrived, and set what can't be one of them."""
        mark = sql.SQL("current_setting({}, true)").format(sql.Literal(_MARK))
        check = (
            # The server gives up a statement whose client is gone; a startup option would be fatal where unknown.
            sql.SQL("CASE WHEN {mark} = '1' THEN set_config('client_connection_check_interval', '2s', false) END")
            if self.conn.info.server_version >= 140000
            else sql.SQL("NULL")
        ).format(mark=mark)
        self.conn.on_wait = self._tick
        self._begin_statement()
        try:
            row = self.conn.execute(sql.SQL("SELECT {}, {}").format(mark, check)).fetchone()
        except psycopg.errors.FeatureNotSupported:
            row = ("1", None)
        except psycopg.errors.InvalidParameterValue:
            row = ("1", None)  # not available on this server's platform
        except psycopg.Error as error:
            raise self._failure(error, None) from None
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

    # -- statements ----------------------------------------------------------------------------------------------

    def query(self, statement: Query, params: Params = None, *, needs: Needs | None = None) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows (an empty list for a statement without rows)."""
        self._begin_statement()
        try:
            if self.pooled and not self._in_transaction:
                with self.conn.transaction():
                    self._settings_in_transaction()
                    return self._execute(statement, params)
            return self._execute(statement, params)
        except psycopg.Error as error:
            raise self._failure(error, needs) from None

    def one(self, statement: Query, params: Params = None, *, needs: Needs | None = None) -> tuple[Any, ...]:
        """The only row of a statement that always has one."""
        return self.query(statement, params, needs=needs)[0]

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction of a few statements; never wait for anything but the database inside."""
        self._begin_statement()
        try:
            with self.conn.transaction():
                self._in_transaction = True
                if self.pooled:
                    self._settings_in_transaction()
                yield
        except psycopg.Error as error:
            raise self._failure(error, None) from None
        finally:
            self._in_transaction = False

    def _execute(self, statement: Query, params: Params) -> list[tuple[Any, ...]]:
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

    def _begin_statement(self) -> None:
        self.blockers = []
        self._started = clock.now()
        self._sample_at = self._started + _FIRST_SAMPLE
        self._cancelled_at = None

    def _tick(self) -> None:
        now = clock.now()
        if self._cancelled_at is not None:
            if now > self._cancelled_at + _CANCEL_GRACE:
                # The server does not even answer the cancel: nothing will come over this connection.
                self.conn.pgconn.finish()
                raise psycopg.OperationalError("the server stopped answering")
            return
        if now >= self._sample_at:
            self._sample_at = now + _NEXT_SAMPLE
            self._sample()
        if self.database.deadline.passed:
            self._cancelled_at = now
            with suppress(psycopg.Error):
                self.conn.cancel_safe(timeout=_CANCEL_GRACE)

    def _sample(self) -> None:
        """Remember who blocks us now: after the error it is too late to ask."""
        if self.database.sampler is None or not self.pid:
            return
        with suppress(LockctlError):
            if self._watch is None or self._watch.closed:
                self._watch = watcher(self.database)
            if found := self.database.sampler(self._watch, self.pid):
                self.blockers = found

    # -- failures ------------------------------------------------------------------------------------------------

    def _failure(self, error: psycopg.Error, needs: Needs | None) -> LockctlError:
        failure = failures.translate(error, closed=self.closed)
        if isinstance(failure, BlockedError):
            return self._blocked(failure)
        if isinstance(failure, DeniedError) and needs is not None and not self.closed:
            return self._denied(failure, needs)
        if isinstance(failure, UnreachableError) and self._cancelled_at is not None:
            return UnreachableError("the deadline passed and the server did not answer (--timeout)")
        return failure

    def _blocked(self, failure: BlockedError) -> BlockedError:
        message = "the deadline passed (--timeout)" if self._cancelled_at is not None else failure.message
        if self.blockers:
            message += "; blocked by " + ", ".join(describe(blocker) for blocker in self.blockers)
        return BlockedError(message, hint="see `lockctl blockers`", blockers=list(self.blockers))

    def _denied(self, failure: DeniedError, needs: Needs) -> DeniedError:
        with suppress(LockctlError):
            asked = ", ".join(f"'{privilege}'" for privilege in needs.privileges)
            rows = self.query(
                f"SELECT p, current_user::text FROM unnest(ARRAY[{asked}]::text[]) AS p"
                " WHERE NOT has_table_privilege(%s::oid, p)",
                (needs.oid,),
            )
            if rows:
                missing, role = ", ".join(row[0] for row in rows), rows[0][1]
                return DeniedError(
                    f"role {role} lacks {missing} on {needs.relation}",
                    hint=f'the owner can run: GRANT {missing} ON {needs.relation} TO "{role}"',
                )
        if "schema" in failure.message:
            schema = needs.relation.rpartition(".")[0]
            return DeniedError(f"{failure.message}: USAGE on schema {schema} is missing", hint=failure.hint)
        return failure


def watcher(database: Database) -> Session:
    """A session for looking while another one waits: read-only, short, and itself never sampled."""
    aside = Database(
        dsn=database.dsn,
        source=database.source,
        command=database.command,
        connect_timeout_ms=2_000,
        lock_timeout_ms=1_000,
        statement_timeout_ms=2_000,
        name=database.name,
    )
    return aside.connect(read_only=True, role="watch")


def describe(blocker: Blocker) -> str:
    """A blocking session in a few words: pid, user, application, state and the age of its transaction."""
    from lockctl import durations

    if blocker.kind == "prepared":
        return f"prepared transaction {blocker.gid!r} (end it with ROLLBACK PREPARED)"
    words = [blocker.user or "?", blocker.application or "no application name", blocker.state or blocker.kind]
    if blocker.xact_age_ms is not None:
        words.append(f"transaction open for {durations.show(blocker.xact_age_ms)}")
    return f"pid {blocker.pid} ({', '.join(words)})"
