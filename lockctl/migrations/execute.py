"""`migrate exec`: somebody else's migration command inside our lock, under our limits, judged by the database.

An attempt is the whole command. It is made again when a lock was in the way: a runner that keeps a version goes on
where it was; for one that does not, `--retries 0` is the answer.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockctl import clock
from lockctl.db import Session
from lockctl.errors import (
    AheadError,
    BehindError,
    BlockedError,
    BusyError,
    Interrupted,
    LockctlError,
    PartialError,
)
from lockctl.leases import child
from lockctl.migrations import clientports, preflight, runner, versions
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.command import Command, environment
from lockctl.migrations.engine import Engine, Progress, Step
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event, MigrationResult, MigrationRun, Notify, quiet
from lockctl.migrations.watchdog import Watchdog

_GRACE_S = 2.0
_CHECK_EVERY_S = 15.0
# The sessions of a quick command may have come and gone between two looks.
_UNSEEN_S = 1.0
# What runners print of 55P03 and 40P01, in English or as the code; the watchdog knows where they print neither.
_LOCK_WORDS = re.compile(rb"lock timeout|\b55P03\b|deadlock detected|\b40P01\b")

Output = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the database must show afterwards: `version` in the one row of `relation`, and columns.

    With `relation` and no `version` the version before and after is told, and nothing demanded.
    """

    relation: str | None = None
    column: str = "version"
    version: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def demands(self) -> bool:
        return self.version is not None or bool(self.columns)

    def found(self, session: Session) -> str | None:
        """The version that the database shows now."""
        return None if self.relation is None else versions.read(session, self.relation, self.column)

    def failure(self, session: Session) -> LockctlError | None:
        """BehindError or AheadError that says what is not as expected; None when all is."""
        if self.version is not None:
            found = self.found(session)
            shows = f"{self.relation} shows version {found or 'none'}, not {self.version}"
            if (verdict := versions.compare(found, self.version)) != "current":
                return BehindError(shows) if verdict == "behind" else AheadError(shows)
        if absent := versions.missing(session, self.columns):
            return BehindError(f"column {', '.join(absent)} is not there")
        return None


def execute(
    session: Session,
    argv: Sequence[str],
    *,
    expectation: Expectation | None = None,
    no_clients: str | None = None,
    policy: Policy | None = None,
    notify: Notify = quiet,
    output: Output = lambda _text: None,
) -> MigrationRun:
    """Run the command `argv` until it went through, at most as often as the policy says; `output` gets what it prints.

    What stops it is in the run's `error`: BlockedError, LockctlError with the command's own exit status, BehindError
    or AheadError when the database does not show what is expected, PartialError when the command went on after a
    statement of it was cancelled, BusyError. Raises NotFoundError and NotExecutableError, and what `preflight` raises.
    """
    policy, expectation = policy or Policy(), expectation or Expectation()
    child.check(argv[0])
    name = Path(argv[0]).name
    before: str | None = None
    # A word that names no column is told before anything is run.
    versions.missing(session, expectation.columns)
    try:
        with runner.held(session.database, policy, notify) as lock:
            preflight.check(session, policy, notify, relation=expectation.relation, no_clients=no_clients)
            before = expectation.found(session)
            interval = preflight.check_interval(session)
            work = _Work(session, argv, name, expectation, output, interval, lock.check)
            step = Step(name, f"the command {name}", work.run)
            progress = Engine(session, policy, notify, lock.check).run([step])
    except (BusyError, BlockedError) as error:
        progress = Progress(error=error)
    return _finished(session, expectation, before, progress)


def _finished(session: Session, expectation: Expectation, before: str | None, progress: Progress) -> MigrationRun:
    after = before
    if progress.attempts:
        try:
            after = expectation.found(session)
        except LockctlError as error:
            progress.error = progress.error or error
    outcome = progress.outcome
    if isinstance(progress.error, PartialError):
        outcome = "partial"
    elif isinstance(progress.error, BusyError):
        outcome = "busy"
    elif outcome == "done" and expectation.relation is not None and before == after:
        outcome = "nothing"
    result = MigrationResult(
        outcome=outcome,
        from_=() if before is None else (before,),
        to=() if after is None else (after,),
        steps=tuple(progress.done) if outcome != "nothing" else (),
        attempts=progress.attempts,
        waited_ms=progress.waited_ms,
        blockers=progress.blockers,
    )
    return MigrationRun(result, progress.error)


