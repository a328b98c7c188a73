"""What a lease under `run` survives of its connection, and what it does not (cases 13, 14 and 17)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lockctl.embedded import Server
from tests.support.cli import LOCKCTL, popen_lockctl, run_lockctl
from tests.support.proxy import Proxy, Side
from tests.support.runs import Marked, appeared, ended, kill, row, running
from tests.support.waiting import until


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket_dir) as running:
        yield running


@pytest.mark.parametrize("way", ["stalled", "refused"])
@pytest.mark.parametrize("minds_term", [True, False])
def test_case_13_the_command_is_gone_before_the_last_confirmed_expiry(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, way: str, minds_term: bool
) -> None:
    mark = Marked()
    script = mark.sleeper() if minds_term else f"trap '' TERM; {mark.sleeper()}"
    with running(proxy.dsn(dsn), "nightly", "sh", "-c", script, ttl="3s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        if way == "stalled":
            proxy.stall()
        else:
            proxy.refuse()
            proxy.cut()
        seen = row(conn, "nightly")
        assert seen is not None
        expiry = time.monotonic() + seen[1]
        mark.gone(deadline=seen[1])
        assert time.monotonic() < expiry
        code, stderr = ended(process)
    assert code == 6
    assert "could not be confirmed in time" in stderr


def test_case_13_a_server_that_is_unreachable_for_less_than_the_lease_costs_nothing(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    go, mark = tmp_path / "go", Marked()
    script = f"while ! test -e {go}; do sleep 0.02; done; exit 4"
    with running(proxy.dsn(dsn), "nightly", "sh", "-c", script, mark.word, ttl="3s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        before = proxy.connections
        proxy.stall()
        held = row(conn, "nightly")
        assert held is not None
        until(lambda: proxy.connections > before, what="another connection")
        assert mark.processes()
        proxy.resume()
        until(lambda: (row(conn, "nightly") or ("", 0))[1] > 2.5, what="a renewal")
        go.touch()
        code, stderr = ended(process)
    assert code == 4, stderr
    assert row(conn, "nightly") is None


def test_case_17_one_broken_connection_is_a_warning_and_the_lease_is_renewed(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    go, mark = tmp_path / "go", Marked()
    script = f"while ! test -e {go}; do sleep 0.02; done"
    with running(proxy.dsn(dsn), "nightly", "sh", "-c", script, mark.word, ttl="2s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        for _ in range(2):
            count = proxy.connections
            proxy.cut()
            until(lambda count=count: proxy.connections > count, what="another connection")  # type: ignore[misc]
            until(lambda: (row(conn, "nightly") or ("", 0))[1] > 1.6, what="a renewal")
        go.touch()
        code, stderr = ended(process)
    assert code == 0, stderr
    assert "the lease could not be renewed" in stderr
    assert "renewed again" in stderr
    assert "could not be confirmed" not in stderr


def test_a_backend_that_was_terminated_is_replaced(dsn: str, conn: psycopg.Connection) -> None:
    mark = Marked()
    with running(dsn, "nightly", "sh", "-c", mark.sleeper(), ttl="1s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        ours = (
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'lockctl%'"
        )
        for _ in range(3):
            (pid,) = until(lambda: conn.execute(ours).fetchone(), what="a session of run") or (0,)
            conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
            until(lambda pid=pid: (conn.execute(ours).fetchone() or (pid,))[0] != pid, what="another")  # type: ignore[misc]
        assert mark.processes()
        kill(process, signal.SIGTERM)
        assert ended(process)[0] == 143
    assert row(conn, "nightly") is None


def test_a_release_over_a_broken_connection_is_made_on_another(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    go, out = tmp_path / "go", tmp_path / "out"
    script = f"echo ready > {out}; while ! test -e {go}; do sleep 0.02; done"
    with running(proxy.dsn(dsn), "nightly", "sh", "-c", script, ttl="1h") as process:
        appeared(out)
        proxy.cut()
        go.touch()
        assert ended(process)[0] == 0
    assert row(conn, "nightly") is None


def test_a_release_that_is_not_possible_leaves_the_commands_status_and_says_so(
    proxy: Proxy, dsn: str, tmp_path: Path
) -> None:
    go, out = tmp_path / "go", tmp_path / "out"
    script = f"echo ready > {out}; while ! test -e {go}; do sleep 0.02; done; exit 4"
    with running(proxy.dsn(dsn), "nightly", "sh", "-c", script, ttl="1h") as process:
        appeared(out)
        proxy.refuse()
        proxy.cut()
        go.touch()
        code, stderr = ended(process)
    assert code == 4
    assert "lapses by itself" in stderr


@pytest.fixture
def answers(proxy: Proxy, dsn: str) -> list[int]:
    """Where in what the server sends to `run` each statement has been answered: the numbers of the messages."""
    with running(proxy.dsn(dsn), "other", "true") as process:
        assert ended(process)[0] == 0
    found = [number for number, kind in enumerate(proxy.messages(Side.SERVER), 1) if kind == b"Z"]
    assert len(found) == 5  # connected, read back, described, acquired, released
    return found


def test_case_14_term_at_any_moment_of_the_acquire_leaves_no_row_and_no_command(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, tmp_path: Path, answers: list[int]
) -> None:
    """Before the command is started nothing is; afterwards the signal is its own."""
    proxy.delay(0.01)
    for moment in range(answers[2], answers[3] + 1):
        mark, count = Marked(), proxy.connections
        with running(proxy.dsn(dsn), "nightly", "sh", "-c", "sleep 300", mark.word) as process:
            until(
                lambda count=count, moment=moment: (  # type: ignore[misc]
                    proxy.connections > count and len(proxy.messages(Side.SERVER, count)) >= moment
                ),
                what=f"message {moment} of the server",
            )
            kill(process, signal.SIGTERM)
            assert ended(process)[0] == 143
        assert not mark.processes()
        assert row(conn, "nightly") is None


def test_case_14_term_between_the_grant_and_its_answer_starts_no_command_and_leaves_no_row(
    proxy: Proxy, dsn: str, conn: psycopg.Connection, tmp_path: Path, answers: list[int]
) -> None:
    ran = tmp_path / "ran"
    proxy.delay(0.05)  # slow enough for the start to be seen before the acquire is sent
    with running(proxy.dsn(dsn), "nightly", "touch", str(ran)) as process:
        until(lambda: proxy.connections > 1 and len(proxy.messages(Side.SERVER, 1)) >= answers[1], what="the start")
        proxy.delay(0.3)  # for each message: the whole answer takes longer than seeing the row and sending the signal
        until(lambda: row(conn, "nightly"), deadline=60, what="the grant")
        kill(process, signal.SIGTERM)
        proxy.delay(0)
        assert ended(process)[0] == 143
    assert not ran.exists()
    assert row(conn, "nightly") is None


@pytest.mark.parametrize(
    ("verb", "number", "code"),
    [
        ("acquire", signal.SIGINT, 130),
        ("acquire", signal.SIGTERM, 143),
        ("run", signal.SIGINT, 130),
        ("run", signal.SIGTERM, 143),
        ("run", signal.SIGHUP, 129),
        ("run", signal.SIGQUIT, 131),
    ],
)
def test_case_14_a_signal_while_waiting_ends_it_at_once(
    dsn: str, conn: psycopg.Connection, verb: str, number: signal.Signals, code: int
) -> None:
    assert run_lockctl("acquire", "ffdb_locks", "nightly", "--holder", "other", "--ttl", "1h", dsn=dsn).returncode == 0
    tail = ["--", "true"] if verb == "run" else []
    with popen_lockctl(verb, "ffdb_locks", "nightly", "--wait", "1h", "--delay", "1h", *tail, dsn=dsn) as process:
        assert process.stderr is not None
        said = process.stderr.readline().decode()
        assert "held by other for another" in said
        assert "waiting up to 1h" in said
        sent = time.monotonic()
        os.kill(process.pid, number)
        assert process.wait(timeout=20) == code
        assert time.monotonic() - sent < 20
    assert (row(conn, "nightly") or ("", 0))[0] == "other"


def test_the_embedded_server_is_the_commands_too_and_its_lock_file_is_not(tmp_path: Path) -> None:
    env = {"LOCKCTL_EMBEDDED_DIR": str(tmp_path / "pg")}
    made = run_lockctl("--embedded", "migrate", "upgrade", "ffdb@head", env=env)
    assert made.returncode == 0, made.stderr
    script = f"ls -l /proc/self/fd >&2; cd /; exec {' '.join(LOCKCTL)} check -f json"
    done = run_lockctl("--embedded", "run", "ffdb_locks", "nightly", "--", "sh", "-c", script, env=env)
    assert done.returncode == 0, done.stderr
    assert done.json()["outcome"] == "held"
    assert "/proc/" in done.stderr
    assert ".lock" not in done.stderr


@pytest.mark.parametrize("verb", ["acquire", "run"])
def test_a_server_that_accepts_and_then_says_nothing_ends_the_connecting_in_time(
    proxy: Proxy, dsn: str, verb: str
) -> None:
    proxy.delay(0.02)
    words = [verb, "ffdb_locks", "nightly", "--timeout", "2s", *(["--", "true"] if verb == "run" else [])]
    with popen_lockctl(*words, dsn=proxy.dsn(dsn)) as process:
        until(lambda: proxy.connections and b"Z" in proxy.messages(Side.SERVER), what="the connection")
        proxy.stall()
        code, stderr = ended(process)
    assert code == 6, stderr
    assert "the server did not answer" in stderr


def test_through_a_pooler_the_lease_is_renewed_and_released(pgbouncer_dsn: str, conn: psycopg.Connection) -> None:
    mark = Marked()
    seen = set()
    with running(pgbouncer_dsn, "nightly", "sh", "-c", mark.sleeper(), ttl="1s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")

        def renewals() -> int:
            seen.add(conn.execute("SELECT expires_at FROM ffdb_locks").fetchone())
            return len(seen)

        until(lambda: renewals() > 6, deadline=30, what="six renewals")
        assert mark.processes()
        kill(process, signal.SIGTERM)
        code, stderr = ended(process)
    assert (code, stderr) == (143, "")
    assert row(conn, "nightly") is None
