"""DBOS's system schema from 69 to 108, through its own command and as SQL: free, blocked for a while, blocked for good.

The version may never say 108 while something of 108 is missing: each scene compares the schema with the one that the
new SDK makes in an empty database.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import databases
from tests.support.cli import Result, run_lockctl
from tests.support.network import Network
from tests.support.sdk import NEW_VERSION, OLD_VERSION, Sdk
from tests.support.waiting import until

Conn = psycopg.Connection[Any]
Shape = frozenset[tuple[str, ...]]

pytestmark = [
    pytest.mark.skipif(not os.environ.get("LOCKCTL_TEST_REAL"), reason="LOCKCTL_TEST_REAL is not set: make test-real"),
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None,
        reason="Node and npm are not installed: DBOS's real SDK needs them",
    ),
    pytest.mark.timeout(600),
]

READER = "forgotten psql"
PATIENT = ("--lock-timeout", "1s", "--retries", "20")
HASTY = ("--lock-timeout", "1s", "--retries", "1")
JUDGED = (
    *("--relation", "dbos.dbos_migrations", "--expect-version", str(NEW_VERSION)),
    *("--expect-column", "dbos.workflow_status.application_name"),
    *("--expect-column", "dbos.queues.partition_rate_limit_period_sec"),
)
# The first is locked by migration 70 and 100, the second by 104 alone, the third by 106 and 107.
TABLES = ("workflow_status", "operation_outputs", "application_versions")


@pytest.fixture(scope="module")
def admin(dbos_server: Network) -> Iterator[Conn]:
    with psycopg.connect(dbos_server.server.conninfo, autocommit=True) as admin:
        yield admin


@pytest.fixture(scope="module")
def at_old(dbos_server: Network, admin: Conn, sdk_old: Sdk) -> str:
    """The name of a database that the old SDK made."""
    return made(dbos_server, admin, sdk_old, "dbos_old")


@pytest.fixture(scope="module")
def wanted(dbos_server: Network, admin: Conn, sdk_new: Sdk) -> Shape:
    """The schema that the new SDK makes by itself."""
    name = made(dbos_server, admin, sdk_new, "dbos_new")
    with psycopg.connect(make_conninfo(dbos_server.server.conninfo, dbname=name)) as conn:
        assert version(conn) == NEW_VERSION
        return shape(conn)


def made(net: Network, admin: Conn, sdk: Sdk, name: str) -> str:
    databases.create(admin, name)
    sdk.migrate(net.url(make_conninfo(net.server.conninfo, dbname=name)))
    return name


@pytest.fixture
def dsn(dbos_server: Network, admin: Conn, at_old: str) -> Iterator[str]:
    with databases.database(admin, dbos_server.server.conninfo, template=at_old) as dsn:
        yield dbos_server.dsn(dsn)


@pytest.fixture
def conn(dsn: str) -> Iterator[Conn]:
    with psycopg.connect(dsn, autocommit=True, application_name="the test") as conn:
        assert version(conn) == OLD_VERSION
        yield conn


@pytest.fixture
def file(sdk_new: Sdk, tmp_path: Path) -> Path:
    path = tmp_path / "from-70.sql"
    path.write_text(sdk_new.printed(70))
    return path


def version(conn: Conn) -> int:
    ((found,),) = conn.execute("SELECT version FROM dbos.dbos_migrations").fetchall()
    return int(found)


def shape(conn: Conn) -> Shape:
    """Columns, indexes (with their validity) and functions of the schema `dbos`."""
    rows = conn.execute("""
        SELECT 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text
          FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
         WHERE c.relnamespace = 'dbos'::regnamespace AND c.relkind = 'r'
         UNION ALL
        SELECT 'index', c.relname, i.indisvalid::text, pg_get_indexdef(c.oid), ''
          FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = 'dbos'::regnamespace
         UNION ALL
        SELECT 'function', proname, pg_get_function_identity_arguments(oid), md5(prosrc), ''
          FROM pg_proc WHERE pronamespace = 'dbos'::regnamespace
    """)
    return frozenset(tuple(map(str, row)) for row in rows)


def never_wrong(conn: Conn, wanted: Shape) -> int:
    """The version; at the new one nothing may be missing."""
    found = version(conn)
    if found == NEW_VERSION:
        assert wanted - shape(conn) == set()
    return found


def waiting(conn: Conn) -> int:
    row = conn.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def reader(dsn: str, table: str, seconds: float | None = None) -> Iterator[Conn]:
    """A session that read the table and forgot its transaction; it leaves in the end, or `seconds` after somebody
    began to wait for it."""
    with psycopg.connect(dsn, application_name=READER) as idle:
        idle.execute(f"SELECT count(*) FROM dbos.{table}")
        leaving = threading.Thread(target=_leave, args=(dsn, idle, seconds or 0.0))
        if seconds is not None:
            leaving.start()
        yield idle
        if seconds is not None:
            leaving.join()
        idle.rollback()


def _leave(dsn: str, idle: Conn, seconds: float) -> None:
    with psycopg.connect(dsn, autocommit=True) as watch:
        wait_until_waited_for(watch, idle.info.backend_pid)
        time.sleep(seconds)
    idle.rollback()


def wait_until_waited_for(watch: Conn, pid: int) -> None:
    held_up = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))"
    until(lambda: watch.execute(held_up, (pid,)).fetchone() == (True,), deadline=60, what="somebody behind the reader")


def execute(dsn: str, sdk: Sdk, url: str, *options: str) -> Result:
    return run_lockctl("migrate", "exec", *JUDGED, *options, "--", *sdk.schema(url), dsn=dsn, timeout=120)


def apply(dsn: str, file: Path, *options: str) -> Result:
    return run_lockctl("migrate", "apply", str(file), *options, dsn=dsn, timeout=120)


def blocked_by_the_reader(result: Result) -> None:
    assert (result.returncode, result.json()["outcome"]) == (7, "blocked"), result.stderr
    assert [each["application"] for each in result.json()["blockers"] if each["root"]] == [READER]
    assert READER in result.stderr


# -- dbos schema, inside `migrate exec` --------------------------------------------------------------------------


def test_exec_of_a_free_schema(dbos_server: Network, dsn: str, conn: Conn, sdk_new: Sdk, wanted: Shape) -> None:
    done = execute(dsn, sdk_new, dbos_server.url(dsn))
    assert done.returncode == 0, done.stderr
    result = done.json()
    assert (result["outcome"], result["from"], result["to"]) == ("done", [str(OLD_VERSION)], [str(NEW_VERSION)])
    assert wanted == shape(conn)


@pytest.mark.parametrize("table", TABLES)
def test_exec_behind_a_reader_that_leaves(
    dbos_server: Network, dsn: str, conn: Conn, sdk_new: Sdk, wanted: Shape, table: str
) -> None:
    with reader(dsn, table, seconds=3):
        done = execute(dsn, sdk_new, dbos_server.url(dsn), *PATIENT)
    assert done.returncode == 0, done.stderr
    assert done.json()["attempts"] > 1
    assert wanted == shape(conn)
    assert waiting(conn) == 0


@pytest.mark.parametrize("table", TABLES)
def test_exec_behind_a_reader_that_stays_and_then_resumes(
    dbos_server: Network, dsn: str, conn: Conn, sdk_new: Sdk, wanted: Shape, table: str
) -> None:
    url = dbos_server.url(dsn)
    with reader(dsn, table):
        blocked = execute(dsn, sdk_new, url, *HASTY)
        blocked_by_the_reader(blocked)
        assert waiting(conn) == 0
        stopped = never_wrong(conn, wanted)
        assert stopped < NEW_VERSION
        if table == "workflow_status":
            assert stopped == OLD_VERSION
        assert blocked.json()["to"] == [str(stopped)]
    done = execute(dsn, sdk_new, url)
    assert (done.returncode, done.json()["from"]) == (0, [str(stopped)]), done.stderr
    assert wanted == shape(conn)


def test_exec_of_a_url_that_overrides_limits_and_name(
    dbos_server: Network, dsn: str, conn: Conn, sdk_new: Sdk, wanted: Shape
) -> None:
    url = dbos_server.url(dsn, options="-c lock_timeout=0", application_name="mine")
    with reader(dsn, "workflow_status"):
        blocked = execute(dsn, sdk_new, url, *HASTY)
        blocked_by_the_reader(blocked)
        assert "found by its port" in blocked.stderr
        assert "cancelled the command's session" in blocked.stderr
        assert (waiting(conn), version(conn)) == (0, OLD_VERSION)
    assert execute(dsn, sdk_new, url).returncode == 0
    assert wanted == shape(conn)


# -- what dbos schema --print-migrations prints, with `migrate apply` --------------------------------------------------


def test_apply_to_a_free_schema(dsn: str, conn: Conn, file: Path, wanted: Shape) -> None:
    done = apply(dsn, file)
    assert done.returncode == 0, done.stderr
    assert never_wrong(conn, wanted) == NEW_VERSION
    assert wanted == shape(conn)


@pytest.mark.parametrize("table", TABLES)
def test_apply_behind_a_reader_that_leaves(dsn: str, conn: Conn, file: Path, wanted: Shape, table: str) -> None:
    with reader(dsn, table, seconds=3):
        done = apply(dsn, file, *PATIENT)
    assert done.returncode == 0, done.stderr
    assert never_wrong(conn, wanted) == NEW_VERSION


@pytest.mark.parametrize("table", TABLES)
def test_apply_behind_a_reader_that_stays_and_then_goes_on(
    dsn: str, conn: Conn, file: Path, wanted: Shape, table: str
) -> None:
    with reader(dsn, table):
        blocked = apply(dsn, file, *HASTY)
        blocked_by_the_reader(blocked)
        assert waiting(conn) == 0
        assert never_wrong(conn, wanted) < NEW_VERSION
    (stands,) = blocked.json()["to"]
    following = str(int(stands) + 1)
    if following != "1":  # otherwise nothing stands, and the whole file is run again
        assert f"--from-step {following}" in blocked.stderr
    done = apply(dsn, file, "--from-step", following)
    assert done.returncode == 0, done.stderr
    assert never_wrong(conn, wanted) == NEW_VERSION


def test_plain_psql_with_a_lock_timeout_says_108_with_a_column_missing(
    dsn: str, conn: Conn, file: Path, wanted: Shape
) -> None:
    """The trap of which all the above is about."""
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("psql is not installed")
    with reader(dsn, "workflow_status"):
        bare = subprocess.run(
            [psql, "-X", "-q", "-f", str(file), make_conninfo(dsn, options="-c lock_timeout=500ms")],
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert (bare.returncode, version(conn)) == (0, NEW_VERSION)
    assert ("column", "workflow_status", "application_name", "text", "false") in wanted - shape(conn)
