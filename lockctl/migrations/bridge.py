"""Alembic on a session of ours: a SQLAlchemy connection over the same psycopg connection, with the same manners.

SQLAlchemy 2.1's psycopg dialect was read and tried: it leaves `prepare_threshold` alone, looks for hstore unless told
not to, and relies on the driver's autocommit being off. So autocommit is off while SQLAlchemy has the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from lockctl.db import Session
from lockctl.errors import LockctlError
from lockctl.migrations.engine import Limits

if TYPE_CHECKING:
    import sqlalchemy


@contextmanager
def connection(session: Session, limits: Limits) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over `session`; each of its transactions gets the limits, and they are read back.

    Database errors come out as ours. The session is in autocommit mode again afterwards.
    """
    import sqlalchemy
    from sqlalchemy.pool import StaticPool

    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: session.conn, poolclass=StaticPool, use_native_hstore=False
    )

    def begin(_connection: Any) -> None:
        limit(session, limits)
        # A query of the session's own inside must not bring the session's settings back (see Session.query).
        session._in_transaction = True

    def statement(*_args: Any) -> None:
        session.begin_statement()

    session.conn.autocommit = False
    try:
        with translated(session), engine.connect() as bound:
            sqlalchemy.event.listen(bound, "begin", begin)
            sqlalchemy.event.listen(bound, "before_cursor_execute", statement)
            yield bound
    finally:
        # The engine is not disposed of: that would close the session's connection.
        session._in_transaction = False
        with suppress(psycopg.Error):
            session.conn.rollback()
            session.conn.autocommit = True


def limit(session: Session, limits: Limits) -> None:
    """Put the limits on the transaction that begins, and read them back: they are never assumed.

    Local to the transaction, so that a pooler or a rollback carries nothing over. Raises LockctlError when the
    server shows other values.
    """
    if session.pooled:
        session._settings_in_transaction()
    wanted = {
        "lock_timeout": str(limits.lock_timeout_ms or 0),
        "statement_timeout": str(limits.statement_timeout_ms or 0),
    }
    local = sql.Literal(not session.conn.autocommit)
    calls = [
        sql.SQL("set_config({}, {}, {})").format(sql.Literal(name), sql.Literal(value), local)
        for name, value in wanted.items()
    ]
    session.conn.execute(sql.SQL("SELECT {}").format(sql.SQL(", ").join(calls)))
    shown = dict(
        session.conn.execute("SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", (list(wanted),)).fetchall()
    )
    if shown != wanted:
        raise LockctlError(f"the limits of the migration are not in force: the server shows {shown}, not {wanted}")


@contextmanager
def translated(session: Session) -> Iterator[None]:
    """Errors of psycopg, SQLAlchemy and alembic come out as ours, each as one plain sentence."""
    import sqlalchemy.exc
    from alembic.util import CommandError

    try:
        yield
    except psycopg.Error as error:
        raise session.failure(error, None) from None
    except sqlalchemy.exc.DBAPIError as error:
        if isinstance(error.orig, psycopg.Error):
            raise session.failure(error.orig, None) from None
        raise
    except CommandError as error:
        raise LockctlError(" ".join(str(error).split())) from None
