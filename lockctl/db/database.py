"""Every connection of lockctl is made by `Database.connect`, with the same settings and the same manners."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from lockctl import clock
from lockctl.db import conninfo, failures
from lockctl.db.connection import Connection, Micros
from lockctl.db.session import MARK, Sampler, Session

_LONGEST_TIMEOUT_MS = 2**31 - 1
"""What the server's timeouts take, nearly 25 days; a deadline beyond that is kept here alone."""
_PREPARE_GRACE_S = 0.2


@dataclass(slots=True)
class Database:
    """A database that a command works on; it makes every connection to it.

    `command` becomes part of `application_name`; `deadline` is the command's; `lock_timeout_ms` bounds each wait
    for a lock and `statement_timeout_ms` each statement (None: no bound of that kind). `sampler` reads who blocks
    a session, and is called while one of ours waits. `durable` False: a commit need not have reached the disk.
    """

    dsn: str
    source: str
    command: str
    connect_timeout_ms: int = 30_000
    deadline: clock.Deadline = clock.NEVER
    lock_timeout_ms: int | None = 30_000
    statement_timeout_ms: int | None = None
    sampler: Sampler | None = None
    durable: bool = True
    name: str = field(default="")

    def __post_init__(self) -> None:
        if not self.name:
            # The process comes first: PostgreSQL cuts the name at 63 bytes, and a host name is the longest part.
            host = socket.gethostname().encode("ascii", "replace").decode()[:20]
            self.name = f"lockctl {self.command} {os.getpid()}.{os.urandom(3).hex()}@{host}"

    def settings(self) -> dict[str, str]:
        """The server's settings of every session, by name."""
        settings = {
            "TimeZone": "UTC",
            "DateStyle": "ISO",
            "IntervalStyle": "postgres",
            "lock_timeout": str(min(self.lock_timeout_ms or 0, _LONGEST_TIMEOUT_MS)),
            "statement_timeout": str(min(self.statement_timeout_ms or 0, _LONGEST_TIMEOUT_MS)),
            "idle_in_transaction_session_timeout": "60000",
            "default_transaction_isolation": "read committed",
            # Measured on PostgreSQL 15: compiling the query for blockers took 3 s on two busy cores, running it 50 ms,
            # and a CREATE INDEX CONCURRENTLY waited for our snapshot meanwhile.
            "jit": "off",
        }
        if not self.durable:
            settings["synchronous_commit"] = "off"
        return settings

    def connect(self, *, read_only: bool = False, raw_times: bool = True, role: str = "") -> Session:
        """A new session in autocommit mode.

        `read_only` for commands that only read; `raw_times` gives timestamps as microseconds (`Micros`); `role`
        marks a helper session in its name. Raises UnreachableError, UsageError or DeniedError.
        """
        params = conninfo.parse(self.dsn, self.source)
        settings = self.settings()
        deadline = self._connect_deadline()
        try:
            conn = self._open(params, {**settings, MARK: "1"}, deadline, role)
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
            # Part of connecting: a server that accepts and then says nothing must not hold us longer.
            with session.within(deadline, grace=_PREPARE_GRACE_S):
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
    ) -> Connection:
        merged: dict[str, Any] = {
            "keepalives_idle": "15",
            "keepalives_interval": "5",
            "keepalives_count": "3",
            **params,
        }
        if settings is None:
            merged.pop("options", None)
        else:
            merged["options"] = conninfo.startup_options(params, settings)
        merged["application_name"] = f"{self.name} {role}".strip()
        merged["client_encoding"] = "UTF8"
        if "connect_timeout" not in params and "PGCONNECT_TIMEOUT" not in os.environ:
            merged["connect_timeout"] = str(max(2, math.ceil(deadline.remaining() or 2)))
        bounded: type[Connection] = type("_Bounded", (Connection,), {"connect_deadline": deadline})
        conn = bounded.connect("", autocommit=True, prepare_threshold=None, **merged)
        conn.add_notice_handler(lambda _diag: None)
        return conn

    def watcher(self) -> Session:
        """A session for looking while another one waits: read-only, short, and itself never sampled."""
        aside = Database(
            dsn=self.dsn,
            source=self.source,
            command=self.command,
            connect_timeout_ms=2_000,
            lock_timeout_ms=1_000,
            statement_timeout_ms=2_000,
            name=self.name,
        )
        return aside.connect(read_only=True, role="watch")
