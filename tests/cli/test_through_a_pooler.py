"""Cases 25 and 26: through PgBouncer in transaction mode, and on a standby."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from lockctl.catalog import BUILT_IN
from lockctl.db import Database
from lockctl.leases import operations as leases
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from tests.support import standby as standbys
from tests.support.blocked import holding
from tests.support.cli import popen_lockctl
from tests.support.quick import run_quick
from tests.support.waiting import until, wait_until_waiting

TABLES = [("ffdb_locks", "nightly"), ("agent_task_run_lock", "a", "t"), ("verrou", "nightly"), ("run_leases", "r1")]


@pytest.fixture(params=["refusing", "dropping"])
def pooled(request: pytest.FixtureRequest) -> str:
    """This test's database through a pooler that refuses `options`, and through one that drops it silently."""
    name = "pgbouncer_dsn" if request.param == "refusing" else "lenient_pgbouncer_dsn"
    return str(request.getfixturevalue(name))


@pytest.mark.parametrize("lease", TABLES, ids=lambda lease: lease[0])
def test_the_whole_lifecycle_works_through_the_pooler(
    pooled: str, conn: psycopg.Connection[Any], lease: tuple[str, ...]
) -> None:
    """Case 25: every verb, and afterwards no lock and no open transaction is left in the server."""

    def ask(verb: str, *more: str, code: int = 0) -> Any:
        done = run_quick("-f", "json", verb, *more, dsn=pooled)
        assert done.returncode == code, done.stderr
        return done.json()

    token = ask("acquire", *lease, "--ttl", "1h")["lease"]
    assert ask("acquire", *lease, code=3)["outcome"] == "held"
    assert ask("check", "--lease", token)["outcome"] == "held"
    assert ask("extend", "--lease", token, "--ttl", "2h")["lock"]["remaining_ms"] > 3_600_000
    assert [row["state"] for row in ask("inspect", lease[0])] == ["held"]
    assert ask("force-expire", *lease, "-y")["outcome"] == "expired"
    assert ask("extend", "--lease", token, code=4)["outcome"] == "not_held"
    assert ask("acquire", *lease)["previous"]["state"] == "lapsed"
    assert ask("release", *lease, "--force", "-y")["outcome"] == "released"
    ask("acquire", *lease, "--ttl", "1ms")
    assert ask("sweep", lease[0], "--grace", "0s")[0]["swept"] == 1
    nothing_is_left(conn)


def nothing_is_left(conn: psycopg.Connection[Any]) -> None:
    database = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    left = f"SELECT count(*) FROM pg_locks WHERE database = {database} AND pid <> pg_backend_pid()".encode()
    until(lambda: conn.execute(left).fetchone() == (0,), what="the end of every lock")
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL"
        " AND pid <> pg_backend_pid()"
    ).fetchone()
    assert row == (0,)


def test_fifty_renewals_from_several_sides_prepare_nothing(pooled: str, conn: psycopg.Connection[Any]) -> None:
    """Case 25: each transaction may meet another server connection; no prepared statement is expected there."""
    lease = run_quick("acquire", "ffdb_locks", "nightly", "--holder", "me", dsn=pooled).stdout.strip()
    database = Database(dsn=pooled, source="the tests", command="test")

    def renew(_number: int) -> list[str]:
        with database.connect() as session:
            table = LockedTable.of(describe(session, BUILT_IN[0], None))
            outcomes = [leases.extend(session, table, ("nightly",), "me", 60_000).outcome for _ in range(10)]
            assert session.query("SELECT count(*) FROM pg_prepared_statements") == [(0,)]
            return outcomes

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(renew, range(6)))
    assert answers == [["extended"] * 10] * 6
    assert run_quick("extend", "--lease", lease, "--ttl", "1h", dsn=pooled).returncode == 0
    nothing_is_left(conn)


