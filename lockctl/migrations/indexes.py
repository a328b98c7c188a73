"""CREATE INDEX CONCURRENTLY and its like: what a statement outside a transaction makes, and what a failed one leaves.

PostgreSQL's documentation ("Building Indexes Concurrently"): when it fails, the command leaves an INVALID index
behind, which IF NOT EXISTS then takes for the real one. Only an index of the name and the table that the statement
about to run makes is ours to drop, and only while nobody builds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from psycopg import sql

from lockctl.db import Session
from lockctl.db.relations import quote


@dataclass(slots=True)
class Target:
    """The table that a concurrent statement works on, and the index's name where the statement gives one.

    `schema` and `table` as the server resolves them. `others` are INVALID indexes of the table that were there before.
    """

    oid: int
    schema: str
    table: str
    index: str | None
    others: set[str] = field(default_factory=set)


def _parsed(statement: str) -> Any:
    """pglast's node of a statement; None where its parser does not take it (it runs all the same)."""
    import pglast

    try:
        found = pglast.parse_sql(statement)
    except pglast.parser.ParseError:
        return None
    return found[0].stmt if len(found) == 1 else None


def concurrent(statement: str) -> bool:
    """Does it do something CONCURRENTLY, or is it a VACUUM: does it wait for others without making others wait?"""
    if not any(word in statement.lower() for word in ("concurrently", "vacuum")):
        return False
    node = _parsed(statement)
    name = type(node).__name__
    if name == "VacuumStmt":
        full = any(option.defname == "full" for option in node.options or ())
        return bool(node.is_vacuumcmd) and not full
    if name == "ReindexStmt":
        return any(option.defname == "concurrently" for option in node.params or ())
    return name in ("IndexStmt", "DropStmt") and bool(node.concurrent)


def changes(statement: str) -> bool:
    """Does a statement outside a transaction leave something in the database? SET, SHOW and SELECT are taken not to."""
    return type(_parsed(statement)).__name__ not in ("SelectStmt", "VariableSetStmt", "VariableShowStmt", "DiscardStmt")


def summary(statement: str) -> str:
    """A statement on one line, cut."""
    line = " ".join(statement.split())
    return line if len(line) <= 100 else line[:99] + "…"


def target(session: Session, statement: str) -> Target | None:
    """What a CREATE INDEX CONCURRENTLY or REINDEX CONCURRENTLY works on; None for any other, and without the table."""
    if "concurrently" not in statement.lower():
        return None
    node = _parsed(statement)
    name = type(node).__name__
    if name == "IndexStmt" and node.concurrent:
        return _find(session, node.relation, node.idxname, "table")
    if name == "ReindexStmt" and node.relation is not None and concurrent(statement):
        return _find(session, node.relation, None, "index" if node.kind.name.endswith("INDEX") else "table")
    return None


def _find(session: Session, relation: Any, index: str | None, kind: str) -> Target | None:
    name = quote(relation.relname)
    if relation.schemaname:
        name = f"{quote(relation.schemaname)}.{name}"
    via = "to_regclass(%s)" if kind == "table" else "(SELECT indrelid FROM pg_index WHERE indexrelid = to_regclass(%s))"
    rows = session.query(
        "SELECT c.oid::int8, n.nspname::text, c.relname::text FROM pg_class c"
        f" JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {via}",
        (name,),
    )
    return Target(rows[0][0], rows[0][1], rows[0][2], index) if rows else None


def leftovers(session: Session, about: Target) -> list[sql.Identifier]:
    """The INVALID index that an earlier try of the same statement left, unless somebody builds it now.

    Who may not see `pg_stat_progress_create_index` in full sees its pids, and pg_locks shows everybody's: a session
    that builds anything while it holds SHARE UPDATE EXCLUSIVE on this table is taken to build this index.
    """
    if about.index is None:
        return []
    rows = session.query(
        "SELECT n.nspname::text, c.relname::text FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE i.indrelid = %(table)s::oid AND NOT i.indisvalid AND c.relname = %(index)s AND c.relkind = 'i'"
        " AND NOT EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.index_relid = c.oid"
        "  OR (p.relid IS NULL OR p.index_relid = 0) AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = p.pid"
        "   AND l.relation = i.indrelid AND l.mode = 'ShareUpdateExclusiveLock'))",
        {"table": about.oid, "index": about.index},
    )
    return [sql.Identifier(*row) for row in rows]


def invalid(session: Session, about: Target) -> set[str]:
    """Every INVALID index of the table, by name."""
    rows = session.query(
        "SELECT n.nspname::text, c.relname::text FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE i.indrelid = %s::oid AND NOT i.indisvalid",
        (about.oid,),
    )
    return {f"{quote(schema)}.{quote(name)}" for schema, name in rows}
