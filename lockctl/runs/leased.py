"""Changes of runs whose worker holds a lease, in the store's own terms, each one guarded statement.

Locks are taken in the order run, lease, work, as the store's own writes take them (see `store`).
"""

from __future__ import annotations

import secrets
from typing import Any

from psycopg.sql import SQL, Composable, Literal

from lockctl.db import Session
from lockctl.errors import BehindError
from lockctl.leases.statements import now
from lockctl.runs import fencing
from lockctl.runs.places import Place, Table
from lockctl.runs.rows import Row


def requeue(session: Session, place: Place, shown: Row, *, force: bool) -> bool:
    """Park the run and arm the work that has it taken up again, due now; False when its row or lease has changed.

    That is what the store does when a run waits for a timer, with the timer at now. The lapsed lease gets a token that
    nobody has and stays lapsed: a worker that wakes up late has lost its fence, and the next one can claim. `force`
    takes a live lease, too, if its token is still the shown one.
    """
    runs, work = place.need("runs"), place.need("work")
    source = place.source.runs
    if source.parked is None or source.resume_kind is None:
        raise BehindError(f"source {place.source.name} does not say how a run is taken up again")
    fence = fencing.fence(place)
    statement = SQL(
        "WITH run AS MATERIALIZED (SELECT {columns} FROM {runs} AS r WHERE r.{id} = %(run)s::text::{cast}"
        " AND r.{status}::text = %(status)s FOR UPDATE), fenced AS ({fence}),"
        " changed AS (UPDATE {runs} AS r SET {parked} FROM fenced"
        " WHERE r.{id} = fenced.id AND r.{status}::text = %(status)s RETURNING r.{id}::text AS id)"
        " {armed}"
    ).format(
        id=runs.column("id"),
        cast=SQL(runs.columns["id"].cast),
        runs=runs.sql,
        status=runs.column("status"),
        columns=fence.columns,
        fence=fence.statement,
        parked=SQL(", ").join(
            [_sets(runs, {"status": Literal(source.parked), "updated_at": _now(runs, "updated_at")}), *fence.sets]
        ),
        armed=_armed(work),
    )
    params: dict[str, Any] = {
        "run": shown.id,
        "status": shown.status,
        "shown": shown.token,
        "token": f"lockctl:requeued:{secrets.token_hex(8)}",
        "force": force,
        "kind": source.resume_kind,
        "key": f"{source.resume_kind}:{shown.id}",
        "member": place.source.work.run_in_payload if place.source.work else None,
    }
    return bool(session.query(statement, params, needs=runs.needs("SELECT", "UPDATE")))


def cancel(session: Session, place: Place, shown: Row, reason: str) -> bool:
    """Ask for the run's cancellation, as the store's requestCancel; its worker has to see to it."""
    runs = place.need("runs")
    if not runs.has("cancel_requested_at") and not runs.has("cancel_reason"):
        raise BehindError(f"source {place.source.name} has no column for a cancellation")
    return _update(
        session,
        runs,
        shown,
        {"cancel_requested_at": _now(runs, "cancel_requested_at"), "cancel_reason": SQL("%(text)s")},
        reason,
    )


def fail(session: Session, place: Place, shown: Row, message: str) -> bool:
    """Settle the run as failed, as the store's markFailed; its outcome is the error `message` as JSON."""
    import json

    runs = place.need("runs")
    if place.source.runs.failed is None:
        raise BehindError(f"source {place.source.name} has no status for a failed run")
    return _update(
        session,
        runs,
        shown,
        {
            "status": Literal(place.source.runs.failed),
            "outcome": SQL("%(text)s"),
            "ended_at": _now(runs, "ended_at"),
        },
        json.dumps({"error": message}, ensure_ascii=False),
    )


def _update(session: Session, runs: Table, shown: Row, sets: dict[str, Composable | None], text: str) -> bool:
    statement = SQL(
        "WITH run AS MATERIALIZED (SELECT r.{id} AS id, {mark} AS mark, r.{status}::text AS status FROM {runs} AS r"
        " WHERE r.{id} = %(run)s::text::{cast} FOR UPDATE)"
        " UPDATE {runs} AS r SET {sets} FROM run WHERE r.{id} = run.id AND run.status = %(status)s"
        " AND run.mark IS NOT DISTINCT FROM %(mark)s RETURNING r.{id}::text"
    ).format(
        id=runs.column("id"),
        cast=SQL(runs.columns["id"].cast),
        runs=runs.sql,
        status=runs.column("status"),
        mark=runs.read("r", "updated_at", "text"),
        sets=_sets(runs, {**sets, "updated_at": _now(runs, "updated_at")}),
    )
    params = {"run": shown.id, "status": shown.status, "mark": shown.updated, "text": text}
    return bool(session.query(statement, params, needs=runs.needs("SELECT", "UPDATE")))


def _armed(work: Table) -> Composable:
    """Enqueue the run's work as `work.enqueue` does: a row of its key is re-armed, its attempts from nought."""
    columns: dict[str, Composable] = {
        "kind": SQL("%(kind)s"),
        "key": SQL("%(key)s"),
        "payload": SQL("jsonb_build_object(%(member)s::text, changed.id)::{}").format(
            SQL(work.columns["payload"].cast if work.has("payload") else "jsonb")
        ),
        "due_at": now(work.columns["due_at"]),
    }
    there = {meaning: value for meaning, value in columns.items() if work.has(meaning)}
    return SQL(
        "INSERT INTO {work} AS w ({names}) SELECT {values} FROM changed"
        " ON CONFLICT ({key}) DO UPDATE SET {sets} RETURNING 1"
    ).format(
        work=work.sql,
        names=SQL(", ").join(work.column(meaning) for meaning in there),
        values=SQL(", ").join(there.values()),
        key=work.column("key"),
        sets=rearmed(work),
    )


def rearmed(work: Table) -> Composable:
    """The assignments that bring a row of work (`w`) back: due now, unburied, its attempts from nought."""
    return _sets(
        work,
        {
            "due_at": now(work.columns["due_at"]),
            "attempts": SQL("0"),
            "armed": SQL("{} + 1").format(work.ref("w", "armed")) if work.has("armed") else None,
            "buried": SQL("false") if work.columns["buried"].type == "bool" else SQL("NULL"),
            "buried_at": SQL("NULL"),
            "reason": SQL("NULL"),
            "updated_at": _now(work, "updated_at"),
        },
    )


def _now(table: Table, meaning: str) -> Composable | None:
    return now(table.columns[meaning]) if table.has(meaning) else None


def _sets(table: Table, sets: dict[str, Composable | None]) -> Composable:
    """`column = value, …` for the columns that are there, each once."""
    named: dict[str, tuple[Composable, Composable]] = {}
    for meaning, value in sets.items():
        if value is not None and table.has(meaning):
            named.setdefault(table.columns[meaning].name, (table.column(meaning), value))
    return SQL(", ").join(SQL("{} = {}").format(column, value) for column, value in named.values())
