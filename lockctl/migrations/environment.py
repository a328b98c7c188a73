"""What `alembic/env.py` runs: under lockctl, on its connection; from plain alembic, on one made by the same layer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from lockctl import durations
from lockctl.activity import blockers
from lockctl.db import Database, Session
from lockctl.errors import LockctlError
from lockctl.migrations import bookkeeping, bridge
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.monitor import Monitor
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event, quiet
from lockctl.migrations.tables import ATTRIBUTE, Scope

if TYPE_CHECKING:
    from alembic.runtime.environment import EnvironmentContext
    from sqlalchemy import Connection


def run(context: EnvironmentContext) -> None:
    """Run what alembic was asked for. Errors come out as alembic's, so that its command prints one line."""
    from alembic.util import CommandError

    attributes = context.config.attributes
    try:
        schema = _option(context, "schema")
        if context.is_offline_mode():
            scope = attributes.setdefault(ATTRIBUTE, Scope(None, schema, limits=_limits(context)))
            _offline(context, scope)
        elif "connection" in attributes:
            if ATTRIBUTE not in attributes:
                attributes[ATTRIBUTE] = Scope(_session_under(attributes["connection"]), schema)
            _online(context, attributes["connection"], attributes[ATTRIBUTE])
        else:
            with _own_connection(schema, _limits(context)) as (connection, scope):
                attributes[ATTRIBUTE] = scope
                _online(context, connection, scope)
    except LockctlError as error:
        if attributes.get("raise_ours"):
            raise
        raise CommandError(f"{error.message} ({error.hint})" if error.hint else error.message) from None


def _online(context: EnvironmentContext, connection: Connection, scope: Scope) -> None:
    assert scope.session is not None
    book = bookkeeping.locate(scope.session, scope.schema)
    if not (scope.session.conn.autocommit or connection.in_transaction()):
        # The look above opened a transaction that SQLAlchemy knows nothing of.
        scope.session.conn.rollback()
    _configure(context, book.schema, connection=connection)
    _migrate(context)


def _offline(context: EnvironmentContext, scope: Scope) -> None:
    # With named parameters a percent sign in an identifier is printed as it is.
    dialect = {"dialect_name": "postgresql", "dialect_opts": {"paramstyle": "named"}}
    _configure(context, scope.schema, literal_binds=True, **dialect)
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


def _option(context: EnvironmentContext, name: str) -> str | None:
    """`alembic -x schema=NAME` and `-x lock-timeout=DUR` stand for the options of lockctl."""
    value = context.get_x_argument(as_dictionary=True).get(name)
    return value if isinstance(value, str) else None


def _limits(context: EnvironmentContext) -> Limits:
    text = _option(context, "lock-timeout")
    return Limits() if text is None else Limits(lock_timeout_ms=durations.parse(text))


@contextmanager
def _own_connection(schema: str | None, limits: Limits) -> Iterator[tuple[Connection, Scope]]:
    """A connection for plain alembic, to the database that the environment and the configuration choose."""
    from lockctl import config, embedded, settings

    chosen = config.load(os.environ.get("LOCKCTL_CONFIG") or None)
    target = settings.choose(chosen, dsn=None, embedded=False, profile_name=None)
    with ExitStack() as stack:
        dsn = stack.enter_context(embedded.start()).conninfo if target.embedded else target.dsn
        database = Database(
            dsn, target.source, "alembic", lock_timeout_ms=limits.lock_timeout_ms, sampler=blockers.sample
        )
        session = stack.enter_context(database.connect(raw_times=False))
        policy = Policy(limits)
        monitor = stack.enter_context(Monitor(session, policy, quiet))
        connection = stack.enter_context(bridge.connection(Attempt(session, policy, monitor, quiet)))
        yield connection, Scope(session, schema or target.schema, chosen.catalog, limits, _say)


def _session_under(connection: Connection) -> Session:
    """A session around the psycopg connection of somebody else's SQLAlchemy connection."""
    driver = connection.connection.driver_connection
    return Session(Database("", "the caller", "alembic"), driver, {}, False)  # type: ignore[arg-type]


def _say(event: Event) -> None:
    print(f"lockctl: {event.message}", file=sys.stderr)
