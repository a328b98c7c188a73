"""Somebody else's command as a process group of its own, with its output in our hands."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from lockctl import clock
from lockctl.errors import LockctlError
from lockctl.leases.child import Guard, NotExecutableError, NotFoundError
from lockctl.migrations.policy import Policy

KILL_AFTER_S = 10.0
_POLL_S = 0.02
_KEPT = 64 * 1024


class Command:
    """A context manager: in the end nothing of the group lives. When lockctl itself is killed, a guard ends it.

    Its standard input is empty: what one attempt has read, the next could not read again. What it writes, to standard
    output or error, comes from `read`; the last 64 KiB are kept in `tail`. `status` is its exit status once it ended.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start it. Raises NotFoundError, NotExecutableError."""
        self.status: int | None = None
        self.tail = b""
        self._open = True
        self._guard = Guard(KILL_AFTER_S, let_live=False)
        self._reader, writer = os.pipe()
        try:
            # preexec_fn is safe: no other thread was started.
            self._process = subprocess.Popen(
                list(argv),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                process_group=0,
                preexec_fn=self._guard.announce,
            )
        except OSError as error:
            os.close(self._reader)
            self._guard.close()
            kind = NotFoundError if isinstance(error, FileNotFoundError) else NotExecutableError
            raise kind(f"{argv[0]} can't be run: {error.strerror}") from None
        finally:
            os.close(writer)
        self.pid = self._process.pid
        self._guard.adopt(self.pid)
        self._guard.allow(math.inf, math.inf)

    def __enter__(self) -> Command:
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self.end()
        os.close(self._reader)
        self._guard.close()

    def read(self, seconds: float) -> bytes:
        """What was written meanwhile; waits up to `seconds` for some. Sets `status` when the command has ended."""
        if self._open:
            ready, _, _ = select.select([self._reader], [], [], seconds)
            chunk = os.read(self._reader, 65536) if ready else b""
            self._open = bool(chunk) or not ready
        else:
            # It closed its output and runs on.
            time.sleep(min(seconds, _POLL_S))
            chunk = b""
        self.tail = (self.tail + chunk)[-_KEPT:]
        code = self._process.poll()
        if code is not None:
            self.status = code if code >= 0 else 128 - code
        return chunk

    def ended(self) -> bool:
        return self.status is not None

    def rest(self) -> bytes:
        """What is left to read once the command has ended; members of its group may hold the pipe open."""
        chunks: list[bytes] = []
        while self._open and select.select([self._reader], [], [], 0)[0]:
            chunk = os.read(self._reader, 65536)
            self._open = bool(chunk)
            chunks.append(chunk)
        text = b"".join(chunks)
        self.tail = (self.tail + text)[-_KEPT:]
        return text

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the group: `number`, and KILL to whoever is left after KILL_AFTER_S. It may have ended already."""
        started, killed = clock.now(), False
        self._signal(number)
        while self._alive():
            if not killed and clock.now() - started > KILL_AFTER_S:
                killed = True
                self._signal(signal.SIGKILL)
            if killed and clock.now() - started > 2 * KILL_AFTER_S:
                raise LockctlError(f"process group {self.pid} of the command does not end")
            time.sleep(_POLL_S)

    def _alive(self) -> bool:
        """Is there anybody in the group? Our child counts until it was waited for: its number stays its own."""
        if self._process.poll() is None:
            return True
        self.status = self._process.returncode if self._process.returncode >= 0 else 128 - self._process.returncode
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return not _only_zombies(self.pid)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None or not _only_zombies(self.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _only_zombies(group: int) -> bool:
    """Have all members of the group ended, and only their parents have not looked? False where nobody can say."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 (no Path for one question)
        return False
    with suppress(OSError), os.scandir("/proc") as entries:
        for entry in entries:
            if not entry.name.isdigit():
                continue
            with suppress(OSError, IndexError, ValueError), open(f"/proc/{entry.name}/stat", "rb") as file:  # noqa: PTH123
                words = file.read().rpartition(b")")[2].split()
                if int(words[2]) == group and words[0] not in (b"Z", b"X"):
                    return False
    return True


def environment(policy: Policy, name: str, *, check_interval: bool, environ: Mapping[str, str]) -> dict[str, str]:
    """The command's environment: our limits behind what PGOPTIONS holds, and `name` as its application_name.

    `check_interval`: the server knows client_connection_check_interval; to one that does not it would be fatal.
    Measured: a `?options=` or `application_name=` in the command's own URL wins over both; the watchdog is for that.
    """
    settings = {"lock_timeout": policy.limits.lock_timeout_ms}
    if policy.limits.statement_timeout_ms is not None:
        settings["statement_timeout"] = policy.limits.statement_timeout_ms
    if check_interval:
        settings["client_connection_check_interval"] = 1_000
    ours = " ".join(f"-c {setting}={value}" for setting, value in settings.items())
    return {**environ, "PGOPTIONS": f"{environ.get('PGOPTIONS', '')} {ours}".strip(), "PGAPPNAME": name}
