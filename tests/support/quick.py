"""lockctl as a process of its own that was forked from one in which everything is imported: 10 ms instead of 300.

For tests that run many commands and look at what they say. What depends on a fresh interpreter (imports, closed
streams, signals, locales, terminals) belongs to `tests.support.cli`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from tests.support.cli import Result, clean_env, home

_PARENT = """
import importlib, json, os, random, signal, socket, sys, traceback

import lockctl.__main__
for name in (
    "lockctl.cli.app", "lockctl.cli.reading", "lockctl.cli.changing", "lockctl.cli.sweeping", "lockctl.db",
    "lockctl.leases.grant", "lockctl.leases.inspect", "lockctl.leases.sweep", "lockctl.activity.blockers",
    "lockctl.render.structured", "lockctl.render.delimited", "tabulate", "rich.table", "prometheus_client", "msgspec",
):
    importlib.import_module(name)


def child(request, fds):
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    random.seed()
    sys.argv = ["lockctl", *(word.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
                             for word in request["args"])]
    try:
        lockctl.__main__.main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


channel = socket.socket(fileno=int(sys.argv[1]))
while True:
    data, fds, _, _ = socket.recv_fds(channel, 1 << 20, 3)
    if not data:
        os._exit(0)
    while not data.endswith(b"\\n"):
        data += channel.recv(1 << 20)
    pid = os.fork()
    if pid == 0:
        channel.close()
        code = 70
        try:
            code = child(json.loads(data), list(fds))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
    channel.send(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class _Forker:
    """The process from which commands are forked, one at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PARENT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=clean_env(),
                cwd=home(),
            )
        atexit.register(self.stop)

    def stop(self) -> None:
        self.channel.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()

    def run(self, request: bytes, streams: list[int], timeout: float) -> int:
        with self.lock:
            self.channel.settimeout(timeout)
            socket.send_fds(self.channel, [request], streams)
            return int(self.channel.recv(64))


@functools.cache
def _forker() -> _Forker:
    return _Forker()


def run_quick(
    *args: str,
    dsn: str | None = None,
    env: Mapping[str, str | None] | None = None,
    input: str | None = None,  # noqa: A002 (the name that subprocess.run gives it)
    timeout: float = 60.0,
    cwd: Path | None = None,
) -> Result:
    """Like `run_lockctl`, and about thirty times as fast."""
    wanted = {"args": list(args), "env": clean_env(dsn, env), "cwd": str(cwd or home())}
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(_file()) for _ in range(3))
        stdin.write((input or "").encode())
        stdin.seek(0)
        code = _forker().run(
            json.dumps(wanted).encode() + b"\n", [stream.fileno() for stream in (stdin, stdout, stderr)], timeout
        )
        texts = [_content(stream).decode(errors="surrogateescape") for stream in (stdout, stderr)]
    return Result(code, *texts)


@contextlib.contextmanager
def _file() -> Iterator[IO[bytes]]:
    fd = os.memfd_create("lockctl") if hasattr(os, "memfd_create") else None
    with tempfile.TemporaryFile() if fd is None else os.fdopen(fd, "w+b", buffering=0) as file:
        yield file


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
