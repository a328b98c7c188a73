"""What a database says about itself: the version table, and the marks on what lockctl created.

The version table `lockctl_alembic_version` has one row for each installed component (alembic's multiple heads). It
lies in the schema given with `--schema`, else where the search path finds it, else in the path's first schema:
two deployments in two schemas of one database keep separate books.

The mark on a table or schema that lockctl created is its COMMENT. It goes with the table through a dump, a restore,
a rename, and dies with it, so that a table that somebody else made later under the same name is never taken for
ours; a list of names or oids in a table of our own fails one of these. An owner that comments on the table takes the
mark away: the table is then left where it is, which is the safe side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg import sql

from lockctl.db import Needs, Session
from lockctl.db.relations import quote
from lockctl.errors import BehindError, DeniedError

VERSION_TABLE = "lockctl_alembic_version"
_MARK = "created by lockctl (revision "


def mark(revision: str) -> str:
    """The comment on what `revision` created."""
    return f"{_MARK}{revision}); lockctl migrate downgrade drops it"


def marked(comment: str | None) -> bool:
    """Whether a comment says that lockctl created the thing."""
    return comment is not None and comment.startswith(_MARK)


def mark_pattern() -> str:
    """The mark as a LIKE pattern, for SQL that is printed and run elsewhere."""
    return f"{_MARK}%"


@dataclass(frozen=True, slots=True)
class Book:
    """The version table's schema; `oid` is None while there is no version table."""

    schema: str
    oid: int | None

    @property
    def relation(self) -> str:
        return f"{self.schema}.{VERSION_TABLE}"


# current_schemas(false) leaves out the schemas that this role may not use.
_LOCATE = """
SELECT n.nspname::text, c.oid::int8
  FROM pg_namespace n
  LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %(table)s AND c.relkind IN ('r', 'p')
 WHERE CASE WHEN %(schema)s::text IS NULL THEN n.nspname = ANY (current_schemas(false)) ELSE n.nspname = %(schema)s END
 ORDER BY c.oid IS NULL, array_position(current_schemas(false), n.nspname)
 LIMIT 1
"""


def locate(session: Session, schema: str | None) -> Book:
    """Where this database's version table is, or would be created. Raises BehindError when no such schema exists."""
    rows = session.query(_LOCATE, {"table": VERSION_TABLE, "schema": schema})
    if rows:
        return Book(rows[0][0], rows[0][1])
    raise _no_schema(schema)


def _no_schema(schema: str | None) -> BehindError:
    if schema is not None:
        return BehindError(f'schema "{schema}" does not exist', hint="create it, or name another with --schema")
    return BehindError("the search path names no schema that this role may use", hint="name one with --schema")


def creation_schema(session: Session, schema: str | None) -> str:
    """The schema in which a new table goes: the given one, else the search path's first. Raises BehindError."""
    rows = session.query(
        "SELECT CASE WHEN %(schema)s::text IS NULL THEN current_schema()::text"
        " ELSE (SELECT nspname::text FROM pg_namespace WHERE nspname = %(schema)s) END",
        {"schema": schema},
    )
    found: str | None = rows[0][0]
    if found is None:
        raise _no_schema(schema)
    return found


def may_create(session: Session, schema: str) -> None:
    """Raise DeniedError, which names the role and the privilege, unless tables may be created in `schema`."""
    may, role = session.one("SELECT has_schema_privilege(%s, 'CREATE'), current_user::text", (schema,))
    if not may:
        raise DeniedError(
            f"role {role} lacks CREATE on schema {quote(schema)}",
            hint=f"its owner can run: GRANT CREATE ON SCHEMA {quote(schema)} TO {quote(role)}",
        )


def may_create_schema(session: Session) -> None:
    """Raise DeniedError, which names the role and the privilege, unless a schema may be created here."""
    may, role, name = session.one(
        "SELECT has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text"
    )
    if not may:
        raise DeniedError(
            f"role {role} lacks CREATE on database {quote(name)}",
            hint=f"its owner can run: GRANT CREATE ON DATABASE {quote(name)} TO {quote(role)}",
        )


def revisions(session: Session, book: Book) -> tuple[str, ...]:
    """The revisions that the database is at, sorted; empty without a version table."""
    if book.oid is None:
        return ()
    statement = sql.SQL("SELECT version_num::text FROM {}").format(sql.Identifier(book.schema, VERSION_TABLE))
    rows = session.query(statement, needs=Needs(book.relation, book.oid, ("SELECT",)))
    return ordered(row[0] for row in rows)


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Revisions in the order in which they are shown."""
    return tuple(sorted(names))
