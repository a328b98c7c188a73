"""Another alembic environment: on our connection where it takes one, watched as a command where it does not."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from lockctl.activity.blockers import sample
from lockctl.db import Database, Session
from lockctl.errors import AheadError, LockctlError, PartialError, UsageError
from lockctl.migrations import backoff, elsewhere
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event
from tests.support import alembics
from tests.support.blocked import holding
from tests.support.cli import run_lockctl
from tests.support.migrating import Heard

Conn = psycopg.Connection[Any]
QUICK = Policy(Limits(lock_timeout_ms=300), retries=0)


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE busy (id int PRIMARY KEY, x int)")
        yield conn


@pytest.fixture
def session(empty_dsn: str) -> Iterator[Session]:
    with Database(empty_dsn, "the test", "migrate upgrade", sampler=sample).connect(raw_times=False) as session:
        yield session


@pytest.fixture
def ini(tmp_path: Path) -> Path:
    """Two revisions, the second of which needs `busy`."""
    made = alembics.environment(tmp_path, options="{'transaction_per_migration': True}")
    alembics.revision(made, "one", None, "op.execute('CREATE TABLE made (id int)')", "op.execute('DROP TABLE made')")
    alembics.revision(
        made,
        "two",
        "one",
        "op.execute('ALTER TABLE busy ADD COLUMN y int')",
        "op.execute('ALTER TABLE busy DROP COLUMN y')",
    )
    return made


def url(dsn: str, password: str = "") -> str:
    parts = conninfo_to_dict(dsn)
    return (
        f"postgresql+psycopg://{parts['user']}:{password}@/{parts['dbname']}?host={quote(str(parts['host']), safe='')}"
    )


def test_up_and_down_each_revision_a_step(session: Session, conn: Conn, ini: Path) -> None:
    heard = Heard()
    up = elsewhere.upgrade(session, ini, notify=heard)
    assert (up.result.outcome, up.error) == ("done", None)
    assert (up.result.from_, up.result.to, up.result.steps) == ((), ("two",), ("one", "two"))
    assert [event.message for event in heard.all("step")] == [
        "step 1 of 2: up to one: does one",
        "step 2 of 2: up to two: does two",
    ]
    assert elsewhere.upgrade(session, ini).result.outcome == "nothing"
    down = elsewhere.downgrade(session, ini, "-1")
    assert (down.result.steps, down.result.to) == (("two",), ("one",))
    assert conn.execute("SELECT to_regclass('made') IS NOT NULL").fetchone() == (True,)


def test_it_runs_under_our_limits_and_what_was_committed_stays(session: Session, conn: Conn, ini: Path) -> None:
    with holding(conn.info.dsn, "SELECT * FROM busy") as idle:
        run = elsewhere.upgrade(session, ini, policy=QUICK)
    assert (run.result.outcome, run.result.steps, run.result.to) == ("blocked", ("one",), ("one",))
    assert [blocker.pid for blocker in run.result.blockers] == [idle]
    assert elsewhere.upgrade(session, ini).result.outcome == "done"


def test_the_version_table_is_no_reason_not_to_try_again(
    session: Session, conn: Conn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alembic commits its new version table before the first revision begins."""
    monkeypatch.setattr(backoff, "FIRST_S", 0.3)
    made = alembics.environment(tmp_path, options="{'transaction_per_migration': True}")
    alembics.revision(made, "one", None, "op.execute('ALTER TABLE busy ADD COLUMN y int')")
    with psycopg.connect(conn.info.dsn) as idle:
        idle.execute("SELECT * FROM busy")

        def leave(event: Event) -> None:
            if event.event == "retry":
                idle.rollback()

        run = elsewhere.upgrade(session, made, policy=Policy(QUICK.limits), notify=Heard(leave))
    assert (run.result.outcome, run.result.attempts) == ("done", 2)


def test_an_autocommit_block_that_fails_is_partial(session: Session, conn: Conn, tmp_path: Path) -> None:
    made = alembics.environment(tmp_path, options="{'transaction_per_migration': True}")
    body = (
        "op.execute('CREATE TABLE before (id int)')\n"
        "with op.get_context().autocommit_block():\n"
        "    op.create_index('ours', 'busy', ['x'], postgresql_concurrently=True)"
    )
    alembics.revision(made, "one", None, body)
    policy = Policy(Limits(lock_timeout_ms=300, index_lock_timeout_ms=300))
    with holding(conn.info.dsn, "LOCK TABLE busy IN ROW EXCLUSIVE MODE"):
        run = elsewhere.upgrade(session, made, policy=policy)
    assert (run.result.outcome, run.result.attempts, run.result.to) == ("partial", 1, ())
    assert isinstance(run.error, PartialError)
    assert "before its autocommit block" in run.error.message
    assert "INVALID index public.ours" in run.error.message


