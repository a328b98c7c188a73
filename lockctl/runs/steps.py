"""What a run has recorded step by step: when it was last active, and until when it sleeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from psycopg.sql import SQL, Literal

from lockctl.clock import utc_text
from lockctl.db import Session
from lockctl.leases.inspect import moment
from lockctl.leases.statements import micros
from lockctl.runs.places import Place, Table
from lockctl.runs.records import Step


class Activity(NamedTuple):
    """The start of a run's newest step, and until when a sleep lasts, in microseconds since 1970."""

    last: float | None
    sleeping_until: float | None


def activity(session: Session, place: Place, ids: Sequence[str]) -> dict[str, Activity]:
    """The activity of those runs that have recorded steps; nothing for a source that keeps none.

    The row of a sleep has a completion in the future for as long as the run sleeps (measured on DBOS).
    """
    table = place.steps
    if table is None or not ids:
        return {}
    completed = table.columns["completed_at"]
    statement = SQL(
        "SELECT {run}, max({started}), max({completed}) FILTER (WHERE {name} = {sleep} AND {completed} > {now})"
        " FROM {table} AS s WHERE {key} = ANY (%(ids)s::text[]::{cast}[]) GROUP BY 1"
    ).format(
        run=table.read("s", "run_id", "text"),
        key=table.ref("s", "run_id"),
        cast=SQL(table.columns["run_id"].cast),
        started=table.ref("s", "started_at"),
        completed=table.ref("s", "completed_at"),
        name=table.ref("s", "name"),
        sleep=Literal(place.source.steps.sleep if place.source.steps else None),
        now=moment(completed),
        table=table.sql,
    )
    found = session.query(statement, {"ids": list(ids)}, needs=table.needs("SELECT"))
    return {run: Activity(_micros(table, "started_at", a), _micros(table, "completed_at", b)) for run, a, b in found}


def steps(session: Session, place: Place, run: str) -> tuple[Step, ...]:
    """The steps of one run, in their order."""
    table = place.steps
    if table is None:
        return ()
    statement = SQL(
        "SELECT {number}, {name}, {started}, {completed}, {error} FROM {table} AS s"
        " WHERE {key} = %(run)s::text::{cast} ORDER BY {number}"
    ).format(
        number=table.ref("s", "number"),
        name=table.read("s", "name", "text"),
        started=table.ref("s", "started_at"),
        completed=table.ref("s", "completed_at"),
        error=table.read("s", "error", "text"),
        key=table.ref("s", "run_id"),
        cast=SQL(table.columns["run_id"].cast),
        table=table.sql,
    )
    return tuple(
        Step(
            number,
            name,
            utc_text(_micros(table, "started_at", started)),
            utc_text(_micros(table, "completed_at", completed)),
            error,
        )
        for number, name, started, completed, error in session.query(
            statement, {"run": run}, needs=table.needs("SELECT")
        )
    )


def _micros(table: Table, meaning: str, value: float | None) -> float | None:
    return micros(value, table.columns[meaning])
