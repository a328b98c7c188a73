"""Who blocks a session, walked to the root (`pg_blocking_pids`, `pg_stat_activity`, `pg_locks`)."""

from __future__ import annotations

from lockctl.db import Session
from lockctl.records import Blocker

# pg_blocking_pids names a prepared transaction as pid 0; its locks belong to virtual transaction -1/XID.
_SAMPLE = """
WITH RECURSIVE waits(waiter, blocker) AS (
    SELECT %(pid)s::int, b FROM unnest(pg_blocking_pids(%(pid)s::int)) AS b
     UNION
    SELECT w.blocker, b FROM waits AS w CROSS JOIN LATERAL unnest(pg_blocking_pids(w.blocker)) AS b
     WHERE w.blocker <> 0),
sessions AS (SELECT DISTINCT blocker AS pid FROM waits WHERE blocker <> 0),
prepared AS (
    SELECT DISTINCT p.gid, p.owner::text AS owner, p.prepared, h.mode, h.relation
      FROM waits AS w
      JOIN pg_locks AS l ON l.pid = w.waiter AND NOT l.granted
      JOIN pg_locks AS h ON h.pid IS NULL AND h.granted AND h.locktype = l.locktype
       AND (h.database, h.relation, h.page, h.tuple, h.transactionid, h.classid, h.objid, h.objsubid)
           IS NOT DISTINCT FROM
           (l.database, l.relation, l.page, l.tuple, l.transactionid, l.classid, l.objid, l.objsubid)
      JOIN pg_prepared_xacts AS p ON h.virtualtransaction = '-1/' || p.transaction::text
     WHERE w.blocker = 0)
SELECT s.pid, ARRAY(SELECT w.blocker FROM waits AS w WHERE w.waiter = s.pid ORDER BY 1),
       CASE WHEN a.application_name LIKE 'lockctl %%' THEN 'own'
            WHEN a.backend_type = 'autovacuum worker' THEN 'autovacuum' ELSE 'session' END,
       NULL::text, a.usename::text, a.application_name,
       coalesce(host(a.client_addr), CASE WHEN a.client_port = -1 THEN 'local' END),
       a.state, (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000)::int8,
       CASE WHEN a.wait_event_type = 'Lock'
            THEN (extract(epoch FROM clock_timestamp() - a.state_change) * 1000)::int8 END,
       NULL::text, NULL::text, left(a.query, 200)
  FROM sessions AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.pid
 UNION ALL
SELECT 0, '{}'::int[], 'prepared', gid, owner, NULL, NULL, 'prepared',
       (extract(epoch FROM clock_timestamp() - prepared) * 1000)::int8, NULL, mode, relation::regclass::text, NULL
  FROM prepared
"""


def sample(session: Session, pid: int) -> list[Blocker]:
    """The sessions and prepared transactions that `pid` waits for, directly or through others; times in ms."""
    return [
        Blocker(
            pid=row[0],
            blocked_by=tuple(row[1]),
            root=not row[1],
            kind=row[2],
            gid=row[3],
            user=row[4],
            application=row[5],
            client=row[6],
            state=row[7],
            xact_age_ms=row[8],
            wait_ms=row[9],
            lock_mode=row[10],
            relation=row[11],
            query=row[12],
        )
        for row in session.query(_SAMPLE, {"pid": pid})
    ]
