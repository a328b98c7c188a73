"""Looks from a second connection while an attempt waits for locks: for how long in all, and for whom.

lock_timeout counts for each lock anew. A transaction that holds one table and waits for the next makes everybody
behind the first wait too, so the waits of one transaction are added up here and the statement is cancelled when they
reach the lock timeout together (freehire 1284).
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

import psycopg

from lockctl import clock, durations
from lockctl.activity import acts, blockers
from lockctl.db import Session, describe
from lockctl.errors import LockctlError
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event, Notify
from lockctl.records import Blocker

_SAMPLE_EVERY_S = 0.5
# The server's own lock_timeout comes first where there is one lock to wait for: its error says what happened.
_SERVER_FIRST_S = 0.05
_CANCEL_S = 3.0

_WAITS = "SELECT coalesce(wait_event_type = 'Lock', false) FROM pg_stat_get_activity(%s)"


class Monitor:
    """Watches `session`; a context manager, which closes its own connection. Times inside are seconds."""

    def __init__(self, session: Session, policy: Policy, notify: Notify) -> None:
        self.session = session
        self.policy = policy
        self.notify = notify
        self.blockers: list[Blocker] = []
        self.exceeded = False
        self.waited = 0.0
        self._budget: float | None = None
        self._before = 0.0
        self._looked = 0.0
        self._waiting = False
        self._sample_at = 0.0
        self._told: tuple[tuple[int, str | None], ...] = ()
        self._holders: frozenset[str] = frozenset()
        self._acted: set[tuple[int, str | None]] = set()
        self._watch: Session | None = None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        if self._watch is not None:
            self._watch.close()

    @property
    def watch(self) -> Session:
        """The second connection, made anew where it was lost. Raises UnreachableError."""
        if self._watch is None or self._watch.closed:
            self._watch = self.session.database.watcher()
        return self._watch

    @property
    def waited_ms(self) -> int:
        """What the attempt has waited for locks, in all its transactions; to a tenth of a second, rather too much."""
        return round((self._before + self.waited) * 1000)

    # -- the attempt's side ---------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """A new attempt begins: nothing was waited for yet, and nobody seen."""
        self.blockers, self._told, self._holders = [], (), frozenset()
        self._before = self.waited = 0.0
        self.begin(None)

    def begin(self, budget_ms: int | None) -> None:
        """A transaction, or a statement outside one, begins; its waits may take `budget_ms` together (None: any)."""
        self._before += self.waited
        self.waited, self.exceeded, self._waiting, self._looked = 0.0, False, False, 0.0
        self._budget = None if budget_ms is None else budget_ms / 1000

    def tick(self) -> None:
        """Called ten times a second while a statement of the attempt runs."""
        now = clock.now()
        waiting = self._look()
        if waiting or self._waiting:
            # The whole time since the last look: rather too much than too little.
            self.waited += now - max(self._looked, self.session.started)
        self._looked, self._waiting = now, waiting
        if not waiting:
            return
        if now >= self._sample_at:
            self._sample_at = now + _SAMPLE_EVERY_S
            self._sample()
        self.report()
        if self._budget is not None and self.waited >= self._budget + _SERVER_FIRST_S and not self.exceeded:
            self.exceeded = True
            with suppress(psycopg.Error):
                self.session.conn.cancel_safe(timeout=_CANCEL_S)

    def gave_up(self) -> None:
        """The statement ended waiting for a lock: count what it waited since the last look, too."""
        if self._looked >= self.session.started:
            self.waited += clock.now() - self._looked

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Does the session wait for a lock now? False where nobody can say: then lock_timeout alone bounds it."""
        try:
            rows = self.watch.query(_WAITS, (self.session.pid,))
        except LockctlError:
            return False
        return bool(rows and rows[0][0])

    def _sample(self) -> None:
        with suppress(LockctlError):
            if found := blockers.sample(self.watch, self.session.pid, show_query=self.policy.show_query):
                self.session.blockers = found
                self.saw(found)

    def saw(self, found: list[Blocker]) -> None:
        """These are in the way: remember them, tell it when they are others than before, do what --on-block says.

        Raises LockctlError when the second connection fails.
        """
        self.blockers = found
        self._holders = blockers.holders(self.watch, found)
        self._tell(found)
        self._act(found)

    def report(self) -> None:
        """Tell how long was waited for whom, for the line on a terminal."""
        self.notify(Event("progress", self._progress(), waited_ms=self.waited_ms))

    def _tell(self, found: list[Blocker]) -> None:
        told = tuple((blocker.pid, blocker.gid) for blocker in found)
        if told != self._told:
            self._told = told
            self.notify(Event("waiting", f"waiting for {whom(found)}", waited_ms=self.waited_ms, blockers=tuple(found)))

    def _progress(self) -> str:
        bound = "" if self._budget is None else f" of {durations.show(round(self._budget * 1000))}"
        return f"waiting {self.waited:.1f}s{bound} for {whom(self.blockers)}"

    def _act(self, found: list[Blocker]) -> None:
        age = self.policy.min_blocker_age_ms
        if self.policy.on_block == "report" or age is None:
            return
        for blocker in found:
            known = (blocker.pid, blocker.gid)
            if blocker.root and known not in self._acted:
                act = acts.end(self.watch, blocker, self.policy.on_block, min_age_ms=age)
                if act is not None:
                    self._acted.add(known)
                    self.notify(Event(act.done, act.message, blockers=(blocker,)))

    def gone(self) -> bool:
        """Have all the blockers at the root ended their transactions, as they were when they were last seen?

        False when none was seen. Cheap enough to ask some times a second.
        """
        if not self._holders:
            return False
        with suppress(LockctlError):
            return not blockers.remain(self.watch, self._holders)
        return False


def whom(found: list[Blocker]) -> str:
    """The roots of `found` in words; whoever only queues before us is no root."""
    roots = [blocker for blocker in found if blocker.root] or found
    if not roots:
        return "a lock"
    others = len(found) - len(roots)
    words = ", ".join(describe(blocker) for blocker in roots)
    return f"{words} and {others} more behind it" if others else words
