"""Where the sources' tables are in this database, and which columns stand for what there.

Columns are looked up, never assumed: DBOS's schema gained some from version to version, and a configuration may name
others. A table or a needed column that is missing is `behind`, and the error names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from psycopg.sql import SQL, Composable, Identifier

from lockctl.catalog import split_relation
from lockctl.db import Needs, Session, relations
from lockctl.db.relations import INTEGER, TIMES, Column, Relation, quote
from lockctl.errors import BehindError
from lockctl.sources import BUILT_IN, Source

PARTS = ("runs", "leases", "work", "steps", "versions", "inputs")
_NO_COLUMNS = {
    "runs": {"running", "ended", "queued", "parked", "failed", "cancelled", "buried", "resume_kind"},
    "work": {"run_in_payload"},
    "steps": {"sleep"},
}
_TIMES = {
    "started_at",
    "updated_at",
    "ended_at",
    "cancel_requested_at",
    "deadline_at",
    "dequeued_at",
    "expires_at",
    "due_at",
    "claimed_until",
    "buried_at",
    "completed_at",
}


class Table(NamedTuple):
    """A table of a source as found; `columns` are those that are there, by what they mean."""

    relation: Relation
    columns: Mapping[str, Column]

    @property
    def sql(self) -> Identifier:
        return self.relation.identifier

    def needs(self, *privileges: str) -> Needs:
        return Needs(self.relation.shown, self.relation.oid, privileges)

    def has(self, meaning: str) -> bool:
        return meaning in self.columns

    def column(self, meaning: str) -> Identifier:
        return Identifier(self.columns[meaning].name)

    def ref(self, alias: str, meaning: str) -> Composable:
        """`alias.column`, for a column that is there."""
        return SQL("{}.{}").format(SQL(alias), self.column(meaning))

    def read(self, alias: str, meaning: str, cast: str | None = None) -> Composable:
        """`alias.column` in a SELECT, cast to `cast`; null where the column is not there."""
        if meaning not in self.columns:
            return SQL("NULL::{}").format(SQL(cast or "int8"))
        value = self.ref(alias, meaning)
        return SQL("{}::{}").format(value, SQL(cast)) if cast else value


class Place(NamedTuple):
    """A source with its tables as found; None for a part that it does not have or that is not there."""

    source: Source
    runs: Table | None
    leases: Table | None
    work: Table | None
    steps: Table | None
    versions: Table | None
    inputs: Table | None

    @property
    def leased(self) -> bool:
        """Whether a run's worker is told by a lease; otherwise by the sessions of its executor."""
        return self.source.leases is not None

    def need(self, part: str) -> Table:
        """A part that must be there. Raises BehindError."""
        table: Table | None = getattr(self, part)
        if table is None:
            description = getattr(self.source, part)
            if description is None:
                raise BehindError(f"source {self.source.name} has no {part}")
            raise _missing(self.source, description.relation)
        return table


def locate(session: Session, sources: Sequence[Source], schema: str | None) -> list[Place]:
    """The tables of `sources`, in one query; `schema` is for relations that name none themselves.

    Raises BehindError when a table that is there lacks a needed column, or has one of a type that lockctl can't use.
    """
    wanted = [(source, part, getattr(source, part)) for source in sources for part in PARTS]
    wanted = [(source, part, description) for source, part, description in wanted if description is not None]
    names = [split_relation(description.relation) for _, _, description in wanted]
    found = relations.look(session, [(own or schema, name) for own, name in names])
    tables: dict[tuple[str, str], Table] = {}
    for (source, part, description), relation in zip(wanted, found, strict=True):
        if relation is not None:
            tables[source.name, part] = _table(source, part, description, relation)
    return [Place(source, *(tables.get((source.name, part)) for part in PARTS)) for source in sources]


def present(places: Sequence[Place], part: Callable[[Place], str], *, named: bool) -> list[Place]:
    """Those of `places` that have the `part` asked for, each relation once.

    Raises BehindError for a named one without it, and when none has it.
    """
    if named:
        for place in places:
            place.need(part(place))
        return list(places)
    tables = {place.source.name: getattr(place, part(place)) for place in places}
    # Two sources may be one table: one that is like another in all but its runs has the other's work.
    there: dict[int, Place] = {}
    for place in places:
        if (table := tables[place.source.name]) is not None:
            there.setdefault(table.relation.oid, place)
    if not there:
        known = (getattr(place.source, part(place)) for place in places)
        looked = ", ".join(dict.fromkeys(description.relation for description in known if description is not None))
        raise BehindError(
            f"this database has no source of runs that lockctl knows (looked for {looked})",
            hint="`lockctl migrate upgrade runs@head` creates a run store; lockctl.toml names others ([sources.NAME])",
        )
    return list(there.values())


def _missing(source: Source, relation: str) -> BehindError:
    schema, name = split_relation(relation)
    shown = f"{quote(schema)}.{quote(name)}" if schema else quote(name)
    if source.component:
        hint = f"`lockctl migrate upgrade {source.component}@head` creates it"
    else:
        hint = f"check [sources.{source.name}] of lockctl.toml, or the database that was chosen"
    return BehindError(f"table {shown} of source {source.name} does not exist", hint=hint)


def _table(source: Source, part: str, description: Any, relation: Relation) -> Table:
    skipped = {"relation", *_NO_COLUMNS.get(part, ())}
    columns: dict[str, Column] = {}
    for meaning in description._fields:
        name = None if meaning in skipped else getattr(description, meaning)
        if name is None:
            continue
        if name in relation.columns:
            columns[meaning] = _checked(relation, meaning, relation.columns[name])
        elif meaning not in description._field_defaults or not _built_in(part, meaning, name):
            raise BehindError(
                f'{relation.shown} has no column "{name}"',
                hint=f"lockctl.toml can name its columns: [sources.{source.name}] {part} = {{ {meaning} = … }}",
            )
    if part == "work" and "buried_at" not in columns and columns["buried"].type in TIMES:
        columns["buried_at"] = columns["buried"]
    return Table(relation, columns)


def _built_in(part: str, meaning: str, name: str) -> bool:
    """Whether a built-in description names this column; one that a version lacks is left out then."""
    parts = (getattr(source, part) for source in BUILT_IN)
    return any(getattr(each, meaning) == name for each in parts if each is not None)


def _checked(relation: Relation, meaning: str, column: Column) -> Column:
    kinds = TIMES if meaning in _TIMES else set(INTEGER) if meaning == "attempts" else None
    if kinds is not None and column.type not in kinds:
        raise BehindError(
            f'column "{column.name}" of {relation.shown} has type {column.shown},'
            f" which lockctl does not use for it ({', '.join(sorted(kinds))})"
        )
    return column
