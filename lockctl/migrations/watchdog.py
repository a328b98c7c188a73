"""The sessions of somebody else's command, watched from a connection of ours while it runs.

They are known by the application_name that we gave the command; where it gave itself another, by the client ports of
its process tree. One that waits for locks longer than the lock timeout is cancelled: so the bound holds for a command
that ignores PGOPTIONS, too. Measured: killing a command leaves its session waiting in the server's queue, and when
the blocker goes, it commits; so a waiting session is always ended before its command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from lockctl import clock, durations
from lockctl.activity import blockers
from lockctl.db import Session
from lockctl.errors import LockctlError
from lockctl.migrations.clientports import Connection
from lockctl.migrations.monitor import Monitor, whom
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event, Notify

# The server's own lock_timeout comes first where the command took it: its error says what happened.
_SERVER_FIRST_S = 0.1
LOOK_EVERY_S = 0.1
_SAMPLE_EVERY_S = 0.5
_POLL_S = 0.05
# A wait that we saw for this much less than the lock timeout may have ended at it: we look some times a second.
_UNSEEN_S = 0.4
# A command that failed because of such a wait ends soon after it.
_JUST_S = 5.0

# Not wait_event: that is hidden from a role without pg_read_all_stats, pg_locks is not.
_LOOK = """
SELECT a.pid, a.backend_start::text, a.application_name = %(name)s,
       l.virtualtransaction, l.locktype = 'virtualxid', extract(epoch FROM clock_timestamp() - l.waitstart)::float8
  FROM pg_stat_activity AS a
  LEFT JOIN LATERAL (SELECT virtualtransaction, locktype, {waitstart} AS waitstart FROM pg_locks
                      WHERE pid = a.pid AND NOT granted ORDER BY locktype LIMIT 1) AS l ON true
 WHERE a.pid <> pg_backend_pid()
   AND (a.application_name = %(name)s
        OR (host(a.client_addr), a.client_port)
           IN (SELECT * FROM unnest(%(addresses)s::text[], %(ports)s::int[]))
        OR (a.pid, a.backend_start::text) IN (SELECT * FROM unnest(%(pids)s::int[], %(starts)s::text[])))
