"""Is everything in order for lockctl here? Connection, clocks, privileges, tables, pooler, standby, schema version.

Only reads. A check that can't be made says so as a warning and does not stop the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg.sql import SQL, Identifier

from lockctl import durations
from lockctl.catalog import Catalog
from lockctl.db import Session, refusals
from lockctl.errors import BehindError, DeniedError, LockctlError, UnreachableError
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import Found, look

# What the lock verbs need on a table: acquire and force-expire lock rows, release and sweep delete them.
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
_SKEW_MS = 2_000
_OLD_TRANSACTION_MS = 300_000


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: `status` is `ok`, `warn` or `fail`, and `fix` what to do about it."""

    check: str
    status: str
    detail: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined: a read-only session, the catalogue, the schema to look in, and what named the database."""

    session: Session
    catalog: Catalog
    schema: str | None
    source: str


def examine(patient: Patient) -> Iterator[tuple[Check, int]]:
    """Every finding, with the exit code that stands for a `fail` (0 otherwise), as it is made."""
    for name, part in _PARTS:
        try:
            for check in part(patient):
                yield check, _code(check)
        except UnreachableError:
            raise
        except LockctlError as error:
            yield Check(name, "warn", f"could not be checked: {error.message}", error.hint), 0


def _code(check: Check) -> int:
    if check.status != "fail":
        return 0
    for prefix, error in (("privileges", DeniedError), ("standby", UnreachableError)):
        if check.check.startswith(prefix):
            return error.code
    return BehindError.code if check.check.startswith(("table", "schema")) else LockctlError.code


def _connection(patient: Patient) -> Iterator[Check]:
    session = patient.session
    version, role, database = session.one(
        "SELECT current_setting('server_version'), current_user::text, current_database()::text"
    )
    yield Check("connection", "ok", f"PostgreSQL {version}, database {database}, role {role}, from {patient.source}")
    if session.server_version < 120000:
        yield Check(
            "server version", "fail", f"PostgreSQL {version} is too old", "lockctl needs PostgreSQL 12 or newer"
        )


def _pooler(patient: Patient) -> Iterator[Check]:
    if patient.session.pooled:
        yield Check(
            "pooler",
            "warn",
            "the connection goes through a pooler in transaction mode: settings are made in each transaction",
            "lock verbs work; run `migrate` over a direct connection",
        )
    else:
        yield Check("pooler", "ok", "a direct connection: startup options arrived")


def _standby(patient: Patient) -> Iterator[Check]:
    recovering, read_only = patient.session.one(
        "SELECT pg_is_in_recovery(),"
        " coalesce((SELECT setting FROM pg_db_role_setting AS s CROSS JOIN LATERAL unnest(s.setconfig) AS setting"
        " WHERE setting LIKE 'default_transaction_read_only=on' LIMIT 1), '') <> ''"
    )
    if recovering:
        yield Check(
            "standby",
            "warn",
            "the server is a standby: only reading works",
            "name the primary, or add target_session_attrs",
        )
    elif read_only:
        yield Check(
            "standby", "warn", "a role or database here is read-only by default", "see default_transaction_read_only"
        )
    else:
        yield Check("standby", "ok", "the server takes writes")


def _clock(patient: Patient) -> Iterator[Check]:
    before = time.time()
    (moment,) = patient.session.one("SELECT clock_timestamp()")
    after = time.time()
    skew_ms = round((moment / 1_000_000 - (before + after) / 2) * 1000)
    detail = (
        f"the server's clock is {durations.show(abs(skew_ms))} {'ahead of' if skew_ms > 0 else 'behind'} this machine's"
    )
    if abs(skew_ms) <= _SKEW_MS:
        yield Check("clock", "ok", detail)
    else:
        yield Check(
            "clock",
            "warn",
            detail,
            "lockctl decides by the server's clock alone; applications that use their own (n8n, Verrou) need NTP",
        )


def _tables(patient: Patient) -> Iterator[Check]:
    found = look(patient.session, list(patient.catalog.tables.values()), patient.schema)
    for entry in found:
        if not entry.present:
            yield Check(f"table {entry.table.name}", "ok", "not in this database")
            continue
        yield from _table(patient, entry)


def _table(patient: Patient, found: Found) -> Iterator[Check]:
    name = found.table.name
    try:
        table = LockedTable.of(found.shape())
    except BehindError as error:
        yield Check(f"table {name}", "fail", error.message, error.hint)
        return
    shape = table.shape
    yield Check(f"table {name}", "ok", f"{shape.relation}: its columns are as expected ({shape.expires.shown})")
    yield _privileges(patient.session, table)
    if shape.updated is not None and shape.table.renew_every_ms is not None:
        yield from _owner_clock(patient.session, table)


def _privileges(session: Session, table: LockedTable) -> Check:
    check = f"privileges {table.shape.table.name}"
    role, lacks, grant = refusals.missing(session, table.needs(*PRIVILEGES))
    if not lacks:
        return Check(check, "ok", f"{role} may {', '.join(PRIVILEGES)}")
    return Check(check, "fail" if "SELECT" in lacks else "warn", f"{role} lacks {', '.join(lacks)}", grant)


def _owner_clock(session: Session, table: LockedTable) -> Iterator[Check]:
    """The owner writes the expiry by its own clock and `updated` by the database's: they tell its skew."""
    shape = table.shape
    assert shape.updated is not None
    if shape.expires.type != "timestamptz" or shape.updated.type != "timestamptz":
        return
    # The TTL is what the owner wrote last time; a row that was force-expired says nothing.
    rows = session.query(
        SQL(
            "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM e - u) * 1000)::int8"
            " FROM (SELECT {} AS e, {} AS u FROM {} LIMIT 1000) AS t WHERE e > u"
        ).format(Identifier(shape.expires.name), Identifier(shape.updated.name), shape.identifier),
        needs=table.needs("SELECT"),
    )
    if rows[0][0] is None:
        return
    skew_ms = int(rows[0][0]) - shape.table.default_ttl_ms
    check = f"clock of {shape.table.name}"
    side = "later" if skew_ms > 0 else "earlier"
    detail = f"its owner's expiries are {durations.show(abs(skew_ms))} {side} than its TTL says"
    if abs(skew_ms) > _SKEW_MS:
        yield Check(check, "warn", detail, "the application's clock and the database's may differ: check NTP on both")
    else:
        yield Check(check, "ok", detail)


