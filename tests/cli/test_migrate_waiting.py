"""What a migration that waits tells, as a process: lines, JSON lines, a line of progress, signals, two at once."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import psycopg
import pytest

from tests.support.blocked import holding
from tests.support.cli import on_terminal, popen_lockctl, run_lockctl
from tests.support.waiting import until, wait_until_waiting

Conn = psycopg.Connection[Any]
DOWN = ("migrate", "downgrade", "plan@base", "-y", "--lock-timeout", "1500ms")
READ = "SELECT count(*) FROM verrou"


def test_each_thing_is_told_as_it_happens(dsn: str) -> None:
    with psycopg.connect(dsn, application_name="forgotten psql") as idle, popen_lockctl(*DOWN, dsn=dsn) as process:
        pid = idle.info.backend_pid
        idle.execute(READ)
        assert process.stderr is not None
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line.decode().rstrip())
            if "next attempt in" in lines[-1]:
                idle.rollback()
        result = json.loads(process.stdout.read())
        assert process.wait(20) == 0
    assert lines[0].startswith("lockctl: step 1 of 1: down from plan_0001")
    assert lines[1].startswith(f"lockctl: waiting for pid {pid} (postgres, forgotten psql, idle in transaction,")
    assert "gave up waiting for a lock (lock timeout); blocked by pid" in lines[2]
    assert lines[3].startswith("lockctl: step 1 of 1, attempt 2: ")
    assert lines[-1] == "lockctl: plan_0001 committed"
    assert (result["outcome"], result["attempts"]) == ("done", 2)
    assert result["waited_ms"] >= 1_400


def test_json_lines_on_standard_error_and_one_object_on_standard_output(dsn: str) -> None:
    with holding(dsn, READ) as pid:
        done = run_lockctl(*DOWN, "--retries", "1", "-f", "jsonl", "--no-query", dsn=dsn)
    assert done.returncode == 7
    (result,) = done.jsonl()
    assert list(result) == ["outcome", "from", "to", "steps", "attempts", "waited_ms", "blockers"]
    assert (result["outcome"], result["attempts"]) == ("blocked", 2)
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line.get("event", line.get("error")) for line in told] == [
        "step", "waiting", "retry", "step", "waiting", "blocked", "blocked",
    ]  # fmt: skip
    waiting = told[1]
    assert [blocker["pid"] for blocker in waiting["blockers"]] == [pid]
    assert waiting["blockers"][0]["query"] is None
    assert (told[0]["step"], told[0]["steps"], told[0]["attempt"]) == (1, 1, 1)


def test_a_terminal_gets_a_line_of_progress(dsn: str) -> None:
    with holding(dsn, READ, "forgotten psql"):
        with on_terminal(*DOWN, "--retries", "0", dsn=dsn) as terminal:
            terminal.expect(r"waiting \d\.\ds of 1\.5s for pid \d+ \(postgres, forgotten psql")
            terminal.expect_exact('"outcome"')
            terminal.expect("gave up waiting for a lock")
            terminal.wait()
        assert terminal.exitstatus == 7


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_what_waits_in_the_server_and_says_what_stands(dsn: str, conn: Conn, signum: int) -> None:
    words = ("migrate", "downgrade", "base", "-y", "--lock-timeout", "1m", "-f", "json")
    with holding(dsn, READ), popen_lockctl(*words, dsn=dsn) as process:
        wait_until_waiting(conn, "lockctl migrate%")
        process.send_signal(signum)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 128 + signum
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'lockctl migrate%'"
        until(lambda: conn.execute(waiting).fetchone() == (0,), what="the end of the session")
    result = json.loads(out)
    assert (result["outcome"], result["steps"]) == ("failed", ["ffdb_0001", "n8n_0001"])
    assert "nothing of this step stands" in err.decode()
    assert b"Traceback" not in err
    assert run_lockctl("migrate", "upgrade", "heads", dsn=dsn).returncode == 0


def test_two_at_once_one_applies_and_both_exit_0(empty_dsn: str) -> None:
    with (
        popen_lockctl("migrate", "upgrade", "heads", dsn=empty_dsn) as one,
        popen_lockctl("migrate", "upgrade", "heads", dsn=empty_dsn) as two,
    ):
        outcomes = [json.loads(process.communicate(timeout=60)[0])["outcome"] for process in (one, two)]
        assert [one.returncode, two.returncode] == [0, 0]
    assert sorted(outcomes) == ["done", "nothing"]


def test_busy_is_exit_12_and_names_the_other(dsn: str, conn: Conn) -> None:
    words = ("migrate", "downgrade", "plan@base", "-y", "--lock-timeout", "1m")
    with holding(dsn, READ), popen_lockctl(*words, dsn=dsn, stderr=subprocess.DEVNULL):
        pid = wait_until_waiting(conn, "lockctl migrate%")
        done = run_lockctl("migrate", "upgrade", "heads", "--runner-wait", "100ms", "-f", "json", dsn=dsn)
        shown = run_lockctl("blockers", "-f", "json", dsn=dsn).json()
    assert done.returncode == 12
    assert (done.json()["outcome"], done.error()["error"]) == ("busy", "busy")
    assert "lockctl migrate downgrade" in done.error()["message"]
    assert [row["kind"] for row in shown if row["pid"] == pid] == ["own"]


def test_the_blocker_can_be_ended_when_that_was_asked_for(dsn: str) -> None:
    refused = run_lockctl(*DOWN, "--on-block", "terminate", dsn=dsn)
    assert refused.returncode == 2
    assert "--min-blocker-age" in refused.stderr
    with holding(dsn, READ, "forgotten psql"):
        done = run_lockctl(*DOWN, "--on-block", "terminate", "--min-blocker-age", "1ms", dsn=dsn)
    assert done.returncode == 0
    assert "lockctl: terminated pid" in done.stderr


def test_verify_of_another_systems_version_table(dsn: str, conn: Conn) -> None:
    def verify(expected: str, *more: str) -> tuple[int, Any]:
        done = run_lockctl(
            "migrate", "verify", "--relation", "dbos.dbos_migrations", "--expect", expected, *more, dsn=dsn
        )
        return done.returncode, done.json() if done.stdout else done.stderr

    assert verify("108")[0] == 8
    conn.execute("CREATE SCHEMA dbos; CREATE TABLE dbos.dbos_migrations (version bigint)")
    assert verify("108")[0] == 8
    conn.execute("INSERT INTO dbos.dbos_migrations VALUES (69)")
    assert verify("108") == (
        8,
        {
            "outcome": "behind",
            "expected": ["108"],
            "found": ["69"],
            "detail": "dbos.dbos_migrations shows version 69, not 108",
        },
    )
    assert verify("69", "--column", "version")[0] == 0
    assert verify("68")[0] == 9
    conn.execute("INSERT INTO dbos.dbos_migrations VALUES (108)")
    code, words = verify("108")
    assert (code, "holds 2 rows (108, 69)" in words) == (1, True)
    assert run_lockctl("migrate", "verify", "--relation", "x", dsn=dsn).returncode == 2
    assert run_lockctl("migrate", "verify", "heads", "--relation", "x", "--expect", "1", dsn=dsn).returncode == 2


def test_verify_of_a_relation_on_a_standby(standby_dsn: str) -> None:
    words = ("migrate", "verify", "--relation", "lockctl_alembic_version", "--column", "version_num", "--expect", "x")
    done = run_lockctl(*words, dsn=standby_dsn)
    assert (done.returncode, "holds 4 rows" in done.stderr) == (1, True)
