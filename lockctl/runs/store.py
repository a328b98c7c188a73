"""The run store's own writing side: runs and their leases, in the meaning of the store slot's methods.

The meaning of "lapsed" and "buried" is defined by what the writers do: so they are here, for tests and the demo, and
for whoever wants a run store in Python. Work is in `work`; both are reached through this module. Times are the
database's; TTLs and delays are milliseconds.

Locks are taken in the order run, lease, work. A fence is the token of a live lease: a write that is given one changes
nothing and raises LostError when the lease has lapsed, was released, or is another's by now.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from lockctl.catalog import BUILT_IN
from lockctl.db import Session
from lockctl.errors import LostError, NotHeldError, UsageError
from lockctl.leases import operations
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from lockctl.runs.work import (
    BUSY,
    FAILED,
    RESCHEDULED,
    Claimed,
    bury,
    claim_due,
    complete,
    enqueue,
    release,
)

__all__ = [
    "BUSY",
    "FAILED",
    "RESCHEDULED",
    "Claimed",
    "bury",
    "cancel_request",
    "claim",
    "claim_due",
    "complete",
    "drop_lease",
    "enqueue",
    "leases",
    "mark_failed",
    "park",
    "release",
    "release_lease",
    "renew",
    "request_cancel",
    "settle",
    "start",
]

RESUME = "resume_timer"
STATUSES = ("running", "completed", "parked", "failed")
_ENDED = ("completed", "failed")


# -- runs ----------------------------------------------------------------------------------------------------------


def start(
    session: Session,
    run_id: str,
    *,
    file: str,
    movement: str,
    input_: str,
    started_at: str | None = None,
) -> None:
    """`runs.start`: a running run. `started_at` is UTC text; without it, now. Raises UsageError for an id in use."""
    made = session.query(
        "INSERT INTO run_store.runs (id, file, movement, input, started_at)"
        " VALUES (%s, %s, %s, %s, coalesce(%s::timestamptz, clock_timestamp()))"
        " ON CONFLICT (id) DO NOTHING RETURNING id",
        (run_id, file, movement, input_, started_at),
    )
    if not made:
        raise UsageError(f"there is a run {run_id!r} already")


def settle(
    session: Session,
    run_id: str,
    status: str,
    *,
    outcome: str | None = None,
    at: str | None = None,
    fence: str | None = None,
) -> None:
    """`runs.settle`: the run's status, and the outcome as it was given. An ending takes its end from `at`, else now.

    Raises UsageError for another status, NotHeldError for an unknown run, LostError for a lost fence.
    """
    if status not in STATUSES:
        raise UsageError(f"a run can't be settled as {status!r}", hint=f"one of {', '.join(STATUSES)}")
    changed = session.query(
        f"WITH {_GUARD}"
        " UPDATE run_store.runs AS r SET status = %(status)s, outcome = %(outcome)s, updated_at = clock_timestamp(),"
        "  ended_at = CASE WHEN %(ended)s THEN coalesce(%(at)s::timestamptz, clock_timestamp()) END"
        " FROM run WHERE r.id = run.id AND run.fenced RETURNING r.id",
        {
            "run": run_id,
            "fence": fence,
            "status": status,
            "outcome": outcome,
            "ended": status in _ENDED,
            "at": at,
        },
    )
    if not changed:
        _explain(session, run_id, fence)


def mark_failed(session: Session, run_id: str, message: str) -> None:
    """`records.markFailed`: settled as failed, with the outcome `{"error": message}`."""
    settle(session, run_id, "failed", outcome=json.dumps({"error": message}, ensure_ascii=False))


def park(session: Session, run_id: str, *, due_in_ms: int, fence: str) -> None:
    """`parks.commit` of a timer, as far as these tables go: one fenced write.

    The run is parked and its `resume_timer:<run id>` work armed, as `enqueue` arms it, to be due in `due_in_ms`.
    Raises LostError when the fence is lost, and then nothing was written.
    """
    changed = session.query(
        f"WITH {_GUARD}, parked AS ("
        "  UPDATE run_store.runs AS r SET status = 'parked', updated_at = clock_timestamp()"
        "  FROM run WHERE r.id = run.id AND run.fenced RETURNING r.id)"
        " INSERT INTO run_store.work AS w (kind, key, payload, due_at)"
        " SELECT %(kind)s, %(kind)s || ':' || parked.id, jsonb_build_object('runId', parked.id),"
        "  clock_timestamp() + %(delay)s::float8 * interval '1 millisecond' FROM parked"
        " ON CONFLICT (key) DO UPDATE SET due_at = excluded.due_at, attempts = 0, armed = w.armed + 1,"
        "  buried_at = NULL, buried_reason = NULL, updated_at = clock_timestamp() RETURNING w.id",
        {"run": run_id, "fence": fence, "kind": RESUME, "delay": due_in_ms},
    )
    if not changed:
        _explain(session, run_id, fence)


def request_cancel(session: Session, run_id: str, reason: str) -> None:
    """`runs.requestCancel`: asks the run's worker to end it. Raises NotHeldError for an unknown run."""
    changed = session.query(
        "UPDATE run_store.runs SET cancel_requested_at = clock_timestamp(), cancel_reason = %s,"
        " updated_at = clock_timestamp() WHERE id = %s RETURNING id",
        (reason, run_id),
    )
    if not changed:
        _explain(session, run_id, None)


