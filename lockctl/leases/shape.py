"""What a lock table really looks like in this database: its columns' types come from the catalog, never from memory.

One query describes any number of tables. A table that is missing or shaped differently is `behind`, and the
error names the column.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from lockctl.catalog import LockTable, split_relation
from lockctl.db import Session, relations
from lockctl.db.relations import INTEGER, TIMES, WORDS, Column, Relation, quote
from lockctl.errors import BehindError, DeniedError, LockctlError, UsageError

if TYPE_CHECKING:
    from lockctl.records import TableInfo


class Shape(NamedTuple):
    """A lock table as found: where it is, and the columns that its description names."""

    table: LockTable
    schema: str
    name: str
    oid: int
    columns: Mapping[str, Column]

    @property
    def relation(self) -> str:
        """`schema.table`, quoted where SQL needs it."""
        return f"{quote(self.schema)}.{quote(self.name)}"

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def keys(self) -> tuple[Column, ...]:
        return tuple(self.columns[name] for name in self.table.key)

    @property
    def holder(self) -> Column:
        return self.columns[self.table.holder]

    @property
    def expires(self) -> Column:
        return self.columns[self.table.expires]

    @property
    def created(self) -> Column | None:
        return self.columns[self.table.created] if self.table.created else None

    @property
    def updated(self) -> Column | None:
        return self.columns[self.table.updated] if self.table.updated else None


class Found(NamedTuple):
    """A description of the catalogue and what the database has under that name (None: nothing)."""

    table: LockTable
    relation: Relation | None

    @property
    def present(self) -> bool:
        return self.relation is not None

    def shape(self) -> Shape:
        """The shape of a table that is there, checked. Raises BehindError that names what differs."""
        assert self.relation is not None
        schema, name, oid, kind, uniques, columns = self.relation
        shape = Shape(self.table, schema, name, oid, columns)
        _check(shape, kind, uniques)
        return shape


def look(session: Session, tables: Sequence[LockTable], schema: str | None) -> list[Found]:
    """What this database has of `tables`, in one query; `schema` is for those that name none themselves."""
    names = [split_relation(table.relation) for table in tables]
    found = relations.look(session, [(own or schema, name) for own, name in names])
    return [Found(table, relation) for table, relation in zip(tables, found, strict=True)]


def describe(session: Session, table: LockTable, schema: str | None) -> Shape:
    """The checked shape of one table. Raises BehindError when it is missing or differs."""
    (found,) = look(session, [table], schema)
    if not found.present:
        raise _missing(session, table, schema)
    return found.shape()


def infos(session: Session, tables: Sequence[LockTable], schema: str | None) -> list[TableInfo]:
    """The catalogue as `lockctl tables` lists it."""
    return [_info(found, schema) for found in look(session, tables, schema)]


def _info(found: Found, schema: str | None) -> TableInfo:
    from lockctl.records import TableInfo

    table = found.table
    own, name = split_relation(table.relation)
    where = own or schema
    relation = f"{quote(where)}.{quote(name)}" if where else quote(name)
    expiry: str | None = None
    if found.relation is not None:
        relation = found.relation.shown
        column = found.relation.columns.get(table.expires)
        expiry = column.shown if column else None
    return TableInfo(
        table=table.name,
        relation=relation,
        present=found.present,
        key_columns=table.key,
        holder_column=table.holder,
        expiry_column=table.expires,
        expiry_type=expiry,
        default_ttl_ms=table.default_ttl_ms,
        note=table.note,
    )


def _check(shape: Shape, kind: str, uniques: Iterable[frozenset[int]]) -> None:
    table = shape.table
    if kind != "r":
        raise BehindError(
            f"{shape.relation} is not a plain table", hint="views and partitioned tables can't hold leases"
        )
    expected = [(name, WORDS) for name in (*table.key, table.holder)] + [(table.expires, TIMES)]
    expected += [(name, TIMES) for name in (table.created, table.updated) if name]
    for name, types in expected:
        if name not in shape.columns:
            raise BehindError(
                f'{shape.relation} has no column "{name}"',
                hint=f"lockctl.toml can name its columns: [tables.{table.name}]",
            )
        if shape.columns[name].type not in types:
            raise BehindError(
                f'column "{name}" of {shape.relation} has type {shape.columns[name].shown},'
                f" which lockctl does not use for it ({', '.join(sorted(types))})"
            )
    wanted = frozenset(shape.columns[name].number for name in table.key)
    if wanted not in uniques:
        names = ", ".join(f'"{name}"' for name in table.key)
        raise BehindError(
            f"{shape.relation} has no primary key or unique index on ({names})",
            hint="a deferrable or partial one does not count: no INSERT can rely on it",
        )


# A schema on the search path that the role may not use is left out of it silently.
_ELSEWHERE = """
SELECT n.nspname::text, current_user::text, NOT has_schema_privilege(n.oid, 'USAGE')
       AND n.nspname = ANY (SELECT replace(btrim(s, '" '), '$user', current_user)
                              FROM unnest(string_to_array(current_setting('search_path'), ',')) AS s)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = %s AND c.relkind IN ('r', 'p') ORDER BY 1
