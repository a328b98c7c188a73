"""What is looked at before somebody else's migration command is started: each finding in clear words.

What makes the run senseless raises; what the command may still get past is a warning, told as an event.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from lockctl import durations
from lockctl.activity import blockers
from lockctl.db import Session, describe
from lockctl.db.relations import Relation, quote
from lockctl.errors import BlockedError, LockctlError, UnreachableError, UsageError
from lockctl.migrations import versions
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event, Notify
from lockctl.records import Blocker


def check(session: Session, policy: Policy, notify: Notify, *, relation: str | None, no_clients: str | None) -> None:
    """Look at the connection, the version table `relation`, and whoever is connected.

    Raises UsageError through a pooler, UnreachableError on a standby, LockctlError for a version table of several
    rows, BlockedError (cause `clients`) while sessions are connected whose application_name matches the glob
    `no_clients`.
    """
    _direct(session)
    _writable(session)
    table = None if relation is None else versions.find(session, relation)
    if relation is not None and table is None:
        notify(Event("preflight", f"{relation} is not there: the command is taken to create it"))
    if no_clients is not None:
        _alone(session, no_clients)
    for warning in (*_owners(session, table), *_invalid(session, table), *_old(session, policy), *_prepared(session)):
        notify(Event("warning", warning))


def check_interval(session: Session) -> bool:
    """Does this server take client_connection_check_interval? From PostgreSQL 14, and not on every system."""
    try:
        session.query("SELECT set_config('client_connection_check_interval', '2s', false)")
    except LockctlError:
        return False
    return True


def _direct(session: Session) -> None:
    """The runner's lock and PGOPTIONS both need a session that stays the same from one statement to the next."""
    pids = {session.one("SELECT pg_backend_pid()")[0] for _ in range(2)}
    if session.pooled or len(pids) > 1:
        raise UsageError(
            "this connection goes through a pooler in transaction mode: the backend may change between statements,"
            " and PGOPTIONS is refused or dropped",
            hint="give lockctl, and the command, a URL of PostgreSQL itself",
        )


def _writable(session: Session) -> None:
    recovering, read_only = session.one("SELECT pg_is_in_recovery(), current_setting('transaction_read_only')")
    if recovering or read_only == "on":
        what = "a standby" if recovering else "read-only (default_transaction_read_only)"
        raise UnreachableError(f"the server is {what}: no migration can run there", hint="connect to the primary")


def _alone(session: Session, pattern: str) -> None:
    rows = session.query(
        "SELECT pid, application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY pid"
    )
    matching = [blockers.one(session, pid) for pid, name in rows if fnmatchcase(name or "", pattern)]
    found: list[Blocker] = [each for each in matching if each.kind != "own"]
    if found:
        raise BlockedError(
            f"{len(found)} session(s) matching --no-clients {pattern} are still connected: "
            + ", ".join(describe(each) for each in found),
            hint="scale what is connected to zero, and run this again; nothing was run",
            cause="clients",
            blockers=found,
        )


def _owners(session: Session, table: Relation | None) -> Iterator[str]:
    """ALTER TABLE is for the owner, or a member of the role that owns it."""
    if table is None:
        return
    rows = session.query(
        "SELECT c.relname::text, pg_get_userbyid(c.relowner)::text, current_user::text"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND NOT pg_has_role(c.relowner, 'USAGE') ORDER BY 1",
        (table.schema,),
    )
    if rows:
        names = ", ".join(quote(row[0]) for row in rows[:5]) + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")
        yield (
            f"role {rows[0][2]} does not own {names} in schema {quote(table.schema)} (owner: {rows[0][1]}):"
            " unless the command connects as another role, it can't alter them"
        )


def _invalid(session: Session, table: Relation | None) -> Iterator[str]:
    rows = session.query(
        "SELECT i.indexrelid::regclass::text, i.indrelid::regclass::text FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE NOT i.indisvalid AND n.nspname NOT LIKE 'pg\\_%%'"
        " AND (%(schema)s::text IS NULL OR n.nspname = %(schema)s)"
        " AND c.relkind = 'i' ORDER BY 1",
        {"schema": None if table is None else table.schema},
    )
    for index, relation in rows:
        yield (
            f"index {index} on {relation} is INVALID (a CREATE INDEX CONCURRENTLY failed): IF NOT EXISTS would take"
            " it for the real one"
        )


def _old(session: Session, policy: Policy) -> Iterator[str]:
    """Whoever holds a transaction open for longer than the lock timeout is likely to be waited for."""
    age = max(policy.limits.lock_timeout_ms, 1_000)
    rows = session.query(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
        " AND xact_start < clock_timestamp() - %s::int8 * interval '1 millisecond' ORDER BY xact_start LIMIT 5",
        (age,),
    )
    for (pid,) in rows:
        yield f"a transaction is older than {durations.show(age)}: {describe(blockers.one(session, pid))}"


def _prepared(session: Session) -> Iterator[str]:
    rows = session.query(
        "SELECT gid, owner::text, (extract(epoch FROM clock_timestamp() - prepared) * 1000)::int8"
        " FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared LIMIT 5"
    )
    for gid, owner, age in rows:
        yield f"prepared transaction {gid!r} of {owner} holds its locks for {durations.show(age)} now, and no session"