"""


class Backend(NamedTuple):
    """A session of the command; the start tells it from a later one of the same pid."""

    pid: int
    start: str


class _Waiting(NamedTuple):
    """A wait as it was seen: in which transaction, whether for old snapshots to end, for how many seconds so far."""

    transaction: str
    snapshots: bool
    seconds: float


@dataclass(slots=True)
class _Wait:
    transaction: str
    seconds: float = 0.0


class Watchdog:
    """Watches the sessions called `name`, and those of `connections()`; `look` is to be called some times a second.

    `next_s` is when to look again, in seconds; `cancelled` how many sessions were cancelled.
    """

    def __init__(
        self, monitor: Monitor, name: str, connections: Callable[[], Iterable[Connection]], notify: Notify
    ) -> None:
        self.monitor = monitor
        self.policy: Policy = monitor.policy
        self.name = name
        self.connections = connections
        self.notify = notify
        self.seen: dict[Backend, bool] = {}
        self.cancelled = 0
        self._evidence_at: float | None = None
        self.next_s = LOOK_EVERY_S
        self._waits: dict[Backend, _Wait] = {}
        self._looked = clock.now()
        self._sample_at = 0.0
        self._blind = False

    @property
    def watch(self) -> Session:
        return self.monitor.watch

    @property
    def timed_out(self) -> bool:
        """Was a session cancelled by us, or seen waiting until about the lock timeout just now? Ask at the end."""
        just = self._evidence_at is not None and clock.now() - self._evidence_at < _JUST_S
        return self.cancelled > 0 or just

    # -- while the command runs -------------------------------------------------------------------------------------

    def look(self) -> None:
        """Look once at the sessions: tell whom they wait for, and cancel one that has waited too long."""
        try:
            waiting = self._look()
        except LockctlError as error:
            if not self._blind:
                self._blind = True
                self.notify(Event("warning", f"can't see the command's sessions now: {error.message}"))
            return
        self._blind = False
        now = clock.now()
        self.next_s = LOOK_EVERY_S
        if waiting:
            self.monitor.waited += now - self._looked
        for backend, seen in waiting.items():
            wait = self._waits.get(backend)
            if wait is None or wait.transaction != seen.transaction:
                wait = self._waits[backend] = _Wait(seen.transaction)
            # The whole time since the last look, where the server does not know better.
            wait.seconds += min(now - self._looked, seen.seconds)
            self._bound(backend, wait, seen.snapshots)
        self._looked = now
        if waiting:
            self._sample(now, max(waiting, key=lambda backend: self._waits[backend].seconds))

    def _look(self) -> dict[Backend, _Waiting]:
        """The sessions of the command that wait for a lock now; all that are there go into `seen`."""
        port = self.watch.conn.info.port
        known = [each for each in self.connections() if each.server_port == port]
        # Since PostgreSQL 14 pg_locks says when a wait began.
        waitstart = "waitstart" if self.watch.server_version >= 140000 else "NULL::timestamptz"
        rows = self.watch.query(
            _LOOK.format(waitstart=waitstart),
            {
                "name": self.name,
                "addresses": [each.address for each in known],
                "ports": [each.port for each in known],
                "pids": [each.pid for each in self.seen],
                "starts": [each.start for each in self.seen],
            },
        )
        waiting: dict[Backend, _Waiting] = {}
        for pid, start, named, transaction, snapshots, since in rows:
            backend = Backend(pid, start)
            if not named and backend not in self.seen:
                self.notify(
                    Event("warning", f"session {pid} of the command has another application_name: found by its port")
                )
            self.seen[backend] = bool(named)
            if transaction is not None:
                waiting[backend] = _Waiting(transaction, bool(snapshots), math.inf if since is None else since)
        return waiting

    def _bound(self, backend: Backend, wait: _Wait, snapshots: bool) -> None:
        limits = self.policy.limits
        budget_ms = limits.lock_timeout_ms
        if snapshots:
            # CREATE INDEX CONCURRENTLY waits for others and makes nobody wait.
            budget_ms = limits.index_lock_timeout_ms or self.policy.deadline_ms
        if not snapshots and wait.seconds >= limits.lock_timeout_ms / 1000 - _UNSEEN_S:
            self._evidence_at = clock.now()
        left = budget_ms / 1000 + _SERVER_FIRST_S - wait.seconds
        if left > 0:
            self.next_s = min(self.next_s, left)
        else:
            if self._end("pg_cancel_backend", backend):
                self.cancelled += 1
                waited = durations.show(round(wait.seconds * 1000))
                self.notify(Event("cancelled", f"cancelled the command's session {backend.pid}: it waited {waited}"))
            # It has been told; a session that goes on waiting is told again after another lock timeout.
            wait.seconds = 0.0

    def _sample(self, now: float, backend: Backend) -> None:
        waited = self._waits[backend].seconds
        if now >= self._sample_at:
            self._sample_at = now + _SAMPLE_EVERY_S
            with suppress(LockctlError):
                if found := blockers.sample(self.watch, backend.pid, show_query=self.policy.show_query):
                    self.monitor.saw(found)
        message = f"the command waits {waited:.1f}s for {whom(self.monitor.blockers)}"
        self.notify(Event("progress", message, waited_ms=self.monitor.waited_ms))

    # -- at its end ---------------------------------------------------------------------------------------------------

    def cancel_waiting(self) -> None:
        """Cancel every session of the command that waits for a lock now."""
        try:
            for backend in self._look():
                if self._end("pg_cancel_backend", backend):
                    self.notify(Event("cancelled", f"cancelled the command's session {backend.pid}, which waited"))
        except LockctlError as error:
            self.notify(Event("warning", f"can't cancel the command's sessions: {error.message}"))

    def clear(self, *, grace_s: float, patience_s: float = 5.0) -> list[int]:
        """The command has ended: see its sessions end, too. Returns the pids of those that would not.

        A session that waits for a lock is ended at once, any other after `grace_s` seconds: it may be in the middle
        of noticing that its client has gone, and nobody will read its answer.
        """
        started = clock.now()
        ended: set[Backend] = set()
        while True:
            try:
                waiting = self._look()
                rows = self.watch.query(
                    "SELECT pid, backend_start::text FROM pg_stat_activity WHERE application_name = %(name)s"
                    " OR (pid, backend_start::text) IN (SELECT * FROM unnest(%(pids)s::int[], %(starts)s::text[]))",
                    {
                        "name": self.name,
                        "pids": [each.pid for each in self.seen],
                        "starts": [each.start for each in self.seen],
                    },
                )
            except LockctlError as error:
                self.notify(Event("warning", f"can't see whether the command's sessions have ended: {error.message}"))
                return []
            left = [Backend(*row) for row in rows]
            spent = clock.now() - started
            if not left or spent > grace_s + patience_s:
                return [backend.pid for backend in left]
            for backend in left:
                if backend not in ended and (backend in waiting or spent >= grace_s):
                    ended.add(backend)
                    if self._end("pg_terminate_backend", backend):
                        what = "which still waited" if backend in waiting else "which was still there"
                        self.notify(
                            Event("terminated", f"ended the command's session {backend.pid}, {what} after its end")
                        )
            time.sleep(_POLL_S)

    def _end(self, function: str, backend: Backend) -> bool:
        try:
            rows = self.watch.query(
                # Guarded by the start: a pid is used again.
                f"SELECT {function}(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start::text = %s",
                backend,
            )
        except LockctlError as error:
            self.notify(Event("warning", f"can't cancel the command's session {backend.pid}: {error.message}"))
            return False
        return bool(rows and rows[0][0])
