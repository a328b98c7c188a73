"""Debian's PgBouncer in transaction mode, in front of the tests' server."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockctl.embedded import Server, unprivileged
from tests.support.server import folder
from tests.support.waiting import until

_PORT = 6432

_CONFIG = """\
[databases]
* = host={server.socket_dir} port={server.port} user=postgres

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {place}
unix_socket_mode = 0700
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = 4
ignore_startup_parameters = {ignore}
logfile = {place}/pgbouncer.log
"""


@dataclass(frozen=True, slots=True)
class Pooler:
    """A running PgBouncer; it listens on a Unix socket in `place`, so no port is ever taken."""

    place: Path

    def dsn(self, dsn: str) -> str:
        """The database of `dsn` through the pooler."""
        return make_conninfo(dsn, host=str(self.place), hostaddr="", port=_PORT)

    def forget(self, dsn: str) -> None:
        """Close the pooler's connections to the database of `dsn`, so that none stands in the way of its end."""
        name = conninfo_to_dict(dsn)["dbname"]
        # The console speaks the simple protocol alone.
        console = self.dsn(make_conninfo(dsn, dbname="pgbouncer"))
        with psycopg.connect(console, autocommit=True, cursor_factory=psycopg.ClientCursor) as conn:
            conn.execute(f"KILL {name}".encode())
            conn.execute(f"RESUME {name}".encode())


@contextmanager
def running(server: Server, *, ignore: tuple[str, ...] = ()) -> Iterator[Pooler]:
    """PgBouncer in front of `server`, dropping the startup parameters `ignore`; the test is skipped without one."""
    binary = shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if binary is None:
        pytest.skip("pgbouncer is not installed (Debian: apt-get install pgbouncer)")
    with folder() as place:
        config = place / "pgbouncer.ini"
        config.write_text(_CONFIG.format(server=server, port=_PORT, place=place, ignore=", ".join(ignore)))
        process = subprocess.Popen(
            [*unprivileged(), binary, config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with process:
            try:
                until((place / f".s.PGSQL.{_PORT}").exists, what=f"the pooler ({config})")
                yield Pooler(place)
            finally:
                process.kill()