"""


def _missing(session: Session, table: LockTable, schema: str | None) -> LockctlError:
    own, name = split_relation(table.relation)
    where = own or schema
    found = session.query(_ELSEWHERE, (name,))
    elsewhere = [row[0] for row in found]
    for place, role, barred in found:
        if barred and where is None:
            return DeniedError(
                f"role {role} lacks USAGE on schema {quote(place)}, where {quote(name)} is",
                hint=f"the owner can run: GRANT USAGE ON SCHEMA {quote(place)} TO {quote(role)}",
            )
    if elsewhere and own is None:
        hint = f"there is one in schema {', '.join(elsewhere)}: give --schema"
    elif table.component:
        hint = f"`lockctl migrate upgrade {table.component}@head` creates it; `lockctl tables` lists what is there"
    else:
        hint = f"check relation in [tables.{table.name}] of lockctl.toml"
    place = f"schema {where}" if where else "the search path"
    return BehindError(f"table {quote(name)} does not exist in {place}", hint=hint)


def key_words(table: LockTable, words: Iterable[str]) -> tuple[str, ...]:
    """`words` as a key of `table`. Raises UsageError naming the key columns when the number is wrong."""
    key = tuple(words)
    if len(key) != len(table.key):
        columns = " ".join(f"<{name}>" for name in table.key)
        raise UsageError(
            f"{table.name} has {len(table.key)} key column{'s' * (len(table.key) > 1)}, and {len(key)} word"
            f"{'s were' if len(key) != 1 else ' was'} given",
            hint=f"write {table.name} {columns} (a word that looks like an option: --key WORD)",
        )
    for word in key:
        check_text(word, "key")
    return key


def check_text(word: str, what: str) -> None:
    """Raise UsageError for what no text column stores: bytes that are no UTF-8, and NUL."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(f"the {what} {word!a} is not valid UTF-8") from None
    if "\0" in word:
        raise UsageError(f"the {what} contains a NUL character, which PostgreSQL does not store")


def key_values(shape: Shape, key: Sequence[str]) -> tuple[str, ...]:
    """The words of a key as their columns store them. Raises UsageError for a value that a column can't take."""
    return tuple(_value(word, column, "key") for word, column in zip(key, shape.keys, strict=True))


def holder_value(shape: Shape, holder: str) -> str:
    """A holder as its column stores it. Raises UsageError for a value that the column can't take."""
    return _value(holder, shape.holder, "holder")


def _value(word: str, column: Column, what: str) -> str:
    check_text(word, what)
    name = f'column "{column.name}"'
    if column.limit is not None and len(word) > column.limit:
        raise UsageError(f"the {what} is {len(word)} characters long, and {name} takes {column.limit}")
    if column.type == "uuid":
        try:
            return str(uuid.UUID(word))
        except ValueError:
            raise UsageError(f"the {what} {word!r} is not a UUID, which {name} takes") from None
    if column.type in INTEGER:
        if (
            not re.fullmatch(r"-?[0-9]{1,19}", word)
            or not -(2 ** INTEGER[column.type]) <= int(word) < 2 ** INTEGER[column.type]
        ):
            raise UsageError(f"the {what} {word!r} is not a whole number that {name} ({column.shown}) takes")
        return str(int(word))
    return word
