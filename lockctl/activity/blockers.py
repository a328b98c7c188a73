"""Who blocks whom, walked to the root (`pg_blocking_pids`, `pg_locks`, `pg_stat_activity`, `pg_prepared_xacts`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockctl.db import Session
from lockctl.db.relations import quote
from lockctl.records import Blocker

QUERY_LENGTH = 200
WRAPAROUND = "it prevents transaction id wraparound: let it finish, and don't kill it (it would start again)"
_YIELDS = "an autovacuum, which yields to a waiter after deadlock_timeout"
_QUEUE = "it waits itself, ahead in the queue"
_HIDDEN = "what it does is hidden from this role: GRANT pg_read_all_stats (or pg_monitor) TO {role} shows it"

# pg_blocking_pids names a prepared transaction as pid 0. Its locks have no pid; they belong to one virtual transaction
# (the preparing session's, or -1/XID after a restart), which is found through the lock on its own transaction id.
# pg_blocking_pids names those ahead in the wait queue, too ("soft" blocks), which is what an operator has to see.
_EDGES = """
WITH RECURSIVE start(pid) AS (
    SELECT pid FROM unnest(%(pids)s::int[]) AS pid
     UNION
    SELECT pid FROM pg_locks WHERE %(all)s AND NOT granted AND pid IS NOT NULL AND pid <> pg_backend_pid()),
waits(waiter, blocker) AS (
    SELECT s.pid, b FROM start AS s CROSS JOIN LATERAL unnest(pg_blocking_pids(s.pid)) AS b
     UNION
    SELECT w.blocker, b FROM waits AS w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.blocker)) AS b
     WHERE w.blocker <> 0),
edges AS MATERIALIZED (SELECT DISTINCT waiter, blocker FROM waits),
locks AS MATERIALIZED (SELECT * FROM pg_locks),
wanted AS (
    SELECT l.* FROM locks AS l WHERE NOT l.granted AND l.pid IN (SELECT waiter FROM edges)),
meets AS (
    SELECT w.pid AS waiter, h.pid AS holder, h.virtualtransaction, h.mode, h.granted, w.mode AS wanted_mode,
           w.locktype, w.transactionid, w.classid, w.objid,
           coalesce(w.database, t.database) AS database, coalesce(w.relation, t.relation) AS relation
      FROM wanted AS w
      JOIN locks AS h ON h.locktype = w.locktype
       AND (h.database, h.relation, h.page, h.tuple, h.virtualxid, h.transactionid, h.classid, h.objid, h.objsubid)
           IS NOT DISTINCT FROM
           (w.database, w.relation, w.page, w.tuple, w.virtualxid, w.transactionid, w.classid, w.objid, w.objsubid)
       AND h.pid IS DISTINCT FROM w.pid
      -- A wait for another's transaction is a wait for one of its rows: the waiter holds the row's tuple lock.
      LEFT JOIN LATERAL (SELECT relation, database FROM locks AS t
         WHERE t.pid = w.pid AND t.locktype = 'tuple' AND t.granted LIMIT 1) AS t ON w.locktype = 'transactionid'),
people AS (
    SELECT pid FROM (SELECT waiter AS pid FROM edges UNION SELECT blocker FROM edges) AS p
     WHERE pid <> 0 AND (%(all)s OR pid <> ALL (%(pids)s::int[]) OR pid IN (SELECT blocker FROM edges)))
