"""The SQL of one lock table, composed from its shape.

Rules (docs/decisions.md, "One guarded statement"): the condition stands in the statement that makes the change; the
row is locked first, and the new expiry and the lapse are computed after that lock by `clock_timestamp()`. Measured:
a plain UPDATE, an upsert with EXCLUDED and an INSERT behind an uncommitted one each compute the expiry *before*
they wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from psycopg import sql
from psycopg.sql import SQL, Composable, Identifier, Placeholder

from lockctl.clock import utc_text
from lockctl.db.relations import Column
from lockctl.leases.shape import Shape
from lockctl.records import LockRow

_MINUS_INFINITY = -62_135_596_800_000_000  # the year 1: what `-infinity` is shown as


def now(column: Column) -> SQL:
    """The server's present in the type of `column`, never later than the real one."""
    if column.type == "int8":
        return SQL("floor(extract(epoch FROM clock_timestamp()) * 1000)::int8")
    if column.type == "timestamp":
        return SQL("(clock_timestamp() AT TIME ZONE 'UTC')")
    return SQL("clock_timestamp()")


def _half_unit(column: Column) -> Composable:
    """Half of the last digit a column with a precision keeps: added or taken away, it makes rounding ceil or floor."""
    if column.precision is None or column.precision >= 6:
        return SQL("interval '0'")
    return SQL("interval {}").format(sql.Literal(f"{0.5 * 10**-column.precision:.7f} seconds"))


def after(column: Column) -> Composable:
    """`%(ttl)s` milliseconds from now, not less. An interval of milliseconds knows no daylight saving."""
    if column.type == "int8":
        return SQL("(ceil(extract(epoch FROM clock_timestamp()) * 1000)::int8 + %(ttl)s::int8)")
    return SQL("({} + %(ttl)s::float8 * interval '1 millisecond' + {})").format(now(column), _half_unit(column))


def lapsed_now(column: Column) -> Composable:
    """An expiry that has passed as soon as it is stored."""
    if column.type == "int8":
        return now(column)
    return SQL("({} - {})").format(now(column), _half_unit(column))


