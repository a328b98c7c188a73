"""Deleting lapsed rows in batches, in the order of the key, so that no batch reads what an earlier one deleted.

A batch is one statement: it locks the next lapsed rows that nobody else has locked (SKIP LOCKED; the limit counts
those alone, so that locked rows starve nobody) and deletes those that are still lapsed. What is left in the end was
locked by others, and is looked at once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.sql import SQL, Composable, Identifier

from lockctl import clock
from lockctl.clock import utc_text
from lockctl.db import Session
from lockctl.db.percents import percents
from lockctl.leases.inspect import Filter, shifted
from lockctl.leases.inspect import rows as inspect_rows
from lockctl.leases.operations import LockedTable
from lockctl.leases.statements import micros
from lockctl.records import LockRow, SweepResult

DEFAULT_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Plan:
    """How to sweep: rows lapsed for `grace_ms` milliseconds, `batch` rows a statement, at most `limit` in all.

    `rows` asks for the deleted rows; `except_key` is left alone.
    """

    grace_ms: int = 60_000
    batch: int = DEFAULT_BATCH
    limit: int | None = None
    rows: bool = False
    except_key: tuple[str, ...] = ()


@dataclass(slots=True)
class Tally:
    """What a sweep has done so far to one table; `oldest` in µs since 1970, `last` the key it has come to."""

    table: LockedTable
    dry_run: bool = False
    swept: int = 0
    skipped: int = 0
    oldest: float | None = None
    last: Sequence[Any] | None = None

    def result(self) -> SweepResult:
        shape = self.table.shape
        return SweepResult(
            shape.table.name, shape.relation, self.swept, self.skipped, self.dry_run, utc_text(self.oldest)
        )

    def add(self, swept: int, oldest: float | None) -> None:
        self.swept += swept
        if oldest is not None:
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)


def sweep(
    session: Session, tally: Tally, plan: Plan, on_batch: Callable[[int], None] | None = None
) -> Iterator[LockRow]:
    """Delete; yields the deleted rows when the plan asks for them, and keeps `tally` up to date batch by batch."""
    started = clock.now()
    yield from _pass(session, tally, plan, on_batch)
    tally.skipped = _left(session, tally, plan, started)
    if tally.skipped and (plan.limit is None or tally.swept < plan.limit):
        # Most locks are held for a moment, often by another sweep: what is free or gone now was not skipped.
        yield from _pass(session, tally, plan, on_batch)
        tally.skipped = _left(session, tally, plan, started)


def _left(session: Session, tally: Tally, plan: Plan, started: float) -> int:
    """The rows that had lapsed when the sweep began and are still there, as far as it came."""
    table, expires = tally.table, tally.table.shape.expires
    conditions: list[Composable] = [SQL("t.{} <= {}").format(Identifier(expires.name), shifted(expires, "grace", "-"))]
    if tally.last is not None:
        conditions.append(_beside(table, "<="))
    if plan.except_key:
        conditions.append(SQL("NOT ({})").format(table.sql.match))
    age_ms = math.ceil((clock.now() - started) * 1000)
    statement = SQL("SELECT count(*) FROM {} AS t WHERE {}").format(table.sql.table, SQL(" AND ").join(conditions))
    params = {**_params(plan, 0, tally.last), "grace": plan.grace_ms + age_ms}
    return int(session.one(statement, params, needs=table.needs("SELECT"))[0])


def count(session: Session, table: LockedTable, plan: Plan) -> SweepResult:
    """What a sweep would delete now (a dry run), counted in the database."""
    expires = table.shape.expires
    name = SQL("t.{}").format(Identifier(expires.name))
    found, oldest = session.one(
        SQL(
            "SELECT count(*), min(e) FROM (SELECT {name} AS e FROM {table} AS t"
            " WHERE {name} <= {cutoff} LIMIT %(limit)s) AS due"
        ).format(name=name, table=table.sql.table, cutoff=shifted(expires, "grace", "-")),
        {"grace": plan.grace_ms, "limit": plan.limit},
        needs=table.needs("SELECT"),
    )
    tally = Tally(table, dry_run=True)
    tally.add(found, micros(oldest, expires))
    return tally.result()


def would_delete(session: Session, table: LockedTable, plan: Plan) -> Iterator[LockRow]:
    """The rows that a sweep would delete now (a dry run with rows)."""
    return inspect_rows(session, table, Filter(state="lapsed", lapsed_for_ms=plan.grace_ms), limit=plan.limit)


def _pass(session: Session, tally: Tally, plan: Plan, on_batch: Callable[[int], None] | None) -> Iterator[LockRow]:
    table, tally.last = tally.table, None
    keys = len(table.shape.keys)
    privileges = table.needs("SELECT", "UPDATE", "DELETE")
    first, later = (
        # Composed once, not for each of a thousand batches.
        percents(_batch(table, rows=plan.rows, later=later, spare=bool(plan.except_key))).as_string(session.conn)
        for later in (False, True)
    )
    while True:
        size = plan.batch if plan.limit is None else min(plan.batch, plan.limit - tally.swept)
        if size <= 0:
            return
        statement = first if tally.last is None else later
        found = session.query(statement, _params(plan, size, tally.last), needs=privileges)
        swept, oldest, *last = found[0][: keys + 2]
        tally.add(swept, micros(oldest, table.shape.expires))
        if on_batch is not None:
            on_batch(swept)
        if plan.rows:
            for row in found:
                gone = table.sql.decode(row[keys + 2 :], row[-1])
                if gone is not None:
                    yield gone
        # The last key is there only when the batch was full.
        tally.last = last if last[0] is not None else None
        if tally.last is None:
            return


def _params(plan: Plan, size: int, last: Sequence[Any] | None) -> dict[str, Any]:
    return {
        "grace": plan.grace_ms,
        "size": size,
        **{f"a{i}": value for i, value in enumerate(last or ())},
        **{f"k{i}": value for i, value in enumerate(plan.except_key)},
    }


def _beside(table: LockedTable, comparison: str) -> Composable:
    """The key compared with the parameters `a0`, `a1`, … as a row, as an index on the key does."""
    marks = [SQL("{}::{}").format(sql.Placeholder(f"a{i}"), SQL(c.cast)) for i, c in enumerate(table.shape.keys)]
    keys = [SQL("t.{}").format(name) for name in table.sql.keys]
    return SQL("({}) {} ({})").format(SQL(", ").join(keys), SQL(comparison), SQL(", ").join(marks))


def _batch(table: LockedTable, *, rows: bool, later: bool, spare: bool) -> Composable:
    """One batch: how many rows it deleted, their oldest expiry, and the last key where it was full.

    The rows that were locked are found again by physical place (ctid), which a lock does not move. With `rows` every
    deleted row follows.
    """
    expires = table.shape.expires
    keys = [SQL("t.{}").format(name) for name in table.sql.keys]
    names = [SQL("k{}").format(SQL(str(i))) for i in range(len(keys))]
    cutoff = SQL("t.{} <= {}").format(Identifier(expires.name), shifted(expires, "grace", "-"))
    conditions: list[Composable] = [cutoff]
    if later:
        conditions.append(_beside(table, ">"))
    if spare:
        conditions.append(SQL("NOT ({})").format(table.sql.match))
    counts = SQL("count(*), min(e), {last} FROM gone")
    with_rows = SQL(
        "(SELECT count(*) FROM gone), (SELECT min(e) FROM gone), {last}, gone.*, clock_timestamp()"
        " FROM (VALUES (1)) AS one LEFT JOIN gone ON true"
    )
    return SQL(
        "WITH due AS MATERIALIZED (SELECT t.ctid AS place, {due_keys} FROM {table} AS t WHERE {conditions}"
        " ORDER BY {keys} LIMIT %(size)s FOR UPDATE SKIP LOCKED),"
        " gone AS (DELETE FROM {table} AS t WHERE t.ctid = ANY (ARRAY(SELECT place FROM due)) AND {cutoff}"
        " RETURNING {returning}) SELECT {tail}"
    ).format(
        due_keys=SQL(", ").join(SQL("{}::text AS {}").format(key, name) for key, name in zip(keys, names, strict=True)),
        table=table.sql.table,
        conditions=SQL(" AND ").join(conditions),
        keys=SQL(", ").join(keys),
        cutoff=cutoff,
        returning=table.sql.row() if rows else SQL("t.{} AS e").format(Identifier(expires.name)),
        tail=(with_rows if rows else counts).format(
            last=SQL(", ").join(SQL("(SELECT {} FROM due OFFSET %(size)s - 1 LIMIT 1)").format(name) for name in names)
        ),
    )
