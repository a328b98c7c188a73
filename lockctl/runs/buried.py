"""Work that gave up: rows of a queue that are marked as buried, and DBOS's runs that were recovered too often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from psycopg.sql import SQL, Composable, Literal

from lockctl.clock import utc_text
from lockctl.db import Session
from lockctl.db.relations import Column
from lockctl.leases.statements import micros, now
from lockctl.runs import payload
from lockctl.runs.places import Place, Table
from lockctl.runs.records import Buried, BuriedSummary

PAGE = 500


class Shown(NamedTuple):
    """Buried work as it was read, with the mark that a change is guarded by and its place in the order."""

    record: Buried
    mark: str
    order: str | None
    run: tuple[str | None, str | None]


def part(place: Place) -> str:
    """The part of a source whose rows can be buried: its work, else its runs."""
    return "work" if place.source.work is not None else "runs"


def buried(session: Session, place: Place, *, kind: str | None = None, limit: int | None = None) -> Iterator[Buried]:
    """Buried work, longest buried first; DBOS's runs in the order of their creation."""
    return (shown.record for shown in islice(read(session, place, kind=kind), limit))


def moment(session: Session, place: Place) -> str | None:
    """The present as `read` takes it for `until`; None where the source does not say when work was buried."""
    column = _time_column(place, place.need(part(place)))
    if column is None:
        return None
    text: str = session.one(SQL("SELECT ({})::text").format(now(column)))[0]
    return text


def read(session: Session, place: Place, *, kind: str | None = None, until: str | None = None) -> Iterator[Shown]:
    """Buried work as `buried` lists it, read in short pages; `until` leaves out what was buried after that moment."""
    table = place.need(part(place))
    conditions = [_is_buried(place, table)]
    if kind is not None:
        conditions.append(SQL("{}::text = %(kind)s").format(table.ref("w", _meaning(place, "kind"))))
    if until is not None and (column := _time_column(place, table)) is not None:
        conditions.append(SQL("{} <= %(until)s::{}").format(_time(place, table), SQL(column.cast)))
    after: Shown | None = None
    while True:
        rows = _select(session, place, conditions, {"kind": kind, "until": until, "size": PAGE}, after)
        yield from rows
        if len(rows) < PAGE:
            return
        after = rows[-1]


def by_id(session: Session, place: Place, ids: Sequence[str]) -> dict[str, tuple[bool, Shown]]:
    """The work with these ids, and whether it is buried; those that there are."""
    table = place.need(part(place))
    wanted = SQL("{} = ANY (%(ids)s::text[]::{}[])").format(table.ref("w", "id"), SQL(table.columns["id"].cast))
    statement = SQL("SELECT {columns}, {buried} FROM {table} AS w WHERE {wanted}").format(
        columns=_columns(place, table), buried=_is_buried(place, table), table=table.sql, wanted=wanted
    )
    rows = session.query(statement, {"ids": list(ids)}, needs=table.needs("SELECT"))
    return {row[0]: (bool(row[-1]), _shown(place, table, row)) for row in rows}


def summary(session: Session, place: Place, *, kind: str | None = None) -> list[BuriedSummary]:
    """How much is buried by kind and reason, counted in the database."""
    table = place.need(part(place))
    column = _time_column(place, table)
    statement = SQL(
        "SELECT {kind}, {reason}, count(*), min({at}), max({at}) FROM {table} AS w WHERE {buried}"
        " AND (%(kind)s::text IS NULL OR {kind} = %(kind)s) GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
    ).format(
        kind=table.read("w", _meaning(place, "kind"), "text"),
        reason=_reason(place, table),
        at=_time(place, table),
        table=table.sql,
        buried=_is_buried(place, table),
    )
    return [
        BuriedSummary(
            place.source.name,
            name,
            reason,
            count,
            utc_text(micros(oldest, column)),
            utc_text(micros(newest, column)),
        )
        for name, reason, count, oldest, newest in session.query(statement, {"kind": kind}, needs=table.needs("SELECT"))
    ]


def _meaning(place: Place, of_work: str) -> str:
    """The meaning of a column of runs that stands for one of work."""
    if part(place) == "work":
        return of_work
    return {"kind": "name", "buried_at": "ended_at", "payload": "input"}.get(of_work, of_work)


def _time_column(place: Place, table: Table) -> Column | None:
    return table.columns.get(_meaning(place, "buried_at"))


