"""Servers of the tests' own: fast, since what they keep is worth nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lockctl import embedded
from lockctl.embedded.places import answers
from tests.support.waiting import until

SETTINGS: Mapping[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "wal_level": "replica",
}
"""Also a standby's, which must have as many connections as its primary."""


_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 1 << 30


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one server, gone afterwards; outside pytest's, which keeps those of the last three runs.

    In memory where there is room (a container may have 64 MB): cloning a database took 10 ms there, 250 ms on a disk.
    """
    roomy = os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM_BYTES
    parent = _MEMORY if roomy else None
    with tempfile.TemporaryDirectory(prefix="lockctl-test-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def running(place: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[embedded.Server]:
    """The server of `place`, and its end waited for."""
    with embedded.start(place, settings=settings) as server:
        yield server
    until(lambda: not answers(server.socket_dir), what="the end of the server")
