"""A `%` in a name: psycopg takes it for a placeholder wherever a statement has parameters."""

from __future__ import annotations

from psycopg import sql


def percents(statement: sql.Composable) -> sql.Composable:
    """`statement` with the `%` in its names doubled, as psycopg wants it beside parameters."""
    if isinstance(statement, sql.Composed):
        return sql.Composed([percents(part) for part in statement])
    if isinstance(statement, sql.Identifier):
        name = statement.as_string()
        if "%" in name:
            return sql.SQL(name.replace("%", "%%"))
    return statement
