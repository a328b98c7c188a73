"""`migrate apply` and `migrate plan` as processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.cli import popen_lockctl, run_lockctl
from tests.support.waiting import until, wait_until_waiting

Conn = psycopg.Connection[Any]

FILE = "CREATE TABLE one ();\n-- lockctl: step the column\nALTER TABLE item ADD COLUMN a int;\n"


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE item (id int)")
        yield conn


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "up.sql"
    path.write_text(FILE)
    return path


def test_apply_writes_one_result_and_tells_the_steps(empty_dsn: str, conn: Conn, file: Path) -> None:
    done = run_lockctl("migrate", "apply", str(file), dsn=empty_dsn)
    assert done.returncode == 0
    assert done.json() == {
        "outcome": "done",
        "from": ["0"],
        "to": ["2"],
        "steps": ["step 1", "step 2"],
        "attempts": 2,
        "waited_ms": 0,
        "blockers": [],
    }
    assert "step 2 of 2: the column (line 3)" in done.stderr


def test_apply_blocked_says_what_stands_and_how_to_go_on(empty_dsn: str, conn: Conn, file: Path) -> None:
    words = ("migrate", "apply", str(file), "--lock-timeout", "500ms", "--retries", "0")
    with psycopg.connect(empty_dsn, application_name="forgotten psql") as idle:
        idle.execute("SELECT FROM item")
        blocked = run_lockctl(*words, dsn=empty_dsn)
    assert (blocked.returncode, blocked.json()["outcome"]) == (7, "blocked")
    assert "committed before it, and standing: step 1" in blocked.stderr
    assert "forgotten psql" in blocked.stderr
    assert "go on with --from-step 2" in blocked.stderr
    gone_on = run_lockctl(*words, "--from-step", "2", dsn=empty_dsn)
    assert gone_on.json()["steps"] == ["step 2"]
    assert "step 2 of 2: the column" in gone_on.stderr


def test_a_syntax_error_is_a_usage_error_before_anything_runs(empty_dsn: str, conn: Conn, tmp_path: Path) -> None:
    path = tmp_path / "bad.sql"
    path.write_text("CREATE TABLE one ();\n\\i more.sql\n")
    refused = run_lockctl("migrate", "apply", str(path), "-f", "json", dsn=empty_dsn)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "line 2: \\i more.sql is a command of psql" in refused.error()["message"]
    assert conn.execute("SELECT to_regclass('one')").fetchone() == (None,)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_cancels_what_waits_in_the_server(
    empty_dsn: str, conn: Conn, file: Path, number: signal.Signals, code: int
) -> None:
    with psycopg.connect(empty_dsn) as idle:
        idle.execute("SELECT FROM item")
        with popen_lockctl("migrate", "apply", str(file), "--lock-timeout", "60s", dsn=empty_dsn) as process:
            pid = wait_until_waiting(conn, "lockctl migrate apply%")
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
        assert process.returncode == code
        assert json.loads(out)["steps"] == ["step 1"]
        assert b"nothing of this step stands" in err
        gone = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
        until(lambda: conn.execute(gone, (pid,)).fetchone() == (True,), what="the end of the waiting session")
    row = conn.execute(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 'item'::regclass AND attname = 'a'"
    ).fetchone()
    assert row == (0,)


def test_plan_lists_locks_with_and_without_a_database(empty_dsn: str, conn: Conn, file: Path) -> None:
    alone = run_lockctl("migrate", "plan", str(file), "-f", "json")
    assert alone.returncode == 0
    assert [(row["step"], row["lock_mode"], row["relation"]) for row in alone.json()] == [
        (1, None, None),
        (2, "ACCESS EXCLUSIVE", "item"),
    ]
    asked = run_lockctl("migrate", "plan", str(file), "-f", "json", dsn=empty_dsn)
    assert asked.json()[1]["size_bytes"] == 0
    assert conn.execute("SELECT to_regclass('one')").fetchone() == (None,)


def test_plan_of_a_revision_of_ours(empty_dsn: str) -> None:
    rows = run_lockctl("migrate", "plan", "ffdb@head", "-f", "json", dsn=empty_dsn).json()
    assert "ffdb_locks" in [row["relation"] for row in rows]
    assert run_lockctl("migrate", "plan", "nope@head", dsn=empty_dsn).returncode == 2
    assert run_lockctl("migrate", "plan", "no/such.sql", dsn=empty_dsn).returncode == 2


def test_plan_of_a_revision_of_another_alembic_environment() -> None:
    here = Path(__file__).parents[2]
    planned = run_lockctl("migrate", "plan", "-c", str(here / "alembic.ini"), "ffdb@head", "-f", "json")
    assert planned.returncode == 0, planned.stderr
    assert "ffdb_locks" in [row["relation"] for row in planned.json()]
