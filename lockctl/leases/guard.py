"""The guard of `run`: a process that ends the command's group when lockctl can't.

lockctl may be killed, stopped, or stuck in a library call; the guard is told beforehand by when the group must have
ended, and it knows nothing else: no database, no secret, no package. It is started as a script with `python -I -S`,
in a session of its own, and imports the standard library alone (10 ms, beside the command's own start).

    python -I -S guard.py FD GRACE LET_LIVE

Lines come through the pipe FD: `group PID START SESSION` (written by the command itself between fork and exec, so
that no moment is without it), `by TERM_AT KILL_AT` (on lockctl.clock, `inf` for never), `bye`. The end of the
pipe without `bye` means that lockctl is gone: TERM, and KILL after GRACE seconds or at KILL_AT, whichever is sooner.
LET_LIVE 1: then the group is left alone.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal
import sys
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_PROCESS_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP of pidfd_send_signal(2), Linux 6.9."""
_IGNORED = ("HUP", "INT", "QUIT", "TERM", "TSTP", "TTIN", "TTOU", "PIPE", "USR1", "USR2")
_NEXT_LOOK_S = 0.02
_LONGEST_POLL_S = 1.0
"""A poll counts no suspended time: nobody sleeps over a deadline for longer than this after waking."""


class Group:
    """A process group that stays the one it was: a number that was given anew is never signalled.

    Where the kernel can (Linux 6.9), the group is named by a descriptor of its leader, which outlives it. Elsewhere
    its number is used as long as its leader has the start time, or after it its members the session, that they had.
    """

    def __init__(self, number: int, started: str = "", session: int | None = None) -> None:
        self.number, self.started, self.session = number, started, session
        self._pidfd: int | None = None
        if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(number)
        if self._pidfd is not None and not self._leader_is_ours():
            self._forget()

    def signal(self, number: int) -> bool:
        """Send a signal (0: none) to all members; False when there are none."""
        if self._pidfd is not None:
            try:
                signal.pidfd_send_signal(self._pidfd, number, None, _PROCESS_GROUP)
                return True
            except ProcessLookupError:
                return False
            except PermissionError:
                return True
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._forget()  # an older kernel
        if not self._still_ours():
            return False
        try:
            os.killpg(self.number, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def end(self, number: int) -> bool:
        """Send a signal that ends, also to members that are stopped."""
        there = self.signal(number)
        if there and number != signal.SIGKILL:
            self.signal(signal.SIGCONT)
        return there

    def alive(self) -> bool:
        """Is any member left that still runs? (One that ended and that nobody waited for does not.)"""
        if not self.signal(0):
            return False
        # Twice: a member can fork behind the back of one walk through /proc.
        return any(any(state not in "ZX" for _, state, _ in members(self.number) or [(0, "?", 0)]) for _ in range(2))

    def _leader_is_ours(self) -> bool:
        return not self.started or start_time(self.number) == self.started

    def _still_ours(self) -> bool:
        if start_time(self.number):
            return self._leader_is_ours()
        found = members(self.number)
        return found is None or self.session is None or all(session == self.session for _, _, session in found)

    def _forget(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _stat(pid: int | str) -> list[str]:
    # The second field is the program's name in parentheses, which may hold anything.
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 (no pathlib here)
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> str:
    """When a process began, in ticks since the boot (proc(5)): with the pid it names it for good; '' where unknown."""
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def members(group: int) -> list[tuple[int, str, int]] | None:
    """Pid, state and session of the members of a process group; None where there is no /proc."""
    try:
        with os.scandir("/proc") as entries:
            pids = [entry.name for entry in entries if entry.name.isdigit()]
    except OSError:
        return None
    found = [(int(pid), _stat(pid)) for pid in pids]
    return [(pid, fields[0], int(fields[3])) for pid, fields in found if len(fields) > 3 and fields[2] == str(group)]


class _Guard:
    def __init__(self, pipe: int, grace: float, let_live: bool) -> None:
        self.pipe, self.grace, self.let_live = pipe, grace, let_live
        self.group: Group | None = None
        self.term_at = self.kill_at = math.inf
        self.held = b""

    def watch(self) -> None:
        """Until the goodbye, or until nothing is left to guard."""
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        while True:
            left = min(self.term_at, self.kill_at) - _now()
            if poll.poll(min(max(0.0, left), _LONGEST_POLL_S) * 1000):
                chunk = os.read(self.pipe, 65536)
                if not chunk:
                    return self.orphaned()
                if self.heard(chunk):
                    return None
            self.enforce()

    def heard(self, chunk: bytes) -> bool:
        """Take in what came; True for the goodbye."""
        *lines, self.held = (self.held + chunk).split(b"\n")
        for line in lines:
            word, *rest = line.decode().split()
            if word == "bye":
                return True
            if word == "group":
                self.group = Group(int(rest[0]), rest[1].strip("-"), int(rest[2]))
            elif word == "by":
                self.term_at, self.kill_at = float(rest[0]), float(rest[1])
        return False

    def enforce(self) -> None:
        """What is due by now."""
        now = _now()
        if now >= self.kill_at:
            self.term_at, self.kill_at = math.inf, now + _NEXT_LOOK_S
            self.end(signal.SIGKILL)
        elif now >= self.term_at:
            self.term_at = math.inf
            self.end(signal.SIGTERM)

    def orphaned(self) -> None:
        """lockctl is gone: end the group."""
        if self.let_live or self.group is None:
            return
        self.term_at = 0.0
        self.kill_at = min(self.kill_at, _now() + self.grace)
        self.enforce()
        while self.group.alive():
            time.sleep(_NEXT_LOOK_S)
            self.enforce()

    def end(self, number: int) -> None:
        if self.group is not None:
            self.group.end(number)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def main(argv: list[str]) -> None:
    """Guard until the goodbye or the end of the group."""
    for name in _IGNORED:
        signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_IGN)
    _Guard(int(argv[0]), float(argv[1]), argv[2] == "1").watch()


if __name__ == "__main__":
    main(sys.argv[1:])
