"""Which TCP connections a process and its descendants have, from Linux's /proc: (address, port, port of the server).

Connections over a Unix socket have no port, and other systems have no /proc: there a session is known by its
application_name alone.
"""

from __future__ import annotations

import ipaddress
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
# Field `st` of /proc/net/tcp: anything but established is no session.
_ESTABLISHED = "01"


class Connection(NamedTuple):
    """One established connection as its server sees it: the client's address and port, and the port connected to."""

    address: str
    port: int
    server_port: int


def of(root: int) -> set[Connection]:
    """The connections of the process `root`, of its descendants, and of whoever is in its process group."""
    found: set[Connection] = set()
    for pid in tree(root):
        if inodes := _sockets(pid):
            for table in ("tcp", "tcp6"):
                found |= _connections(pid, table, inodes)
    return found


def tree(root: int) -> list[int]:
    """`root`, its descendants, and the members of its process group (a child whose parent died is still in it)."""
    parents: dict[int, int] = {}
    members = {root}
    with suppress(OSError), os.scandir(_PROC) as entries:
        for entry in entries:
            if entry.name.isdigit() and (stat := _stat(int(entry.name))) is not None:
                parents[int(entry.name)] = stat[0]
                if stat[1] == root:
                    members.add(int(entry.name))
    while grown := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= grown
    return sorted(members)


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and process group; the name in front of them may hold anything, so they are read behind its bracket."""
    try:
        words = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(words[1]), int(words[2])
    except (OSError, IndexError, ValueError):
        return None


def _sockets(pid: int) -> set[str]:
    inodes: set[str] = set()
    with suppress(OSError), os.scandir(_PROC / str(pid) / "fd") as entries:
        for entry in entries:
            with suppress(OSError):
                if match := _SOCKET.fullmatch(str(Path(entry.path).readlink())):
                    inodes.add(match[1])
    return inodes


def _connections(pid: int, table: str, inodes: set[str]) -> set[Connection]:
    # Of the process itself: it may have a network namespace of its own.
    try:
        lines = (_PROC / str(pid) / "net" / table).read_text().splitlines()[1:]
    except OSError:
        return set()
    found: set[Connection] = set()
    for line in lines:
        words = line.split()
        if len(words) > 9 and words[9] in inodes and words[3] == _ESTABLISHED:
            address, _, port = words[1].partition(":")
            found.add(Connection(_address(address), int(port, 16), int(words[2].rpartition(":")[2], 16)))
    return found


def _address(text: str) -> str:
    """An address of /proc/net/tcp: words of 32 bits in the machine's byte order."""
    import sys

    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    address = ipaddress.ip_address(raw)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)
