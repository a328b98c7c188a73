"""Alembic on a session of ours: a SQLAlchemy connection over the same psycopg connection, with the same manners.

SQLAlchemy 2.1's psycopg dialect was read and tried: it leaves `prepare_threshold` alone, looks for hstore unless told
not to, and relies on the driver's autocommit being off. So autocommit is off while SQLAlchemy has the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from lockctl.db import Session
from lockctl.errors import LockctlError
from lockctl.migrations.attempts import Attempt

if TYPE_CHECKING:
    import sqlalchemy


@contextmanager
def connection(attempt: Attempt) -> Iterator[sqlalchemy.Connection]:
    """A SQLAlchemy connection over the session of `attempt`; each of its transactions gets the limits, read back.

    A statement in an autocommit block gets those of a statement outside a transaction. Database errors come out as
    ours. The session is in autocommit mode again afterwards.
    """
    import sqlalchemy
    from sqlalchemy.pool import StaticPool

    session = attempt.session
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: session.conn, poolclass=StaticPool, use_native_hstore=False
    )
    commits = _Commits(attempt)

    def begin(_connection: Any) -> None:
        commits.settle()
        if not session.conn.autocommit:
            attempt.begin()

    def before(_conn: Any, _cursor: Any, statement: str, *_args: Any) -> None:
        if session.conn.autocommit:
            attempt.before_alone(statement)
        session.begin_statement()

    def after(_conn: Any, _cursor: Any, statement: str, *_args: Any) -> None:
        if session.conn.autocommit:
            attempt.after_alone(statement)

    with attempt.lent() as conn:
        conn.autocommit = False
        # The engine is not disposed of: that would close the session's connection.
        with plain(session), engine.connect() as bound:
            sqlalchemy.event.listen(bound, "begin", begin)
            sqlalchemy.event.listen(bound, "commit", commits.commit)
            sqlalchemy.event.listen(bound, "before_cursor_execute", before)
            sqlalchemy.event.listen(bound, "after_cursor_execute", after)
            yield bound


class _Commits:
    """Tells the attempt when something was committed although the step goes on (alembic's autocommit_block does)."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self._wrote = False

    def commit(self, _connection: Any) -> None:
        """SQLAlchemy is about to commit: does the transaction write anything? That the commit succeeds is not known
        before the next transaction begins; the step's last commit is followed by none."""
        session = self.attempt.session
        if (
            self.attempt.body
            and not session.conn.autocommit
            and session.conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        ):
            self._wrote = session.one("SELECT txid_current_if_assigned() IS NOT NULL")[0]
        session.begin_statement()

    def settle(self) -> None:
        if self._wrote:
            self._wrote = False
            self.attempt.stands.append("what the step did before its autocommit block")


@contextmanager
def plain(session: Session | None = None) -> Iterator[None]:
    """Errors of psycopg, SQLAlchemy and alembic come out as ours, each as one plain sentence."""
    import sqlalchemy.exc
    from alembic.util import CommandError

    try:
        yield
    except psycopg.Error as error:
        if session is None:
            raise
        raise session.failure(error) from None
    except sqlalchemy.exc.DBAPIError as error:
        if session is not None and isinstance(error.orig, psycopg.Error):
            raise session.failure(error.orig) from None
        raise
    except CommandError as error:
        raise LockctlError(" ".join(str(error).split())) from None
