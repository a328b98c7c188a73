"""A hot standby of the tests' server, streaming."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lockctl.embedded import Server, unprivileged
from tests.support.server import running as start
from tests.support.waiting import until


@dataclass(frozen=True, slots=True)
class Standby:
    """A standby of `primary`, with the same databases."""

    primary: Server
    server: Server

    def dsn(self, dsn: str) -> str:
        """The database of `dsn`, read-only, on the standby."""
        return make_conninfo(dsn, host=str(self.server.socket_dir), port=self.server.port)

    def catch_up(self) -> None:
        """Wait until the standby has replayed all that the primary has committed."""
        with psycopg.connect(self.primary.conninfo, autocommit=True) as conn:
            row = conn.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
        assert row is not None
        with psycopg.connect(self.server.conninfo, autocommit=True) as conn:
            replayed = "SELECT 1 WHERE pg_last_wal_replay_lsn() >= %s::pg_lsn"
            until(lambda: conn.execute(replayed, row).fetchone(), what=f"the replay of {row[0]}")


@contextmanager
def running(primary: Server, place: Path) -> Iterator[Standby]:
    """A standby of `primary` in the folder `place`; the test is skipped where pg_basebackup is missing."""
    tool = primary.bin_dir / "pg_basebackup"
    if not os.access(tool, os.X_OK):
        pytest.skip(f"{primary.bin_dir} has no pg_basebackup to make a standby with")
    source = ["--dbname", primary.conninfo, "--checkpoint=fast", "--wal-method=stream", "--no-sync"]
    subprocess.run(
        [*unprivileged(), tool, "--pgdata", place / "data", "--write-recovery-conf", *source],
        check=True,
        capture_output=True,
        timeout=60,
    )
    # What is on the disk looks like any other server's folder, so the same manager runs it.
    with start(place) as server:
        yield Standby(primary, server)
