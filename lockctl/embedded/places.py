"""The files of an embedded server, and what they tell.

Everything lies in one folder of the user's:

- `clients.lock`: each client holds it shared; the supervisor, once it has it alone, stops the server.
- `supervisor.lock`: held by the supervisor as long as it lives, handed to it by the client that started it.
- `server.lock`: inherited by postgres and its children, so it is held as long as any of them lives.
- `data/`, `run/` (the socket, 0700), `server.log` (of the last start), `server.json` (written once it is ready).

The folder must be on a local file system: over NFS flock becomes a lock that no child inherits.

Locks are flock(2): the kernel gives them back when a process dies, however it dies, and no pid is trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from lockctl.errors import UnreachableError

PORT = 5432
_SOCKET = f".s.PGSQL.{PORT}"
_LONGEST_SOCKET = 103
"""Bytes of a socket's path: 107 on Linux, 103 on macOS and the BSDs (sun_path, unix(7))."""


@dataclass(frozen=True, slots=True)
class State:
    """What the supervisor tells of the server once it is ready."""

    socket_dir: Path
    bin_dir: Path


@dataclass(frozen=True, slots=True)
class Places:
    """The files of the server whose folder is `base`."""

    base: Path

    @property
    def log(self) -> Path:
        return self.base / "server.log"

    @property
    def state(self) -> Path:
        return self.base / "server.json"

    def make(self) -> None:
        """Make the folder, 0700; one that others could change is refused, since they would own the server."""
        try:
            self.base.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as problem:
            raise UnreachableError(
                f"the folder of the embedded server, {self.base}, can't be made: {problem.strerror}",
                hint="set LOCKCTL_EMBEDDED_DIR to a folder of your own",
            ) from None
        found = self.base.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise UnreachableError(
                f"the folder of the embedded server, {self.base}, belongs to or can be changed by another user",
                hint="chmod go-w it, or set LOCKCTL_EMBEDDED_DIR to a folder of your own",
            )

    def open(self, name: str) -> IO[bytes]:
        """The lock file `name`, not inherited by any child unless it is handed over by name."""
        try:
            return os.fdopen(
                os.open(self.base / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b", buffering=0
            )
        except OSError as problem:
            raise UnreachableError(f"{self.base / name} can't be opened: {problem.strerror}") from None

    def read_state(self) -> State | None:
        """The server that is there to be joined, or None."""
        try:
            told = json.loads(self.state.read_bytes())
        except (OSError, ValueError):
            return None
        state = State(Path(told["socket_dir"]), Path(told["bin_dir"]))
        return state if answers(state.socket_dir) else None

    def write_state(self, state: State) -> None:
        draft = self.state.with_suffix(".new")
        draft.write_text(json.dumps({"socket_dir": str(state.socket_dir), "bin_dir": str(state.bin_dir)}))
        draft.replace(self.state)

    def last_words(self, lines: int = 12) -> str:
        """The end of the log, for a server that did not come up."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def take(lock: IO[bytes], how: int) -> bool:
    """Take the flock `how` at once; False when somebody else's stands in the way."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def visit(socket_dir: Path) -> socket.socket | None:
    """A bare connection to the server whose socket is there, or None; the server logs nothing of such a visit."""
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(1)
    try:
        caller.connect(str(socket_dir / _SOCKET))
    except OSError:
        caller.close()
        return None
    return caller


def answers(socket_dir: Path) -> bool:
    """Whether a server accepts connections on the socket there."""
    caller = visit(socket_dir)
    if caller is None:
        return False
    caller.close()
    return True


def socket_dir(base: Path) -> Path:
    """The folder for the socket of the server in `base`: there, or where that path is too long, a short one in /tmp.

    libpq takes a comma in a host for the end of its name, so such a path gets the short folder too.
    """
    folder = base / "run"
    if len(os.fsencode(folder / _SOCKET)) <= _LONGEST_SOCKET and "," not in str(folder):
        return folder
    return Path(f"/tmp/lockctl-{os.geteuid()}-{hashlib.sha256(os.fsencode(base)).hexdigest()[:16]}")


def make_private(folder: Path) -> None:
    """Make `folder`, 0700 and our own; one that somebody else made in its place is refused."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise UnreachableError(f"{folder} is in the way of the embedded server, and is not its own") from None
