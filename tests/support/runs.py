"""What the tests of `run` look at: processes, the commands that run, and the row."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.support.cli import popen_lockctl
from tests.support.waiting import until


class Marked:
    """Processes that can be found again: a word of their own is in their arguments. lockctl itself is none of them."""

    def __init__(self) -> None:
        self.word = f"mark-{uuid.uuid4().hex}"

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                if self.word in words and "lockctl" not in words and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def sleeper(self) -> str:
        """Shell text for a process that sleeps, marked."""
        return f"sh -c 'sleep 300 & wait' {self.word}"

    def gone(self, *, deadline: float = 10.0) -> None:
        until(lambda: not self.processes(), deadline=deadline, what="the end of the command's processes")


def row(conn: psycopg.Connection[Any], key: str) -> tuple[str, float] | None:
    """Holder and seconds left of a row of `ffdb_locks`."""
    found = conn.execute(
        "SELECT lock_id, extract(epoch FROM expires_at - clock_timestamp())::float8"
        " FROM ffdb_locks WHERE lock_key = %s",
        (key,),
    ).fetchone()
    return (found[0], found[1]) if found else None


@contextmanager
def running(
    dsn: str, key: str, *command: str, ttl: str = "10s", env: Mapping[str, str | None] | None = None, **options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`lockctl run ffdb_locks KEY -- COMMAND` beside the test; options as `kill_after="1s"`."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with popen_lockctl("run", "ffdb_locks", key, "--ttl", ttl, *words, "--", *command, dsn=dsn, env=env) as process:
        yield process


def appeared(path: Path, *, deadline: float = 20.0) -> str:
    """The content of a file that a command writes, as soon as there is a whole line."""
    return until(
        lambda: path.read_text() if path.exists() and path.read_text().endswith("\n") else "",
        deadline=deadline,
        what=f"a line in {path.name}",
    )


def guard_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """The guard of a running `lockctl run`."""

    def find() -> psutil.Process | None:
        return next(
            (each for each in psutil.Process(process.pid).children() if "guard.py" in str(each.cmdline())), None
        )

    found = until(find, what="the guard")
    assert found is not None
    return found


def ended(process: subprocess.Popen[bytes], *, seconds: float = 30.0) -> tuple[int, str]:
    """Exit status and standard error of a command that ends."""
    _, stderr = process.communicate(timeout=seconds)
    return process.returncode, stderr.decode()


def kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    os.kill(process.pid, number)
