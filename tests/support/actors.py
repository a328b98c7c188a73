"""The systems that share the lock tables with us, in the statements that they really send.

They are no models of good behaviour: their clocks are the application's, and a renewal asks for no expiry.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql

Conn = psycopg.Connection[Any]
"""A connection in autocommit: each statement is a transaction of its own."""

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """An application's clock that is right."""
    return datetime.now(UTC)


def skewed(by: timedelta) -> Clock:
    """An application's clock that is `by` ahead, or behind when negative."""
    return lambda: datetime.now(UTC) + by


class FireFlow:
    """FireFlow's pattern on `ffdb_locks`: DELETE what expired, INSERT … ON CONFLICT DO NOTHING; DELETE by key and id.

    A column without time zone gets UTC from the application; `zoned` says that it has one.
    """

    def __init__(
        self, conn: Conn, *, zoned: bool = False, relation: str = "ffdb_locks", clock: Clock = utc_now
    ) -> None:
        self._conn = conn
        self._relation = sql.Identifier(relation)
        self._zoned = zoned
        self._clock = clock

    def acquire(self, key: str, holder: str, ttl: timedelta) -> bool:
        """One attempt of its retry loop."""
        now = self._now()
        self._conn.execute(sql.SQL("DELETE FROM {} WHERE expires_at < %s").format(self._relation), (now,))
        statement = sql.SQL(
            "INSERT INTO {} (lock_key, lock_id, expires_at, created_at) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (lock_key) DO NOTHING"
        ).format(self._relation)
        return self._conn.execute(statement, (key, holder, now + ttl, now)).rowcount == 1

    def release(self, key: str, holder: str) -> bool:
        """Whether there was a row of its own to delete."""
        statement = sql.SQL("DELETE FROM {} WHERE lock_key = %s AND lock_id = %s").format(self._relation)
        return self._conn.execute(statement, (key, holder)).rowcount == 1

    def _now(self) -> datetime:
        now = self._clock().astimezone(UTC)
        return now if self._zoned else now.replace(tzinfo=None)


class N8n:
    """A main of n8n on `agent_task_run_lock`: three statements to acquire, renewal and release by key and holder."""

    TTL = timedelta(seconds=300)
    RENEWS_EVERY = timedelta(seconds=60)

    def __init__(self, conn: Conn, *, schema: str = "public", prefix: str = "", clock: Clock = utc_now) -> None:
        self._conn = conn
        self._locks = sql.Identifier(schema, f"{prefix}agent_task_run_lock")
        self._clock = clock

    def acquire(self, agent: str, task: str, holder: UUID) -> bool:
        """Take a lapsed row or its own, else insert one, then look whether it is there."""
        now = self._clock()
        until = now + self.TTL
        taken = self._run(
            'UPDATE {} SET "holderId" = %s, "heldUntil" = %s, "updatedAt" = CURRENT_TIMESTAMP(3)'
            ' WHERE "agentId" = %s AND "taskId" = %s AND ("holderId" = %s OR "heldUntil" <= %s)',
            (holder, until, agent, task, holder, now),
        )
        if taken.rowcount == 0:
            self._run(
                'INSERT INTO {} ("agentId", "taskId", "holderId", "heldUntil") VALUES (%s, %s, %s, %s)'
                " ON CONFLICT DO NOTHING",
                (agent, task, holder, until),
            )
        found = self._run(
            'SELECT 1 FROM {} WHERE "agentId" = %s AND "taskId" = %s AND "holderId" = %s', (agent, task, holder)
        )
        return found.fetchone() is not None

    def renew(self, agent: str, task: str, holder: UUID) -> bool:
        """No look at the expiry: a lease that was forced to expire is taken back."""
        renewed = self._run(
            'UPDATE {} SET "heldUntil" = %s, "updatedAt" = CURRENT_TIMESTAMP(3)'
            ' WHERE "agentId" = %s AND "taskId" = %s AND "holderId" = %s',
            (self._clock() + self.TTL, agent, task, holder),
        )
        return renewed.rowcount == 1

    def release(self, agent: str, task: str, holder: UUID) -> bool:
        """Whether there was a row of its own to delete."""
        gone = self._run(
            'DELETE FROM {} WHERE "agentId" = %s AND "taskId" = %s AND "holderId" = %s', (agent, task, holder)
        )
        return gone.rowcount == 1

    def _run(self, statement: str, values: tuple[Any, ...]) -> psycopg.Cursor[Any]:
        return self._conn.execute(sql.SQL(statement).format(self._locks), values)
