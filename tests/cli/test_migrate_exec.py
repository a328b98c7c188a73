"""`migrate exec` as a process: streams, exit codes, signals, and two of them at once."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.cli import popen_lockctl, run_lockctl
from tests.support.foreign import client
from tests.support.standby import Standby
from tests.support.waiting import until, wait_until_waiting

Conn = psycopg.Connection[Any]

ALTER = "ALTER TABLE item ADD COLUMN IF NOT EXISTS a int"
WAITING = """
SELECT count(*) = 0 FROM pg_stat_activity
 WHERE application_name LIKE 'lockctl exec %' AND datname = current_database()
"""


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE item (id int)")
        yield conn


def columns(conn: Conn) -> int:
    row = conn.execute("SELECT count(*) FROM pg_attribute WHERE attrelid = 'item'::regclass AND attnum > 0").fetchone()
    assert row is not None
    return int(row[0])


def nobody(conn: Conn) -> bool:
    return conn.execute(WAITING).fetchone() == (True,)


def test_the_result_alone_is_on_standard_output_and_the_commands_output_passes_through(
    empty_dsn: str, conn: Conn
) -> None:
    argv = [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"]
    done = run_lockctl("migrate", "exec", "--", *argv, dsn=empty_dsn)
    assert done.returncode == 0
    assert done.json()["outcome"] == "done"
    assert {"out", "err"} <= set(done.stderr.splitlines())


def test_under_json_its_lines_are_events(empty_dsn: str, conn: Conn) -> None:
    done = run_lockctl("migrate", "exec", "-f", "jsonl", "--", *client(empty_dsn, "SELECT 'é', 1"), dsn=empty_dsn)
    assert done.returncode == 0
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["message"] for event in events if event["event"] == "output"] == ["é 1"]


def test_exit_codes(empty_dsn: str, conn: Conn) -> None:
    def code(*words: str) -> int:
        return run_lockctl("migrate", "exec", *words, dsn=empty_dsn).returncode

    python = ("--", sys.executable, "-c")
    assert code(*python, "raise SystemExit(37)") == 37
    assert code(*python, "import os; os.kill(os.getpid(), 15)") == 143
    assert code("--", "nosuch-command") == 127
    assert code("--", "/etc/passwd") == 126
    assert code() == 2
    assert code("--expect-version", "3", *python, "") == 2
    assert code("--expect-column", "item.b", *python, "") == 8
    assert code("--advisory-lock", "x", *python, "") == 2


def test_blocked_is_exit_7_and_leaves_no_session_behind(empty_dsn: str, conn: Conn) -> None:
    with psycopg.connect(empty_dsn, application_name="forgotten psql") as idle:
        idle.execute("SELECT FROM item")
        words = ("migrate", "exec", "--lock-timeout", "1s", "--retries", "1", "-f", "json", "--")
        blocked = run_lockctl(*words, *client(empty_dsn, ALTER), dsn=empty_dsn)
        assert nobody(conn)
    assert (blocked.returncode, blocked.json()["outcome"], blocked.json()["attempts"]) == (7, "blocked", 2)
    assert blocked.error()["error"] == "blocked"
    assert blocked.json()["blockers"][0]["application"] == "forgotten psql"
    assert columns(conn) == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_the_waiting_session_first_and_then_ends_the_command(
    empty_dsn: str, conn: Conn, number: signal.Signals, code: int
) -> None:
    # It would outlive its client in the server's queue, and commit when the reader leaves.
    dsn = f"{empty_dsn} options='-c lock_timeout=0 -c client_connection_check_interval=0'"
    with psycopg.connect(empty_dsn) as idle:
        idle.execute("SELECT FROM item")
        words = ("migrate", "exec", "--lock-timeout", "60s", "--", *client(dsn, ALTER))
        with popen_lockctl(*words, dsn=empty_dsn) as process:
            wait_until_waiting(conn, "lockctl exec %")
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
        assert process.returncode == code
        assert b"which waited" in err
        assert nobody(conn)
    assert columns(conn) == 1


def test_when_lockctl_is_killed_its_command_ends_too(empty_dsn: str, conn: Conn) -> None:
    words = ("migrate", "exec", "--", *client(empty_dsn, "SELECT pg_sleep(120)"))
    with popen_lockctl(*words, dsn=empty_dsn) as process:
        until(lambda: not nobody(conn), what="the command's session")
        process.kill()
        until(lambda: nobody(conn), deadline=20, what="the end of the command's session")


def test_two_at_once_run_one_after_the_other(empty_dsn: str, conn: Conn) -> None:
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND database ="
    held += " (SELECT oid FROM pg_database WHERE datname = current_database())"
    conn.execute("CREATE TABLE ran (at timestamptz, until timestamptz)")
    work = client(empty_dsn, "INSERT INTO ran SELECT clock_timestamp(), clock_timestamp() FROM pg_sleep(1)")
    codes: list[int] = []

    def run(*words: str) -> None:
        codes.append(run_lockctl("migrate", "exec", *words, "--", *work, dsn=empty_dsn).returncode)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: conn.execute(held).fetchone() == (1,), what="the runner's lock")
    run("--runner-wait", "0s")
    for thread in threads:
        thread.join()
    assert sorted(codes) == [0, 0, 12]
    assert conn.execute("SELECT count(*) FROM ran").fetchone() == (2,)


def test_a_pooler_and_a_standby_are_refused_in_clear_words(
    pgbouncer_dsn: str, standby: Standby, standby_dsn: str
) -> None:
    pooled = run_lockctl("migrate", "exec", "--", "true", dsn=pgbouncer_dsn)
    assert pooled.returncode == 2
    assert "pooler in transaction mode" in pooled.stderr
    read_only = run_lockctl("migrate", "exec", "--", "true", dsn=standby_dsn)
    assert read_only.returncode == 6
    assert "standby" in read_only.stderr
