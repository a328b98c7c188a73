"""Every lock table of the catalogue, in every way in which such a table comes to be, ready to be worked on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from lockctl.catalog import LockTable, split_relation
from lockctl.config import load
from lockctl.db import Database, Session
from lockctl.leases import operations
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from tests.support.cli import Result, run_lockctl
from tests.support.tables import FOREIGN, Conn, Variant

SHEDLOCK = """
[tables.shedlock]
relation = "shedlock"
key = ["name"]
holder = "locked_by"
expires = "lock_until"
created = "locked_at"
default_ttl = "5m"
"""

_BATCHES = """
[tables.batches]
relation = 'ops."Batch Locks"'
key = ["site", "no"]
holder = "who"
expires = "until"
updated = "touched"
"""


def _shedlock(conn: Conn) -> None:
    """ShedLock's table, from its own documentation."""
    conn.execute(
        "CREATE TABLE shedlock (name varchar(64) NOT NULL PRIMARY KEY, lock_until timestamp(3) NOT NULL,"
        " locked_at timestamp(3) NOT NULL, locked_by varchar(255) NOT NULL)"
    )


def _batches(conn: Conn) -> None:
    """Nobody's table: names that need quotes, a blank-padded key, a domain, whole seconds."""
    conn.execute("CREATE SCHEMA ops")
    conn.execute("CREATE DOMAIN ops.who AS varchar(60)")
    conn.execute(
        'CREATE TABLE ops."Batch Locks" (site char(12) NOT NULL, no varchar(12) NOT NULL, who ops.who NOT NULL,'
        " until timestamptz(0) NOT NULL, touched timestamptz, UNIQUE (no, site))"
    )


def _nothing(_conn: Conn) -> None:
    """The migrations have made it."""


OURS = (
    Variant("ours-ffdb", "ffdb_locks", "public.ffdb_locks", _nothing),
    Variant("ours-n8n", "agent_task_run_lock", "public.agent_task_run_lock", _nothing, keys=2, uuid_holder=True),
    Variant("ours-verrou", "verrou", "public.verrou", _nothing),
    Variant("ours-run-leases", "run_leases", "run_store.leases", _nothing),
)
CONFIGURED = (
    Variant("shedlock", "shedlock", "public.shedlock", _shedlock, config=SHEDLOCK),
    Variant("batches", "batches", 'ops."Batch Locks"', _batches, keys=2, config=_BATCHES),
)
ALL: Sequence[Variant] = (*OURS, *FOREIGN, *CONFIGURED)


@dataclass(frozen=True, slots=True)
class Place:
    """A database in which a variant's table is."""

    variant: Variant
    dsn: str
    config: Path | None

    def description(self) -> LockTable:
        return load(str(self.config) if self.config else "/dev/null").catalog.get(self.variant.table)

    def database(self, dsn: str | None = None, **settings: Any) -> Database:
        return Database(dsn=dsn or self.dsn, source="the tests", command="test", **settings)

    @contextmanager
    def open(self, dsn: str | None = None, **settings: Any) -> Iterator[tuple[Session, LockedTable]]:
        """A session of lockctl's, and the table as it found it."""
        with self.database(dsn, **settings).connect() as session:
            yield session, LockedTable.of(describe(session, self.description(), None))

    def connect(self) -> Conn:
        """A connection that knows nothing of lockctl, in autocommit and UTC."""
        return psycopg.connect(self.dsn, autocommit=True, options="-c TimeZone=UTC")

    def rows(self) -> list[tuple[Any, ...]]:
        """The whole table as it is stored."""
        with self.connect() as conn:
            return conn.execute(sql.SQL("SELECT t::text FROM {} AS t ORDER BY 1").format(self.relation)).fetchall()

    @property
    def relation(self) -> sql.Composable:
        schema, name = split_relation(self.variant.relation)
        assert schema is not None
        return sql.Identifier(schema, name)

    @property
    def expiry(self) -> sql.Identifier:
        return sql.Identifier(self.description().expires)

    def age(self, seconds: float, word: str | None = None) -> None:
        """Move the expiry of every row (or that of `word`) back, in the table's own type."""
        table = self.description()
        with self.connect() as conn:
            kind = conn.execute(
                sql.SQL("SELECT pg_typeof({})::text FROM {} LIMIT 1").format(self.expiry, self.relation)
            ).fetchone()
            assert kind is not None, "there is no row to age"
            step = sql.SQL("%(ms)s::int8") if kind[0] == "bigint" else sql.SQL("%(ms)s * interval '1 millisecond'")
            conn.execute(
                sql.SQL("UPDATE {} SET {} = {} - {} WHERE %(word)s::text IS NULL OR {}::text = %(word)s").format(
                    self.relation, self.expiry, self.expiry, step, sql.Identifier(table.key[-1])
                ),
                {"ms": int(seconds * 1000), "word": word},
            )

    def fill(self, session: Session, table: LockedTable, words: Sequence[str], ttl_ms: int = 3_600_000) -> None:
        """A lease for each of `words`."""
        for word in words:
            held = operations.acquire(session, table, self.variant.key(word), self.variant.holder(word), ttl_ms)
            assert held.outcome == "acquired"

    def cli(self, *args: str, **options: Any) -> Result:
        """lockctl on this database with this configuration; `TABLE` stands for the table's name."""
        config = ("--config", str(self.config)) if self.config else ()
        words = [self.variant.table if arg == "TABLE" else arg for arg in args]
        return run_lockctl(*config, *words, **{"dsn": self.dsn, **options})


def lay(variant: Variant, dsn: str, folder: Path) -> Place:
    """Make the table of `variant` in the database `dsn`, and its configuration in `folder`."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        variant.make(conn)
    if not variant.config:
        return Place(variant, dsn, None)
    config = folder / "lockctl.toml"
    config.write_text(variant.config)
    return Place(variant, dsn, config)
