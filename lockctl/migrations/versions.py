"""Somebody else's version table, read and judged: `dbos.dbos_migrations(version)` and its like."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from lockctl.db import Needs, Session
from lockctl.db.relations import Relation, look, quote
from lockctl.errors import BehindError, LockctlError, UsageError
from lockctl.migrations.records import Verification


def find(session: Session, relation: str) -> Relation | None:
    """The table or view that `relation` names, as SQL reads it (quoted where it needs it). Raises UsageError."""
    try:
        parts: list[str] = session.one("SELECT parse_ident(%s)", (relation,))[0]
    except LockctlError:
        parts = []
    if not 1 <= len(parts) <= 2:
        raise UsageError(f"{relation!r} is no name of a table", hint='write schema.table, or "Odd Name" in quotes')
    schema, name = (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])
    return look(session, [(schema, name)])[0]


def read(session: Session, relation: str, column: str = "version") -> str | None:
    """The version in the one row of `relation`; None where there is no such table, or no row in it.

    Raises LockctlError for more than one row: which of them counts is not ours to guess. BehindError without the
    column, DeniedError without the privilege.
    """
    found = find(session, relation)
    if found is None:
        return None
    if column not in found.columns:
        raise BehindError(f"{found.shown} has no column {column}", hint="name it with --column")
    statement = sql.SQL("SELECT {}::text FROM {} ORDER BY 1 LIMIT 10").format(sql.Identifier(column), found.identifier)
    rows = session.query(statement, needs=Needs(found.shown, found.oid, ("SELECT",)))
    if len(rows) > 1:
        raise LockctlError(
            f"{found.shown} holds {len(rows)}{' or more' if len(rows) == 10 else ''} rows"
            f" ({', '.join(str(row[0]) for row in rows)}): a version table is to hold one",
            hint="find out which version the schema has, and leave that row alone",
        )
    return None if not rows else rows[0][0]


def compare(found: str | None, expected: str) -> str:
    """`current`, `behind` or `ahead`; versions that are no numbers, and differ, are `ahead` (diverged)."""
    if found == expected:
        return "current"
    if found is None:
        return "behind"
    if found.isdecimal() and expected.isdecimal():
        difference = int(found) - int(expected)
        return "behind" if difference < 0 else "ahead" if difference > 0 else "current"
    return "ahead"


def verify(session: Session, relation: str, column: str, expected: str, *, schema: str | None = None) -> Verification:
    """Whether the one row of a version table shows `expected`; `schema` is for a relation without one.

    No table and no row are `behind`. Only reads. Errors as for `read`.
    """
    if schema is not None and "." not in relation:
        relation = f"{quote(schema)}.{relation}"
    found = read(session, relation, column)
    outcome = compare(found, expected)
    detail = None if outcome == "current" else f"{relation} shows version {found or 'none'}, not {expected}"
    return Verification(outcome, (expected,), () if found is None else (found,), detail)


def missing(session: Session, columns: Sequence[str]) -> list[str]:
    """Which of `columns`, each `table.column` or `schema.table.column`, are not there. Raises UsageError."""
    absent: list[str] = []
    for text in columns:
        relation, dot, column = text.rpartition(".")
        if not dot or not relation:
            raise UsageError(f"{text!r} is no column", hint="write table.column or schema.table.column")
        table = find(session, relation)
        if table is None or column.strip('"') not in table.columns:
            absent.append(text)
    return absent
