"""lockctl as a process, in an environment that nothing of the developer's leaks into."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pexpect
import psutil

LOCKCTL = (sys.executable, "-m", "lockctl")

_MARK = "STARTED_BY_TEST"


@dataclass(frozen=True, slots=True)
class Result:
    """A command that ended; the output is decoded without any change of newlines."""

    returncode: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Standard output as the one JSON document that it must be."""
        return json.loads(self.stdout)

    def jsonl(self) -> list[Any]:
        """Standard output as one JSON document a line."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    def error(self) -> Any:
        """The JSON object of an error: the last line of standard error."""
        return json.loads(self.stderr.splitlines()[-1])


@functools.cache
def home() -> Path:
    """An empty home folder, for as long as the tests run."""
    made = tempfile.TemporaryDirectory(prefix="lockctl-home-", ignore_cleanup_errors=True)
    atexit.register(made.cleanup)
    return Path(made.name)


def clean_env(dsn: str | None = None, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment for a command: `dsn` as LOCKCTL_DSN, then `extra`, where None takes a variable away."""
    leaks = ("PG", "LOCKCTL_", "XDG_", "COV_", "PYTEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(leaks)}
    for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "TZ", "LANG", "LANGUAGE"):
        env.pop(name, None)
    env |= {"HOME": str(home()), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    if "LOCKCTL_PG_BIN" in os.environ:
        env["LOCKCTL_PG_BIN"] = os.environ["LOCKCTL_PG_BIN"]
    if dsn is not None:
        env["LOCKCTL_DSN"] = dsn
    for name, value in (extra or {}).items():
        if value is None:
            env.pop(name, None)
        else:
            env[name] = value
    return env


def run_lockctl(
    *args: str,
    dsn: str | None = None,
    env: Mapping[str, str | None] | None = None,
    input: str | None = None,  # noqa: A002 (the name that subprocess.run gives it)
    timeout: float = 60.0,
    cwd: Path | None = None,
    command: Sequence[str] = LOCKCTL,
) -> Result:
    """Run a command to its end; without `input` its standard input is empty and no terminal."""
    ended = subprocess.run(
        [*command, *args],
        input=b"" if input is None else input.encode(),
        capture_output=True,
        timeout=timeout,
        env=clean_env(dsn, env),
        cwd=cwd or home(),
        check=False,
    )
    return Result(ended.returncode, *(out.decode(errors="surrogateescape") for out in (ended.stdout, ended.stderr)))


@contextmanager
def popen_lockctl(
    *args: str,
    dsn: str | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: int | Any = subprocess.PIPE,
    stderr: int | Any = subprocess.PIPE,
    cwd: Path | None = None,
    command: Sequence[str] = LOCKCTL,
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs beside the test; it and whatever it started are killed in the end."""
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*command, *args],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=clean_env(dsn, env) | {_MARK: mark},
        cwd=cwd or home(),
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            _kill_marked(mark)


@contextmanager
def on_terminal(
    *args: str,
    dsn: str | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 20.0,
    size: tuple[int, int] = (40, 120),
    cwd: Path | None = None,
) -> Iterator[pexpect.spawn[str]]:
    """A command on a pseudo-terminal of `size` (rows, columns); `timeout` bounds each expect."""
    mark = uuid.uuid4().hex
    child = pexpect.spawn(
        LOCKCTL[0],
        [*LOCKCTL[1:], *args],
        env=clean_env(dsn, env) | {_MARK: mark},
        cwd=cwd or home(),
        encoding="utf-8",
        timeout=timeout,
        dimensions=size,
    )
    try:
        yield child
    finally:
        _kill_marked(mark)
        child.close(force=True)


def _kill_marked(mark: str) -> None:
    """Kill what the command left, also what outlived it: children have its environment, whoever is their parent now."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone meanwhile
            if process.environ().get(_MARK) == mark and not _embedded(process):
                process.kill()


def _embedded(process: psutil.Process) -> bool:
    """Whether it is of an embedded server, which ends by itself with its last client."""
    return process.name() == "postgres" or "lockctl.embedded" in process.cmdline()
