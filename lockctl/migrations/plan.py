"""`migrate plan`: each statement of a SQL file with the lock it takes, on what, and what is done under it.

Nothing is executed. Where a database is there, its catalogue adds what a text can't tell: tables bound by foreign
keys, an index's table, the volatility of a default's function, and how large a table is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lockctl.db import Session
from lockctl.migrations import locks
from lockctl.migrations.grammar import kind
from lockctl.migrations.lockrules import Lock
from lockctl.migrations.sqlfile import FileStep


@dataclass(frozen=True, slots=True)
class PlannedLock:
    """One lock of one statement; a statement that locks no table is one row without mode and relation.

    `transaction` is False for a statement that runs outside one. `effect` is `scan` or `rewrite` of the table while
    the lock is held. `size_bytes` is of the relation with its indexes, None where no database was asked.
    """

    step: int
    line: int
    transaction: bool
    lock_mode: str | None
    relation: str | None
    effect: str | None
    size_bytes: int | None
    note: str | None
    statement: str


def plan(steps: Sequence[FileStep], session: Session | None = None) -> Iterator[PlannedLock]:
    """The locks of `steps` in order; `session` only reads, and may be left out."""
    for step in steps:
        for statement in step.statements:
            found = list(_of(statement.node, statement.text)) or [Lock(None, None)]
            answered = _without(found) if session is None else _asked(session, found)
            for lock in answered:
                size = _size(session, lock.relation) if session is not None and lock.relation else None
                yield PlannedLock(
                    step.number,
                    statement.line,
                    not step.outside,
                    lock.mode,
                    lock.relation,
                    lock.effect,
                    size,
                    lock.note,
                    statement.summary,
                )


def _of(node: Any, text: str) -> Iterator[Lock]:
    if kind(node) == "DoStmt":
        yield from _block(text)
    else:
        yield from locks.of(node)


def _block(text: str) -> Iterator[Lock]:
    """The statements inside a DO block, which may or may not be reached."""
    from pglast import parse_plpgsql, parse_sql
    from pglast.error import Error

    try:
        queries = list(_queries(parse_plpgsql(text)))
        inside = [lock for query in queries if query for raw in parse_sql(query) for lock in locks.of(raw.stmt)]
    except (Error, json.JSONDecodeError):
        queries, inside = [None], []
    for lock in inside:
        yield lock._replace(note="; ".join(filter(None, ("where the block comes to it", lock.note))))
    if None in queries:
        yield Lock(None, None, None, "runs code whose locks are not in this text")


def _queries(tree: Any) -> Iterator[str | None]:
    """The statements in a PL/pgSQL tree; None for one that is put together while it runs."""
    if isinstance(tree, list):
        for item in tree:
            yield from _queries(item)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if name == "PLpgSQL_stmt_execsql":
                yield value["sqlstmt"]["PLpgSQL_expr"]["query"]
            elif name in ("PLpgSQL_stmt_dynexecute", "PLpgSQL_stmt_call", "PLpgSQL_stmt_dynfors"):
                yield None
            else:
                yield from _queries(value)


_UNKNOWN = {
    "dropped": "and on every table that a foreign key of it references",
    "constraint": "and on the table that it references, where it is a foreign key",
    "cascade": "and on every table that references it",
    "index": "and on its table",
    "reindex": "and on its table, which is scanned",
}


def _without(found: list[Lock]) -> Iterator[Lock]:
    """What can't be asked becomes a note."""
    for lock in found:
        unknown = _UNKNOWN.get((lock.ask or "").partition(":")[0])
        yield lock._replace(note="; ".join(filter(None, (lock.note, unknown))) or None)


# Recursive for TRUNCATE … CASCADE, which goes on from table to table.
_REFERENCING = """
WITH RECURSIVE bound(oid) AS (
    SELECT c.conrelid FROM pg_constraint AS c WHERE c.contype = 'f' AND c.confrelid = to_regclass(%(name)s)
     UNION
    SELECT c.conrelid FROM bound AS b JOIN pg_constraint AS c ON c.contype = 'f' AND c.confrelid = b.oid)
SELECT oid::regclass::text FROM bound WHERE oid <> to_regclass(%(name)s) ORDER BY 1
"""
_REFERENCED = """
SELECT DISTINCT confrelid::regclass::text FROM pg_constraint
 WHERE contype = 'f' AND conrelid = to_regclass(%(name)s) AND confrelid <> conrelid
   AND (%(only)s::text IS NULL OR conname = %(only)s) ORDER BY 1
"""
_TABLE_OF = "SELECT indrelid::regclass::text FROM pg_index WHERE indexrelid = to_regclass(%(name)s)"
_VOLATILE = (
    "SELECT coalesce(bool_or(provolatile = 'v'), true) FROM pg_proc"
    " WHERE proname = %(function)s AND pg_function_is_visible(oid)"
)


def _asked(session: Session, found: list[Lock]) -> Iterator[Lock]:
    for lock in found:
        what, _, name = (lock.ask or "").partition(":")
        if what == "function":
            volatile = session.one(_VOLATILE, {"function": name.rpartition(".")[2]})[0] if "." not in name else True
            yield lock if volatile else lock._replace(effect=None, note=None)
            continue
        yield lock
        if what in ("dropped", "constraint"):
            for (other,) in session.query(_REFERENCED, {"name": lock.relation, "only": name or None}):
                yield Lock(lock.mode, other, None, f"a foreign key of {lock.relation} references it")
        elif what == "cascade":
            for (other,) in session.query(_REFERENCING, {"name": lock.relation}):
                yield Lock(lock.mode, other, None, f"a foreign key of it references {lock.relation}")
        elif what == "index":
            for (table,) in session.query(_TABLE_OF, {"name": lock.relation}):
                yield Lock(lock.mode, table, lock.effect, f"the table of {lock.relation}")
        elif what == "reindex":
            for (table,) in session.query(_TABLE_OF, {"name": lock.relation}):
                yield Lock(name, table, "scan", f"the table of {lock.relation}")


def _size(session: Session, name: str) -> int | None:
    found: int | None = session.one("SELECT pg_total_relation_size(to_regclass(%(name)s))", {"name": name})[0]
    return found
