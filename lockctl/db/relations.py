"""What tables really look like in this database: columns and types come from the catalog, never from memory.

One query describes any number of tables; it needs no privilege on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from psycopg import sql

from lockctl.db.session import Session

TEXT = {"text", "varchar", "bpchar", "citext"}
INTEGER = {"int2": 15, "int4": 31, "int8": 63}
"""Base types and the bits of their values."""
WORDS = TEXT | {"uuid"} | set(INTEGER)
TIMES = {"timestamptz", "timestamp", "int8"}
"""A zoneless timestamp is taken as UTC, a bigint as epoch milliseconds."""


class Column(NamedTuple):
    """A column: `type` is the base type's name, `cast` how SQL names it, `limit` its characters, `precision` its
    fractional digits of a second."""

    name: str
    type: str
    cast: str
    shown: str
    limit: int | None
    precision: int | None
    nullable: bool
    has_default: bool
    number: int


class Relation(NamedTuple):
    """A table, view or the like as found; `kind` is `pg_class.relkind`, `uniques` the columns of its unique
    indexes (a deferrable one checks too late for ON CONFLICT)."""

    schema: str
    name: str
    oid: int
    kind: str
    uniques: tuple[frozenset[int], ...]
    columns: Mapping[str, Column]

    @property
    def shown(self) -> str:
        """`schema.table`, quoted where SQL needs it."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


def quote(name: str) -> str:
    """`name` as SQL writes an identifier: quoted only where it must be."""
    if re.fullmatch(r"[a-z_][a-z0-9_$]*", name):
        return name
    return '"' + name.replace('"', '""') + '"'


# current_schemas(true) is the search path as it is in force, with pg_temp and pg_catalog. format_type with -1 gives
# `bpchar`; with NULL it would be `character`, and a cast to that cuts a value to one character.
_DESCRIBE = """
SELECT w.ord, c.oid::int8, c.nspname::text, c.relname::text, c.relkind::text, c.uniques,
       a.attname::text, bt.typname::text, format_type(bt.oid, -1), format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, NOT a.attnotnull,
       a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', a.attnum::int
  FROM unnest(%s::int[], %s::text[], %s::text[]) AS w(ord, schema, name)
 CROSS JOIN LATERAL (
       SELECT c.oid, n.nspname, c.relname, c.relkind,
              (SELECT string_agg(i.indkey::text, ';') FROM pg_index i
                WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                  AND i.indpred IS NULL AND i.indexprs IS NULL) AS uniques
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relname = w.name::name AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND CASE WHEN w.schema IS NULL THEN n.nspname = ANY (current_schemas(true)) ELSE n.nspname = w.schema END
        ORDER BY array_position(current_schemas(true), n.nspname) LIMIT 1) AS c
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_type t ON t.oid = a.atttypid
  JOIN pg_type bt ON bt.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
 ORDER BY w.ord, a.attnum
"""


def look(session: Session, names: Sequence[tuple[str | None, str]]) -> list[Relation | None]:
    """What this database has under each of `names` (schema or None for the search path, and table), in one query."""
    rows = session.query(
        _DESCRIBE, (list(range(len(names))), [schema for schema, _ in names], [name for _, name in names])
    )
    return [_relation([row for row in rows if row[0] == number]) for number in range(len(names))]


def _relation(rows: Sequence[tuple[Any, ...]]) -> Relation | None:
    if not rows:
        return None
    _, oid, schema, name, kind, uniques = rows[0][:6]
    indexes = tuple(frozenset(map(int, index.split())) for index in (uniques or "").split(";") if index)
    return Relation(schema, name, oid, kind, indexes, {row[6]: _column(row) for row in rows})


def _column(row: Sequence[Any]) -> Column:
    type_, modifier = row[7], row[10]
    return Column(
        name=row[6],
        type=type_,
        cast=row[8],
        shown=row[9],
        limit=modifier - 4 if type_ in ("varchar", "bpchar") and modifier >= 4 else None,
        precision=modifier if type_ in ("timestamptz", "timestamp") and modifier >= 0 else None,
        nullable=row[11],
        has_default=row[12],
        number=row[13],
    )
