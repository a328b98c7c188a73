"""What `alembic/env.py` runs: under lockctl, on its connection; from plain alembic, on one made by the same layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lockctl.db import Database, Session
from lockctl.errors import LockctlError
from lockctl.migrations import bookkeeping, bridge
from lockctl.migrations.engine import Limits
from lockctl.migrations.records import Event
from lockctl.migrations.tables import ATTRIBUTE, Scope

if TYPE_CHECKING:
    from alembic.runtime.environment import EnvironmentContext
    from sqlalchemy import Connection


def run(context: EnvironmentContext) -> None:
    """Run what alembic was asked for. Errors come out as alembic's, so that its command prints one line."""
    from alembic.util import CommandError

    attributes = context.config.attributes
    try:
        if context.is_offline_mode():
            scope = attributes.setdefault(ATTRIBUTE, Scope(None, _schema(context)))
            _offline(context, scope)
        elif "connection" in attributes:
            if ATTRIBUTE not in attributes:
                attributes[ATTRIBUTE] = Scope(_session_under(attributes["connection"]), _schema(context))
            _online(context, attributes["connection"], attributes[ATTRIBUTE])
        else:
            with _own_connection(_schema(context)) as (connection, scope):
                attributes[ATTRIBUTE] = scope
                _online(context, connection, scope)
    except LockctlError as error:
        if attributes.get("raise_ours"):
            raise
        raise CommandError(f"{error.message} ({error.hint})" if error.hint else error.message) from None


def _online(context: EnvironmentContext, connection: Connection, scope: Scope) -> None:
    assert scope.session is not None
    book = bookkeeping.locate(scope.session, scope.schema)
    if not scope.session.conn.autocommit:
        # The look above opened a transaction, and alembic must find the connection outside of one.
        scope.session.conn.rollback()
    _configure(context, book.schema, connection=connection)
    _migrate(context)


def _offline(context: EnvironmentContext, scope: Scope) -> None:
    _configure(context, scope.schema, dialect_name="postgresql", literal_binds=True)
    impl = context.get_context().impl
    begin = impl.emit_begin

    def emit_begin() -> None:
        begin()
        impl.static_output(f"SET LOCAL lock_timeout = '{scope.limits.lock_timeout_ms}ms';")

    impl.emit_begin = emit_begin  # type: ignore[method-assign]
    _migrate(context)


def _configure(context: EnvironmentContext, schema: str | None, **how: Any) -> None:
    context.configure(
        version_table=bookkeeping.VERSION_TABLE, version_table_schema=schema, transaction_per_migration=True, **how
    )


def _migrate(context: EnvironmentContext) -> None:
    with context.begin_transaction():
        context.run_migrations()


def _schema(context: EnvironmentContext) -> str | None:
    """`alembic -x schema=NAME` stands for --schema."""
    arguments = context.get_x_argument(as_dictionary=True)
    value = arguments.get("schema")
    return value if isinstance(value, str) else None


@contextmanager
def _own_connection(schema: str | None) -> Iterator[tuple[Connection, Scope]]:
    """A connection for plain alembic, to the database that the environment and the configuration choose."""
    from lockctl import config, settings

    chosen = config.load(None)
    target = settings.choose(chosen, dsn=None, embedded=False, profile_name=None)
    limits = Limits()
    database = Database(target.dsn, target.source, "alembic", lock_timeout_ms=limits.lock_timeout_ms)
    with database.connect(raw_times=False) as session, bridge.connection(session, limits) as connection:
        yield connection, Scope(session, schema or target.schema, chosen.catalog, limits, _say)


def _session_under(connection: Connection) -> Session:
    """A session around the psycopg connection of somebody else's SQLAlchemy connection."""
    driver = connection.connection.driver_connection
    return Session(Database("", "the caller", "alembic"), driver, {}, False)  # type: ignore[arg-type]


def _say(event: Event) -> None:
    import sys

    print(f"lockctl: {event.message}", file=sys.stderr)
