"""Cases 9, 10 and 11: many rows, many at once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import psycopg
import pytest

from lockctl.catalog import BUILT_IN
from lockctl.db import Database, Session
from lockctl.leases import operations as leases
from lockctl.leases import sweep as sweeping
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from lockctl.records import LockRow, SweepResult
from tests.support.cli import LOCKCTL, clean_env
from tests.support.waiting import until

MANY = 100_000


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    with Database(dsn=dsn, source="the tests", command="test").connect() as opened:
        yield opened


def ffdb(session: Session) -> LockedTable:
    return LockedTable.of(describe(session, BUILT_IN[0], None))


def fill(conn: psycopg.Connection[Any], count: int, *, lapsed_s: int = 3600) -> None:
    conn.execute(
        "INSERT INTO ffdb_locks SELECT 'k' || lpad(n::text, 7, '0'), 'h' || n, now() - %s * interval '1 s', now()"
        " FROM generate_series(1, %s) AS n",
        (lapsed_s, count),
    )


def swept(session: Session, plan: sweeping.Plan) -> tuple[SweepResult, list[LockRow]]:
    tally = sweeping.Tally(ffdb(session))
    rows = list(sweeping.sweep(session, tally, plan))
    return tally.result(), rows


def test_two_sweeps_at_once_share_the_rows_and_count_none_twice(dsn: str, conn: psycopg.Connection[Any]) -> None:
    """Case 9: over 100,000 rows: disjoint, whole in sum, batched; what is still held stays."""
    fill(conn, MANY)
    conn.execute("INSERT INTO ffdb_locks VALUES ('live', 'h', now() + interval '1 h')")

    def run(_number: int) -> tuple[SweepResult, list[LockRow]]:
        with Database(dsn=dsn, source="the tests", command="test").connect() as session:
            return swept(session, sweeping.Plan(rows=True))

    with ThreadPoolExecutor(2) as pool:
        (one, first), (other, second) = pool.map(run, range(2))
    keys = [row.key for row in first + second]
    assert len(keys) == len(set(keys)) == MANY == one.swept + other.swept
    assert (len(first), len(second)) == (one.swept, other.swept)
    assert conn.execute("SELECT array_agg(lock_key) FROM ffdb_locks").fetchone() == (["live"],)


def test_a_sweep_commits_batch_by_batch(session: Session, conn: psycopg.Connection[Any]) -> None:
    """An operator's tool is no long transaction: each batch is gone before the next is looked at."""
    fill(conn, 1000)
    left: list[int] = []

    def look(_count: int) -> None:
        row = conn.execute("SELECT count(*) FROM ffdb_locks").fetchone()
        assert row is not None
        left.append(row[0])

    list(sweeping.sweep(session, sweeping.Tally(ffdb(session)), sweeping.Plan(batch=250), look))
    assert left[:4] == [750, 500, 250, 0]


@pytest.mark.parametrize("change", ["renewed", "taken over", "deleted"])
def test_a_row_that_changes_between_the_look_and_the_delete_stays(
    dsn: str, conn: psycopg.Connection[Any], change: str
) -> None:
    """Case 9: the sweep has seen the row lapsed and is held up; the row that it then finds is judged anew."""
    fill(conn, 10)
    conn.execute(
        "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN OLD; END'"
    )
    conn.execute("CREATE TRIGGER hold BEFORE DELETE ON ffdb_locks FOR EACH ROW EXECUTE FUNCTION hold()")
    statement = {
        "renewed": "UPDATE ffdb_locks SET expires_at = now() + interval '1 h' WHERE lock_key = 'k0000009'",
        "taken over": "UPDATE ffdb_locks SET lock_id = 'new', expires_at = now() + interval '1 h'"
        " WHERE lock_key = 'k0000009'",
        "deleted": "DELETE FROM ffdb_locks WHERE lock_key = 'k0000009'",
    }[change]

    def run() -> SweepResult:
        with Database(dsn=dsn, source="the tests", command="test").connect() as session:
            return swept(session, sweeping.Plan(batch=5))[0]

    with psycopg.connect(dsn, autocommit=True) as gate, ThreadPoolExecutor(1) as pool:
        gate.execute("SELECT pg_advisory_lock(7)")
        answer = pool.submit(run)
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        until(lambda: conn.execute(waits.encode()).fetchone() == (1,), what="the sweep at its first delete")
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute("SET session_replication_role = replica")
            owner.execute(statement.encode())
        gate.execute("SELECT pg_advisory_unlock(7)")
        result = answer.result(60)
    assert (result.swept, result.skipped) == (9, 0)
    left = conn.execute("SELECT count(*) FROM ffdb_locks").fetchone()
    assert left == (0 if change == "deleted" else 1,)


