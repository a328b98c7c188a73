"""A migration that has to wait gives up after the lock timeout, names who blocked it, and leaves nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy

from lockctl.activity.blockers import sample
from lockctl.db import Database, Session
from lockctl.errors import BlockedError, DeniedError, LockctlError
from lockctl.migrations import bridge, operations
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.monitor import Monitor
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import MigrationRun, quiet

Conn = psycopg.Connection[Any]
SHORT = Limits(lock_timeout_ms=900)


@contextmanager
def bound(session: Session, limits: Limits) -> Iterator[sqlalchemy.Connection]:
    """SQLAlchemy's connection over a session, as a step gets it."""
    policy = Policy(limits)
    with (
        Monitor(session, policy, quiet) as monitor,
        bridge.connection(Attempt(session, policy, monitor, quiet)) as connection,
    ):
        yield connection


@pytest.fixture
def idle(dsn: str) -> Iterator[Conn]:
    """A session that forgot its transaction after reading `verrou`."""
    with psycopg.connect(dsn, application_name="forgotten psql") as conn:
        conn.execute("SELECT count(*) FROM verrou")
        yield conn
        conn.rollback()


def down(dsn: str, target: str, limits: Limits = SHORT) -> MigrationRun:
    database = Database(dsn, "the test", "migrate downgrade", sampler=sample)
    with database.connect(raw_times=False) as session:
        return operations.downgrade(session, target, policy=Policy(limits, retries=0))


def test_behind_an_idle_transaction_it_is_blocked_and_says_by_whom(dsn: str, idle: Conn, conn: Conn) -> None:
    started = time.monotonic()
    run = down(dsn, "plan@base")
    assert 0.8 < time.monotonic() - started < 5
    assert run.result.outcome == "blocked"
    assert isinstance(run.error, BlockedError)
    (blocker,) = run.result.blockers
    assert (blocker.pid, blocker.application) == (idle.info.backend_pid, "forgotten psql")
    assert str(idle.info.backend_pid) in run.error.message
    assert run.result.waited_ms >= 800
    assert run.result.steps == ()
    assert "plan_0001" in run.result.to
    assert conn.execute("SELECT to_regclass('verrou') IS NOT NULL").fetchone() == (True,)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'lockctl migrate%'"
    assert conn.execute(waiting).fetchone() == (0,)


def test_what_was_committed_before_it_stays_and_is_named(dsn: str, idle: Conn) -> None:
    run = down(dsn, "base")
    assert run.result.outcome == "blocked"
    assert run.result.steps == ("ffdb_0001", "n8n_0001")
    assert run.result.to == ("plan_0001", "runs_0001")


def test_it_goes_on_when_the_blocker_leaves_in_time(dsn: str, idle: Conn) -> None:
    import threading

    leaving = threading.Timer(0.5, idle.rollback)
    leaving.start()
    try:
        assert down(dsn, "plan@base", Limits(lock_timeout_ms=8_000)).result.outcome == "done"
    finally:
        leaving.join()


def test_the_limits_are_local_to_each_transaction_and_read_back(dsn: str) -> None:
    with Database(dsn, "the test", "migrate", lock_timeout_ms=None).connect(raw_times=False) as session:
        with bound(session, Limits(lock_timeout_ms=1234, statement_timeout_ms=60_000)) as connection:
            for _ in range(2):
                with connection.begin() as transaction:
                    shown = connection.exec_driver_sql("SHOW lock_timeout").scalar()
                    assert shown == "1234ms"
                    assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "1min"
                    transaction.rollback()
        assert session.one("SHOW lock_timeout") == ("0",)


def test_through_a_pooler_the_limits_hold_beside_queries_of_the_session(pgbouncer_dsn: str) -> None:
    with Database(pgbouncer_dsn, "the test", "migrate").connect(raw_times=False) as session:
        assert session.pooled
        with bound(session, Limits(lock_timeout_ms=1234)) as connection, connection.begin():
            for _ in range(2):
                assert session.one("SHOW lock_timeout") == ("1234ms",)
                assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "1234ms"


def test_a_limit_that_is_not_in_force_is_an_error(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Database(dsn, "the test", "migrate").connect(raw_times=False) as session:
        real = session.conn.execute

        def tampered(query: Any, *args: Any) -> Any:
            return real(query, *args) if "pg_settings" in str(query) else real("SELECT 1")

        monkeypatch.setattr(session.conn, "execute", tampered)
        with (
            pytest.raises(LockctlError, match="not in force"),
            bound(session, Limits(lock_timeout_ms=77)) as connection,
        ):
            connection.begin()


def test_nothing_is_prepared_under_sqlalchemy(dsn: str) -> None:
    with Database(dsn, "the test", "migrate").connect(raw_times=False) as session:
        with bound(session, Limits()) as connection, connection.begin():
            for _ in range(20):
                connection.exec_driver_sql("SELECT %(n)s::int", {"n": 1})
            prepared = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar()
        assert prepared == 0


def test_a_missing_privilege_is_named(empty_dsn: str, admin: Conn) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as owner:
        role = owner.execute("SELECT 'reader_' || substr(md5(random()::text), 1, 8)").fetchone()
        assert role is not None
        owner.execute(f"CREATE ROLE {role[0]} LOGIN")
        owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        try:
            run_dsn = psycopg.conninfo.make_conninfo(empty_dsn, user=role[0])
            with Database(run_dsn, "the test", "migrate").connect(raw_times=False) as session:
                run = operations.upgrade(session, "ffdb@head")
            assert isinstance(run.error, DeniedError)
            assert run.error.message == f"role {role[0]} lacks CREATE on schema public"
            assert run.error.hint == f"its owner can run: GRANT CREATE ON SCHEMA public TO {role[0]}"
            owner.execute(f"GRANT CREATE ON SCHEMA public TO {role[0]}")
            with Database(run_dsn, "the test", "migrate").connect(raw_times=False) as session:
                run = operations.upgrade(session, "runs@head")
            assert isinstance(run.error, DeniedError)
            assert f"role {role[0]} lacks CREATE on database" in run.error.message
        finally:
            owner.execute(f"DROP OWNED BY {role[0]}; DROP ROLE {role[0]}")


def test_through_a_pooler_in_transaction_mode(pgbouncer_dsn: str) -> None:
    for operation, target in ((operations.downgrade, "base"), (operations.upgrade, "heads")):
        with Database(pgbouncer_dsn, "the test", "migrate").connect(raw_times=False) as session:
            assert session.pooled
            run = operation(session, target)
            assert (run.result.outcome, run.error) == ("done", None)
