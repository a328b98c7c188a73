"""`run`: a command under a lease, from its first confirmation to its release."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lockctl import clock
from lockctl.errors import Interrupted, LockctlError, UnreachableError, UsageError
from lockctl.leases import operations
from lockctl.leases.child import Command, Guard
from lockctl.leases.events import Events
from lockctl.leases.holding import Ending, Holding, Trouble
from lockctl.leases.keeping import SHORTEST_TTL_MS, Keeper, Kept
from lockctl.leases.line import Line
from lockctl.leases.operations import LockedTable
from lockctl.leases.terminal import Terminal
from lockctl.records import LeaseResult

_FINISH_WITHIN_MS = 5_000
_FINISH_UNCONFIRMED_MS = 1_000
_KEEPER_ENDS_WITHIN_S = 1.0
_RETRY_S = 0.05
_ENDS_BEFORE_START = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a command is held: `kill_after_ms` from TERM to KILL; `keep` does not release; `let_live` lets the command
    survive lockctl's own death."""

    ttl_ms: int
    kill_after_ms: int = 10_000
    keep: bool = False
    let_live: bool = False

    @property
    def margin_s(self) -> float:
        """So long before the last confirmed expiry the command gets TERM, and KILL when half of it is left."""
        return min(self.kill_after_ms, self.ttl_ms / 3) / 1000


@dataclass(frozen=True, slots=True)
class Ran:
    """How it went: `status` of the command, `trouble` with its lease, `lost` the row that stands there instead,
    `unfinished` why the release (or with `keep` the last renewal) could not be made."""

    ending: Ending
    why: str | None
    lost: LeaseResult | None
    unfinished: LockctlError | None

    @property
    def trouble(self) -> Trouble | None:
        return Trouble.LOST if self.lost is not None else self.ending.trouble


def check_ttl(ttl_ms: int) -> None:
    """Raise UsageError for a TTL that can't be renewed safely."""
    if ttl_ms < SHORTEST_TTL_MS:
        raise UsageError(
            f"a TTL of {ttl_ms}ms is too short to be renewed safely: a third of it is no time to replace a connection",
            hint="the shortest for run is 1s",
        )


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs `argv` with the environment `env` under one lease; `warn` is told what must be seen."""

    line: Line
    table: LockedTable
    argv: Sequence[str]
    env: Mapping[str, str]
    terms: Terms
    events: Events
    warn: Callable[[str], None]

    def run(self, key: tuple[str, ...], holder: str, until: float) -> Ran:
        """Run the command under the lease of `holder` on `key`, ours until `until` on `clock.now()`.

        `events` have been started. Raises NotFoundError, NotExecutableError or Interrupted before the command was
        started: then the lease was given back.
        """
        kept = Kept(self.table, key, holder, self.terms.ttl_ms, self.terms.margin_s)
        terminal = Terminal()
        guard, command = self._start(terminal, kept)
        try:
            keeper = Keeper(self.line, kept, until, self.events.wake, self.warn)
            keeper.start()
            ending = Holding(
                command,
                keeper,
                guard,
                terminal,
                self.events,
                kept.margin_s,
                self.terms.kill_after_ms / 1000,
                self.warn,
            ).run()
        except BaseException:
            command.group.end(signal.SIGKILL)  # whatever it was: nobody watches over the command any more
            raise
        finally:
            terminal.close()
            guard.close()
        free = keeper.stop(_KEEPER_ENDS_WITHIN_S)
        if keeper.lost is not None:
            return Ran(ending, keeper.trouble, keeper.lost, None)
        return self._finish(kept, ending, keeper.trouble, self.line if free else Line(self.line.database))

    def _start(self, terminal: Terminal, kept: Kept) -> tuple[Guard, Command]:
        """The guard first, so that at no moment there is a command without one."""
        guard: Guard | None = None
        try:
            for event in self.events.wait(0):
                if event in _ENDS_BEFORE_START:
                    raise Interrupted(event)
            guard = Guard(self.terms.margin_s, let_live=self.terms.let_live)
            return guard, Command(self.argv, self.env, guard, terminal, self.events.handled)
        except BaseException:
            if guard is not None:
                guard.close()
            _end_lease(self.line, kept, keep=False, within_ms=_FINISH_WITHIN_MS)
            raise

    def _finish(self, kept: Kept, ending: Ending, why: str | None, line: Line) -> Ran:
        within_ms = _FINISH_WITHIN_MS if ending.trouble is None else _FINISH_UNCONFIRMED_MS
        result, failure = _end_lease(line, kept, keep=self.terms.keep and ending.trouble is None, within_ms=within_ms)
        lost = result if result is not None and result.outcome not in ("released", "extended") else None
        return Ran(ending, why, lost, failure)


def _end_lease(line: Line, kept: Kept, *, keep: bool, within_ms: int) -> tuple[LeaseResult | None, LockctlError | None]:
    """Release, or with `keep` give the whole TTL once more; a broken connection is replaced within the time."""
    deadline = clock.Deadline.after(within_ms)
    while True:
        try:
            session = line.session(deadline)
            with session.within(deadline, grace=0.5):
                if keep:
                    return operations.renew(session, kept.table, kept.key, kept.holder, kept.ttl_ms, revive=True), None
                return operations.release(session, kept.table, kept.key, kept.holder), None
        except LockctlError as error:
            line.drop()
            if not isinstance(error, UnreachableError) or deadline.passed:
                return None, error
            time.sleep(_RETRY_S)
