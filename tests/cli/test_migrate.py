"""The migrate commands as processes: what goes to which stream, exit codes, and alembic's own command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockctl.errors import LockctlError
from lockctl.migrations import location
from tests.support import tables as real
from tests.support.cli import clean_env, on_terminal, popen_lockctl, run_lockctl
from tests.support.waiting import until, wait_until_waiting

Conn = psycopg.Connection[Any]
TOP = Path(__file__).parents[2]
HEADS = ["ffdb_0001", "n8n_0001", "plan_0001", "runs_0001"]


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


def test_upgrade_writes_one_result_object_and_tells_what_happens(empty_dsn: str) -> None:
    done = run_lockctl("migrate", "upgrade", "heads", dsn=empty_dsn)
    assert done.returncode == 0
    result = done.json()
    assert list(result) == ["outcome", "from", "to", "steps", "attempts", "waited_ms", "blockers"]
    assert (result["outcome"], result["from"], result["to"]) == ("done", [], HEADS)
    assert sorted(result["steps"]) == HEADS
    assert "run_store.work created" in done.stderr

    again = run_lockctl("migrate", "upgrade", dsn=empty_dsn)
    assert (again.returncode, again.json()["outcome"]) == (0, "nothing")


def test_under_json_the_events_are_json_lines_too(empty_dsn: str) -> None:
    done = run_lockctl("-f", "json", "migrate", "upgrade", "ffdb@head", dsn=empty_dsn)
    assert done.json()["to"] == ["ffdb_0001"]
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert [event["event"] for event in events] == ["step", "created", "committed"]


def test_without_a_target_and_nothing_installed_the_components_are_listed(empty_dsn: str) -> None:
    done = run_lockctl("migrate", "upgrade", dsn=empty_dsn)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(f"{name}@head" in done.stderr for name in ("ffdb", "n8n", "plan", "runs"))


@pytest.mark.parametrize("target", ["nope", "nope@head", "head", "ffdb_"])
def test_a_wrong_target_is_one_plain_line(empty_dsn: str, target: str) -> None:
    for command in ("upgrade", "verify", "sql"):
        done = run_lockctl("migrate", command, target, dsn=empty_dsn)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 2
        assert "ffdb@head" in done.stderr
        assert "Traceback" not in done.stderr


def test_downgrade_asks_first(dsn: str, conn: Conn) -> None:
    done = run_lockctl("migrate", "downgrade", "plan@base", dsn=dsn)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--yes" in done.stderr
    assert conn.execute("SELECT to_regclass('verrou') IS NOT NULL").fetchone() == (True,)
    with on_terminal("migrate", "downgrade", "plan@base", dsn=dsn) as terminal:
        terminal.expect("plan@base")
        terminal.sendline("n")
        terminal.expect("nothing was changed")
    done = run_lockctl("migrate", "downgrade", "plan@base", "--yes", dsn=dsn)
    assert (done.returncode, done.json()["steps"]) == (0, ["plan_0001"])
    assert conn.execute("SELECT to_regclass('verrou') IS NULL").fetchone() == (True,)


def test_current_and_history_are_lists(empty_dsn: str) -> None:
    empty = run_lockctl("migrate", "current", "-f", "json", dsn=empty_dsn)
    assert (empty.returncode, empty.json()) == (0, [])
    run_lockctl("migrate", "upgrade", "n8n", dsn=empty_dsn)
    (row,) = run_lockctl("migrate", "current", "-f", "json", dsn=empty_dsn).json()
    assert list(row) == ["component", "revision", "is_head", "is_current", "doc"]
    assert (row["component"], row["revision"]) == ("n8n", "n8n_0001")
    history = run_lockctl("migrate", "history", "-f", "jsonl", dsn=empty_dsn).jsonl()
    assert [row["revision"] for row in history] == HEADS
    assert run_lockctl("migrate", "history", dsn=empty_dsn).stdout.startswith("component\trevision\t")


def test_verify_answers_by_its_exit_code(dsn: str, conn: Conn) -> None:
    done = run_lockctl("migrate", "verify", dsn=dsn)
    assert (done.returncode, done.json()["outcome"]) == (0, "current")
    conn.execute("DROP TABLE verrou")
    done = run_lockctl("migrate", "verify", dsn=dsn)
    assert (done.returncode, done.json()["outcome"]) == (8, "behind")
    assert "verrou" in done.stderr
    conn.execute("UPDATE lockctl_alembic_version SET version_num = 'plan_0002' WHERE version_num = 'plan_0001'")
    done = run_lockctl("migrate", "verify", dsn=dsn)
    assert (done.returncode, done.json()["outcome"]) == (9, "ahead")
    assert list(done.json())[:3] == ["outcome", "expected", "found"]


def test_verify_on_a_standby(standby_dsn: str) -> None:
    assert run_lockctl("migrate", "verify", dsn=standby_dsn).returncode == 0
    refused = run_lockctl("migrate", "downgrade", "plan@base", "-y", dsn=standby_dsn)
    assert refused.returncode == 6
    assert "read-only" in refused.stderr


def test_blocked_is_a_result_and_an_error_that_names_the_blocker(dsn: str) -> None:
    with psycopg.connect(dsn, application_name="forgotten psql") as idle:
        pid = idle.info.backend_pid
        idle.execute("SELECT count(*) FROM verrou")
        words = ("migrate", "downgrade", "base", "-y", "--lock-timeout", "900ms", "--retries", "0")
        done = run_lockctl(*words, "-f", "json", dsn=dsn)
    assert done.returncode == 7
    result = done.json()
    assert result["outcome"] == "blocked"
    assert result["steps"] == ["ffdb_0001", "n8n_0001"]
    assert [blocker["pid"] for blocker in result["blockers"]] == [pid]
    error = done.error()
    assert error["error"] == "blocked"
    assert "forgotten psql" in error["message"]


def test_what_was_told_as_done_and_then_rolled_back_is_taken_back(dsn: str) -> None:
    with psycopg.connect(dsn) as idle:
        idle.execute("SELECT count(*) FROM run_store.runs")
        words = ("migrate", "downgrade", "runs@base", "-y", "--lock-timeout", "900ms", "--retries", "0")
        done = run_lockctl(*words, dsn=dsn)
    assert done.returncode == 7
    told = done.stderr.splitlines()
    dropped, undone = "lockctl: run_store.work dropped", "lockctl: runs_0001 rolled back: nothing of it stands"
    assert told.index(dropped) < told.index(undone)


def test_an_interrupted_migration_leaves_nobody_waiting(dsn: str, conn: Conn) -> None:
    with psycopg.connect(dsn) as idle:
        idle.execute("SELECT count(*) FROM verrou")
        words = ("migrate", "downgrade", "plan@base", "-y", "--lock-timeout", "1m")
        with popen_lockctl(*words, dsn=dsn) as process:
            wait_until_waiting(conn, "lockctl migrate%")
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 143
            assert process.stderr is not None
            assert b"Traceback" not in process.stderr.read()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'lockctl migrate%'"
        until(lambda: conn.execute(waiting).fetchone() == (0,), what="the end of the session")
    assert run_lockctl("migrate", "verify", dsn=dsn).returncode == 0


def test_agents_without_the_lock_table_is_behind_with_the_hint(empty_dsn: str, empty: Conn) -> None:
    empty.execute("CREATE TABLE agents (id varchar(36) PRIMARY KEY)")
    done = run_lockctl("migrate", "upgrade", "n8n@head", dsn=empty_dsn)
    assert done.returncode == 8
    assert "upgrade n8n" in done.stderr
    assert done.json()["outcome"] == "failed"


def test_the_schema_option_and_its_places(empty_dsn: str, empty: Conn) -> None:
    real.n8n(empty, schema="n8n_app")
    assert run_lockctl("migrate", "--schema", "n8n_app", "upgrade", "n8n", dsn=empty_dsn).returncode == 0
    assert run_lockctl("--schema", "n8n_app", "migrate", "verify", dsn=empty_dsn).returncode == 0
    assert run_lockctl("migrate", "verify", dsn=empty_dsn).returncode == 8
    assert empty.execute("SELECT to_regclass('public.agent_task_run_lock')").fetchone() == (None,)


@pytest.mark.parametrize(("value", "names"), [("5", "unit"), ("0s", "--lock-timeout"), ("-1s", "--lock-timeout")])
def test_a_lock_timeout_needs_a_unit_and_an_end(empty_dsn: str, value: str, names: str) -> None:
    done = run_lockctl("migrate", "upgrade", "ffdb", f"--lock-timeout={value}", dsn=empty_dsn)
    assert done.returncode == 2
    assert names in done.stderr


def test_sql_needs_no_database_and_makes_everything(empty: Conn, empty_dsn: str) -> None:
    nowhere = {"LOCKCTL_DSN": "postgresql://nobody@127.0.0.1:1/nothing"}
    done = run_lockctl("migrate", "sql", "--lock-timeout", "3s", env=nowhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert "SET LOCAL lock_timeout = '3000ms';" in done.stdout
    for _ in range(2):
        with empty.cursor() as cursor:
            cursor.execute(run_lockctl("migrate", "sql", "plan", env=nowhere).stdout)
        empty.execute("DELETE FROM lockctl_alembic_version WHERE version_num = 'plan_0001'")
    with empty.cursor() as cursor:
        cursor.execute(done.stdout)
    nothing = run_lockctl("migrate", "sql", "ffdb_0001:ffdb@head", env=nowhere)
    assert (nothing.returncode, nothing.stdout.strip()) == (0, "")
    assert run_lockctl("migrate", "verify", "heads", dsn=empty_dsn).returncode == 0


# -- passwords (the server of the tests trusts everyone, so any password does) ---------------------------------------


def url(dsn: str, password: str, scheme: str = "postgresql") -> str:
    from urllib.parse import quote

    parts = conninfo_to_dict(dsn)
    return f"{scheme}://{parts['user']}:{password}@/{parts['dbname']}?host={quote(str(parts['host']), safe='')}"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_password_with_percent_signs_in_the_url(empty_dsn: str, scheme: str) -> None:
    given = url(empty_dsn, "s%40cret%25d%2F", scheme)
    up = run_lockctl("migrate", "upgrade", "heads", dsn=given)
    assert up.returncode == 0, up.stderr
    alembic_up = alembic("downgrade", "ffdb@base", dsn=given)
    assert alembic_up.returncode == 0, alembic_up.stderr
    for text in (up.stdout, up.stderr, alembic_up.stdout, alembic_up.stderr):
        assert "s@cret" not in text
        assert "s%40cret" not in text


# -- plain alembic at the top of a checkout --------------------------------------------------------------------------


def alembic(*args: str, dsn: str | None, cwd: Path = TOP) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "alembic.config", *args]
    return subprocess.run(command, cwd=cwd, env=clean_env(dsn), capture_output=True, text=True, timeout=60, check=False)


def test_plain_alembic_works_at_the_top_of_a_checkout(empty_dsn: str, empty: Conn) -> None:
    real.fireflow(empty)
    up = alembic("upgrade", "heads", dsn=empty_dsn)
    assert up.returncode == 0, up.stderr
    assert "ffdb_locks was there" in up.stderr
    assert run_lockctl("migrate", "verify", "heads", dsn=empty_dsn).returncode == 0
    current = alembic("current", dsn=empty_dsn)
    assert sorted(line.split()[0] for line in current.stdout.splitlines()) == HEADS
    down = alembic("downgrade", "base", dsn=empty_dsn)
    assert down.returncode == 0, down.stderr
    assert empty.execute("SELECT to_regclass('ffdb_locks') IS NOT NULL").fetchone() == (True,)
    assert empty.execute("SELECT to_regclass('verrou') IS NOT NULL").fetchone() == (False,)
    assert "CREATE TABLE" in alembic("upgrade", "heads", "--sql", dsn=None).stdout


def test_plain_alembic_says_in_one_line_what_is_wrong(empty_dsn: str, empty: Conn) -> None:
    empty.execute("CREATE TABLE verrou (key text PRIMARY KEY)")
    for dsn, target, words in ((empty_dsn, "plan@head", "owner"), (None, "heads", "no database was named")):
        done = alembic("upgrade", target, dsn=dsn)
        assert done.returncode != 0
        assert words in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def test_plain_alembic_waits_no_longer_than_the_lock_timeout(dsn: str) -> None:
    with psycopg.connect(make_conninfo(dsn)) as idle:
        pid = idle.info.backend_pid
        idle.execute("SELECT count(*) FROM verrou")
        done = alembic("-x", "lock-timeout=700ms", "downgrade", "plan@base", dsn=dsn)
    assert done.returncode != 0
    assert "lock timeout" in done.stdout + done.stderr
    assert f"pid {pid}" in done.stdout + done.stderr


# -- where the scripts are -------------------------------------------------------------------------------------------


def test_the_scripts_are_found_in_a_checkout_and_in_a_wheel(tmp_path: Path) -> None:
    assert location.find().ini == TOP / "alembic.ini"
    package = tmp_path / "site-packages" / "lockctl"
    (package / "_alembic").mkdir(parents=True)
    library = tmp_path / "site-packages" / "alembic"
    library.mkdir()
    for file in (library / "env.py", package / "_alembic.ini"):
        file.touch()
    with pytest.raises(LockctlError, match="missing"):
        location.find(package)
    (package / "_alembic" / "env.py").touch()
    assert location.find(package).scripts == package / "_alembic"


def test_the_commands_import_alembic_only_when_they_migrate() -> None:
    code = "import sys, lockctl.migrations.operations; sys.exit(bool({'alembic', 'sqlalchemy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