def test_a_concurrent_index_in_an_autocommit_block_gets_its_own_timeouts_and_is_rebuilt(
    session: Session, conn: Conn, tmp_path: Path
) -> None:
    made = alembics.environment(tmp_path, options="{'transaction_per_migration': True}")
    body = (
        "with op.get_context().autocommit_block():\n"
        "    op.create_index('ours', 'busy', ['x'], postgresql_concurrently=True)\n"
        "op.execute('ALTER TABLE busy ADD COLUMN z int')"
    )
    alembics.revision(made, "one", None, body)
    short = Policy(Limits(lock_timeout_ms=300, index_lock_timeout_ms=300))
    with holding(conn.info.dsn, "LOCK TABLE busy IN ROW EXCLUSIVE MODE"):
        assert elsewhere.upgrade(session, made, policy=short).result.outcome == "partial"
    with psycopg.connect(conn.info.dsn) as writer:
        writer.execute("LOCK TABLE busy IN ROW EXCLUSIVE MODE")
        leaving = threading.Timer(1.0, writer.rollback)
        heard = Heard()
        leaving.start()
        run = elsewhere.upgrade(session, made, policy=QUICK, notify=heard)
        leaving.join()
    # DROP INDEX CONCURRENTLY, CREATE INDEX CONCURRENTLY waited longer than the lock timeout; the rest is bounded.
    assert (run.result.outcome, run.error) == ("done", None)
    assert heard.all("dropped")
    assert session.one("SHOW lock_timeout") == ("30s",)


@pytest.mark.parametrize("password", ["plain", "s%40cret%25d"])
def test_one_with_its_own_engine_is_run_as_a_command(
    empty_dsn: str, session: Session, conn: Conn, tmp_path: Path, password: str
) -> None:
    made = alembics.environment(tmp_path, takes_it=False, url=url(empty_dsn, password))
    alembics.revision(made, "one", None, "op.execute('ALTER TABLE busy ADD COLUMN y int')")
    heard = Heard()
    with holding(empty_dsn, "SELECT * FROM busy") as idle:
        blocked = elsewhere.upgrade(session, made, policy=QUICK, notify=heard)
    assert blocked.result.outcome == "blocked"
    assert [blocker.pid for blocker in blocked.result.blockers] == [idle]
    assert "own engine" in heard.all("warning")[0].message
    run = elsewhere.upgrade(session, made)
    assert (run.result.outcome, run.result.to) == ("done", ("one",))
    assert elsewhere.upgrade(session, made).result.outcome == "nothing"
    assert elsewhere.verify(session, made).outcome == "current"


def test_one_with_its_own_engine_is_asked_for_its_version_table(
    empty_dsn: str, session: Session, conn: Conn, tmp_path: Path
) -> None:
    conn.execute("CREATE SCHEMA app")
    options = "{'version_table_schema': 'app', 'version_table': 'versions'}"
    made = alembics.environment(tmp_path, takes_it=False, url=url(empty_dsn), options=options)
    alembics.revision(made, "one", None, "pass")
    alembics.revision(made, "two", "one", "pass")
    assert elsewhere.verify(session, made).outcome == "behind"
    assert conn.execute("SELECT to_regclass('app.versions')").fetchone() == (None,)
    up = elsewhere.upgrade(session, made).result
    assert (up.outcome, up.from_, up.to, up.steps) == ("done", (), ("two",), ("one", "two"))
    assert elsewhere.verify(session, made).outcome == "current"
    assert [row.revision for row in elsewhere.current(session, made)] == ["two"]
    down = elsewhere.downgrade(session, made, "-1").result
    assert (down.outcome, down.from_, down.to, down.steps) == ("done", ("two",), ("one",), ("two",))
    # What can't be done is told before anything is run.
    with pytest.raises(UsageError, match="no-such"):
        elsewhere.upgrade(session, made, "no-such")
    conn.execute("UPDATE app.versions SET version_num = 'nobodys'")
    with pytest.raises(AheadError, match="nobodys"):
        elsewhere.upgrade(session, made)
    assert elsewhere.verify(session, made).outcome == "ahead"


