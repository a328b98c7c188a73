"""CREATE INDEX CONCURRENTLY: what a failed one leaves is named, and a new run rebuilds ours and touches no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.errors import Interrupted, PartialError
from lockctl.migrations import indexes
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event
from tests.support.blocked import holding, waiting
from tests.support.migrating import Heard, alone_step, run
from tests.support.waiting import until

Conn = psycopg.Connection[Any]
CREATE = "CREATE INDEX CONCURRENTLY ours ON t (x)"
# What CREATE INDEX CONCURRENTLY waits for: a transaction that may write; an idle reader it does not wait for.
WRITER = "LOCK TABLE t IN ROW EXCLUSIVE MODE"
PATIENT = Policy(Limits(lock_timeout_ms=300, statement_timeout_ms=400))
HASTY = Policy(Limits(lock_timeout_ms=300, index_lock_timeout_ms=400))


@pytest.fixture
def conn(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int); CREATE SCHEMA s; CREATE TABLE s.t (x int)")
        conn.execute("CREATE TABLE other (x int)")
        yield conn


def found(conn: Conn) -> dict[str, bool]:
    """The indexes and whether each is valid."""
    rows = conn.execute(
        "SELECT indexrelid::regclass::text, indisvalid FROM pg_index i JOIN pg_class c ON c.oid = indrelid"
        " WHERE NOT indisprimary AND relnamespace IN ('public'::regnamespace, 's'::regnamespace)"
    )
    return dict(rows.fetchall())


def leave_invalid(conn: Conn, statement: str) -> None:
    """A unique index over duplicates fails at the end, and stays INVALID."""
    table = statement.partition(" ON ")[2].partition(" ")[0]
    conn.execute(f"INSERT INTO {table} (x) VALUES (1), (1)" if table != "t" else "INSERT INTO t VALUES (1, 1), (2, 1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute(statement.replace("CREATE INDEX", "CREATE UNIQUE INDEX").encode())


def test_it_waits_for_old_snapshots_beyond_the_lock_and_statement_timeouts(empty_dsn: str, conn: Conn) -> None:
    with psycopg.connect(empty_dsn) as old:
        old.execute("SET default_transaction_isolation = 'repeatable read'")
        old.commit()
        old.execute("SELECT * FROM other")

        def leave(event: Event) -> None:
            if event.event == "progress" and (event.waited_ms or 0) > 900:
                old.rollback()

        progress = run(empty_dsn, [alone_step("s", CREATE)], PATIENT, Heard(leave))
    assert (progress.outcome, progress.attempts) == ("done", 1)
    assert progress.waited_ms > 900
    assert found(conn) == {"ours": True}


def test_a_failure_names_the_new_invalid_index_and_a_rerun_rebuilds_it(empty_dsn: str, conn: Conn) -> None:
    with holding(empty_dsn, WRITER) as idle:
        progress = run(empty_dsn, [alone_step("s", CREATE)], HASTY)
    assert (progress.outcome, progress.attempts) == ("partial", 1)
    assert isinstance(progress.error, PartialError)
    assert "the INVALID index public.ours" in progress.error.message
    assert f"pid {idle}" in progress.error.message
    assert [blocker.pid for blocker in progress.blockers] == [idle]
    assert found(conn) == {"ours": False}

    heard = Heard()
    again = run(empty_dsn, [alone_step("s", CREATE)], HASTY, heard)
    assert again.outcome == "done"
    assert "public" in heard.all("dropped")[0].message
    assert found(conn) == {"ours": True}


@pytest.mark.parametrize("statement", ["CREATE INDEX CONCURRENTLY IF NOT EXISTS ours ON t (x)", CREATE])
def test_if_not_exists_does_not_take_an_invalid_index_for_the_real_one(
    empty_dsn: str, conn: Conn, statement: str
) -> None:
    leave_invalid(conn, CREATE)
    assert found(conn) == {"ours": False}
    assert run(empty_dsn, [alone_step("s", statement)], PATIENT).outcome == "done"
    assert found(conn) == {"ours": True}


def test_a_valid_index_is_left_and_no_other_is_touched(empty_dsn: str, conn: Conn) -> None:
    conn.execute("CREATE INDEX ours ON t (x)")
    leave_invalid(conn, "CREATE INDEX CONCURRENTLY theirs ON t (x)")
    leave_invalid(conn, "CREATE INDEX CONCURRENTLY ours ON s.t (x)")
    heard = Heard()
    statement = "CREATE INDEX CONCURRENTLY IF NOT EXISTS ours ON public.t (x)"
    assert run(empty_dsn, [alone_step("s", statement)], PATIENT, heard).outcome == "done"
    assert not heard.all("dropped")
    assert found(conn) == {"ours": True, "theirs": False, "s.ours": False}


def test_an_index_that_somebody_is_building_is_not_dropped(empty_dsn: str, conn: Conn) -> None:
    with holding(empty_dsn, WRITER), waiting(empty_dsn, conn, CREATE, autocommit=True) as builder:
        until(lambda: found(conn) == {"ours": False}, what="the index that is being built")
        heard = Heard()
        once = Policy(HASTY.limits, retries=0)
        progress = run(empty_dsn, [alone_step("s", CREATE)], once, heard)
        assert not heard.all("dropped")
        assert progress.outcome == "blocked"
        assert builder in [blocker.pid for blocker in progress.blockers]
        assert found(conn) == {"ours": False}


def test_a_signal_in_the_middle_names_what_stands(empty_dsn: str, conn: Conn) -> None:
    def interrupt(event: Event) -> None:
        if event.event == "waiting":
            raise Interrupted(2)

    heard = Heard(interrupt)
    with holding(empty_dsn, WRITER):
        progress = run(empty_dsn, [alone_step("s", CREATE)], PATIENT, heard)
    assert isinstance(progress.error, Interrupted)
    assert progress.outcome == "partial"
    assert "INVALID index public.ours" in heard.all("interrupted")[0].message


def test_one_that_left_nothing_is_tried_again(empty_dsn: str, conn: Conn) -> None:
    with psycopg.connect(empty_dsn) as other:
        other.execute("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")

        def leave(event: Event) -> None:
            if event.event == "retry":
                other.rollback()

        progress = run(empty_dsn, [alone_step("s", CREATE)], HASTY, Heard(leave))
    assert (progress.outcome, progress.attempts) == ("done", 2)


def test_reindex_concurrently_names_the_copy_that_it_left(empty_dsn: str, conn: Conn) -> None:
    conn.execute("CREATE INDEX ours ON t (x)")
    with holding(empty_dsn, WRITER):
        progress = run(empty_dsn, [alone_step("s", "REINDEX INDEX CONCURRENTLY ours")], HASTY)
    assert progress.outcome == "partial"
    assert isinstance(progress.error, PartialError)
    assert "ours_ccold" in progress.error.message or "ours_ccnew" in progress.error.message
    assert "DROP INDEX CONCURRENTLY" in progress.error.message


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (CREATE, True),
        ("DROP INDEX CONCURRENTLY ours", True),
        ("REINDEX TABLE CONCURRENTLY t", True),
        ("VACUUM (ANALYZE) t", True),
        ("VACUUM FULL t", False),
        ("CREATE INDEX ours ON t (x)", False),
        ("SELECT 'concurrently'", False),
        ("REFRESH MATERIALIZED VIEW CONCURRENTLY m", False),
        ("ALTER TABLE p DETACH PARTITION c CONCURRENTLY", False),
        ("this is not SQL, concurrently", False),
    ],
)
def test_what_waits_without_making_others_wait(statement: str, expected: bool) -> None:
    assert indexes.concurrent(statement) == expected


def test_quoted_names_are_found(empty_dsn: str, conn: Conn) -> None:
    conn.execute('CREATE SCHEMA "S x"; CREATE TABLE "S x"."T.y" (x int)')
    conn.execute('INSERT INTO "S x"."T.y" VALUES (1), (1)')
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute('CREATE UNIQUE INDEX CONCURRENTLY "O ""q" ON "S x"."T.y" (x)')
    heard = Heard()
    statement = 'CREATE INDEX CONCURRENTLY "O ""q" ON "S x"."T.y" (x)'
    assert run(empty_dsn, [alone_step("s", statement)], PATIENT, heard).outcome == "done"
    assert len(heard.all("dropped")) == 1


def test_a_waiter_of_somebody_else_is_not_ours_to_count(empty_dsn: str, conn: Conn) -> None:
    """Building makes nobody wait: a writer goes on while the index waits for an open transaction."""
    with holding(empty_dsn, WRITER), psycopg.connect(empty_dsn, autocommit=True) as writer:

        def write(event: Event) -> None:
            if event.event == "waiting":
                writer.execute("SET lock_timeout = '100ms'")
                writer.execute("INSERT INTO t VALUES (77, 7)")

        run(empty_dsn, [alone_step("s", CREATE)], HASTY, Heard(write))
    assert conn.execute("SELECT x FROM t WHERE id = 77").fetchone() == (7,)
