"""Deleting lapsed rows in batches, in the order of the key, so that no batch reads what an earlier one deleted.

A batch is one statement: it looks at the next lapsed rows, locks those that nobody else has locked (SKIP LOCKED), and
deletes those that are still lapsed. Rows that were locked are looked at once more at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import sql
from psycopg.sql import SQL, Composable, Identifier

from lockctl.clock import utc_text
from lockctl.db import Session
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
    """What a sweep has done so far to one table; `looked` counts the lapsed rows met, deleted or not."""

    table: LockedTable
    dry_run: bool = False
    swept: int = 0
    skipped: int = 0
    oldest: float | None = None

    def result(self) -> SweepResult:
        shape = self.table.shape
        return SweepResult(
            shape.table.name, shape.relation, self.swept, self.skipped, self.dry_run, utc_text(self.oldest)
        )

    def add(self, swept: int, skipped: int, oldest: float | None) -> None:
        self.swept += swept
        self.skipped += skipped
        if oldest is not None:
            self.oldest = oldest if self.oldest is None else min(self.oldest, oldest)


def sweep(
    session: Session, tally: Tally, plan: Plan, on_batch: Callable[[int], None] | None = None
) -> Iterator[LockRow]:
    """Delete; yields the deleted rows when the plan asks for them, and keeps `tally` up to date batch by batch."""
    yield from _pass(session, tally, plan, on_batch)
    if tally.skipped:
        # Most locks are held for a moment, often by another sweep: what is free or gone now was not skipped.
        tally.skipped = 0
        yield from _pass(session, tally, plan, on_batch)


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
    tally.add(found, 0, micros(oldest, expires))
    return tally.result()


def would_delete(session: Session, table: LockedTable, plan: Plan) -> Iterator[LockRow]:
    """The rows that a sweep would delete now (a dry run with rows)."""
    return inspect_rows(session, table, Filter(state="lapsed", lapsed_for_ms=plan.grace_ms), limit=plan.limit)


def _pass(session: Session, tally: Tally, plan: Plan, on_batch: Callable[[int], None] | None) -> Iterator[LockRow]:
    table, last = tally.table, None
    privileges = table.needs("SELECT", "UPDATE", "DELETE")
    while True:
        size = plan.batch if plan.limit is None else min(plan.batch, plan.limit - tally.swept)
        if size <= 0:
            return
        statement = _batch(table, rows=plan.rows, later=last is not None, spare=bool(plan.except_key))
        found = session.query(statement, _params(plan, size, last), needs=privileges)
        head = found[0]
        keys = len(table.shape.keys)
        looked, locked, swept, oldest = head[:4]
        tally.add(swept, looked - locked, micros(oldest, table.shape.expires))
        if on_batch is not None:
            on_batch(swept)
        if plan.rows:
            for row in found:
                gone = table.sql.decode(row[4 + keys :], row[-1])
                if gone is not None:
                    yield gone
        if looked < size:
            return
        last = head[4 : 4 + keys]


def _params(plan: Plan, size: int, last: Sequence[Any] | None) -> dict[str, Any]:
    return {
        "grace": plan.grace_ms,
        "size": size,
        **{f"a{i}": value for i, value in enumerate(last or ())},
        **{f"k{i}": value for i, value in enumerate(plan.except_key)},
    }


def _batch(table: LockedTable, *, rows: bool, later: bool, spare: bool) -> Composable:
    """One batch: rows looked at, of these locked, of these deleted, their oldest expiry, the last key looked at.

    The rows are found by physical place (ctid) within the statement: a row that was updated since the snapshot has
    moved, is not found, and stays. With `rows` every deleted row follows.
    """
    expires = table.shape.expires
    keys = [SQL("t.{}").format(name) for name in table.sql.keys]
    conditions: list[Composable] = [SQL("t.{} <= {}").format(Identifier(expires.name), shifted(expires, "grace", "-"))]
    if later:
        marks = [SQL("{}::{}").format(sql.Placeholder(f"a{i}"), SQL(c.cast)) for i, c in enumerate(table.shape.keys)]
        conditions.append(SQL("({}) > ({})").format(SQL(", ").join(keys), SQL(", ").join(marks)))
    if spare:
        conditions.append(SQL("NOT ({})").format(table.sql.match))
    names = [SQL("k{}").format(SQL(str(i))) for i in range(len(keys))]
    last_key = SQL(", ").join(SQL("(SELECT {}::text FROM due ORDER BY n DESC LIMIT 1)").format(name) for name in names)
    return SQL(
        "WITH due AS MATERIALIZED (SELECT t.ctid AS place, {due_keys}, row_number() OVER () AS n FROM"
        " (SELECT t.ctid, {plain_keys} FROM {table} AS t WHERE {conditions} ORDER BY {keys} LIMIT %(size)s) AS t),"
        " locked AS MATERIALIZED (SELECT t.ctid AS place FROM {table} AS t"
        " WHERE t.ctid = ANY (ARRAY(SELECT place FROM due)) FOR UPDATE SKIP LOCKED),"
        " gone AS (DELETE FROM {table} AS t WHERE t.ctid = ANY (ARRAY(SELECT place FROM locked))"
        " AND t.{expires} <= {cutoff} RETURNING {returning})"
        " SELECT (SELECT count(*) FROM due), (SELECT count(*) FROM locked), {tail}"
    ).format(
        due_keys=SQL(", ").join(
            SQL("t.{} AS {}").format(name, alias) for name, alias in zip(table.sql.keys, names, strict=True)
        ),
        plain_keys=SQL(", ").join(keys),
        table=table.sql.table,
        conditions=SQL(" AND ").join(conditions),
        keys=SQL(", ").join(keys),
        expires=Identifier(expires.name),
        cutoff=shifted(expires, "grace", "-"),
        returning=table.sql.row() if rows else SQL("t.{} AS e").format(Identifier(expires.name)),
        tail=(
            SQL(
                "(SELECT count(*) FROM gone), (SELECT min(e) FROM gone), {last}, gone.*, clock_timestamp()"
                " FROM (VALUES (1)) AS one LEFT JOIN gone ON true"
            )
            if rows
            else SQL("count(*), min(e), {last} FROM gone")
        ).format(last=last_key),
    )
