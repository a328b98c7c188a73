"""`--wait`, `--attempts`, `--delay`: waiting for a lease that another holds."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

import psycopg
import pytest

from lockctl.embedded import Server
from tests.support.cli import popen_lockctl, run_lockctl
from tests.support.proxy import Proxy
from tests.support.runs import ended, row
from tests.support.waiting import until


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket_dir) as running:
        yield running


def hold(conn: psycopg.Connection, seconds: float, holder: str = "other") -> None:
    conn.execute(
        "INSERT INTO ffdb_locks (lock_key, lock_id, expires_at)"
        " VALUES ('nightly', %s, clock_timestamp() + make_interval(secs => %s))"
        " ON CONFLICT (lock_key) DO UPDATE SET lock_id = excluded.lock_id, expires_at = excluded.expires_at",
        (holder, seconds),
    )


@pytest.mark.parametrize("verb", ["acquire", "run"])
def test_a_waiter_wakes_at_the_lapse_and_not_only_on_its_period(dsn: str, conn: psycopg.Connection, verb: str) -> None:
    hold(conn, 2)
    tail = ["--", "true"] if verb == "run" else []
    done = run_lockctl(verb, "ffdb_locks", "nightly", "--wait", "1h", "--delay", "1h", *tail, dsn=dsn)
    assert done.returncode == 0, done.stderr
    assert "is held by other for another" in done.stderr


def test_a_waiter_sees_a_release_on_its_period(dsn: str, conn: psycopg.Connection) -> None:
    hold(conn, 3600)
    with popen_lockctl("acquire", "ffdb_locks", "nightly", "--wait", "1h", dsn=dsn) as process:
        assert process.stderr is not None
        process.stderr.readline()
        conn.execute("DELETE FROM ffdb_locks")
        assert process.wait(20) == 0


def test_it_says_who_holds_it_once_and_again_when_the_holder_changes(dsn: str, conn: psycopg.Connection) -> None:
    hold(conn, 3600)
    words = ["acquire", "ffdb_locks", "nightly", "--wait", "1h", "--delay", "10ms"]
    with popen_lockctl(*words, dsn=dsn) as process:
        assert process.stderr is not None
        assert "held by other for another 59m" in process.stderr.readline().decode()
        hold(conn, 1800, "third")
        assert "held by third for another 29m" in process.stderr.readline().decode()
        conn.execute("DELETE FROM ffdb_locks")
        code, rest = ended(process)
    assert code == 0
    assert len(rest.splitlines()) == 1  # acquired


@pytest.mark.parametrize(
    ("words", "tries"),
    [
        (["--attempts", "3", "--delay", "20ms"], "3"),
        (["--wait", "300ms", "--delay", "20ms"], None),
        (["--attempts", "1000000", "--wait", "300ms", "--delay", "20ms"], None),
        (["--attempts", "2", "--wait", "1h", "--delay", "20ms"], "2"),
    ],
)
def test_whichever_of_time_and_attempts_ends_first_ends_the_waiting(
    dsn: str, conn: psycopg.Connection, words: list[str], tries: str | None
) -> None:
    hold(conn, 3600)
    done = run_lockctl("acquire", "ffdb_locks", "nightly", *words, "--format", "json", dsn=dsn)
    assert done.returncode == 3
    assert done.json()["outcome"] == "held"
    assert done.json()["lock"]["holder"] == "other"


def test_the_waiting_comes_on_top_of_the_timeout(dsn: str, conn: psycopg.Connection) -> None:
    hold(conn, 2.5)
    words = ["acquire", "ffdb_locks", "nightly", "--timeout", "1s", "--wait", "20s"]
    assert run_lockctl(*words, dsn=dsn).returncode == 0
    hold(conn, 2.5)
    assert run_lockctl("--timeout", "1s", *words[:3], "--attempts", "40", dsn=dsn).returncode == 0


@pytest.mark.parametrize("words", [["--delay", "1s"], ["--wait", "5"], ["--attempts", "0"], ["--wait", "0s"]])
def test_bad_waiting_is_one_clear_line(dsn: str, words: list[str]) -> None:
    done = run_lockctl("acquire", "ffdb_locks", "nightly", *words, dsn=dsn)
    assert done.returncode == 2
    assert not re.search("Traceback", done.stderr)


def test_a_waiter_holds_no_transaction_and_no_lock_and_needs_none(dsn: str, conn: psycopg.Connection) -> None:
    """The row is locked by somebody all the while: a waiter reads beside that, and its own wait still ends."""
    hold(conn, 3600)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT * FROM ffdb_locks FOR UPDATE")
        words = ["acquire", "ffdb_locks", "nightly", "--wait", "600ms", "--delay", "10ms"]
        with popen_lockctl(*words, dsn=dsn) as process:
            assert process.stderr is not None
            process.stderr.readline()
            states = conn.execute(
                "SELECT state, xact_start FROM pg_stat_activity WHERE application_name LIKE 'lockctl acquire%'"
                " AND datname = current_database() AND state <> 'active'"
            ).fetchall()
            assert {(state, start) for state, start in states} <= {("idle", None)}
            assert process.wait(20) == 3


def test_a_lapsed_row_that_is_locked_is_waited_for_until_the_timeout(dsn: str, conn: psycopg.Connection) -> None:
    hold(conn, -1)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT * FROM ffdb_locks FOR UPDATE")
        done = run_lockctl("acquire", "ffdb_locks", "nightly", "--wait", "100ms", "--timeout", "1s", dsn=dsn)
    assert done.returncode == 7
    assert "blocked by pid" in done.stderr


@pytest.mark.parametrize("way", ["cut", "stalled"])
def test_a_connection_that_is_lost_while_waiting_is_replaced(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, way: str
) -> None:
    hold(conn, 3600)
    words = ["acquire", "ffdb_locks", "nightly", "--wait", "1h", "--delay", "50ms"]
    with popen_lockctl(*words, dsn=proxy.dsn(dsn)) as process:
        assert process.stderr is not None
        process.stderr.readline()
        if way == "cut":
            proxy.cut()
        else:
            proxy.stall()
        until(lambda: proxy.connections > 1, deadline=40, what="another connection")
        proxy.resume()
        conn.execute("DELETE FROM ffdb_locks")
        assert process.wait(40) == 0


def test_a_server_that_stays_away_is_unreachable_when_the_time_is_over(
    proxy: Proxy, dsn: str, conn: psycopg.Connection
) -> None:
    hold(conn, 3600)
    with popen_lockctl("acquire", "ffdb_locks", "nightly", "--wait", "2s", dsn=proxy.dsn(dsn)) as process:
        assert process.stderr is not None
        process.stderr.readline()
        proxy.refuse()
        proxy.cut()
        assert process.wait(40) == 6


def test_a_signal_ends_the_waiting_also_where_the_network_is_stuck(
    proxy: Proxy, dsn: str, conn: psycopg.Connection
) -> None:
    hold(conn, 3600)
    words = ["acquire", "ffdb_locks", "nightly", "--wait", "1h", "--delay", "1ms"]
    with popen_lockctl(*words, dsn=proxy.dsn(dsn)) as process:
        assert process.stderr is not None
        process.stderr.readline()
        proxy.stall()
        process.send_signal(signal.SIGTERM)
        code, stderr = ended(process)
    assert (code, stderr) == (143, "")


def test_of_many_waiters_one_gets_it_and_the_others_see_who(dsn: str, conn: psycopg.Connection) -> None:
    hold(conn, 3)
    processes = []
    managers = [
        popen_lockctl("acquire", "ffdb_locks", "nightly", "--wait", "6s", "--ttl", "1h", dsn=dsn) for _ in range(8)
    ]
    try:
        processes = [manager.__enter__() for manager in managers]
        codes = sorted(process.wait(60) for process in processes)
    finally:
        for manager in managers:
            manager.__exit__(None, None, None)
    assert codes == [0, *[3] * 7]


def test_a_signal_after_the_grant_gives_the_lease_back(dsn: str, conn: psycopg.Connection) -> None:
    """Whatever the moment: it succeeded and the row is there, or neither."""
    for number in (signal.SIGINT, signal.SIGTERM):
        hold(conn, 3600)
        with popen_lockctl("acquire", "ffdb_locks", "nightly", "--wait", "1h", "--delay", "1ms", dsn=dsn) as process:
            assert process.stderr is not None
            assert process.stdout is not None
            process.stderr.readline()
            conn.execute("DELETE FROM ffdb_locks")
            process.send_signal(number)
            out, _ = process.communicate(timeout=20)
        assert process.returncode in (0, 128 + number)
        succeeded = process.returncode == 0
        assert out.startswith(b"lease1_") or not succeeded
        assert (row(conn, "nightly") is not None) == succeeded
        conn.execute("DELETE FROM ffdb_locks")