"""

_SHOWN = """
CASE WHEN m.relation IS NOT NULL THEN coalesce(
       (SELECT CASE WHEN n.nspname = ANY (current_schemas(true)) THEN '' ELSE quote_ident(n.nspname) || '.' END
            || quote_ident(c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.oid = m.relation AND m.database IN (0, (SELECT oid FROM pg_database
                                                      WHERE datname = current_database()))),
       'relation ' || m.relation)
     ELSE m.locktype || coalesce(' ' || m.transactionid::text, ' ' || m.classid || ',' || m.objid, '') END
"""

_SAMPLE = f"""{_EDGES}
SELECT p.pid, ARRAY(SELECT e.blocker FROM edges AS e WHERE e.waiter = p.pid ORDER BY 1) AS blocked_by,
       CASE WHEN a.application_name ~ '^lockctl .* [0-9]+[.][0-9a-f]{{{{6}}}}@' THEN 'own'
            WHEN a.backend_type = 'autovacuum worker' OR a.query LIKE 'autovacuum: %%' THEN 'autovacuum'
            ELSE 'session' END,
       NULL::text AS gid, a.usename::text, a.application_name,
       coalesce(host(a.client_addr), a.client_hostname, CASE WHEN a.client_port = -1 THEN 'local' END),
       a.state, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::int8,
       CASE WHEN p.pid IN (SELECT waiter FROM edges)
            THEN (extract(epoch FROM clock_timestamp() - {{since}}) * 1000)::int8 END,
       m.mode, m.shown, a.query, current_user::text
  FROM people AS p LEFT JOIN pg_stat_activity AS a ON a.pid = p.pid
  LEFT JOIN LATERAL (
       SELECT m.mode, {_SHOWN} AS shown FROM (
           -- What it waits for; of one that waits for nothing, the lock that stands in somebody's way.
           SELECT wanted_mode AS mode, relation, database, locktype, transactionid, classid, objid, 0 AS rank
             FROM meets WHERE waiter = p.pid
            UNION ALL
           SELECT mode, relation, database, locktype, transactionid, classid, objid, 1
             FROM meets WHERE holder = p.pid AND granted) AS m
        ORDER BY rank, m.relation IS NULL, array_position({{modes}}, m.mode) LIMIT 1) AS m ON true
 UNION ALL
SELECT 0, '{{{{}}}}'::int[], 'prepared', x.gid, x.owner::text, NULL, NULL, 'prepared',
       (extract(epoch FROM clock_timestamp() - x.prepared) * 1000)::int8, NULL, m.mode, m.shown, NULL,
       current_user::text
  FROM pg_prepared_xacts AS x
  JOIN locks AS own ON own.locktype = 'transactionid' AND own.transactionid = x.transaction AND own.pid IS NULL
  JOIN LATERAL (SELECT m.mode, {_SHOWN} AS shown FROM meets AS m
                 WHERE m.holder IS NULL AND m.granted AND m.virtualtransaction = own.virtualtransaction
                 ORDER BY array_position({{modes}}, m.mode) LIMIT 1) AS m ON true
 ORDER BY 1, 4
"""

_MODES = (
    "ARRAY['AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock', 'ShareUpdateExclusiveLock',"
    " 'RowExclusiveLock', 'RowShareLock', 'AccessShareLock']"
)


def sample(session: Session, pid: int, *, show_query: bool = True) -> list[Blocker]:
    """The sessions and prepared transactions that `pid` waits for, directly or through others; empty when for none."""
    return _sample(session, [pid], everyone=False, show_query=show_query)


def tree(session: Session, *, show_query: bool = True) -> list[Blocker]:
    """Everybody on this server who waits for a lock, and whoever is waited for, roots first."""
    found = _sample(session, [], everyone=True, show_query=show_query)
    return sorted(found, key=lambda blocker: (not blocker.root, blocker.pid))


def _sample(session: Session, pids: list[int], *, everyone: bool, show_query: bool) -> list[Blocker]:
    # Since PostgreSQL 14 pg_locks says when a wait began; before, state_change is when the statement did.
    since = (
        "(SELECT l.waitstart FROM locks AS l WHERE l.pid = p.pid AND NOT l.granted AND l.waitstart IS NOT NULL LIMIT 1)"
        if session.server_version >= 140000
        else "a.state_change"
    )
    statement = _SAMPLE.format(since=since, modes=_MODES)
    rows = session.query(statement, {"pids": pids, "all": everyone})
    return [_blocker(row, show_query) for row in rows]


def one(session: Session, pid: int) -> Blocker:
    """The session `pid` as a blocker, without what it holds; of one that has gone only the pid."""
    rows = session.query(
        "SELECT a.pid, '{}'::int[], CASE WHEN a.application_name ~ '^lockctl .* [0-9]+[.][0-9a-f]{6}@' THEN 'own'"
        " ELSE 'session' END, NULL::text, a.usename::text, a.application_name,"
        " coalesce(host(a.client_addr), CASE WHEN a.client_port = -1 THEN 'local' END), a.state,"
        " (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::int8, NULL::int8, NULL::text, NULL::text,"
        " NULL::text, current_user::text FROM pg_stat_activity AS a WHERE a.pid = %s",
        (pid,),
    )
    return _blocker(rows[0] if rows else (pid, [], "session", *[None] * 10, ""), show_query=False)


def _blocker(row: Sequence[Any], show_query: bool) -> Blocker:
    kind, query = row[2], row[12]
    hidden = query == "<insufficient privilege>"
    return Blocker(
        pid=row[0],
        blocked_by=tuple(row[1]),
        root=not row[1],
        kind=kind,
        gid=row[3],
        user=row[4],
        application=row[5],
        client=row[6],
        state=row[7],
        xact_age_ms=row[8],
        wait_ms=row[9],
        lock_mode=row[10],
        relation=row[11],
        query=query[:QUERY_LENGTH] if query and show_query else None,
        note=_note(row, kind, query or "", hidden),
    )


def _note(row: Sequence[Any], kind: str, query: str, hidden: bool) -> str | None:
    if kind == "prepared":
        gid = str(row[3]).replace("'", "''")
        return f"no session can be ended here: commit it, or run ROLLBACK PREPARED '{gid}' as {quote(row[4])}"
    if kind == "autovacuum":
        return WRAPAROUND if "(to prevent wraparound)" in query else _HIDDEN_AUTOVACUUM if hidden else _YIELDS
    if row[1]:
        return _QUEUE
    return _HIDDEN.format(role=quote(row[13])) if hidden else None


_HIDDEN_AUTOVACUUM = f"an autovacuum whose purpose is hidden; perhaps {WRAPAROUND}"


# -- whether they are still there -------------------------------------------------------------------------------------

_HOLDERS = """
SELECT l.virtualtransaction FROM pg_locks AS l
 WHERE l.locktype = 'virtualxid' AND l.granted AND l.pid = ANY (%(pids)s::int[])
 UNION
SELECT l.virtualtransaction FROM pg_locks AS l JOIN pg_prepared_xacts AS x ON l.transactionid = x.transaction
 WHERE l.locktype = 'transactionid' AND l.pid IS NULL AND x.gid = ANY (%(gids)s::text[])
"""


def holders(session: Session, found: Iterable[Blocker]) -> frozenset[str]:
    """The transactions of the roots of `found`, by a name that no other transaction will have."""
    roots = [blocker for blocker in found if blocker.root]
    names = {
        "pids": [blocker.pid for blocker in roots if blocker.pid],
        "gids": [blocker.gid for blocker in roots if blocker.gid is not None],
    }
    return frozenset(row[0] for row in session.query(_HOLDERS, names))


def remain(session: Session, transactions: frozenset[str]) -> bool:
    """Does one of the `transactions` (of `holders`) go on?"""
    rows = session.query(
        "SELECT 1 FROM pg_locks WHERE virtualtransaction = ANY (%s::text[]) LIMIT 1", (list(transactions),)
    )
    return bool(rows)
