"""The statements that create and drop a table, and the same as a script for `migrate sql`.

A printed script can't look before it acts, so it carries its decisions as `DO` blocks. It does not check the shape of
a table that it finds: `lockctl migrate verify` does that afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from psycopg import sql

from lockctl.migrations import bookkeeping

if TYPE_CHECKING:
    from lockctl.migrations.tables import Table


def statements(table: Table, identifier: sql.Composable, revision: str) -> Iterator[sql.Composable]:
    """CREATE TABLE, its indexes, and the mark."""
    yield sql.SQL("CREATE TABLE {} (\n{}\n)").format(identifier, _trusted(table.body))
    for index in table.indexes:
        before, _, after = index.partition("{table}")
        yield sql.SQL("CREATE INDEX {}{}{}").format(_trusted(before), identifier, _trusted(after))
    yield sql.SQL("COMMENT ON TABLE {} IS {}").format(identifier, sql.Literal(bookkeeping.mark(revision)))


def schema_statements(schema: str, revision: str) -> Iterator[sql.Composable]:
    """CREATE SCHEMA and the mark."""
    yield sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))
    comment = sql.Literal(bookkeeping.mark(revision))
    yield sql.SQL("COMMENT ON SCHEMA {} IS {}").format(sql.Identifier(schema), comment)


def create(table: Table, schema: str | None, revision: str) -> str:
    """A block that creates the table where it is missing, and refuses where only its owner's other table is."""
    identifier = _identifier(table.name, table.schema or schema)
    inner = list(statements(table, identifier, revision))
    if table.schema is not None:
        missing = sql.SQL("to_regnamespace({}) IS NULL").format(_name(sql.Identifier(table.schema)))
        inner.insert(0, _if(missing, *schema_statements(table.schema, revision)))
    if table.owner is not None:
        owner = _identifier(table.owner, table.schema or schema)
        words = f"{owner.as_string()} is there without {identifier.as_string()}: {table.owner_hint}"
        refusal = sql.SQL("RAISE EXCEPTION USING MESSAGE = {}").format(sql.Literal(words))
        inner.insert(0, _if(sql.SQL("to_regclass({}) IS NOT NULL").format(_name(owner)), refusal))
    block = _if(sql.SQL("to_regclass({}) IS NULL").format(_name(identifier)), *inner)
    return f"-- A table that is there is left as it is; its shape: lockctl migrate verify\n{_do(block)}"


def drop(table: Table, schema: str | None) -> str:
    """A block that drops the table, and a schema of its own once it is empty, where they carry the mark."""
    identifier = _identifier(table.name, table.schema or schema)
    pattern = sql.Literal(bookkeeping.mark_pattern())
    marked = sql.SQL("obj_description(to_regclass({}), 'pg_class') LIKE {}").format(_name(identifier), pattern)
    parts = [_if(marked, sql.SQL("DROP TABLE {}").format(identifier))]
    if table.schema is not None:
        own = sql.SQL(
            "obj_description(to_regnamespace({name}), 'pg_namespace') LIKE {pattern}"
            " AND NOT EXISTS (SELECT FROM pg_depend"
            " WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace({name}))"
        ).format(name=_name(sql.Identifier(table.schema)), pattern=pattern)
        parts.append(_if(own, sql.SQL("DROP SCHEMA {}").format(sql.Identifier(table.schema))))
    return _do(sql.SQL(";\n").join(parts))


def _identifier(name: str, schema: str | None) -> sql.Identifier:
    return sql.Identifier(schema, name) if schema else sql.Identifier(name)


def _name(identifier: sql.Identifier) -> sql.Literal:
    """An identifier as to_regclass() and to_regnamespace() read it."""
    return sql.Literal(identifier.as_string())


def _if(condition: sql.Composable, *then: sql.Composable) -> sql.Composable:
    return sql.SQL("IF {} THEN\n{};\nEND IF").format(condition, sql.SQL(";\n").join(then))


def _do(block: sql.Composable) -> str:
    return f"DO $lockctl$\nBEGIN\n{block.as_string()};\nEND\n$lockctl$;"


def _trusted(text: str) -> sql.SQL:
    """Text of a revision file, which is SQL of our own."""
    return sql.SQL(text)