def test_one_with_its_own_engine_that_does_more_with_it_is_judged_by_the_usual_table(
    empty_dsn: str, session: Session, conn: Conn, tmp_path: Path
) -> None:
    made = alembics.environment(tmp_path, takes_it=False, url=url(empty_dsn))
    alembics.revision(made, "one", None, "pass")
    env = made.parent / "migrations" / "env.py"
    env.write_text(
        env.read_text().replace("    with made.connect()", "    made.raw_connection().close()\n    with made.connect()")
    )
    assert elsewhere.upgrade(session, made).result.to == ("one",)
    assert elsewhere.verify(session, made).outcome == "current"


def test_what_it_prints_as_a_command_goes_to_standard_error(empty_dsn: str, conn: Conn, tmp_path: Path) -> None:
    made = alembics.environment(tmp_path, takes_it=False, url=url(empty_dsn))
    alembics.revision(made, "one", None, "pass")
    done = run_lockctl("migrate", "upgrade", "-c", str(made), dsn=empty_dsn)
    assert (done.returncode, done.json()["to"]) == (0, ["one"])
    assert "env.py prints this" in done.stderr


def test_a_connection_lost_in_the_middle_leaves_a_result(session: Session, conn: Conn, ini: Path) -> None:
    def lose(event: Event) -> None:
        if event.event == "waiting":
            conn.execute("SELECT pg_terminate_backend(%s)", (session.pid,))

    with holding(conn.info.dsn, "SELECT * FROM busy"):
        run = elsewhere.upgrade(session, ini, notify=Heard(lose))
    assert (run.result.outcome, run.result.steps, run.result.to) == ("failed", ("one",), ("one",))
    assert "connection was lost" in str(run.error)


def test_verify_tells_behind_from_ahead_and_creates_nothing(
    empty_dsn: str, session: Session, conn: Conn, ini: Path
) -> None:
    with Database(empty_dsn, "the test", "migrate verify").connect(read_only=True) as reading:
        assert elsewhere.verify(reading, ini).outcome == "behind"
        assert conn.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,)
        elsewhere.upgrade(session, ini, "one")
        assert elsewhere.verify(reading, ini).outcome == "behind"
        assert elsewhere.verify(reading, ini, "one").outcome == "current"
        elsewhere.upgrade(session, ini)
        assert elsewhere.verify(reading, ini).outcome == "current"
        assert elsewhere.verify(reading, ini, "one").outcome == "ahead"
        conn.execute("UPDATE alembic_version SET version_num = 'nobodys'")
        assert elsewhere.verify(reading, ini).outcome == "ahead"
        assert [row.revision for row in elsewhere.current(reading, ini)] == ["nobodys"]
    with pytest.raises(AheadError, match="nobodys"):
        elsewhere.upgrade(session, ini)


def test_its_version_table_may_lie_in_a_schema_of_its_own(session: Session, conn: Conn, tmp_path: Path) -> None:
    conn.execute("CREATE SCHEMA app")
    made = alembics.environment(tmp_path, options="{'version_table_schema': 'app', 'version_table': 'versions'}")
    alembics.revision(made, "one", None, "pass")
    assert elsewhere.upgrade(session, made).result.to == ("one",)
    assert conn.execute("SELECT version_num FROM app.versions").fetchall() == [("one",)]
    assert [row.is_current for row in elsewhere.history(session, made)] == [True]


def test_several_heads(session: Session, conn: Conn, ini: Path) -> None:
    alembics.revision(ini, "other", "one", "pass")
    with pytest.raises(UsageError) as refused:
        elsewhere.upgrade(session, ini, "head")
    assert refused.value.hint == "heads: other, two"
    assert elsewhere.upgrade(session, ini).result.to == ("other", "two")
    with pytest.raises(UsageError):
        elsewhere.upgrade(session, ini, "no-such")


