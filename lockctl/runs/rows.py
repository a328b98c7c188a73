"""The statement that reads runs, and its rows: one form for every source, null where a source lacks a column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.sql import SQL, Composable, Literal

from lockctl.db import Session
from lockctl.leases.inspect import moment
from lockctl.leases.statements import micros
from lockctl.runs.places import Place

PAGE = 1_000


class Row(NamedTuple):
    """A run as read: times in microseconds since 1970; `mark` is its place in the order, `now` the database's clock."""

    id: str
    name: str | None
    status: str
    started_at: float | None
    executor: str | None
    version: str | None
    application: str | None
    queue: str | None
    attempts: int | None
    deadline_at: float | None
    updated: str | None
    cancel_requested_at: float | None
    cancel_reason: str | None
    token: str | None
    expires_at: float | None
    mark: str
    now: float


def pages(
    session: Session,
    place: Place,
    conditions: Sequence[Composable],
    params: Mapping[str, Any],
    *,
    newest_first: bool = False,
    size: int = PAGE,
) -> Iterator[list[Row]]:
    """Runs in the order of their start, in short pages by that order: a paused reader holds no transaction open."""
    after: Row | None = None
    while True:
        statement = _page(place, conditions, newest_first, after is not None)
        page = select(
            session, place, statement, {**params, "size": size, **({"a0": after.mark, "a1": after.id} if after else {})}
        )
        if page:
            yield page
        if len(page) < size:
            return
        after = page[-1]


def by_id(session: Session, place: Place, ids: Sequence[str]) -> dict[str, Row]:
    """The runs with these ids, those that there are. Raises UsageError for an id that the column can't take."""
    runs = place.need("runs")
    wanted = SQL("{} = ANY (%(ids)s::text[]::{}[])").format(runs.ref("r", "id"), SQL(runs.columns["id"].cast))
    statement = SQL("{} WHERE {}").format(_select(place), wanted)
    return {row.id: row for row in select(session, place, statement, {"ids": list(ids)})}


def select(session: Session, place: Place, statement: Composable, params: Mapping[str, Any]) -> list[Row]:
    """The rows of a statement that begins as `_select` does."""
    runs = place.need("runs")
    found = session.query(statement, params, needs=runs.needs("SELECT"))
    return [_row(place, values) for values in found]


def running(place: Place) -> Composable:
    """The condition that a run is in a status in which a worker must be there.

    The statuses are written into the statement, so that an index on the running ones alone is used.
    """
    runs = place.need("runs")
    statuses = [Literal(status) for status in place.source.runs.running]
    test = SQL("{} = {}") if len(statuses) == 1 else SQL("{} IN ({})")
    return test.format(runs.ref("r", "status"), SQL(", ").join(statuses))


def lease_lapsed(place: Place) -> Composable:
    """The condition that a run's lease lapsed or was never taken, as the reading statement joins it (`l`)."""
    leases = place.need("leases")
    expires = leases.columns["expires_at"]
    name = leases.ref("l", "expires_at")
    never = SQL("{} IS NULL").format(leases.ref("l", "token"))
    if expires.nullable:  # a token without an expiry is a lease that never lapses
        never = SQL("({} AND {} IS NULL)").format(never, name)
    return SQL("({} OR {} <= {})").format(never, name, moment(expires))


def _select(place: Place) -> Composable:
    runs, leases = place.need("runs"), place.leases
    if place.leased:
        leases = place.need("leases")
    return SQL("SELECT {columns} FROM {table} AS r{join}").format(
        columns=SQL(", ").join(
            [
                runs.read("r", "id", "text"),
                runs.read("r", "name", "text"),
                runs.read("r", "status", "text"),
                runs.read("r", "started_at"),
                runs.read("r", "executor", "text"),
                runs.read("r", "version", "text"),
                runs.read("r", "application", "text"),
                runs.read("r", "queue", "text"),
                runs.read("r", "attempts", "int8"),
                runs.read("r", "deadline_at"),
                runs.read("r", "updated_at", "text"),
                runs.read("r", "cancel_requested_at"),
                runs.read("r", "cancel_reason", "text"),
                leases.read("l", "token", "text") if leases else SQL("NULL::text"),
                leases.read("l", "expires_at") if leases else SQL("NULL::int8"),
                runs.read("r", "started_at", "text"),
                SQL("(SELECT clock_timestamp())"),
            ]
        ),
        table=runs.sql,
        join=_join(place),
    )


def _join(place: Place) -> Composable:
    if not place.leased:
        return SQL("")
    runs, leases = place.need("runs"), place.need("leases")
    same = runs.columns["id"].type == leases.columns["run_id"].type
    test = SQL("{} = {}") if same else SQL("{}::text = {}::text")
    return SQL(" LEFT JOIN {} AS l ON {}").format(
        leases.sql, test.format(leases.ref("l", "run_id"), runs.ref("r", "id"))
    )


def _page(place: Place, conditions: Sequence[Composable], newest_first: bool, later: bool) -> Composable:
    runs = place.need("runs")
    order = [runs.ref("r", "started_at"), runs.ref("r", "id")]
    tests = list(conditions)
    if later:
        marks = [SQL("%(a0)s::{}").format(SQL(runs.columns["started_at"].cast))]
        marks.append(SQL("%(a1)s::{}").format(SQL(runs.columns["id"].cast)))
        tests.append(
            SQL("({}) {} ({})").format(SQL(", ").join(order), SQL("<" if newest_first else ">"), SQL(", ").join(marks))
        )
    direction = SQL(" DESC") if newest_first else SQL("")
    return SQL("{} WHERE {} ORDER BY {} LIMIT %(size)s").format(
        _select(place),
        SQL(" AND ").join(tests) if tests else SQL("true"),
        SQL(", ").join(SQL("{}{}").format(each, direction) for each in order),
    )


def _row(place: Place, values: Sequence[Any]) -> Row:
    runs, leases = place.need("runs").columns, place.leases.columns if place.leases else {}
    row = Row(*values)
    return row._replace(
        started_at=micros(row.started_at, runs["started_at"]),
        deadline_at=micros(row.deadline_at, runs.get("deadline_at")),
        cancel_requested_at=micros(row.cancel_requested_at, runs.get("cancel_requested_at")),
        expires_at=micros(row.expires_at, leases.get("expires_at")),
    )
