"""Fixtures for the lock verbs; the conftest of a folder that wants them imports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from psycopg.conninfo import make_conninfo

from lockctl.embedded import Server
from tests.support import databases
from tests.support.places import ALL, OURS, Place, lay
from tests.support.proxy import Proxy
from tests.support.tables import Variant


@pytest.fixture(params=ALL, ids=lambda variant: variant.name)
def place(
    request: pytest.FixtureRequest, server: Server, admin: databases.Admin, template: str, tmp_path: Path
) -> Iterator[Place]:
    """Each table of the catalogue in each way in which it comes to be; `indirect` picks some."""
    variant = cast(Variant, request.param)
    source = template if variant in OURS else "template0"
    with databases.database(admin, make_conninfo(server.conninfo), template=source) as dsn:
        yield lay(variant, dsn, tmp_path)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """A proxy in front of the server, which breaks connections when it is told to."""
    with Proxy(server.socket_dir, server.port) as running:
        yield running