def test_our_loggers_stay_alive_and_standard_output_is_ours(
    session: Session, conn: Conn, ini: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = logging.getLogger("lockctl.of.this.test")
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    elsewhere.upgrade(session, ini)
    assert not ours.disabled
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == (handlers, level)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "env.py prints this" in captured.err


def test_an_environment_that_fails_by_itself_says_so(session: Session, conn: Conn, ini: Path) -> None:
    (ini.parent / "migrations" / "env.py").write_text("import nothing_like_this")
    with pytest.raises(LockctlError, match="failed by itself: ModuleNotFoundError") as failed:
        elsewhere.upgrade(session, ini)
    assert "migrate exec -- alembic" in str(failed.value.hint)
    with pytest.raises(UsageError, match="no alembic configuration"):
        elsewhere.upgrade(session, ini.parent / "missing.ini")
    with pytest.raises(UsageError, match="no section headers"):
        elsewhere.upgrade(session, ini.parent / "migrations" / "env.py")


def test_revisions_that_cant_be_read_are_told_as_what_they_are(
    session: Session, ini: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alembics.revision(ini, "three", "gone", "pass")
    with pytest.raises(LockctlError, match="Revision gone referenced from gone -> three"):
        elsewhere.upgrade(session, ini)
    three = ini.parent / "migrations" / "versions" / "three.py"
    three.write_text("def (")
    with pytest.raises(LockctlError, match=r"failed by itself: SyntaxError: .*three\.py"):
        elsewhere.verify(session, ini)
    alembics.revision(ini, "three", "two", "pass")
    three.write_text("print('three prints this')\n" + three.read_text())
    elsewhere.sql(ini)
    assert capsys.readouterr().out == ""


def test_an_error_of_its_statements_is_told_in_the_servers_words(session: Session, conn: Conn, ini: Path) -> None:
    (ini.parent / "migrations" / "versions" / "two.py").unlink()
    alembics.revision(ini, "two", "one", "op.execute('ALTER TABLE no_such ADD COLUMN y int')")
    run = elsewhere.upgrade(session, ini)
    assert (run.result.outcome, run.result.steps) == ("failed", ("one",))
    assert isinstance(run.error, LockctlError)
    assert (run.error.code, run.error.message) == (1, 'relation "no_such" does not exist (SQLSTATE 42P01)')
    assert "lockctl" not in str(run.error.hint)


def test_one_that_commits_nothing_is_found_out(session: Session, conn: Conn, ini: Path) -> None:
    env = ini.parent / "migrations" / "env.py"
    env.write_text(
        env.read_text().replace(
            "def online(connection):\n", "def online(connection):\n    connection.exec_driver_sql('SELECT 1')\n"
        )
    )
    run = elsewhere.upgrade(session, ini)
    assert isinstance(run.error, LockctlError)
    assert "nothing was committed" in run.error.message
    assert run.result.to == ()


@pytest.mark.parametrize("takes_it", [True, False])
def test_under_json_standard_error_holds_json_lines_alone(
    empty_dsn: str, conn: Conn, tmp_path: Path, takes_it: bool
) -> None:
    made = alembics.environment(tmp_path, takes_it=takes_it, url=url(empty_dsn))
    alembics.revision(made, "one", None, "pass")
    done = run_lockctl("migrate", "upgrade", "-c", str(made), "-f", "json", dsn=empty_dsn)
    assert (done.returncode, done.json()["to"]) == (0, ["one"])
    events = [json.loads(line) for line in done.stderr.splitlines()]
    told = [event["message"] for event in events if event["event"] == "output"]
    assert "env.py prints this" in told
    # Where the database is was asked for several times; it was gone up once.
    assert sum("Running upgrade" in line for line in told) == 1
    assert sum("Context impl" in line for line in told) == 1


def test_who_asks_where_a_database_is_hears_nothing_of_alembics_progress(empty_dsn: str, conn: Conn, ini: Path) -> None:
    done = run_lockctl("migrate", "current", "-c", str(ini), dsn=empty_dsn)
    assert (done.returncode, "Context impl" in done.stderr) == (0, False)


def test_the_commands_take_it(empty_dsn: str, conn: Conn, ini: Path) -> None:
    given = ("-c", str(ini))
    script = run_lockctl("migrate", "sql", *given, "--lock-timeout", "3s", dsn="postgresql://nobody@127.0.0.1:1/none")
    assert script.returncode == 0, script.stderr
    assert "SET LOCAL lock_timeout = '3000ms';" in script.stdout
    assert "ALTER TABLE busy" in script.stdout
    assert "env.py prints" not in script.stdout
    up = run_lockctl("migrate", "upgrade", *given, dsn=empty_dsn)
    assert (up.returncode, up.json()["to"]) == (0, ["two"])
    assert run_lockctl("migrate", "verify", *given, dsn=empty_dsn).returncode == 0
    current = run_lockctl("migrate", "current", *given, "-f", "json", dsn=empty_dsn)
    assert [row["revision"] for row in current.json()] == ["two"]
    history = run_lockctl("migrate", "history", *given, "-f", "json", dsn=empty_dsn)
    assert [row["revision"] for row in history.json()] == ["one", "two"]
    down = run_lockctl("migrate", "downgrade", "base", *given, "-y", dsn=empty_dsn)
    assert (down.returncode, down.json()["steps"]) == (0, ["two", "one"])
    assert run_lockctl("migrate", "verify", *given, dsn=empty_dsn).returncode == 8
