"""Somebody else's migration command: a small client of its own, which knows nothing of lockctl."""

from __future__ import annotations

import sys

_CLIENT = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
for statement in sys.argv[2:]:
    for row in conn.execute(statement) if statement.startswith(("SHOW", "SELECT")) else [conn.execute(statement)][:0]:
        print(*row, flush=True)
"""

_STUBBORN = """
import sys, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
for statement in sys.argv[2:]:
    try:
        conn.execute(statement)
    except psycopg.Error as error:
        print("ERROR: ", error)
"""

_SILENT = """
import sys, psycopg
try:
    conn = psycopg.connect(sys.argv[1], autocommit=True)
    for statement in sys.argv[2:]:
        conn.execute(statement)
except psycopg.Error:
    sys.exit(3)
"""

# Its session waits when it dies, as a runner's does that is killed.
_DYING = """
import os, sys, threading, time, psycopg
conn = psycopg.connect(sys.argv[1], autocommit=True)
with psycopg.connect(sys.argv[1], autocommit=True) as watch:
    threading.Thread(target=conn.execute, args=(sys.argv[2],), daemon=True).start()
    while not watch.execute("SELECT cardinality(pg_blocking_pids(%s))", (conn.info.backend_pid,)).fetchone()[0]:
        time.sleep(0.05)
    # Long enough to be seen: whose name is its own is known by its port, while its process lives.
    time.sleep(1)
os._exit(5)
"""


def client(dsn: str, *statements: str) -> list[str]:
    """It runs the statements and prints the rows of a SHOW or SELECT; it ends at the first error with its text."""
    return [sys.executable, "-c", _CLIENT, dsn, *statements]


def stubborn(dsn: str, *statements: str) -> list[str]:
    """It goes on after an error, and ends with 0, as psql does without ON_ERROR_STOP."""
    return [sys.executable, "-c", _STUBBORN, dsn, *statements]


def silent(dsn: str, *statements: str) -> list[str]:
    """It ends at the first error with status 3 and says nothing."""
    return [sys.executable, "-c", _SILENT, dsn, *statements]


def dying(dsn: str, statement: str) -> list[str]:
    """It dies with status 5 while its statement waits for a lock."""
    return [sys.executable, "-c", _DYING, dsn, statement]
