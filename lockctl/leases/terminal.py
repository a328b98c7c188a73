"""The terminal's job control, as a shell does it: the command's process group is the one in front.

Then Ctrl-C and Ctrl-Z reach the command and not lockctl, and it may read from the terminal.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


class Terminal:
    """The controlling terminal, or none: then every method does nothing."""

    def __init__(self) -> None:
        try:
            self._fd: int | None = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError:
            self._fd = None

    @property
    def present(self) -> bool:
        return self._fd is not None

    def in_front(self, group: int | None = None) -> bool:
        """Is `group` (ours, when None) the terminal's foreground process group?"""
        if self._fd is None:
            return False
        try:
            return os.tcgetpgrp(self._fd) == (os.getpgrp() if group is None else group)
        except OSError:
            return False

    def give(self, group: int | None = None) -> None:
        """Put `group` (ours, when None) in front. From the background this raises SIGTTOU, which is held back."""
        if self._fd is None:
            return
        former = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            with suppress(OSError):
                os.tcsetpgrp(self._fd, os.getpgrp() if group is None else group)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
