"""The fixtures that every test may use: servers, databases, a pooler, a standby."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lockctl.embedded import Server
from tests.support import databases, pooler
from tests.support import server as servers
from tests.support import standby as standbys

# A shell without job control starts its background jobs with INT and QUIT ignored, nohup with HUP, and every process
# under them inherits that. A handler, even one that does nothing, is not inherited: the commands under test get these.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One PostgreSQL for the tests of this worker."""
    with servers.folder() as place, servers.running(place) as running:
        yield running


@pytest.fixture(scope="session")
def admin(server: Server) -> Iterator[databases.Admin]:
    with psycopg.connect(server.conninfo, autocommit=True) as conn:
        yield conn


@pytest.fixture(scope="session")
def template(server: Server, admin: databases.Admin) -> str:
    """The name of the database that our migrations made."""
    databases.create(admin, databases.TEMPLATE)
    databases.build_template(make_conninfo(server.conninfo, dbname=databases.TEMPLATE))
    return databases.TEMPLATE


@pytest.fixture
def dsn(server: Server, admin: databases.Admin, template: str) -> Iterator[str]:
    """A database of this test's own with everything that our migrations make."""
    with databases.database(admin, server.conninfo, template=template) as fresh:
        yield fresh


@pytest.fixture
def empty_dsn(server: Server, admin: databases.Admin) -> Iterator[str]:
    """A database of this test's own with nothing in it."""
    with databases.database(admin, server.conninfo) as fresh:
        yield fresh


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit to the database `dsn`."""
    with psycopg.connect(dsn, autocommit=True) as fresh:
        yield fresh


@pytest.fixture(scope="session")
def pgbouncer(server: Server) -> Iterator[pooler.Pooler]:
    """PgBouncer in transaction mode, as it comes: it refuses the startup parameter `options`."""
    with pooler.running(server) as running:
        yield running


@pytest.fixture(scope="session")
def lenient_pgbouncer(server: Server) -> Iterator[pooler.Pooler]:
    """PgBouncer in transaction mode that was told to drop `options` silently."""
    with pooler.running(server, ignore=("options",)) as running:
        yield running


@pytest.fixture
def pgbouncer_dsn(pgbouncer: pooler.Pooler, dsn: str) -> Iterator[str]:
    """The database `dsn` through PgBouncer; its server connections are closed before the database is dropped."""
    yield pgbouncer.dsn(dsn)
    pgbouncer.forget(dsn)


@pytest.fixture
def lenient_pgbouncer_dsn(lenient_pgbouncer: pooler.Pooler, dsn: str) -> Iterator[str]:
    yield lenient_pgbouncer.dsn(dsn)
    lenient_pgbouncer.forget(dsn)


@pytest.fixture(scope="session")
def standby(server: Server) -> Iterator[standbys.Standby]:
    """A hot standby that streams from `server`."""
    with servers.folder() as place, standbys.running(server, place) as running:
        yield running


@pytest.fixture
def standby_dsn(standby: standbys.Standby, dsn: str) -> str:
    """The database `dsn` as the standby has it now; `standby.catch_up()` brings later changes there."""
    standby.catch_up()
    return standby.dsn(dsn)
