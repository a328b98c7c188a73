"""The command of `run` in a process group of its own, and the guard beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from lockctl.errors import LockctlError
from lockctl.leases import guard as guard_script
from lockctl.leases.guard import Group
from lockctl.leases.terminal import Terminal

_GUARD_ENV = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


class NotExecutableError(LockctlError):
    """The command is there and can't be executed; the exit code is env(1)'s."""

    code: ClassVar[int] = 126


class NotFoundError(LockctlError):
    """There is no such command; the exit code is env(1)'s."""

    code: ClassVar[int] = 127


def check(command: str) -> None:
    """Raise what starting `command` would raise: known before a lease is waited for.

    (shutil.which would do, and cost a command three milliseconds of imports.)
    """
    paths = [command] if "/" in command else [f"{folder or '.'}/{command}" for folder in os.get_exec_path()]
    found = [path for path in paths if os.access(path, os.F_OK)]
    if not found or not command:
        raise _cannot(command, FileNotFoundError())
    if not any(os.access(path, os.X_OK) and Path(path).is_file() for path in found):
        raise _cannot(command, PermissionError())


def _cannot(command: str, error: OSError) -> LockctlError:
    if isinstance(error, FileNotFoundError):
        if "/" in command and Path(command).is_file():
            return NotFoundError(
                f"{command} can't be executed: the interpreter that it names was not found",
                hint="see its first line (#!…), which must not end in a carriage return, or `file` for a binary",
            )
        return NotFoundError(f"command not found: {command}")
    return NotExecutableError(f"{command} can't be executed: {error.strerror or 'permission denied'}")


class Guard:
    """The other end of the guard's pipe. It outlives us, if need be; when it dies before us, it is started anew.

    `grace` is the seconds between TERM and KILL after our death, `let_live` that the group may survive us.
    """

    def __init__(self, grace: float, *, let_live: bool) -> None:
        self._arguments = (str(grace), "1" if let_live else "0")
        self._group = ""
        self._times = ""
        self._writer, self._process = self._start()

    def _start(self) -> tuple[int, subprocess.Popen[bytes]]:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            process = subprocess.Popen(
                [sys.executable or "python3", "-I", "-S", guard_script.__file__, str(reader), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in _GUARD_ENV if name in os.environ},
                pass_fds=(reader,),
                start_new_session=True,  # no signal of the terminal, or to our group, is meant for it
            )
        except OSError as error:
            os.close(writer)
            raise LockctlError(f"the guard process could not be started: {error.strerror}") from None
        finally:
            os.close(reader)
        return writer, process

    def announce(self) -> None:
        """Called by the command itself, before it is executed: the guard knows the group as soon as there is one."""
        with suppress(OSError):  # killed already: another will be told
            os.write(self._writer, _group_line(os.getpid()))

    def adopt(self, group: int) -> None:
        """Remember the group, for a guard that must be started anew."""
        self._group = _group_line(group).decode()

    def allow(self, term_at: float, kill_at: float) -> None:
        """By when (on `clock.now()`, inf for never) the group gets TERM and KILL without any word from us."""
        self._times = f"by {term_at} {kill_at}\n"
        self._tell(self._times)

    def revive(self) -> bool:
        """Start a guard that died anew; False when it was alive. Raises LockctlError."""
        if self._process.poll() is None:
            return False
        former = self._writer
        self._writer, self._process = self._start()
        os.close(former)
        self._tell(self._group + self._times)
        return True

    def close(self) -> None:
        """The group has ended: the guard goes, by KILL, since it may not even have come up yet."""
        self._tell("bye\n")
        self._process.kill()
        self._process.wait()
        os.close(self._writer)

    def _tell(self, text: str) -> None:
        with suppress(OSError):  # it is gone, or stopped: `revive` sees the one, and nothing helps the other
            os.write(self._writer, text.encode())


def _group_line(pid: int) -> bytes:
    return f"group {pid} {guard_script.start_time(pid) or '-'} {os.getsid(pid)}\n".encode()


class Command:
    """The running command: `pid` is its own and its group's number, `status` its exit status once it has ended."""

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        guard: Guard,
        terminal: Terminal,
        defaults: Sequence[int],
    ) -> None:
        """Start it. `defaults` are the signals whose default it gets back. Raises NotFoundError, NotExecutableError.

        It inherits what we inherited and nothing that we opened: all of that is close-on-exec.
        """
        in_front = terminal.in_front()

        def before_exec() -> None:
            for number in defaults:
                signal.signal(number, signal.SIG_DFL)
            guard.announce()
            if in_front:
                terminal.give(os.getpid())

        try:
            # preexec_fn is safe: no other thread was started yet.
            self._process = subprocess.Popen(
                list(argv), env=dict(env), process_group=0, close_fds=False, preexec_fn=before_exec
            )
        except OSError as error:
            if in_front:
                terminal.give()
            raise _cannot(argv[0], error) from None
        self.pid = self._process.pid
        self.group = Group(self.pid, guard_script.start_time(self.pid), os.getsid(self.pid))
        self.status: int | None = None
        guard.adopt(self.pid)

    def changed(self) -> int | None:
        """The signal that stopped the command since the last call; None for anything else. Sets `status` at its end."""
        stopped: int | None = None
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                stopped = os.WSTOPSIG(status)
            else:
                code = os.waitstatus_to_exitcode(status)
                self._process.returncode = code
                self.status = code if code >= 0 else 128 - code
        return stopped
