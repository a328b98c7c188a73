"""What wakes the one who holds a lease: signals, and other threads."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from typing import Any

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are meant for the command."""
_OTHERS = (signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
WAKE = 0


class Events:
    """Signals, and `wake`, as numbers to wait for. Begins with `start`, in the main thread; ends with `close`.

    A signal that was ignored when lockctl began (nohup) stays ignored, for the command too.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        for end in (self._reader, self._writer):
            os.set_blocking(end, False)
        self._former: dict[int, Any] = {}
        self._wakeup = -1
        self._started = False

    def start(self) -> None:
        """From now on signals are events. Twice does no harm."""
        if self._started:
            return
        self._started = True
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (*PASSED_ON, *_OTHERS):
            former = signal.getsignal(number)
            if former is not signal.SIG_IGN or number == signal.SIGCHLD:
                self._former[number] = former
                signal.signal(number, _note)
        if signal.getsignal(signal.SIGTTOU) is signal.SIG_DFL:
            # Behind the command on a terminal with `stty tostop`, a warning would stop us.
            self._former[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)

    def close(self) -> None:
        """No more events. Signals that end a process are ignored now: the command has ended, and its status stands."""
        if self._started:
            for number, former in self._former.items():
                signal.signal(number, signal.SIG_IGN if number in PASSED_ON else former)
            signal.set_wakeup_fd(self._wakeup)
            self._started = False
        for end in (self._reader, self._writer):
            os.close(end)

    @property
    def handled(self) -> list[int]:
        """The signals that are events, and whose default a command must get back."""
        return list(self._former)

    def wake(self) -> None:
        """End a wait, from any thread."""
        with suppress(OSError):
            os.write(self._writer, bytes([WAKE]))

    def wait(self, seconds: float) -> list[int]:
        """The events of up to `seconds`, as soon as there are some, in their order."""
        ready, _, _ = select.select([self._reader], [], [], max(0.0, seconds))
        return list(os.read(self._reader, 4096)) if ready else []

    def stop_here(self) -> None:
        """Stop this process and the others of its group, as Ctrl-Z would have; returns when it is continued.

        Returns at once where no shell could continue it (an orphaned process group).
        """
        former = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, former)


def _note(_number: int, _frame: Any) -> None:
    """The number went into the pipe already."""