class _Work:
    """The command as a step of the engine."""

    def __init__(
        self,
        session: Session,
        argv: Sequence[str],
        name: str,
        expectation: Expectation,
        output: Output,
        check_interval: bool,
        locked: Callable[[], None],
    ) -> None:
        self.session = session
        self.argv = argv
        self.name = name
        self.expectation = expectation
        self.output = output
        self.check_interval = check_interval
        self.locked = locked

    def run(self, attempt: Attempt) -> None:
        """One attempt: start the command, watch its sessions to its end, and judge."""
        # The form of lockctl's own names, by which another lockctl knows whom it must not end.
        application = f"lockctl exec {os.getpid()}.{os.urandom(3).hex()}@command"
        env = environment(attempt.policy, application, check_interval=self.check_interval, environ=os.environ)
        started = clock.now()
        with Command(self.argv, env) as command:
            dog = Watchdog(attempt.monitor, application, lambda: clientports.of(command.pid), attempt.notify)
            try:
                self._watch(command, dog, attempt.notify)
            except Interrupted as signal:
                # Its waiting sessions first: one whose client dies goes on waiting, and would commit.
                dog.cancel_waiting()
                command.end(signal.signum)
                self.output(command.rest())
                self._clear(dog, attempt.notify)
                attempt.stands.append(f"whatever {self.name} had committed by itself")
                raise
            timed_out = dog.timed_out
            command.end()
            self.output(command.rest())
            self._clear(dog, attempt.notify)
        # What ended within the lock timeout has made nobody wait longer, seen or not.
        if not dog.seen and clock.now() - started > max(_UNSEEN_S, attempt.limits.lock_timeout_ms / 1000):
            attempt.notify(
                Event(
                    "warning",
                    f"no session of {self.name} was seen: it names another server, goes through a Unix socket or a"
                    " pooler under another application_name, or made no connection; its waits were bounded by PGOPTIONS"
                    " alone",
                )
            )
        self._judge(command.status or 0, command.tail, timed_out, attempt)

    def _watch(self, command: Command, dog: Watchdog, notify: Notify) -> None:
        check_at = clock.now() + _CHECK_EVERY_S
        while not command.ended():
            dog.look()
            if clock.now() >= check_at:
                check_at = self._check(notify)
            look_at = clock.now() + dog.next_s
            while not command.ended() and (left := look_at - clock.now()) > 0:
                if text := command.read(left):
                    self.output(text)

    def _check(self, notify: Notify) -> float:
        """Ask for the runner's lock, which also keeps both sessions from being idle for too long; when to ask again."""
        try:
            self.session.query("SELECT 1")
            self.locked()
        except LockctlError as error:
            notify(Event("warning", f"{error.message}; the command goes on, and another migration may begin beside it"))
            return math.inf
        return clock.now() + _CHECK_EVERY_S

    def _clear(self, dog: Watchdog, notify: Notify) -> None:
        if left := dog.clear(grace_s=_GRACE_S):
            pids = ", ".join(map(str, left))
            notify(Event("warning", f"session {pids} of {self.name} is still there: look at it before going on"))

    def _judge(self, status: int, tail: bytes, timed_out: bool, attempt: Attempt) -> None:
        """Raise what the attempt was, unless it was a success. The database decides where it was told what to show."""
        words = _LOCK_WORDS.search(tail)
        locked = timed_out or words is not None
        failure = self.expectation.failure(self.session)
        blocked = BlockedError(
            f"a lock was in the way of {self.name}, which ended with exit status {status}",
            cause="deadlock" if words is not None and words[0] in (b"40P01", b"deadlock detected") else "lock",
            blockers=list(attempt.monitor.blockers),
        )
        if status != 0:
            if locked:
                raise blocked
            shows = "" if failure is None else f"; {failure.message}"
            own = LockctlError(f"{self.name} failed by itself, with exit status {status}{shows}", status=status)
            own.exit_code = status
            raise own
        if failure is not None:
            if locked:
                raise blocked
            failure.message = f"{self.name} ended with exit status 0, yet {failure.message}"
            raise failure
        if locked and not self.expectation.demands:
            raise PartialError(
                f"{self.name} ended with exit status 0 although a statement of it was given up at a lock:"
                " it may have gone on without that statement",
                hint="look at what it left; --expect-version and --expect-column let the database judge",
                blockers=list(attempt.monitor.blockers),
            )