def _time(place: Place, table: Table) -> Composable:
    """When it was buried. DBOS at schema 69 leaves no time of the end (measured): its last change was the burial."""
    if _time_column(place, table) is None:
        return SQL("NULL::int8")
    at = table.ref("w", _meaning(place, "buried_at"))
    if part(place) == "work" or not table.has("updated_at"):
        return at
    return SQL("coalesce({}, {})").format(at, table.ref("w", "updated_at"))


def _order(place: Place) -> str:
    """What a listing is ordered by, so that an index serves it: DBOS has one on status and creation."""
    return "buried_at" if part(place) == "work" else "started_at"


def _is_buried(place: Place, table: Table) -> Composable:
    if part(place) == "runs":
        return SQL("{} = {}").format(table.ref("w", "status"), Literal(place.source.runs.buried))
    marker = table.ref("w", "buried")
    return marker if table.columns["buried"].type == "bool" else SQL("({} IS NOT NULL)").format(marker)


def _reason(place: Place, table: Table) -> Composable:
    return table.read("w", "reason", "text") if part(place) == "work" else table.read("w", "status", "text")


def mark(place: Place, table: Table) -> Composable:
    """What a change of a row is guarded by: it differs as soon as the row was re-armed, claimed or buried anew."""
    of_work, of_runs = "buried armed claim attempts updated_at", "status executor attempts updated_at"
    meanings = (of_work if part(place) == "work" else of_runs).split()
    there = [table.ref("w", meaning) for meaning in meanings if table.has(meaning)]
    return SQL("concat_ws('|', {})").format(
        SQL(", ").join(SQL("coalesce({}::text, '-')").format(each) for each in there)
    )


def _columns(place: Place, table: Table) -> Composable:
    inputs: Composable = table.read("w", _meaning(place, "payload"), "text")
    if part(place) == "runs" and place.inputs is not None:
        inputs = SQL("coalesce({}, (SELECT {} FROM {} AS i WHERE {} = {}))").format(
            inputs,
            place.inputs.read("i", "input", "text"),
            place.inputs.sql,
            place.inputs.ref("i", "run_id"),
            table.ref("w", "id"),
        )
    return SQL(", ").join(
        [
            table.read("w", "id", "text"),
            table.read("w", _meaning(place, "kind"), "text"),
            table.read("w", "key", "text") if part(place) == "work" else SQL("NULL::text"),
            _reason(place, table),
            table.read("w", "attempts", "int8"),
            _time(place, table),
            inputs,
            mark(place, table),
            table.read("w", _order(place), "text"),
            table.read("w", "executor", "text") if part(place) == "runs" else SQL("NULL::text"),
            table.read("w", "version", "text") if part(place) == "runs" else SQL("NULL::text"),
        ]
    )


def _select(
    session: Session, place: Place, conditions: Sequence[Composable], params: Mapping[str, Any], after: Shown | None
) -> list[Shown]:
    table = place.need(part(place))
    at = table.columns.get(_order(place))
    order = [*([table.ref("w", _order(place))] if at else []), table.ref("w", "id")]
    tests, values = list(conditions), dict(params)
    if after is not None:
        marks = [*([SQL("%(a0)s::{}").format(SQL(at.cast))] if at else [])]
        marks.append(SQL("%(a1)s::{}").format(SQL(table.columns["id"].cast)))
        tests.append(SQL("({}) > ({})").format(SQL(", ").join(order), SQL(", ").join(marks)))
        values |= {"a0": after.order, "a1": after.record.id}
    statement = SQL("SELECT {} FROM {} AS w WHERE {} ORDER BY {} LIMIT %(size)s").format(
        _columns(place, table), table.sql, SQL(" AND ").join(tests), SQL(", ").join(order)
    )
    return [_shown(place, table, row) for row in session.query(statement, values, needs=table.needs("SELECT"))]


def _shown(place: Place, table: Table, row: Sequence[Any]) -> Shown:
    id_, kind, key, reason, attempts, at, text, mark_, order, executor, version = row[:11]
    record = Buried(
        source=place.source.name,
        id=id_,
        kind=kind,
        key=key,
        reason=reason,
        attempts=attempts,
        buried_at=utc_text(micros(at, _time_column(place, table))),
        payload=payload.value(text),
    )
    return Shown(record, mark_, order, (executor, version))