def _visibility(patient: Patient) -> Iterator[Check]:
    (sees,) = patient.session.one(
        "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')"
        " OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)"
    )
    if sees:
        yield Check("blockers", "ok", "the queries of all sessions can be seen")
    else:
        yield Check("blockers", "warn", "the queries of other roles are hidden", "GRANT pg_read_all_stats TO this role")


def _transactions(patient: Patient) -> Iterator[Check]:
    rows = patient.session.query(
        "SELECT pid, usename::text, state, (extract(epoch FROM clock_timestamp() - xact_start) * 1000)::int8"
        " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND xact_start < clock_timestamp() - %s * interval '1 ms' ORDER BY xact_start LIMIT 3",
        (_OLD_TRANSACTION_MS,),
    )
    prepared = patient.session.query(
        "SELECT gid, (extract(epoch FROM clock_timestamp() - prepared) * 1000)::int8 FROM pg_prepared_xacts"
        " WHERE database = current_database() ORDER BY prepared LIMIT 3"
    )
    old = [f"pid {pid} ({user}, {state}) for {durations.show(age)}" for pid, user, state, age in rows]
    old += [f"prepared transaction {gid} for {durations.show(age)}" for gid, age in prepared]
    if old:
        yield Check("old transactions", "warn", "open: " + "; ".join(old), "a migration would wait behind them")
    else:
        yield Check("old transactions", "ok", f"none is older than {durations.show(_OLD_TRANSACTION_MS)}")


def _schema(patient: Patient) -> Iterator[Check]:
    from lockctl.migrations import operations

    found = operations.verify(patient.session, schema=patient.schema, catalog=patient.catalog)
    if not found.found and found.outcome == "behind":
        yield Check("schema version", "ok", "no component of lockctl's own is installed")
    elif found.outcome == "current":
        yield Check("schema version", "ok", f"at {', '.join(found.found)}")
    else:
        fix = "lockctl migrate upgrade" if found.outcome == "behind" else "use the lockctl that made it"
        yield Check("schema version", "fail", found.detail or found.outcome, fix)


_PARTS: tuple[tuple[str, Callable[[Patient], Iterator[Check]]], ...] = (
    ("connection", _connection),
    ("pooler", _pooler),
    ("standby", _standby),
    ("clock", _clock),
    ("tables", _tables),
    ("blockers", _visibility),
    ("old transactions", _transactions),
    ("schema version", _schema),
)
