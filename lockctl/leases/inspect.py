"""Reading lock rows: in short pages by key, so that a paused pipe holds no transaction open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.sql import SQL, Composable, Identifier

from lockctl.clock import utc_text
from lockctl.db import Session
from lockctl.db.relations import Column
from lockctl.errors import UsageError
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import holder_value, key_values
from lockctl.leases.statements import micros
from lockctl.records import LockRow, Summary

PAGE = 5_000
SORTS = ("key", "expires", "created")
STATES = ("held", "lapsed", "all")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows to show; durations in milliseconds. `lapsed_for` and `expires_within` imply a state.

    `lenient`, for a look at many tables: a holder that a column can't take is that of no row, and a table without the
    column of the order is shown by key; otherwise each is a UsageError.
    """

    state: str = "all"
    holder: str | None = None
    lapsed_for_ms: int | None = None
    expires_within_ms: int | None = None
    key: tuple[str, ...] = ()
    lenient: bool = False


def rows(
    session: Session, table: LockedTable, wanted: Filter, *, sort: str = "key", limit: int | None = None
) -> Iterator[LockRow]:
    """The rows of `table` that `wanted` lets through, in the order of `sort`, read page by page."""
    column = _sort_column(table, sort, lenient=wanted.lenient)
    conditions, params = _conditions(table, wanted)
    order = _order(table, column)
    after: list[Any] | None = None
    while limit is None or limit > 0:
        size = PAGE if limit is None else min(PAGE, limit)
        page = session.query(
            _page(table, column, conditions, order, after is not None),
            {**params, "size": size, **{f"a{i}": value for i, value in enumerate(after or ())}},
            needs=table.needs("SELECT"),
        )
        for row in page:
            found = table.sql.decode(row, row[-1])
            if found is not None:
                yield found
        if len(page) < size:
            return
        limit = None if limit is None else limit - size
        last = page[-1]
        after = [*([last[-2]] if column else []), *last[: len(table.shape.keys)]]


def summary(session: Session, table: LockedTable, wanted: Filter) -> Iterator[Summary]:
    """How many rows are held and how many lapsed, counted in the database."""
    conditions, params = _conditions(table, wanted)
    expires = table.shape.expires
    name = SQL("t.{}").format(Identifier(expires.name))
    found = session.query(
        SQL(
            "SELECT CASE WHEN {live} THEN 'held' ELSE 'lapsed' END, count(*), min({name}), max({name})"
            " FROM {table} AS t WHERE {conditions} GROUP BY 1 ORDER BY 1"
        ).format(live=_live(expires, name), name=name, table=table.sql.table, conditions=_all(conditions)),
        params,
        needs=table.needs("SELECT"),
    )
    counts = {row[0]: row for row in found}
    shape = table.shape
    for state in ("held", "lapsed"):
        if wanted.state in (state, "all"):
            _, count, oldest, newest = counts.get(state, (state, 0, None, None))
            yield Summary(
                shape.table.name,
                shape.relation,
                state,
                count,
                utc_text(micros(oldest, expires)),
                utc_text(micros(newest, expires)),
            )


def moment(column: Column) -> SQL:
    """The server's present, taken once for a statement, so that an index on the expiry can be used."""
    if column.type == "int8":
        return SQL("(SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::int8)")
    if column.type == "timestamp":
        return SQL("(SELECT clock_timestamp() AT TIME ZONE 'UTC')")
    return SQL("(SELECT clock_timestamp())")


def shifted(column: Column, name: str, sign: str) -> Composable:
    """`moment` plus or minus the milliseconds of the parameter `name`."""
    step = SQL("{}::int8") if column.type == "int8" else SQL("{}::float8 * interval '1 millisecond'")
    return SQL("({} {} {})").format(moment(column), SQL(sign), step.format(sql.Placeholder(name)))


def _live(column: Column, name: Composable) -> Composable:
    test = SQL("{} > {}").format(name, moment(column))
    return SQL("({} OR {} IS NULL)").format(test, name) if column.nullable else test


def _conditions(table: LockedTable, wanted: Filter) -> tuple[list[Composable], dict[str, Any]]:
    expires = table.shape.expires
    name = SQL("t.{}").format(Identifier(expires.name))
    conditions: list[Composable] = []
    params: dict[str, Any] = {}
    if wanted.key:
        conditions.append(table.sql.match)
        params |= table.sql.params(key_values(table.shape, wanted.key))
    if wanted.holder is not None:
        try:
            params["holder"] = holder_value(table.shape, wanted.holder)
            conditions.append(SQL("t.{}::text = %(holder)s").format(Identifier(table.shape.holder.name)))
        except UsageError:
            if not wanted.lenient:
                raise
            conditions.append(SQL("false"))
    if wanted.state == "held" or wanted.expires_within_ms is not None:
        conditions.append(_live(expires, name))
    if wanted.state == "lapsed" or wanted.lapsed_for_ms is not None:
        conditions.append(SQL("{} <= {}").format(name, moment(expires)))
    if wanted.lapsed_for_ms is not None:
        conditions.append(SQL("{} <= {}").format(name, shifted(expires, "lapsed_for", "-")))
        params["lapsed_for"] = wanted.lapsed_for_ms
    if wanted.expires_within_ms is not None:
        conditions.append(SQL("{} <= {}").format(name, shifted(expires, "within", "+")))
        params["within"] = wanted.expires_within_ms
    return conditions, params


def _all(conditions: Sequence[Composable]) -> Composable:
    return SQL(" AND ").join(conditions) if conditions else SQL("true")


def _sort_column(table: LockedTable, sort: str, *, lenient: bool) -> Column | None:
    if sort == "key":
        return None
    column = table.shape.expires if sort == "expires" else table.shape.created
    if column is None and not lenient:
        raise UsageError(f"{table.shape.table.name} has no column for --sort {sort}", hint="sort by key or expires")
    return column


def _sort_value(column: Column) -> Composable:
    name = SQL("t.{}").format(Identifier(column.name))
    if not column.nullable:
        return name
    never = "'9223372036854775807'" if column.type == "int8" else "'infinity'"
    return SQL("coalesce({}, {}::{})").format(name, SQL(never), SQL(column.cast))


def _order(table: LockedTable, column: Column | None) -> list[Composable]:
    keys: list[Composable] = [SQL("t.{}").format(name) for name in table.sql.keys]
    return keys if column is None else [_sort_value(column), *keys]


def _page(
    table: LockedTable,
    column: Column | None,
    conditions: Sequence[Composable],
    order: Sequence[Composable],
    later: bool,
) -> Composable:
    if later:
        casts = [column, *table.shape.keys] if column else list(table.shape.keys)
        marks = [SQL("{}::{}").format(sql.Placeholder(f"a{i}"), SQL(c.cast)) for i, c in enumerate(casts)]
        conditions = [
            *conditions,
            SQL("({}) > ({})").format(SQL(", ").join(order), SQL(", ").join(marks)),
        ]
    return SQL(
        "SELECT {row}, {sort}(SELECT clock_timestamp()) FROM {table} AS t"
        " WHERE {conditions} ORDER BY {order} LIMIT %(size)s"
    ).format(
        row=table.sql.row(),
        sort=SQL("{}::text, ").format(_sort_value(column)) if column else SQL(""),
        table=table.sql.table,
        conditions=_all(conditions),
        order=SQL(", ").join(order),
    )
