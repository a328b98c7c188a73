"""Holding a lease while a command runs: nothing of the command lives past the lease's last confirmed expiry.

One loop in the main thread, which never waits for the database: it looks at the command, passes signals on, and judges
the lease by what the keeper's thread last confirmed. The guard knows the same deadlines, and keeps them when this
process can't.
"""

from __future__ import annotations

import enum
import math
import signal
from collections.abc import Callable
from dataclasses import dataclass

from lockctl import clock, durations
from lockctl.errors import LockctlError
from lockctl.leases.child import Command, Guard
from lockctl.leases.events import PASSED_ON, WAKE, Events
from lockctl.leases.keeping import Keeper
from lockctl.leases.terminal import Terminal

_LONGEST_POLL_S = 1.0
_LEFTOVER_POLL_S = 0.01
_KILL_AGAIN_S = 0.1
_FROM_TERMINAL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Trouble(enum.Enum):
    """Why the command had to end."""

    LOST = "lost"
    UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How it ended: the command's exit status (128 + N for signal N), and what was wrong with the lease.

    `interrupted` is a signal of the terminal's that ended the command and would have reached our own group, too.
    """

    status: int
    trouble: Trouble | None
    interrupted: int | None = None


@dataclass(slots=True)
class Holding:
    """The command, and everything that ends it. `margin_s` before the last confirmed expiry it gets TERM, and KILL
    when half of that is left; `kill_after_s` after a TERM for other reasons."""

    command: Command
    keeper: Keeper
    guard: Guard
    terminal: Terminal
    events: Events
    margin_s: float
    kill_after_s: float
    warn: Callable[[str], None]
    trouble: Trouble | None = None
    kill_at: float = math.inf
    ending: bool = False
    passed_on: bool = False
    until: float = math.nan

    def run(self) -> Ending:
        """Until nothing of the command is left."""
        self._tell_guard()
        while True:
            # First, so that a command which the guard had to end while we were stopped is seen for what it is.
            self._judge()
            if self._over():
                break
            for event in self.events.wait(self._pause()):
                self._on(event)
        status = self.command.status or 0
        in_front = self.terminal.in_front(self.command.pid)
        if in_front:
            self.terminal.give()
        by_terminal = in_front and not self.passed_on and status in (130, 131)
        return Ending(status, self.trouble, status - 128 if by_terminal else None)

    def _over(self) -> bool:
        stopped = self.command.changed()
        if stopped is not None:
            self._stopped(stopped)
        return self.command.status is not None and not self.command.group.alive()

    # -- the lease -------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        """End the command when the lease is no longer surely ours, and what the command left when it has ended."""
        now, keeper = clock.now(), self.keeper
        if self.trouble is None and keeper.lost is not None:
            self.trouble = Trouble.LOST
            self._end(now + self.margin_s, "the lease was lost")
        elif self.trouble is None and (keeper.late or now >= keeper.until - self.margin_s):
            self.trouble = Trouble.UNCONFIRMED
            self._end(
                now + self.margin_s / 2 if keeper.late else keeper.until - self.margin_s / 2,
                "the lease could not be confirmed in time",
            )
        elif not self.ending and self.command.status is not None:
            self._end(now + self.kill_after_s, "the command has left processes in its group")
        if now >= min(self.kill_at, keeper.until - self.margin_s / 2):
            self.command.group.end(signal.SIGKILL)
            self.kill_at = now + _KILL_AGAIN_S
        if keeper.until != self.until:
            self._tell_guard()

    def _end(self, kill_at: float, why: str) -> None:
        self.kill_at = min(self.kill_at, kill_at)
        if not self.ending or self.trouble is not None:
            self.warn(f"{why}: ending {'the command' if self.command.status is None else 'what it left'}")
            self.command.group.end(signal.SIGTERM)
        self.ending = True
        self._tell_guard()

    def _tell_guard(self) -> None:
        """The guard acts a little later than we do: only when we did not."""
        self.until = self.keeper.until
        slack = self.margin_s / 8
        term_at = math.inf if self.ending else self.until - self.margin_s + slack
        self.guard.allow(term_at, min(self.kill_at, self.until - self.margin_s / 2) + slack)

    def _pause(self) -> float:
        """Seconds until something is due; no longer than a second, since no wait counts suspended time."""
        now, until = clock.now(), self.keeper.until
        due = [_LONGEST_POLL_S, self.kill_at - now, until - self.margin_s / 2 - now]
        if self.trouble is None:
            due.append(until - self.margin_s - now)
        if self.command.status is not None:
            due.append(_LEFTOVER_POLL_S)
        return max(0.0, min(due))

    # -- signals and the terminal ----------------------------------------------------------------------------------

    def _on(self, event: int) -> None:
        if event == signal.SIGCHLD:
            try:
                if self.guard.revive():
                    self.warn("the guard process was killed: started another")
            except LockctlError as error:
                self.warn(error.message)
        elif event == signal.SIGCONT:
            self._continue()
        elif event == signal.SIGTSTP or event in PASSED_ON:
            self.passed_on = True
            self.command.group.signal(event)
        else:
            assert event == WAKE

    def _stopped(self, number: int) -> None:
        """The command was stopped: by the terminal, then we stop, too, and the shell has its prompt back."""
        in_front = self.terminal.in_front(self.command.pid)
        if not self.terminal.present or not (in_front or number in _FROM_TERMINAL):
            return  # somebody stopped it on purpose; the lease is held meanwhile
        if number in (signal.SIGTTIN, signal.SIGTTOU) and self.terminal.in_front():
            self._continue()  # our job was brought to the front, and the terminal was not handed on yet
            return
        if in_front:
            self.terminal.give()
        left = self.keeper.until - self.margin_s - clock.now()
        if left < math.inf:
            self.warn(
                f"stopped, so the lease is not renewed: unless continued within"
                f" {durations.show(max(0, int(left * 1000)))}, the command is ended"
            )
        self.events.stop_here()
        self._continue()

    def _continue(self) -> None:
        if self.terminal.in_front():
            self.terminal.give(self.command.pid)
        self.command.group.signal(signal.SIGCONT)
