"""The runner's lock: one migration at a time in a database, whoever starts it and with whatever command.

An advisory lock on a session of its own in autocommit, polled with try-lock: a session that *waits* for an advisory
lock has a transaction open, for which a CREATE INDEX CONCURRENTLY of the one that holds it waits: a deadlock
(alembic 633, flyway 1654).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from lockctl import clock, durations
from lockctl.activity import blockers
from lockctl.db import Database, Session, describe
from lockctl.errors import BusyError, LockctlError, UnreachableError, UsageError
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event, Notify
from lockctl.records import Blocker

KEY = 0x6C6F636B63746C00
"""`lockctl` in ASCII: the key of the lock, the same in every version and for every set of migrations."""

_POLL_S = 0.2
_SAY_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Key:
    """An advisory lock's key: one number of 64 bits, or two of 32 (`second` not None)."""

    first: int
    second: int | None = None

    @property
    def arguments(self) -> tuple[int, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def call(self) -> str:
        return "%s::int8" if self.second is None else "%s::int4, %s::int4"

    @property
    def shown(self) -> str:
        return ",".join(str(part) for part in self.arguments)

    @property
    def in_pg_locks(self) -> tuple[int, int, int]:
        """classid, objid and objsubid, as pg_locks shows the lock (documentation, view pg_locks)."""
        if self.second is None:
            wide = self.first & 0xFFFFFFFFFFFFFFFF
            return wide >> 32, wide & 0xFFFFFFFF, 1
        return self.first & 0xFFFFFFFF, self.second & 0xFFFFFFFF, 2


def parse(text: str) -> Key:
    """The key that --advisory-lock names: `N`, or `N,M` for a lock of two 32-bit numbers. Raises UsageError."""
    match = re.fullmatch(r"\s*(-?\d+)\s*(?:,\s*(-?\d+)\s*)?", text)
    if match is not None:
        key = Key(int(match[1]), None if match[2] is None else int(match[2]))
        bits = 63 if key.second is None else 31
        if all(-(1 << bits) <= part < 1 << bits for part in key.arguments):
            return key
    raise UsageError(
        f"--advisory-lock {text!r} is no key of an advisory lock",
        hint="write the number that the application gives pg_advisory_lock, or N,M for the form with two",
    )


class Runner:
    """The locks while they are held; `check` before each attempt."""

    def __init__(self, session: Session, keys: tuple[Key, ...]) -> None:
        self.session = session
        self.keys = keys

    def check(self) -> None:
        """Raise UnreachableError when a lock is not held any more: another runner may have begun."""
        try:
            held = all(holder(self.session, key) == self.session.pid for key in self.keys)
        except UnreachableError as error:
            raise UnreachableError(f"the runner's lock was lost: {error.message}", hint=_AGAIN) from None
        if not held:
            raise UnreachableError("the runner's lock was lost", hint=_AGAIN)


_AGAIN = "nothing further was begun; run the command again"


@contextmanager
def held(database: Database, policy: Policy, notify: Notify) -> Iterator[Runner]:
    """Hold the runner's lock and the policy's `advisory_locks`; waiting for them ends after the policy's runner wait.

    Raises BusyError, which names the holder, UsageError for a key that is none, UnreachableError.
    """
    keys = (Key(KEY), *map(parse, policy.advisory_locks))
    end = clock.Deadline.after(policy.runner_wait)
    with ExitStack() as stack:
        session = stack.enter_context(_session(database))
        if session.pooled:
            notify(
                Event(
                    "warning",
                    "through a pooler the runner's lock needs a transaction that stays open: a direct connection"
                    " to PostgreSQL is better for a migration",
                )
            )
            stack.enter_context(_forever(session))
        for key in keys:
            _take(session, key, end, notify)
            if not session.pooled:
                stack.callback(_release, session, key, notify)
        yield Runner(session, keys)


def _session(database: Database) -> Session:
    own = Database(
        dsn=database.dsn,
        source=database.source,
        command=database.command,
        connect_timeout_ms=database.connect_timeout_ms,
        lock_timeout_ms=1_000,
        statement_timeout_ms=5_000,
        name=database.name,
    )
    return own.connect(role="runner")


@contextmanager
def _forever(session: Session) -> Iterator[None]:
    """A transaction that holds nothing but advisory locks: behind a pooler only that keeps one server session.

    READ COMMITTED and idle, it has no snapshot, so no CREATE INDEX CONCURRENTLY waits for it. When lockctl dies, the
    pooler rolls it back.
    """
    session.settings["idle_in_transaction_session_timeout"] = "0"
    with session.transaction():
        yield


def _take(session: Session, key: Key, end: clock.Deadline, notify: Notify) -> None:
    function = "pg_try_advisory_xact_lock" if session.pooled else "pg_try_advisory_lock"
    say_at = 0.0
    while not session.one(f"SELECT {function}({key.call})", key.arguments)[0]:
        found = _holder(session, key)
        whose = describe(found) if found is not None else "another session"
        what = "another migration of lockctl" if key.first == KEY else f"advisory lock {key.shown}"
        if end.passed:
            held_by = f"{what} is in progress: {whose}" if key.first == KEY else f"{what} is held by {whose}"
            raise BusyError(
                held_by,
                hint="wait for it, or give a longer --runner-wait",
                blockers=[] if found is None else [found],
            )
        now = clock.now()
        if now >= say_at:
            say_at = now + _SAY_EVERY_S
            left = end.remaining() or 0.0
            span = durations.show(max(1, round(left)) * 1000)
            waited = (found,) if found is not None else ()
            notify(Event("runner", f"waiting up to {span} for {what}: {whose}", blockers=waited))
        time.sleep(max(0.0, min(_POLL_S, end.remaining() or 0.0)))


def _release(session: Session, key: Key, notify: Notify) -> None:
    """Give a lock back, and say so when it was not there any more: something may have run beside us."""
    try:
        released = session.one(f"SELECT pg_advisory_unlock({key.call})", key.arguments)[0]
    except LockctlError as error:
        notify(Event("warning", f"the runner's lock went with its connection: {error.message}"))
        return
    if not released:
        notify(Event("warning", "the runner's lock was lost meanwhile: another migration may have run beside this one"))


def holder(session: Session, key: Key) -> int | None:
    """The pid that holds the advisory lock in this database, None when nobody does."""
    rows = session.query(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND (classid::int8, objid::int8, objsubid::int8) = (%s::int8, %s::int8, %s::int8)"
        " ORDER BY (mode = 'ExclusiveLock') DESC LIMIT 1",
        key.in_pg_locks,
    )
    return rows[0][0] if rows else None


def _holder(session: Session, key: Key) -> Blocker | None:
    pid = holder(session, key)
    return blockers.one(session, pid) if pid is not None else None
