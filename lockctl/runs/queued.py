"""Changes of runs that a queue hands to executors, as DBOS makes them itself, each one guarded statement.

`requeue` is what a worker does at launch with its own runs, `revive` is DBOS's resume and `cancel` its cancel (read in
@dbos-inc/dbos-sdk 4.25.14, 4.27.6 and 5.3.0: `reenqueueWorkflowsForRecovery`, `resumeWorkflows`, `cancelWorkflows`).
DBOS asks nobody whether a worker lives; here the statement itself looks for a session of the run's executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.sql import SQL, Composable, Literal

from lockctl.db import Session
from lockctl.leases.statements import now
from lockctl.runs import buried
from lockctl.runs.places import Place, Table

NULL: Composable = SQL("NULL")
Sets = Mapping[str, Composable]


def requeue_sets(place: Place) -> Sets:
    """Back to its queue, or to `queue`; the attempts go on counting, the deadline stays."""
    return {
        "status": Literal(place.source.runs.queued),
        "queue": _queue(place),
        "dequeued_at": NULL,
        **_released(place.need("runs")),
    }


def revive_sets(place: Place) -> Sets:
    """To a queue with attempts from nought and without a deadline; the application version stays."""
    return {
        **requeue_sets(place),
        "attempts": SQL("0"),
        "deadline_at": NULL,
        "deduplication": NULL,
        "ended_at": NULL,
    }


def cancel_sets(place: Place) -> Sets:
    """Ended as cancelled, out of its queue; a worker notices at the run's next step."""
    runs = place.need("runs")
    return {
        "status": Literal(place.source.runs.cancelled),
        "queue": NULL,
        "deduplication": NULL,
        "dequeued_at": NULL,
        **_released(runs),
        **({"ended_at": now(runs.columns["ended_at"])} if runs.has("ended_at") else {}),
    }


def change(
    session: Session, place: Place, sets: Sets, run: str, mark: str, *, session_name: str | None, queue: str | None
) -> bool:
    """Change the run if it is still as `mark` says; False when it is not, or when a session of `session_name` is there.

    The row is locked first; the mark, the sessions and the new times are looked at after that lock.
    """
    runs = place.need("runs")
    statement = SQL(
        "WITH run AS MATERIALIZED (SELECT w.{id} AS id, {marked} AS mark FROM {table} AS w"
        " WHERE w.{id} = %(run)s::text::{cast} FOR UPDATE)"
        " UPDATE {table} AS r SET {sets} FROM run WHERE r.{id} = run.id AND run.mark = %(mark)s"
        " AND NOT EXISTS (SELECT FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = %(name)s::text)"
        " RETURNING r.{id}::text"
    ).format(
        id=runs.column("id"),
        cast=SQL(runs.columns["id"].cast),
        marked=buried.mark(place, runs),
        table=runs.sql,
        sets=SQL(", ").join(
            SQL("{} = {}").format(runs.column(meaning), value) for meaning, value in sets.items() if runs.has(meaning)
        ),
    )
    params: dict[str, Any] = {"run": run, "mark": mark, "name": session_name, "queue": queue}
    return bool(session.query(statement, params, needs=runs.needs("SELECT", "UPDATE")))


def _queue(place: Place) -> Composable:
    own = place.need("runs").read("r", "queue", "text")
    return SQL("coalesce(%(queue)s::text, {}, {})").format(own, Literal(place.source.internal_queue))


def _released(runs: Table) -> dict[str, Composable]:
    """What every one of these changes does: the row's time of change, and since schema 5 the end of its ownership.

    Before there was a creator beside it, the owner was the one that made the row, and stays.
    """
    released: dict[str, Composable] = {}
    if runs.has("updated_at"):
        released["updated_at"] = now(runs.columns["updated_at"])
    if runs.has("creator"):
        released["owner"] = NULL
    return released
