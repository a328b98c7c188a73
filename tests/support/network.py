"""A server that listens on TCP, too: on a loopback address of its own, so that no two test runs share a port."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockctl.embedded import Server
from tests.support import server as servers


@dataclass(frozen=True, slots=True)
class Network:
    """`server` by its Unix socket, and `address` where the same server listens on TCP."""

    server: Server
    address: str

    def dsn(self, dsn: str) -> str:
        """The database of `dsn` over TCP."""
        return make_conninfo(dsn, host=self.address, hostaddr="")

    def url(self, dsn: str, **parameters: str) -> str:
        """The database of `dsn` over TCP as a URL, as other programs take it."""
        name = conninfo_to_dict(dsn)["dbname"]
        more = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
        return f"postgresql://postgres@{self.address}:{self.server.port}/{name}{more}"


@contextmanager
def running() -> Iterator[Network]:
    """The server, and its end waited for."""
    pid = os.getpid()
    address = f"127.{1 + pid // 62500 % 250}.{1 + pid // 250 % 250}.{1 + pid % 250}"
    with servers.folder() as place:
        hba = place / "hba.conf"
        hba.write_text("local all all trust\nhost all all 127.0.0.0/8 trust\n")
        _open(place, hba)
        settings = {**servers.SETTINGS, "listen_addresses": address, "hba_file": str(hba)}
        with servers.running(place / "server", settings) as server:
            yield Network(server, address)


def _open(place: Path, hba: Path) -> None:
    """The server may run as another user."""
    place.chmod(0o755)
    hba.chmod(0o644)
