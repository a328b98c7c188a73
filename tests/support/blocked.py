"""Real blocking: sessions that hold something, and sessions whose statement waits for it in a thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from tests.support.waiting import wait_until_blocked

Conn = psycopg.Connection[Any]


@contextmanager
def holding(dsn: str, statement: str, application: str = "holder") -> Iterator[int]:
    """The pid of a session that ran `statement` and forgot its transaction."""
    with psycopg.connect(dsn, application_name=application) as conn:
        conn.execute(statement.encode())
        yield conn.info.backend_pid
        # The session may have been ended on purpose.
        with suppress(psycopg.Error):
            conn.rollback()


@contextmanager
def waiting(
    dsn: str, watch: Conn, statement: str, application: str = "waiter", *, autocommit: bool = False
) -> Iterator[int]:
    """The pid of a session whose `statement` waits for a lock, in a transaction; it is cancelled in the end."""
    with psycopg.connect(dsn, application_name=application, autocommit=autocommit) as conn:

        def run() -> None:
            with suppress(psycopg.Error):
                conn.execute(statement.encode())

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until_blocked(watch, conn.info.backend_pid)
            yield conn.info.backend_pid
        finally:
            watch.execute("SELECT pg_cancel_backend(%s)", (conn.info.backend_pid,))
            thread.join(30)
            with suppress(psycopg.Error):
                conn.rollback()
