"""How a step is attempted: under limits that are in force each time, again when a lock was in the way, with an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.errors import BlockedError, Interrupted, PartialError, UsageError
from lockctl.migrations import backoff
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.engine import Engine, Step
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event
from tests.support.blocked import holding, waiting
from tests.support.migrating import Heard, alone_step, run, sql_step
from tests.support.waiting import until

Conn = psycopg.Connection[Any]
QUICK = Limits(lock_timeout_ms=300)


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
        yield conn


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_S", 0.3)


def columns(conn: Conn, table: str = "t") -> list[str]:
    rows = conn.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum", (table,)
    )
    return [row[0] for row in rows]


def test_retries_have_a_maximum_and_the_limits_are_in_force_on_every_attempt(empty_dsn: str, conn: Conn) -> None:
    shown: list[tuple[Any, ...]] = []

    def attempted(attempt: Attempt) -> None:
        with attempt.transaction():
            row = attempt.session.one("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
            shown.append(row)
            attempt.execute("ALTER TABLE t ADD COLUMN x int")

    heard = Heard()
    policy = Policy(Limits(lock_timeout_ms=300, statement_timeout_ms=60_000), retries=2)
    with holding(empty_dsn, "SELECT * FROM t") as idle:
        progress = run(empty_dsn, [Step("s", "s", attempted)], policy, heard)
    assert shown == [("300ms", "1min")] * 3
    assert (progress.outcome, progress.attempts, progress.done) == ("blocked", 3, [])
    assert progress.waited_ms >= 3 * 250
    assert [blocker.pid for blocker in progress.blockers] == [idle]
    assert isinstance(progress.error, BlockedError)
    assert progress.error.message.startswith("after 3 attempts: gave up waiting for a lock (lock timeout)")
    assert heard.names().count("retry") == 2
    assert heard.names()[-1] == "blocked"
    assert [event.attempt for event in heard.all("step")] == [1, 2, 3]


def test_no_attempt_begins_after_the_deadline(empty_dsn: str, conn: Conn) -> None:
    with holding(empty_dsn, "SELECT * FROM t"):
        started = time.monotonic()
        policy = Policy(QUICK, retries=1000, deadline_ms=1_500)
        progress = run(empty_dsn, [sql_step("s", "ALTER TABLE t ADD COLUMN x int")], policy)
        assert time.monotonic() - started < 6
    assert progress.outcome == "blocked"
    assert progress.attempts > 1
    # Why there were no more of them, although --retries allows it.
    assert isinstance(progress.error, BlockedError)
    assert progress.error.message.startswith(f"after {progress.attempts} attempts (--deadline 1.5s is over): gave up")


def test_the_pause_ends_when_the_blocker_does(empty_dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_S", 60.0)
    with psycopg.connect(empty_dsn) as idle:
        idle.execute("SELECT * FROM t")

        def leave(event: Event) -> None:
            if event.event == "retry":
                threading.Timer(0.2, idle.rollback).start()

        heard = Heard(leave)
        started = time.monotonic()
        progress = run(empty_dsn, [sql_step("s", "ALTER TABLE t ADD COLUMN x int")], Policy(QUICK), heard)
        assert time.monotonic() - started < 10
    assert (progress.outcome, progress.attempts) == ("done", 2)
    assert heard.names() == ["warning", "step", "waiting", "retry", "step", "committed"]


def test_the_pause_doubles_with_jitter_and_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_S", 1.0)
    lengths = [backoff.length(attempt) for attempt in range(1, 12)]
    for attempt, length in enumerate(lengths[:5]):
        assert 0.8 * 2**attempt <= length <= 1.2 * 2**attempt
    assert max(lengths) <= 1.2 * backoff.LONGEST_S
    assert len({backoff.length(3) for _ in range(10)}) > 1


def test_a_deadlock_is_retried_whole(empty_dsn: str, conn: Conn) -> None:
    with psycopg.connect(empty_dsn) as other:
        other.execute("SET deadlock_timeout = '10s'")
        other.execute("LOCK TABLE u")
        threads: list[threading.Thread] = []

        def lock_and_leave() -> None:
            other.execute("LOCK TABLE t")
            other.rollback()

        def cross(attempt: Attempt) -> None:
            with attempt.transaction():
                attempt.execute("SET LOCAL deadlock_timeout = '100ms'")
                attempt.execute("ALTER TABLE t ADD COLUMN x int")
                if attempt.number == 1:
                    threads.append(threading.Thread(target=lock_and_leave))
                    threads[0].start()
                    held = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
                    until(lambda: conn.execute(held, (other.info.backend_pid,)).fetchone() == (True,))
                attempt.execute("ALTER TABLE u ADD COLUMN x int")

        heard = Heard()
        progress = run(empty_dsn, [Step("s", "s", cross)], Policy(Limits(lock_timeout_ms=8_000)), heard)
        threads[0].join(10)
    assert (progress.outcome, progress.attempts) == ("done", 2)
    assert "deadlock" in heard.all("retry")[0].message
    assert columns(conn) == columns(conn, "u") == ["id", "x"]


def test_a_statement_timeout_and_a_cancel_by_somebody_are_told_apart_and_not_retried(
    empty_dsn: str, conn: Conn
) -> None:
    slow = run(empty_dsn, [sql_step("s", "SELECT pg_sleep(30)")], Policy(Limits(300, statement_timeout_ms=600)))
    assert isinstance(slow.error, BlockedError)
    assert (slow.attempts, "the statement timeout passed" in slow.error.message) == (1, True)

    def cancel() -> None:
        def find() -> Any:
            return conn.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(31)'"
                " AND wait_event = 'PgSleep'"
            ).fetchone()

        until(find, what="the statement to cancel")

    thread = threading.Thread(target=cancel)
    thread.start()
    cancelled = run(empty_dsn, [sql_step("s", "SELECT pg_sleep(31)")], Policy(QUICK))
    thread.join(10)
    assert isinstance(cancelled.error, BlockedError)
    assert (cancelled.attempts, "somebody cancelled" in cancelled.error.message) == (1, True)


def test_the_total_wait_is_told_apart_from_the_servers_lock_timeout(empty_dsn: str, conn: Conn) -> None:
    """The second wait alone is shorter than the lock timeout when both together have used it up."""
    with psycopg.connect(empty_dsn) as first, holding(empty_dsn, "SELECT * FROM u") as second:
        first.execute("SELECT * FROM t")
        heard = Heard()
        leaving = threading.Timer(1.0, first.rollback)
        leaving.start()
        statements = ("ALTER TABLE t ADD COLUMN x int", "ALTER TABLE u ADD COLUMN x int")
        progress = run(empty_dsn, [sql_step("s", *statements)], Policy(Limits(1_500), retries=0), heard)
        leaving.join()
    assert isinstance(progress.error, BlockedError)
    assert "for locks together" in progress.error.message
    assert 1_400 <= progress.waited_ms < 2_800
    assert f"pid {second}" in progress.error.message
    assert columns(conn) == ["id"]


def test_nothing_is_retried_after_something_was_committed_in_the_step(empty_dsn: str, conn: Conn) -> None:
    def both(attempt: Attempt) -> None:
        attempt.alone("VACUUM t")
        with attempt.transaction():
            attempt.execute("ALTER TABLE t ADD COLUMN x int")

    with holding(empty_dsn, "SELECT * FROM t"):
        progress = run(empty_dsn, [Step("s", "s", both)], Policy(QUICK))
    assert (progress.outcome, progress.attempts) == ("partial", 1)
    assert isinstance(progress.error, PartialError)
    assert "VACUUM t" in progress.error.message
    assert progress.error.details["stands"] == ["VACUUM t"]


def test_steps_committed_before_stay(empty_dsn: str, conn: Conn) -> None:
    with holding(empty_dsn, "SELECT * FROM u"):
        steps = [sql_step(name, f"ALTER TABLE {name} ADD COLUMN x int") for name in "tu"]
        progress = run(empty_dsn, steps, Policy(QUICK, retries=0))
    assert (progress.outcome, progress.done) == ("blocked", ["t"])
    assert (columns(conn), columns(conn, "u")) == (["id", "x"], ["id"])


def test_the_statement_outside_a_transaction_leaves_no_setting_behind(empty_dsn: str, conn: Conn) -> None:
    shown: list[Any] = []

    def then_ask(attempt: Attempt) -> None:
        attempt.alone("VACUUM t")
        shown.append(attempt.session.one("SHOW lock_timeout"))

    assert run(empty_dsn, [Step("s", "s", then_ask)], Policy(QUICK)).outcome == "done"
    assert shown == [("3s",)]


def test_behind_a_pooler_a_statement_outside_a_transaction_is_refused(pgbouncer_dsn: str) -> None:
    progress = run(pgbouncer_dsn, [alone_step("s", "VACUUM ffdb_locks")], Policy(QUICK))
    assert isinstance(progress.error, UsageError)
    assert "pooler" in progress.error.message


def test_a_lock_timeout_below_deadlock_timeout_is_warned_about(empty_dsn: str, conn: Conn) -> None:
    for timeout, warned in ((300, True), (5_000, False)):
        heard = Heard()
        run(empty_dsn, [sql_step("s", "SELECT 1")], Policy(Limits(timeout)), heard)
        assert any("deadlock_timeout" in event.message for event in heard.all("warning")) == warned


def test_a_signal_undoes_the_step_and_says_what_stands(empty_dsn: str, conn: Conn) -> None:
    def interrupt(event: Event) -> None:
        if event.event == "waiting":
            raise Interrupted(15)

    heard = Heard(interrupt)
    steps = [sql_step(name, f"ALTER TABLE {name} ADD COLUMN x int") for name in "tu"]
    with holding(empty_dsn, "SELECT * FROM u"):
        progress = run(empty_dsn, steps, Policy(Limits(60_000)), heard)
        nobody = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        until(lambda: conn.execute(nobody).fetchone() == (0,), what="the end of the waiting statement")
    assert isinstance(progress.error, Interrupted)
    assert (progress.outcome, progress.done) == ("failed", ["t"])
    assert "nothing of this step stands" in heard.all("interrupted")[0].message


def test_it_queues_behind_others_and_names_them(empty_dsn: str, conn: Conn) -> None:
    with (
        holding(empty_dsn, "SELECT * FROM t") as root,
        waiting(empty_dsn, conn, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE") as ahead,
    ):
        progress = run(empty_dsn, [sql_step("s", "ALTER TABLE t ADD COLUMN x int")], Policy(QUICK, retries=0))
    assert {blocker.pid: blocker.root for blocker in progress.blockers} == {root: True, ahead: False}


def test_a_pause_is_not_cut_short_where_the_blocker_is_still_there(empty_dsn: str, conn: Conn) -> None:
    asked: list[int] = []

    def over() -> bool:
        asked.append(1)
        return False

    backoff.pause(0.6, over)
    assert asked


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"limits": Limits(5_000, statement_timeout_ms=5_000)}, "--statement-timeout"),
        ({"on_block": "terminate"}, "--min-blocker-age"),
        ({"on_block": "kill"}, "--on-block"),
        ({"retries": -1}, "--retries"),
    ],
)
def test_a_policy_without_meaning_is_a_usage_error(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        Policy(**arguments)


@pytest.mark.parametrize("how", ["cancel", "terminate"])
def test_the_root_is_ended_only_when_it_is_old_enough(empty_dsn: str, conn: Conn, how: str) -> None:
    heard = Heard()
    policy = Policy(Limits(1_500), retries=3, on_block=how, min_blocker_age_ms=1)
    step = sql_step("s", "ALTER TABLE t ADD COLUMN x int")
    with holding(empty_dsn, "SELECT * FROM t", "forgotten psql"):
        young = Policy(QUICK, retries=0, on_block=how, min_blocker_age_ms=3_600_000)
        assert run(empty_dsn, [step], young, heard).outcome == "blocked"
        assert not {"cancelled", "terminated", "spared"} & set(heard.names())
        progress = run(empty_dsn, [step], policy, heard)
        if how == "cancel":
            assert progress.outcome == "blocked"
            assert "runs no statement" in heard.all("spared")[0].message
            return
        assert progress.outcome == "done"
        assert "terminated pid" in heard.all("terminated")[0].message
        assert "forgotten psql" in heard.all("terminated")[0].message


def test_the_root_is_ended_first(empty_dsn: str, conn: Conn) -> None:
    policy = Policy(Limits(2_000), retries=3, on_block="terminate", min_blocker_age_ms=1)
    heard = Heard()
    with (
        holding(empty_dsn, "SELECT * FROM t") as root,
        waiting(empty_dsn, conn, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE"),
    ):
        run(empty_dsn, [sql_step("s", "ALTER TABLE t ADD COLUMN x int")], policy, heard)
    assert next(blocker.pid for event in heard.all("terminated") for blocker in event.blockers) == root


def test_the_engine_asks_its_runner_before_each_attempt(empty_dsn: str, conn: Conn) -> None:
    asked: list[int] = []
    with holding(empty_dsn, "SELECT * FROM t"), Database(empty_dsn, "the test", "migrate").connect() as session:
        engine = Engine(session, Policy(QUICK, retries=1), Heard(), lambda: asked.append(1))
        engine.run([sql_step("s", "ALTER TABLE t ADD COLUMN x int")])
    assert len(asked) == 2