def cancel_request(session: Session, run_id: str) -> str | None:
    """`records.cancelRequest`: the reason of the cancellation that was asked for, or None."""
    rows = session.query("SELECT cancel_reason FROM run_store.runs WHERE id = %s", (run_id,))
    return rows[0][0] if rows else None


# The run is locked, then its lease; whether the fence holds is judged by the clock after both locks.
_GUARD = (
    "locked AS MATERIALIZED (SELECT id FROM run_store.runs WHERE id = %(run)s FOR UPDATE),"
    " lease AS MATERIALIZED (SELECT l.token, l.expires_at FROM locked"
    "  JOIN run_store.leases AS l ON l.run_id = locked.id WHERE l.token = %(fence)s FOR UPDATE OF l),"
    " run AS MATERIALIZED (SELECT locked.id, %(fence)s::text IS NULL"
    "  OR EXISTS (SELECT FROM lease WHERE lease.expires_at > clock_timestamp()) AS fenced FROM locked)"
)


def _explain(session: Session, run_id: str, fence: str | None) -> None:
    if not session.query("SELECT 1 FROM run_store.runs WHERE id = %s", (run_id,)):
        raise NotHeldError(f"there is no run {run_id!r}")
    if fence is not None:
        raise LostError(f"the lease of run {run_id!r} was lost: nothing was written")


# -- leases --------------------------------------------------------------------------------------------------------


def leases(session: Session) -> LockedTable:
    """The table of leases, which is `run_leases` to the lock verbs; look it up once for a session."""
    table = next(table for table in BUILT_IN if table.name == "run_leases")
    return LockedTable.of(describe(session, table, None))


def claim(session: Session, table: LockedTable, run_id: str, ttl_ms: int) -> str | None:
    """`leases.claim`: the token of the run's lease, or None while another holds it."""
    token = secrets.token_urlsafe(18)
    result = operations.acquire(session, table, [run_id], token, ttl_ms)
    return token if result.outcome == "acquired" else None


def renew(session: Session, table: LockedTable, run_id: str, token: str, ttl_ms: int) -> bool:
    """`leases.renew`: False once the lease has lapsed, was released or is another's; a worker stops then."""
    return operations.extend(session, table, [run_id], token, ttl_ms).outcome == "extended"


def release_lease(session: Session, table: LockedTable, run_id: str, token: str) -> None:
    """`leases.release`: gives the lease back; another's is left alone."""
    operations.release(session, table, [run_id], token)


def drop_lease(session: Session, run_id: str, fence: str) -> bool:
    """`leases.dropRunState`, as far as these tables go: the lease is dropped if the fence holds; False if not."""
    rows: list[tuple[Any, ...]] = session.query(
        f"WITH {_GUARD} DELETE FROM run_store.leases AS l USING run"
        " WHERE l.run_id = run.id AND run.fenced AND l.token = %(fence)s RETURNING l.run_id",
        {"run": run_id, "fence": fence},
    )
    return bool(rows)