class Statements:
    """The statements of one table. Placeholders: `k0`…, `holder`, `ttl`, `revive`."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.table = shape.identifier
        self.keys = [Identifier(column.name) for column in shape.keys]
        self.match = SQL(" AND ").join(
            SQL("t.{} = {}").format(name, self.param(f"k{i}", column))
            for i, (name, column) in enumerate(zip(self.keys, shape.keys, strict=True))
        )

    def param(self, name: str, column: Column) -> Composable:
        return SQL("{}::{}").format(Placeholder(name), SQL(column.cast))

    def row(self, alias: str = "t") -> Composable:
        """The columns of a LockRow, in the order that `decode` takes, under plain names."""
        shape, of = self.shape, SQL(alias + ".")
        parts = [SQL("{}{}::text AS k{}").format(of, name, SQL(str(i))) for i, name in enumerate(self.keys)]
        parts.append(SQL("{}{}::text AS h").format(of, Identifier(shape.holder.name)))
        parts.append(SQL("{}{} AS e").format(of, Identifier(shape.expires.name)))
        for column, letter in ((shape.created, "c"), (shape.updated, "u")):
            value = SQL("{}{}").format(of, Identifier(column.name)) if column else SQL("NULL::int8")
            parts.append(SQL("{} AS {}").format(value, SQL(letter)))
        return SQL(", ").join(parts)

    @property
    def width(self) -> int:
        return len(self.keys) + 4

    def live(self, expiry: str) -> Composable:
        """SQL for: the expiry named `expiry` has not passed (null never does)."""
        column = self.shape.expires
        test = SQL("{} > {}").format(SQL(expiry), now(column))
        return SQL("({} IS NULL OR {})").format(SQL(expiry), test) if column.nullable else test

    def params(self, key: Sequence[str], **others: Any) -> dict[str, Any]:
        return {**{f"k{i}": word for i, word in enumerate(key)}, **others}

    # -- the statements ------------------------------------------------------------------------------------------

    def read(self) -> Composable:
        return SQL("SELECT {}, clock_timestamp() FROM {} AS t WHERE {}").format(self.row(), self.table, self.match)

    def _prior(self) -> Composable:
        return SQL("prior AS (SELECT {} FROM {} AS t WHERE {} FOR UPDATE)").format(self.row(), self.table, self.match)

    def _answer(self) -> SQL:
        """Both rows at once: the refusal is explained by the very row that was judged."""
        return SQL(
            " SELECT prior.*, changed.*, clock_timestamp()"
            " FROM (VALUES (1)) AS one LEFT JOIN prior ON true LEFT JOIN changed ON true"
        )

    def acquire(self) -> Composable:
        shape = self.shape
        values: list[tuple[Composable, Composable]] = [
            (name, self.param(f"k{i}", column))
            for i, (name, column) in enumerate(zip(self.keys, shape.keys, strict=True))
        ]
        changes: list[tuple[Composable, Composable]] = [
            (Identifier(shape.holder.name), self.param("holder", shape.holder)),
            (Identifier(shape.expires.name), after(shape.expires)),
        ]
        if shape.updated:
            changes.append((Identifier(shape.updated.name), now(shape.updated)))
        if shape.created:
            stamp = (Identifier(shape.created.name), now(shape.created))
            (changes if shape.table.created_on_takeover else values).append(stamp)
        return SQL(
            "WITH {prior}, changed AS ("
            " INSERT INTO {table} AS t ({names})"
            " SELECT {values} FROM (VALUES (1)) AS one LEFT JOIN prior ON true"
            " ON CONFLICT ({keys}) DO UPDATE SET {changes} WHERE t.{expires} <= {now}"
            " RETURNING {row}){answer}"
        ).format(
            prior=self._prior(),
            table=self.table,
            names=SQL(", ").join(name for name, _ in values + changes),
            values=SQL(", ").join(value for _, value in values + changes),
            keys=SQL(", ").join(self.keys),
            changes=SQL(", ").join(SQL("{} = {}").format(name, value) for name, value in changes),
            expires=Identifier(shape.expires.name),
            now=now(shape.expires),
            row=self.row(),
            answer=self._answer(),
        )

    def _update(self, expiry: Composable, guard: Composable) -> Composable:
        shape = self.shape
        changes = [SQL("{} = {}").format(Identifier(shape.expires.name), expiry)]
        if shape.updated:
            changes.append(SQL("{} = {}").format(Identifier(shape.updated.name), now(shape.updated)))
        return SQL(
            "WITH {prior}, changed AS (UPDATE {table} AS t SET {changes} FROM prior"
            " WHERE {match} AND prior.h = %(holder)s AND {guard} RETURNING {row}){answer}"
        ).format(
            prior=self._prior(),
            table=self.table,
            changes=SQL(", ").join(changes),
            match=self.match,
            guard=guard,
            row=self.row(),
            answer=self._answer(),
        )

    def extend(self) -> Composable:
        return self._update(after(self.shape.expires), SQL("(%(revive)s OR {})").format(self.live("prior.e")))

    def renew(self) -> Composable:
        """Like extend, but never shortens: what a live holder does; with `revive` also to its own lapsed row."""
        expires = self.shape.expires
        longer: Composable = SQL("greatest(prior.e, {})").format(after(expires))
        if expires.nullable:
            longer = SQL("CASE WHEN prior.e IS NOT NULL THEN {} END").format(longer)
        return self._update(longer, SQL("(%(revive)s OR {})").format(self.live("prior.e")))

    def force_expire(self) -> Composable:
        return self._update(lapsed_now(self.shape.expires), self.live("prior.e"))

    def release(self) -> Composable:
        return SQL("DELETE FROM {} AS t WHERE {} AND t.{}::text = %(holder)s RETURNING {}, clock_timestamp()").format(
            self.table, self.match, Identifier(self.shape.holder.name), self.row()
        )

    # -- rows ------------------------------------------------------------------------------------------------------

    def decode(self, row: Sequence[Any], moment: float) -> LockRow | None:
        """The LockRow of a row's values as `row()` selects them, judged at `moment` (µs); None for an absent row."""
        keys = len(self.keys)
        if row[keys] is None:
            return None
        shape = self.shape
        holder, expires, created, updated = row[keys : keys + 4]
        expiry = micros(expires, shape.expires)
        left = remaining_ms(expiry, moment)
        return LockRow(
            shape.table.name,
            shape.relation,
            tuple(row[:keys]),
            holder,
            "held" if left is None or expiry is None or expiry > moment else "lapsed",
            utc_text(expiry),
            left,
            utc_text(micros(created, shape.created)),
            utc_text(micros(updated, shape.updated)),
        )

    def free(self, key: Sequence[str]) -> LockRow:
        """The row that stands for a key without one."""
        return LockRow(self.shape.table.name, self.shape.relation, tuple(key), None, "free", None, None, None, None)


def micros(value: float | None, column: Column | None) -> float | None:
    """A time of a table's as microseconds since 1970: its bigints are milliseconds."""
    if value is None or column is None:
        return None
    if column.type == "int8":
        return value * 1000
    return _MINUS_INFINITY if value == -math.inf else value


def remaining_ms(expiry: float | None, moment: float) -> int | None:
    """Whole milliseconds left at `moment`, rounded down: never more than the TTL, below nought once lapsed.

    None for a lease that never expires.
    """
    if expiry is None or expiry == math.inf:
        return None
    left = int(expiry - moment)
    return left // 1000 if left > 0 else min(-1, left // 1000)
