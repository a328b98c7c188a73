"""Sessions that go on reading and writing beside a migration, and how long each of their statements took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

_EVERY_S = 0.02


class Traffic:
    """One thread and connection for each statement, run again and again; `longest` is in seconds."""

    def __init__(self, dsn: str, statements: Sequence[str]) -> None:
        self.longest = 0.0
        self.count = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(dsn, statement)) for statement in statements]
        self._ready = threading.Barrier(len(statements) + 1)
        self._failed: list[BaseException] = []

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self._failed, self._failed

    def _run(self, dsn: str, statement: str) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True, application_name="traffic") as conn:
                conn.execute(statement.encode())
                self._ready.wait(10)
                while not self._stop.wait(_EVERY_S):
                    started = time.monotonic()
                    conn.execute(statement.encode())
                    took = time.monotonic() - started
                    with self._lock:
                        self.count += 1
                        self.longest = max(self.longest, took)
        except BaseException as error:
            self._failed.append(error)


@contextmanager
def readers(dsn: str, tables: Sequence[tuple[str, float]]) -> Iterator[list[psycopg.Connection]]:
    """For each table a session that read it and forgot its transaction, which ends after that many seconds."""
    with ExitStack() as stack:
        made = []
        for table, seconds in tables:
            conn = stack.enter_context(psycopg.connect(dsn, application_name="long reader"))
            conn.execute(f"SELECT count(*) FROM {table}")
            leaving = threading.Timer(seconds, conn.rollback)
            leaving.start()
            stack.callback(leaving.join)
            made.append(conn)
        yield made
