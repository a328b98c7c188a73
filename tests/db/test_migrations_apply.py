"""`migrate apply` stops at the first error, retries a step that waited, and knows what stands."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.errors import BlockedError, LockctlError, PartialError, UsageError
from lockctl.migrations import sqlfile
from lockctl.migrations.apply import apply
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event, MigrationRun

Conn = psycopg.Connection[Any]
ONCE = Policy(limits=Limits(lock_timeout_ms=700), retries=0)

FILE = """
CREATE TABLE IF NOT EXISTS extra (id int);
UPDATE schema_version SET version = 2;
ALTER TABLE item ADD COLUMN a int;
ALTER TABLE item ADD COLUMN b int;
UPDATE schema_version SET version = 3;
CREATE INDEX CONCURRENTLY IF NOT EXISTS item_n ON item (n);
UPDATE schema_version SET version = 4;
"""


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE schema_version (version int); CREATE TABLE item (id int, n int)")
        conn.execute("INSERT INTO schema_version VALUES (1); INSERT INTO item VALUES (1, 1), (2, 1)")
        yield conn


@pytest.fixture
def idle(empty_dsn: str, conn: Conn) -> Iterator[Conn]:
    """A session that forgot its transaction after reading `item`."""
    with psycopg.connect(empty_dsn, application_name="forgotten psql") as idle:
        idle.execute("SELECT count(*) FROM item")
        yield idle
        idle.rollback()


def run(
    dsn: str, text: str, policy: Policy = ONCE, events: list[Event] | None = None, from_step: int = 1
) -> MigrationRun:
    with Database(dsn, "the test", "migrate apply").connect() as session:
        notify = (lambda _event: None) if events is None else events.append
        return apply(session, sqlfile.parse(text, "f.sql"), from_step=from_step, policy=policy, notify=notify)


def version(conn: Conn) -> int:
    row = conn.execute("SELECT version FROM schema_version").fetchone()
    assert row is not None
    return int(row[0])


def columns(conn: Conn) -> set[str]:
    rows = conn.execute("SELECT attname::text FROM pg_attribute WHERE attrelid = 'item'::regclass AND attnum > 0")
    return {row[0] for row in rows}


def test_every_step_of_a_free_database_is_committed(empty_dsn: str, conn: Conn) -> None:
    done = run(empty_dsn, FILE)
    assert done.error is None
    assert (done.result.outcome, done.result.from_, done.result.to) == ("done", ("0",), ("4",))
    assert done.result.steps == ("step 1", "step 2", "step 3", "step 4")
    assert version(conn) == 4
    assert columns(conn) >= {"a", "b"}


def test_behind_a_reader_nothing_of_the_step_stands_and_it_can_go_on(empty_dsn: str, conn: Conn, idle: Conn) -> None:
    blocked = run(empty_dsn, FILE)
    assert (blocked.result.outcome, blocked.result.steps, blocked.result.to) == ("blocked", ("step 1",), ("1",))
    assert isinstance(blocked.error, BlockedError)
    assert (blocked.error.hint or "").endswith("go on with --from-step 2")
    assert [blocker.pid for blocker in blocked.result.blockers] == [idle.info.backend_pid]
    assert (version(conn), columns(conn)) == (2, {"id", "n"})
    idle.rollback()
    done = run(empty_dsn, FILE, from_step=2)
    assert (done.result.outcome, done.result.from_, done.result.to) == ("done", ("1",), ("4",))
    assert version(conn) == 4


def test_it_goes_on_by_itself_when_the_reader_leaves(empty_dsn: str, conn: Conn, idle: Conn) -> None:
    leaving = threading.Timer(1.0, idle.rollback)
    leaving.start()
    try:
        done = run(empty_dsn, FILE, Policy(limits=Limits(lock_timeout_ms=500), retries=20))
    finally:
        leaving.join()
    assert done.result.outcome == "done"
    assert done.result.attempts > len(done.result.steps)
    assert (version(conn), columns(conn)) == (4, {"id", "n", "a", "b"})


def test_the_first_error_stops_it_and_names_the_line(empty_dsn: str, conn: Conn) -> None:
    text = "UPDATE schema_version SET version = 2;\nCREATE TABLE x ();\nALTER TABLE missing ADD c int;\nSELECT 1/0;"
    failed = run(empty_dsn, text)
    assert (failed.result.outcome, failed.result.steps) == ("failed", ("step 1",))
    assert isinstance(failed.error, LockctlError)
    assert failed.error.code == 1
    assert failed.error.message == 'f.sql, line 3: relation "missing" does not exist (SQLSTATE 42P01)'
    assert version(conn) == 2
    assert conn.execute("SELECT to_regclass('x')").fetchone() == (None,)
    assert failed.error.hint == "go on with --from-step 2"
    # Where nothing stands there is nothing to go on from.
    whole = run(empty_dsn, "CREATE TABLE x ();\nALTER TABLE missing ADD c int;")
    assert isinstance(whole.error, LockctlError)
    assert (whole.result.steps, whole.error.hint) == ((), None)


def test_an_index_that_could_not_be_built_is_partial_and_is_rebuilt_by_the_next_run(empty_dsn: str, conn: Conn) -> None:
    text = "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS item_n ON item (n);\nUPDATE schema_version SET version = 2"
    partial = run(empty_dsn, text)
    assert partial.result.outcome == "partial"
    assert isinstance(partial.error, PartialError)
    assert "INVALID index" in partial.error.message
    assert "item_n" in partial.error.message
    assert version(conn) == 1
    conn.execute("DELETE FROM item WHERE id = 2")
    events: list[Event] = []
    assert run(empty_dsn, text, events=events).result.outcome == "done"
    assert "dropped" in [event.event for event in events]
    assert conn.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = 'item_n'::regclass").fetchone() == (True,)


@pytest.mark.parametrize(
    "setting", ["SET lock_timeout = 0", "SELECT set_config('lock_timeout', '0', false)", "RESET ALL"]
)
def test_a_file_does_not_take_the_bound_away(empty_dsn: str, conn: Conn, idle: Conn, setting: str) -> None:
    started = time.monotonic()
    blocked = run(empty_dsn, f"{setting}; ALTER TABLE item ADD COLUMN a int")
    assert blocked.result.outcome == "blocked"
    assert time.monotonic() - started < 5


def test_a_run_that_begins_later_has_the_session_settings_of_before(empty_dsn: str, conn: Conn) -> None:
    conn.execute("CREATE SCHEMA s")
    text = "SET search_path TO s; UPDATE public.schema_version SET version = 2; CREATE TABLE here ()"
    assert run(empty_dsn, text, from_step=2).result.outcome == "done"
    assert conn.execute("SELECT to_regclass('s.here') IS NOT NULL").fetchone() == (True,)


def test_a_value_added_to_an_enum_can_be_used_by_the_statements_behind_it(empty_dsn: str, conn: Conn) -> None:
    conn.execute("CREATE TYPE mood AS ENUM ('a'); CREATE TABLE person (mood mood)")
    assert run(empty_dsn, "ALTER TYPE mood ADD VALUE 'b'; INSERT INTO person VALUES ('b')").result.outcome == "done"


def test_procedures_that_commit_run_behind_their_mark(empty_dsn: str, conn: Conn) -> None:
    conn.execute("CREATE PROCEDURE p() LANGUAGE plpgsql AS 'BEGIN DELETE FROM item WHERE id = 1; COMMIT; END'")
    assert run(empty_dsn, "CALL p()").result.outcome == "failed"
    assert run(empty_dsn, "-- lockctl: no-transaction\nCALL p()").result.outcome == "done"


def test_an_empty_file_is_nothing_and_a_step_too_far_is_a_usage_error(empty_dsn: str, conn: Conn) -> None:
    assert run(empty_dsn, "-- nothing").result.outcome == "nothing"
    with pytest.raises(UsageError, match="no step 9"):
        run(empty_dsn, FILE, from_step=9)
