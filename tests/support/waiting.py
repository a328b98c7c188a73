"""Waiting for something that can be seen, with an end: no test sleeps for luck."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

T = TypeVar("T")

_LOOK_EVERY_S = 0.01


def until(condition: Callable[[], T], *, deadline: float = 10.0, what: str = "the condition") -> T:
    """The first truthy answer of `condition`; AssertionError after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come about within {deadline:g} s (last answer: {answer!r})")
        time.sleep(_LOOK_EVERY_S)


def wait_until_blocked(conn: psycopg.Connection[Any], pid: int, *, deadline: float = 10.0) -> list[int]:
    """The pids that block the session `pid`, as soon as some do; `conn` must be in autocommit."""

    def blockers() -> list[int]:
        row = conn.execute("SELECT pg_blocking_pids(%s)", (pid,)).fetchone()
        return list(row[0]) if row else []

    return until(blockers, deadline=deadline, what=f"a blocker of session {pid}")


def wait_until_waiting(
    conn: psycopg.Connection[Any], application: str, *, database: str | None = None, deadline: float = 10.0
) -> int:
    """The pid of a session of this `application_name` (a LIKE pattern), as soon as one waits for a lock."""

    def waiting() -> int:
        row = conn.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE application_name LIKE %s AND datname = coalesce(%s, current_database())"
            " AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0",
            (application, database),
        ).fetchone()
        return int(row[0]) if row else 0

    return until(waiting, deadline=deadline, what=f"a session of {application!r} that waits for a lock")
