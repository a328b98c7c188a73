"""A private PostgreSQL: for `--embedded`, the demo and the tests, as root and as any user.

It listens on a Unix socket only and lives as long as somebody uses it. Each client holds a shared flock;
whoever finds no server starts a detached supervisor, the parent of postgres, which waits for the lock to be
free and then stops it. So a client that is killed leaks no server, and two commands at once share one.
The files are described in `places`; measured: 4 ms to join, 60 ms to start, 0.7 s to make.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from lockctl.embedded import binaries
from lockctl.embedded.identity import unprivileged
from lockctl.embedded.places import PORT, Places, State, take
from lockctl.errors import UnreachableError

__all__ = ["Server", "default_directory", "start", "unprivileged"]

_LOOK_EVERY_S = 0.002


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, kept running while this is open: close it after the last connection."""

    conninfo: str
    socket_dir: Path
    port: int
    bin_dir: Path
    _lock: IO[bytes] = field(repr=False)

    def close(self) -> None:
        """Give the server back; after the last one it stops. Twice does no harm."""
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def default_directory() -> Path:
    """`LOCKCTL_EMBEDDED_DIR`, else `postgres` in the user's data folder."""
    chosen = os.environ.get("LOCKCTL_EMBEDDED_DIR")
    if chosen:
        return Path(chosen)
    from platformdirs import user_data_path

    return user_data_path("lockctl") / "postgres"


def start(directory: Path | None = None, *, settings: Mapping[str, str] | None = None, timeout: float = 60.0) -> Server:
    """Join the server of `directory`, or start it, or make it first.

    `settings` are given to a server that is started; one that runs already keeps its own. `timeout` in seconds
    bounds the whole. Raises UnreachableError when no binaries are found or the server does not come up.
    """
    places = Places((directory or default_directory()).absolute())
    deadline = time.monotonic() + timeout
    places.make()
    lock = places.open("clients.lock")
    try:
        # Held alone only by a supervisor that is stopping its server.
        while not take(lock, fcntl.LOCK_SH):
            _wait(places, deadline, "is still stopping")
        state = _ready(places, dict(settings or {}), deadline)
    except BaseException:
        lock.close()
        raise
    return Server(_conninfo(state.socket_dir), state.socket_dir, PORT, state.bin_dir, lock)


def _ready(places: Places, settings: dict[str, str], deadline: float) -> State:
    """Wait for the server of whichever supervisor there is; start one when there is none."""
    started = False
    with places.open("supervisor.lock") as free:
        while True:
            if take(free, fcntl.LOCK_EX):
                if started:
                    raise _failed(places, "did not come up")
                _supervise(places, settings, free)
                started = True
            elif (state := places.read_state()) is not None:
                return state
            _wait(places, deadline, "did not come up in time")


def _supervise(places: Places, settings: dict[str, str], lock: IO[bytes]) -> None:
    """Start the supervisor and hand it the lock that says that there is one: at no moment does nobody hold it."""
    bin_dir = binaries.find()
    places.state.unlink(missing_ok=True)
    options = [f"--set={name}={value}" for name, value in settings.items()]
    with places.log.open("wb") as log:
        subprocess.run(
            [sys.executable, "-m", __name__, places.base, bin_dir, str(lock.fileno()), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=Path(__file__).parents[2],
            # It lives on with what it was given: no connection settings, and no password among them.
            env={name: value for name, value in os.environ.items() if not name.startswith(("PG", "LOCKCTL_"))},
            pass_fds=(lock.fileno(),),
            start_new_session=True,
            check=False,
        )
    # Our descriptor shares the lock with the supervisor's. Reopened, it can tell once more whether that one lives.
    fresh = os.open(places.base / "supervisor.lock", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(fresh, lock.fileno(), inheritable=False)
    os.close(fresh)


def _wait(places: Places, deadline: float, why: str) -> None:
    if time.monotonic() >= deadline:
        raise _failed(places, why)
    time.sleep(_LOOK_EVERY_S)


def _failed(places: Places, why: str) -> UnreachableError:
    return UnreachableError(
        f"the embedded PostgreSQL in {places.base} {why}",
        hint=f"its log, {places.log}, ends:\n{places.last_words()}",
    )


def _conninfo(socket_dir: Path) -> str:
    quoted = str(socket_dir).replace("\\", "\\\\").replace("'", "\\'")
    # An empty hostaddr keeps PGHOSTADDR, which would win over the socket, out of it.
    return f"host='{quoted}' hostaddr='' port={PORT} user=postgres dbname=postgres"
