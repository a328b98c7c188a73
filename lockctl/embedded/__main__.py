"""The supervisor of an embedded server: `python -m lockctl.embedded FOLDER BIN LOCK_FD [--set=NAME=VALUE…]`.

It is the parent of postgres and does nothing else. Its output goes to the server's log. It ends with its server,
and its server with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from lockctl.embedded.identity import hand_over, unprivileged
from lockctl.embedded.places import PORT, Places, State, answers, make_private, socket_dir, take, visit
from lockctl.errors import LockctlError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_STARTS_WITHIN_S = 300.0
"""Clients give up before that; a server that replays much after a crash may still be ready for a later one."""


def main() -> None:
    """Start the server, wait until no client is left, stop it."""
    if os.fork():  # the client that started this waits for no more than that, and is not its parent
        return
    os.umask(0o077)
    os.chdir("/")
    places, bin_dir, lock_fd = Places(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3])
    settings = [option.removeprefix("--set=") for option in sys.argv[4:]]
    os.set_inheritable(lock_fd, False)
    with places.open("clients.lock") as clients, places.open("server.lock") as alive:
        server = _start(places, bin_dir, settings, alive)
        fcntl.flock(clients, fcntl.LOCK_EX)
        _stop(places, server)


def _start(places: Places, bin_dir: Path, settings: list[str], alive: IO[bytes]) -> subprocess.Popen[bytes]:
    run, data = socket_dir(places.base), places.base / "data"
    make_private(run)
    _outlast(run, alive)
    prefix = unprivileged()
    if not data.exists():
        _initdb([*prefix, bin_dir / "initdb"], data, alive, sync="fsync=off" not in settings)
    hand_over(data, prefix)
    _drop_stale_pid(data)
    options = [
        "listen_addresses=",
        f"unix_socket_directories={_quote(run)}",
        "unix_socket_permissions=0700",
        f"port={PORT}",
        "timezone=UTC",
        "log_timezone=UTC",
        *settings,
    ]
    argv: list[str | Path] = [*prefix, bin_dir / "postgres", "-D", data]
    argv += [word for option in options for word in ("-c", option)]
    server = _spawn(argv, alive)
    # Whatever ends postgres ends this process, and so the lock that says that there is a server.
    threading.Thread(target=lambda: (server.wait(), os._exit(0)), daemon=True).start()
    for wish in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wish, lambda *_: _stop(places, server))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    deadline = time.monotonic() + _STARTS_WITHIN_S
    while not (answers(run) and _says_ready(data)):
        if time.monotonic() > deadline:
            _stop(places, server)
        time.sleep(0.002)
    places.write_state(State(run, bin_dir))
    return server


def _spawn(argv: Sequence[str | Path], alive: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program of PostgreSQL that holds the lock `alive` and gets SIGINT, its fast shutdown, when we die."""
    supervisor = os.getpid()
    libc = ctypes.CDLL(None)

    def die_with_supervisor() -> None:
        if sys.platform.startswith("linux"):
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)
            if os.getppid() != supervisor:  # it died before that
                os._exit(1)

    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=(alive.fileno(),), preexec_fn=die_with_supervisor)


def _outlast(run: Path, alive: IO[bytes]) -> None:
    """Wait until nothing lives of an earlier server, whose supervisor was killed.

    The kernel told it to stop then. Where it can't (macOS), or where a client holds that up, it is told again, and
    the kernel says whom to tell: it knows the process that listens on the socket.
    """
    for wish in (None, signal.SIGINT, signal.SIGQUIT):
        pid = _listener(run) if wish else None
        if wish and pid:
            os.kill(pid, wish)
        deadline = time.monotonic() + (5.0 if wish else 1.0)
        while time.monotonic() < deadline:
            if take(alive, fcntl.LOCK_EX):
                return
            time.sleep(0.005)
    raise SystemExit("a process of an earlier server of this folder is still there (it has server.lock open)")


def _listener(run: Path) -> int | None:
    """The process that listens on the socket there (unix(7), SO_PEERCRED), or None."""
    caller = visit(run)
    if caller is None:
        return None
    with caller:
        if sys.platform == "darwin":
            return caller.getsockopt(0, 2)  # SOL_LOCAL, LOCAL_PEERPID (sys/un.h)
        pid: int = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        return pid


def _initdb(argv: list[str | Path], data: Path, alive: IO[bytes], *, sync: bool) -> None:
    """Make the data folder beside its place and rename it: a half-made one is never taken for whole."""
    draft = data.with_name("data.new")
    shutil.rmtree(draft, ignore_errors=True)
    argv += ["-D", draft, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    status = _spawn(argv if sync else [*argv, "--no-sync"], alive).wait()
    if status != 0:
        raise SystemExit(f"initdb failed with status {status}")
    draft.rename(data)


def _drop_stale_pid(data: Path) -> None:
    """Remove a postmaster.pid that is cut short, or whose number is now that of some other process.

    postgres would refuse to start. A server runs in its data folder, so /proc tells; elsewhere postgres decides alone.
    """
    pid_file = data / "postmaster.pid"
    if not Path("/proc/self/cwd").exists() or not pid_file.exists():
        return
    with contextlib.suppress(OSError, ValueError):  # no number; no such process, or another user's
        pid = int(pid_file.read_text().split("\n", 1)[0])
        if Path(f"/proc/{pid}/cwd").samefile(data):
            return
    pid_file.unlink()


def _says_ready(data: Path) -> bool:
    """The server's own word, in the eighth line of postmaster.pid (LOCK_FILE_LINE_PM_STATUS in its pidfile.h)."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) > 7 and lines[7].strip() in ("ready", "standby")


def _quote(folder: Path) -> str:
    """As a member of a list in postgresql.conf: commas and blanks would split it."""
    return '"' + str(folder).replace('"', '""') + '"'


def _stop(places: Places, server: subprocess.Popen[bytes]) -> None:
    """Fast, then immediate shutdown; the thread that waits for the server ends this process."""
    places.state.unlink(missing_ok=True)  # nobody joins it any more
    for wish, patience in ((signal.SIGINT, 30), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
        server.send_signal(wish)
        time.sleep(patience)
    raise SystemExit("the server could not be stopped")


if __name__ == "__main__":
    try:
        main()
    except LockctlError as problem:
        raise SystemExit(problem.message) from None
