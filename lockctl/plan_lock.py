"""A lease for scripts, shaped as PlanLock: what `lockctl acquire`, `extend`, `release` and `run` do, as a class.

    from lockctl import PlanLock

    with PlanLock("verrou", "plan-7", dsn="service=prod", ttl="30s") as lock:
        executed, result = lock.run(lambda: build(plan))
        if not executed:
            print("already executing elsewhere, held by", lock.owner)

A lease is coordination, not mutual exclusion: it does not fence. A holder that is stalled or cut off can go on past its
expiry while another legitimately holds the lease (docs/leases.md). Nothing is renewed by itself: a long piece of work
calls `extend`, or is a command under `lockctl run`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from lockctl import clock, durations
from lockctl.catalog import Catalog
from lockctl.config import load
from lockctl.db import Database, Session
from lockctl.errors import LockctlError, UnreachableError, UsageError
from lockctl.leases import grant, operations, token, waiting
from lockctl.leases.line import Line
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe, key_words
from lockctl.records import LockRow
from lockctl.settings import EMBEDDED, choose

T = TypeVar("T")
Duration = int | str
"""Milliseconds, or text with a unit (`250ms`, `30s`, `1h30m`)."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How `acquire` tries: at most `attempts` times, `delay` apart, within `timeout`; whichever ends first.

    With neither `attempts` nor `timeout`: one attempt.
    """

    attempts: int | None = None
    delay: Duration = waiting.DEFAULT_DELAY_MS
    timeout: Duration | None = None


class PlanLock:
    """One lease on one key. Not for two threads at once; connects at its first use, and `close` gives that back.

    `table` is a name of the catalogue and `key` its key (one word, or one a key column). The database is `dsn`
    (`embedded:` too), else what LOCKCTL_DSN and the other settings of the command line choose. `ttl` is what acquire
    and extend use (default: the table's); `holder` the identity in the row (default: a new one nobody else has).
    `timeout` bounds each call, besides the waiting that Retry asks for.

    Methods raise the errors of `lockctl.errors`: UsageError for what the columns can't take, UnreachableError,
    BlockedError (a row lock in the way until `timeout`), DeniedError, BehindError.
    """

    def __init__(
        self,
        table: str,
        key: str | Sequence[str],
        *,
        dsn: str | None = None,
        ttl: Duration | None = None,
        holder: str | None = None,
        schema: str | None = None,
        config: str | None = None,
        timeout: Duration = 30_000,
    ) -> None:
        loaded = load(config)
        target = choose(loaded, dsn=dsn, embedded=False, profile_name=None)
        catalog: Catalog = loaded.catalog
        self._description = catalog.get(table)
        self._key = key_words(self._description, [key] if isinstance(key, str) else key)
        self._ttl_ms = self._description.default_ttl_ms if ttl is None else milliseconds(ttl)
        self._timeout_ms = milliseconds(timeout)
        self._holder, self._schema = holder, schema or target.schema
        self._dsn, self._source = target.dsn, target.source
        self._embedded = contextlib.ExitStack()
        self._line: Line | None = None
        self._table: LockedTable | None = None
        self._seen: LockRow | None = None

    @classmethod
    def restore(cls, serialized: str, *, dsn: str | None = None, **options: Any) -> PlanLock:
        """The lease that `serialize` (or `lockctl acquire`) wrote, to be held on by this process.

        Nothing is acquired: the same holder goes on, and `extend` tells whether the lease is still its own.
        Raises UsageError for a damaged token.
        """
        lease = token.read(serialized)
        return cls(lease.table, lease.key, dsn=dsn, holder=lease.holder, ttl=lease.ttl_ms, **options)

    def serialize(self) -> str:
        """The lease as one word, to be restored by another process. Raises UsageError before there is a holder."""
        if self._holder is None:
            raise UsageError("nothing was acquired, so there is no lease to hand over")
        return token.write(token.Lease(self._description.name, self._key, self._holder, self._ttl_ms))

    # -- taking and giving back ------------------------------------------------------------------------------------

    def acquire(self, retry: Retry | None = None) -> bool:
        """True when this lock now holds the lease, False when another held it until the budget of `retry` was spent:
        then the work is running elsewhere, and must not be started."""
        patience = _patience(retry or Retry())
        line, table = self._ready(patience.longest_ms)
        request = grant.request(table, self._key, self._holder, self._ttl_ms)
        result = grant.deliver_lease(
            grant.Acquirer(line, table, request), lambda _result: None, lambda each: waiting.take(each, patience)
        )
        self._seen = result.lock
        if result.outcome != "acquired":
            return False
        self._holder = request.holder
        return True

    def acquire_immediately(self) -> bool:
        """One attempt: True when this lock now holds the lease, False when another does."""
        return self.acquire()

    def extend(self, duration: Duration | None = None) -> bool:
        """Give the lease a new *remaining* time (the TTL when omitted). False, and nothing changed, when it is no
        longer held by this lock: lapsed, taken by another, or gone."""
        if self._holder is None:
            return False
        ttl_ms = self._ttl_ms if duration is None else milliseconds(duration)
        holder = self._holder
        result = self._call(lambda session, table: operations.extend(session, table, self._key, holder, ttl_ms))
        self._seen = result.lock
        return result.outcome == "extended"

    def release(self) -> bool:
        """Give the lease back; True when there was something to give back. Never touches another's, and a second
        call does nothing."""
        if self._holder is None:
            return False
        holder = self._holder
        result = self._call(lambda session, table: operations.release(session, table, self._key, holder))
        self._seen = result.lock
        return result.outcome == "released"

    def run(self, work: Callable[[], T], retry: Retry | None = None) -> tuple[bool, T | None]:
        """`(True, what work returned)`, or `(False, None)` when the lease is held elsewhere and nothing was run.

        The lease is released when `work` ends, also by an exception, which goes on; a release that fails takes nothing
        from the result: the lease lapses by itself.
        """
        if not self.acquire(retry):
            return False, None
        try:
            return True, work()
        finally:
            with contextlib.suppress(LockctlError):
                self.release()

    # -- looking ---------------------------------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """Who held the lease when it was last looked at (by any method here); '' when nobody did."""
        return self._seen.holder or "" if self._seen is not None and self._seen.live else ""

    def remaining(self) -> int | None:
        """Milliseconds that this lock's lease has left by the database's clock; 0 or less when it has lapsed, was
        never acquired or is another's; None when it never expires."""
        row = self._look()
        if row is None or row.holder != self._holder:
            return 0
        return row.remaining_ms

    def is_locked(self) -> bool:
        """Is the lease held by anybody?"""
        row = self._look()
        return row is not None and row.live

    def _look(self) -> LockRow | None:
        self._seen = self._call(lambda session, table: operations.read(session, table, self._key))
        return self._seen

    # -- the connection --------------------------------------------------------------------------------------------

    def _ready(self, extra_ms: int = 0) -> tuple[Line, LockedTable]:
        """The connection, with a deadline for one call, and the table."""
        if self._line is None:
            dsn = self._dsn
            if dsn == EMBEDDED:
                from lockctl import embedded

                dsn = self._embedded.enter_context(embedded.start()).conninfo
            self._line = Line(Database(dsn, self._source, "plan-lock", connect_timeout_ms=self._timeout_ms))
        self._line.bound(clock.Deadline.after(self._timeout_ms + extra_ms))
        if self._table is None:
            self._table = LockedTable.of(describe(self._line.session(), self._description, self._schema))
        return self._line, self._table

    def _call(self, work: Callable[[Session, LockedTable], T]) -> T:
        """`work`, and once more on a new connection when that one broke: each of ours may be done twice."""
        line, table = self._ready()
        try:
            return work(line.session(), table)
        except UnreachableError:
            if line.connected:
                raise
            return work(line.session(), table)

    def close(self) -> None:
        """Close the connection; the lease stays until it is released or lapses. Another call connects again."""
        if self._line is not None:
            self._line.drop()
            self._line = None
        self._embedded.close()

    def __enter__(self) -> PlanLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def milliseconds(duration: Duration) -> int:
    """A duration in milliseconds. Raises UsageError for one that is no longer than nothing."""
    if isinstance(duration, str):
        return durations.parse(duration)
    if duration <= 0:
        raise UsageError(f"a duration of {duration} ms must be longer than nothing")
    return duration


def _patience(retry: Retry) -> waiting.Patience:
    if retry.attempts is not None and retry.attempts < 1:
        raise UsageError("attempts must be 1 or more")
    wait_ms = None if retry.timeout is None else milliseconds(retry.timeout)
    return waiting.Patience(wait_ms, retry.attempts, milliseconds(retry.delay))
