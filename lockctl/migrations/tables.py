"""What the revision files call: create a table or adopt the one that is there, and drop only what lockctl created.

A revision describes its tables as data (`Table`); nothing here knows a particular one. In alembic's offline mode the
same decisions are written into the printed script, except for the shape, which only a connection can check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from lockctl.catalog import BUILT_IN, Catalog, LockTable
from lockctl.db import Session
from lockctl.db.relations import quote
from lockctl.errors import BehindError
from lockctl.leases import shape
from lockctl.migrations import bookkeeping, offline
from lockctl.migrations.policy import Limits
from lockctl.migrations.records import Event, Notify, quiet

ATTRIBUTE = "lockctl"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a component as a revision leaves it.

    `body` is the list of columns and constraints, `indexes` what follows `CREATE INDEX` with `{table}` for the table.
    `schema` is fixed for a table that always lies there. A lock table names its entry of the catalogue in
    `lock_table`, and the catalogue says what an existing one must look like; for another one `columns` says it, as
    names and types. Where the table `owner` is present without this one, its owner has to make it: `owner_hint`.
    """

    name: str
    body: str
    indexes: tuple[str, ...] = ()
    schema: str | None = None
    lock_table: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    owner: str | None = None
    owner_hint: str | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Where and how a migration works: the session is None when a script is printed, `schema` is --schema."""

    session: Session | None
    schema: str | None = None
    catalog: Catalog = field(default_factory=Catalog.of)
    limits: Limits = field(default_factory=Limits)
    notify: Notify = quiet


def create_or_adopt(tables: Sequence[Table], revision: str) -> None:
    """Create each table that is missing, and check the shape of each that is there, which is left exactly as it is.

    Raises BehindError when an existing table's shape differs, and when an owner is there without its table.
    """
    scope = _scope()
    if scope.session is None:
        _print(offline.create(table, scope.schema, revision) for table in tables)
        return
    for table in tables:
        found = find(scope.session, table.name, table.schema or scope.schema)
        if found is None:
            _create(scope, scope.session, table, revision)
        check(scope.session, table, scope)
        if found is not None:
            scope.notify(Event("adopted", f"{found.shown} was there: left as it is", revision))


def refuse(session: Session, tables: Sequence[Table], scope: Scope) -> None:
    """Raise what `create_or_adopt` would raise about tables that are there, or that an owner has to make."""
    for table in tables:
        if find(session, table.name, table.schema or scope.schema) is None:
            _leave_to_owner(scope, session, table)
        else:
            check(session, table, scope)


def drop_created(tables: Sequence[Table], revision: str) -> None:
    """Drop those of `tables` that lockctl created (see `bookkeeping`), in reverse order, and leave the others."""
    scope = _scope()
    if scope.session is None:
        _print(offline.drop(table, scope.schema) for table in reversed(tables))
        return
    for table in reversed(tables):
        found = find(scope.session, table.name, table.schema or scope.schema)
        if found is None:
            continue
        if not bookkeeping.marked(found.comment):
            scope.notify(Event("left", f"{found.shown} was not created by lockctl: left as it is", revision))
            continue
        scope.session.query(sql.SQL("DROP TABLE {}").format(found.identifier))
        scope.notify(Event("dropped", f"{found.shown} dropped", revision))
    for schema in dict.fromkeys(table.schema for table in tables if table.schema):
        _drop_schema(scope, scope.session, schema, revision)


@dataclass(frozen=True, slots=True)
class Found:
    """A relation that is there, with its comment."""

    schema: str
    name: str
    comment: str | None

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def shown(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"


_FIND = """
SELECT n.nspname::text, c.relname::text, obj_description(c.oid, 'pg_class')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = %(name)s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
   AND CASE WHEN %(schema)s::text IS NULL THEN n.nspname = ANY (current_schemas(false)) ELSE n.nspname = %(schema)s END
 ORDER BY array_position(current_schemas(false), n.nspname)
 LIMIT 1
"""


def find(session: Session, name: str, schema: str | None) -> Found | None:
    """The relation called `name` in `schema`, else along the search path."""
    rows = session.query(_FIND, {"name": name, "schema": schema})
    return Found(*rows[0]) if rows else None


def check(session: Session, table: Table, scope: Scope) -> None:
    """Raise BehindError, naming the column, when the table is missing or its shape is not what lockctl needs."""
    schema = table.schema or scope.schema
    if table.lock_table is not None:
        shape.describe(session, _entry(scope.catalog, table.lock_table), schema)
        return
    rows = session.query(
        "SELECT a.attname::text, format_type(a.atttypid, NULL), c.relkind::text"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE n.nspname = %s AND c.relname = %s",
        (schema, table.name),
    )
    shown = f"{schema}.{table.name}"
    if not rows:
        raise BehindError(f"table {shown} does not exist")
    if rows[0][2] not in ("r", "p"):
        raise BehindError(f"{shown} is not a table")
    there = {name: type_ for name, type_, _kind in rows}
    for name, type_ in table.columns.items():
        if name not in there:
            raise BehindError(f'{shown} has no column "{name}"')
        if there[name] != type_:
            raise BehindError(f'column "{name}" of {shown} has type {there[name]}, and {type_} is needed')


def _entry(catalog: Catalog, name: str) -> LockTable:
    """The catalogue's entry; the built-in one where a configuration put another table under its name."""
    entry = catalog.get(name)
    return entry if entry.component else next(table for table in BUILT_IN if table.name == name)


def _leave_to_owner(scope: Scope, session: Session, table: Table) -> None:
    if table.owner is not None and (owner := find(session, table.owner, table.schema or scope.schema)):
        raise BehindError(
            f"{owner.shown} is there without {quote(table.name)}, which its owner creates", hint=table.owner_hint
        )


def _create(scope: Scope, session: Session, table: Table, revision: str) -> None:
    _leave_to_owner(scope, session, table)
    if table.schema is not None:
        _create_schema(scope, session, table.schema, revision)
    schema = table.schema or bookkeeping.creation_schema(session, scope.schema)
    bookkeeping.may_create(session, schema)
    for statement in offline.statements(table, sql.Identifier(schema, table.name), revision):
        session.query(statement)
    scope.notify(Event("created", f"{quote(schema)}.{quote(table.name)} created", revision))


def _create_schema(scope: Scope, session: Session, schema: str, revision: str) -> None:
    if session.query("SELECT 1 FROM pg_namespace WHERE nspname = %s", (schema,)):
        return
    bookkeeping.may_create_schema(session)
    for statement in offline.schema_statements(schema, revision):
        session.query(statement)
    scope.notify(Event("created", f"schema {quote(schema)} created", revision))


def _drop_schema(scope: Scope, session: Session, schema: str, revision: str) -> None:
    rows = session.query(
        "SELECT obj_description(n.oid, 'pg_namespace'),"
        " EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid)"
        " FROM pg_namespace n WHERE n.nspname = %s",
        (schema,),
    )
    if not rows or not bookkeeping.marked(rows[0][0]):
        return
    if rows[0][1]:
        scope.notify(Event("left", f"schema {quote(schema)} holds other objects: left as it is", revision))
        return
    session.query(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(schema)))
    scope.notify(Event("dropped", f"schema {quote(schema)} dropped", revision))


def _scope() -> Scope:
    from alembic import context

    found = context.config.attributes[ATTRIBUTE]
    assert isinstance(found, Scope)
    return found


def _print(scripts: Iterator[str]) -> None:
    from alembic import op

    for script in scripts:
        op.get_context().impl.static_output(script + "\n")
