"""The runner's lock: one migration at a time, whoever holds it is named, and a waiting one stands in nobody's way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.activity.blockers import sample
from lockctl.db import Database, Session
from lockctl.errors import BusyError, UnreachableError, UsageError
from lockctl.migrations import operations, runner
from lockctl.migrations.engine import Engine
from lockctl.migrations.policy import Limits, Policy
from tests.support.migrating import Heard, alone_step
from tests.support.waiting import until

Conn = psycopg.Connection[Any]
AT_ONCE = Policy(runner_wait_ms=0)


def database(dsn: str) -> Database:
    return Database(dsn, "the test", "migrate upgrade", sampler=sample)


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


def test_a_second_one_is_busy_and_names_the_first(empty_dsn: str) -> None:
    with runner.held(database(empty_dsn), AT_ONCE, Heard()) as first:
        with pytest.raises(BusyError) as busy, runner.held(database(empty_dsn), AT_ONCE, Heard()):
            pass
        assert f"pid {first.session.pid}" in busy.value.message
        assert [blocker.kind for blocker in busy.value.details["blockers"]] == ["own"]
    with runner.held(database(empty_dsn), AT_ONCE, Heard()):
        pass


def test_it_waits_its_budget_and_gets_the_lock_when_it_is_free(empty_dsn: str) -> None:
    heard = Heard()
    taken = threading.Event()

    def second() -> None:
        with runner.held(database(empty_dsn), Policy(runner_wait_ms=20_000), heard):
            taken.set()

    thread = threading.Thread(target=second)
    with runner.held(database(empty_dsn), AT_ONCE, Heard()) as first:
        thread.start()
        until(lambda: heard.all("runner"), what="the second one's word")
        assert f"pid {first.session.pid}" in heard.all("runner")[0].message
        assert not taken.is_set()
    thread.join(20)
    assert taken.is_set()


def test_two_databases_do_not_exclude_each_other(empty_dsn: str, server: Any) -> None:
    with runner.held(database(empty_dsn), AT_ONCE, Heard()), runner.held(database(server.conninfo), AT_ONCE, Heard()):
        pass


@pytest.mark.parametrize(
    ("key", "statement"),
    [
        ("4711", "SELECT pg_advisory_lock(4711)"),
        ("-1", "SELECT pg_advisory_lock(-1)"),
        (str(2**62 + 5), f"SELECT pg_advisory_lock({2**62 + 5})"),
        ("7,-9", "SELECT pg_advisory_lock(7, -9)"),
    ],
)
def test_an_applications_lock_is_taken_too(empty_dsn: str, conn: Conn, key: str, statement: str) -> None:
    policy = Policy(runner_wait_ms=0, advisory_locks=(key,))
    with runner.held(database(empty_dsn), policy, Heard()) as held:
        assert conn.execute(statement.replace("pg_advisory", "pg_try_advisory").encode()).fetchone() == (False,)
        held.check()
    conn.execute(statement.encode())
    with pytest.raises(BusyError) as busy, runner.held(database(empty_dsn), policy, Heard()):
        pass
    assert f"advisory lock {key} is held by pid {conn.info.backend_pid}" in busy.value.message
    # Ours went back, too.
    with runner.held(database(empty_dsn), AT_ONCE, Heard()):
        pass


@pytest.mark.parametrize("key", ["", "x", "1,2,3", str(2**63), "1,2147483648", "0x10"])
def test_a_key_that_is_none_is_a_usage_error(key: str) -> None:
    with pytest.raises(UsageError, match="--advisory-lock"):
        runner.parse(key)


def test_a_lock_that_was_lost_stops_before_the_next_attempt(empty_dsn: str, conn: Conn) -> None:
    heard = Heard()
    with runner.held(database(empty_dsn), AT_ONCE, heard) as held:
        held.check()
        conn.execute("SELECT pg_terminate_backend(%s)", (held.session.pid,))
        with pytest.raises(UnreachableError, match="runner's lock was lost"):
            held.check()
    assert "went with its connection" in heard.all("warning")[0].message


def test_a_lock_that_somebody_gave_away_is_told_at_the_release(empty_dsn: str) -> None:
    heard = Heard()
    with runner.held(database(empty_dsn), AT_ONCE, heard) as held:
        held.session.query("SELECT pg_advisory_unlock_all()")
        with pytest.raises(UnreachableError, match="runner's lock was lost"):
            held.check()
    assert "was lost meanwhile" in heard.all("warning")[0].message


def test_a_waiting_runner_does_not_stand_in_the_way_of_concurrently(empty_dsn: str, conn: Conn) -> None:
    conn.execute("CREATE TABLE t (x int)")
    heard = Heard()

    def second() -> None:
        with runner.held(database(empty_dsn), Policy(runner_wait_ms=30_000), heard):
            pass

    thread = threading.Thread(target=second)
    with runner.held(database(empty_dsn), AT_ONCE, Heard()), session(empty_dsn) as ours:
        thread.start()
        until(lambda: heard.all("runner"), what="the second one's waiting")
        policy = Policy(Limits(index_lock_timeout_ms=10_000))
        steps = [alone_step("s", "CREATE INDEX CONCURRENTLY i ON t (x)")]
        assert Engine(ours, policy, Heard()).run(steps).outcome == "done"
    thread.join(30)


def session(dsn: str) -> Session:
    return database(dsn).connect(raw_times=False)


def test_two_upgrades_at_once_one_applies_and_both_are_content(empty_dsn: str) -> None:
    outcomes: list[str] = []

    def upgrade() -> None:
        with session(empty_dsn) as ours:
            outcomes.append(operations.upgrade(ours, "heads").result.outcome)

    threads = [threading.Thread(target=upgrade) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["done", "nothing"]


def test_a_busy_upgrade_is_a_result(empty_dsn: str) -> None:
    with runner.held(database(empty_dsn), AT_ONCE, Heard()), session(empty_dsn) as ours:
        run = operations.upgrade(ours, "heads", policy=AT_ONCE)
    assert (run.result.outcome, run.result.steps, run.result.to) == ("busy", (), ())
    assert isinstance(run.error, BusyError)
    assert [blocker.kind for blocker in run.result.blockers] == ["own"]


def test_through_a_pooler_the_lock_holds_as_well(pgbouncer_dsn: str, conn: Conn) -> None:
    heard = Heard()
    with runner.held(database(pgbouncer_dsn), AT_ONCE, heard) as first:
        assert first.session.pooled
        first.check()
        with pytest.raises(BusyError), runner.held(database(pgbouncer_dsn), AT_ONCE, Heard()):
            pass
        first.check()
    assert "direct connection" in heard.all("warning")[0].message
    with runner.held(database(pgbouncer_dsn), AT_ONCE, Heard()):
        pass