def test_a_batch_of_locked_rows_starves_nobody(dsn: str, session: Session, conn: psycopg.Connection[Any]) -> None:
    """Case 10: the first three batches are locked by others; the rest is swept, and the locked are counted."""
    fill(conn, 100)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT 1 FROM ffdb_locks ORDER BY lock_key LIMIT 30 FOR UPDATE")
        result, _ = swept(session, sweeping.Plan(batch=10))
        assert (result.swept, result.skipped) == (70, 30)
        limited, _ = swept(session, sweeping.Plan(batch=10, limit=5))
        assert (limited.swept, limited.skipped) == (0, 30)
    result, _ = swept(session, sweeping.Plan(batch=10))
    assert (result.swept, result.skipped) == (30, 0)


def test_a_limit_ends_a_sweep_among_locked_rows(dsn: str, session: Session, conn: psycopg.Connection[Any]) -> None:
    fill(conn, 50)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT 1 FROM ffdb_locks WHERE right(lock_key, 1) IN ('1', '2') FOR SHARE")
        result, rows = swept(session, sweeping.Plan(batch=4, limit=12, rows=True))
        assert (result.swept, len(rows)) == (12, 12)
        assert result.skipped == 4
    assert conn.execute("SELECT count(*) FROM ffdb_locks").fetchone() == (38,)


def test_sweeps_beside_acquires_lose_no_live_lease(dsn: str, conn: psycopg.Connection[Any]) -> None:
    """Rows lapse, are taken over and swept at once: whoever was granted a lease has it afterwards."""
    fill(conn, 2000)
    database = Database(dsn=dsn, source="the tests", command="test")

    def take(number: int) -> list[str]:
        with database.connect() as session:
            table = ffdb(session)
            mine = []
            for key in range(number + 1, 2001, 3):
                word = f"k{key:07}"
                taken = leases.acquire(session, table, (word,), f"owner {number}", 3_600_000)
                mine += [word] if taken.outcome == "acquired" else []
            return mine

    def sweep(_number: int) -> int:
        with database.connect() as session:
            return swept(session, sweeping.Plan(batch=20, grace_ms=0))[0].swept

    with ThreadPoolExecutor(5) as pool:
        sweeps = [pool.submit(sweep, number) for number in range(2)]
        owners = list(pool.map(take, range(3)))
        assert all(future.result(60) >= 0 for future in sweeps)
    found = conn.execute("SELECT lock_key, lock_id FROM ffdb_locks").fetchall()
    expected = {(word, f"owner {number}") for number, words in enumerate(owners) for word in words}
    assert len(expected) == 2000
    assert set(found) == expected


@pytest.mark.slow
def test_a_million_rows_stream_in_constant_memory_and_a_page_of_them_counts_none(
    dsn: str, conn: psycopg.Connection[Any]
) -> None:
    """Case 11: the whole list in less memory than a tenth of it takes, and `--limit 50` by one short index scan."""
    fill(conn, 1_000_000)
    conn.execute("ANALYZE ffdb_locks")
    scans = "SELECT coalesce(seq_scan, 0) FROM pg_stat_user_tables WHERE relname = 'ffdb_locks'"
    before = conn.execute(scans.encode()).fetchone()

    limited = subprocess.run(
        [*LOCKCTL, "-f", "jsonl", "inspect", "ffdb_locks", "--limit", "50"],
        env=clean_env(dsn),
        capture_output=True,
        check=True,
    )
    assert [json.loads(line)["key"] for line in limited.stdout.splitlines()] == [
        [f"k{number:07}"] for number in range(1, 51)
    ]
    with subprocess.Popen(
        [*LOCKCTL, "-f", "jsonl", "inspect", "ffdb_locks"], env=clean_env(dsn), stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        peak, size, lines = 0, 0, 0
        watched = psutil.Process(process.pid)
        while chunk := process.stdout.read(1 << 20):
            size += len(chunk)
            lines += chunk.count(b"\n")
            if watched.status() != psutil.STATUS_ZOMBIE:
                peak = max(peak, watched.memory_info().rss)
        assert process.wait(60) == 0
    assert lines == 1_000_000
    assert peak < 100 << 20, f"{peak >> 20} MB for {size >> 20} MB of output"
    assert conn.execute(scans.encode()).fetchone() == before


def test_a_paused_reader_holds_no_transaction_open(dsn: str, conn: psycopg.Connection[Any]) -> None:
    fill(conn, 30_000)
    command = [*LOCKCTL, "-f", "jsonl", "inspect", "ffdb_locks"]
    with subprocess.Popen(command, env=clean_env(dsn), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        idle = (
            "SELECT state, xact_start FROM pg_stat_activity WHERE application_name LIKE 'lockctl inspect %'"
            " AND datname = current_database()"
        )
        until(lambda: conn.execute(idle.encode()).fetchall() == [("idle", None)], what="an idle session")
        assert process.poll() is None
        assert len(process.stdout.read().splitlines()) == 29_999
        assert process.wait(30) == 0