def test_the_settings_are_in_force_in_every_transaction(pooled: str) -> None:
    database = Database(dsn=pooled, source="the tests", command="test", lock_timeout_ms=1234, statement_timeout_ms=5678)
    names = ("lock_timeout", "statement_timeout", "TimeZone", "DateStyle", "idle_in_transaction_session_timeout")
    ask = "SELECT " + ", ".join(f"current_setting('{name}')" for name in names)
    expected = ("1234ms", "5678ms", "UTC", "ISO, MDY", "1min")
    with database.connect() as one, database.connect(read_only=True) as other:
        assert (one.pooled, other.pooled) == (True, True)
        for _ in range(3):
            for session in (one, other):
                assert session.query(ask) == [expected]
        with one.transaction():
            assert one.query(ask) == [expected]
            assert other.query("SELECT current_setting('transaction_read_only')") == [("on",)]
            assert one.query("SELECT current_setting('transaction_read_only')") == [("off",)]
    with psycopg.connect(pooled) as plain:
        row = plain.execute("SELECT current_setting('lock_timeout'), current_setting('TimeZone')").fetchone()
        assert row is not None
        assert row[0] == "0", "a setting of ours stayed on a connection that others use"


def test_a_blocker_is_named_and_a_signal_cancels_through_the_pooler(pooled: str, dsn: str) -> None:
    run_quick("acquire", "ffdb_locks", "nightly", "--holder", "me", "--ttl", "1h", dsn=pooled)
    words = ("release", "ffdb_locks", "nightly", "--holder", "me")
    with (
        holding(dsn, "SELECT 1 FROM ffdb_locks FOR UPDATE") as pid,
        psycopg.connect(dsn, autocommit=True) as watch,
    ):
        done = run_quick("--timeout", "900ms", *words, dsn=pooled)
        assert (done.returncode, f"pid {pid}" in done.stderr) == (7, True), done.stderr
        with popen_lockctl(*words, dsn=pooled) as process:
            waiter = wait_until_waiting(watch, "lockctl release %")
            process.terminate()
            assert process.wait(30) == 143
            waits = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND state = 'active'"
            until(lambda: watch.execute(waits, (waiter,)).fetchone() is None, what="the end of the wait")
    nothing_is_left_of = run_quick("-f", "json", "check", "ffdb_locks", "nightly", dsn=dsn).json()
    assert nothing_is_left_of["outcome"] == "held"


@pytest.fixture
def copy(dsn: str, standby: standbys.Standby) -> str:
    """The database of this test on the standby, with a held lease in it."""
    assert run_quick("acquire", "ffdb_locks", "nightly", "--holder", "me", "--ttl", "1h", dsn=dsn).returncode == 0
    standby.catch_up()
    return standby.dsn(dsn)


def test_a_standby_can_be_read_and_says_that_it_is_read_only(copy: str) -> None:
    """Case 26: inspect, check, tables and a dry run answer; what writes exits `unreachable` and says why."""
    for words in ("inspect", "check ffdb_locks nightly --holder me", "tables", "sweep --dry-run", "inspect --summary"):
        assert run_quick(*words.split(), dsn=copy).returncode == 0
    for words in (
        "acquire ffdb_locks other",
        "acquire ffdb_locks nightly",
        "extend ffdb_locks nightly --holder me",
        "release ffdb_locks nightly --holder me",
        "release ffdb_locks nightly --force -y",
        "force-expire ffdb_locks nightly -y",
        "sweep",
    ):
        done = run_quick(*words.split(), dsn=copy)
        assert (done.returncode, done.stdout, "read-only" in done.stderr) == (6, "", True), (words, done.stderr)
        assert "target_session_attrs=read-write" in done.stderr
        error = run_quick("-f", "json", *words.split(), dsn=copy).error()
        assert (error["error"], "read-only" in error["message"]) == ("unreachable", True)


def test_a_string_with_both_hosts_finds_the_primary(copy: str, dsn: str) -> None:
    copy_params, params = (psycopg.conninfo.conninfo_to_dict(text) for text in (copy, dsn))
    both = psycopg.conninfo.make_conninfo(
        dsn,
        host=f"{copy_params['host']},{params['host']}",
        hostaddr="",
        port=f"{copy_params['port']},{params['port']}",
        target_session_attrs="read-write",
    )
    assert run_quick("acquire", "ffdb_locks", "other", dsn=both).returncode == 0


def test_a_role_that_is_read_only_by_default_is_told_so(dsn: str) -> None:
    done = run_quick("acquire", "verrou", "k", dsn=dsn, env={"PGOPTIONS": "-c default_transaction_read_only=on"})
    assert (done.returncode, "read-only" in done.stderr) == (6, True)
    assert run_quick("check", "verrou", "k", dsn=dsn).returncode == 4
