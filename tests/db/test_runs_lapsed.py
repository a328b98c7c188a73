"""Runs that lost their worker: real workers that are killed, and a million runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lockctl.db import Session
from lockctl.runs import reading, store
from lockctl.runs.places import Place, locate
from lockctl.sources import DBOS, RUN_STORE, Source
from tests.support import dbos
from tests.support.sessions import connect
from tests.support.waiting import until

Conn = psycopg.Connection[Any]
TTL_MS = 1_500
ROOT = Path(__file__).parents[2]


@contextmanager
def worker(dsn: str, run: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lease of `run` and renews it."""
    command = [sys.executable, "-m", "tests.support.runworker", dsn, run, str(TTL_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def place_of(session: Session, source: Source) -> Place:
    (found,) = locate(session, [source], None)
    return found


def lapsed(session: Session, place: Place, **options: Any) -> list[str]:
    look = reading.looker(session, place, none_live=True)
    return [run.id for run in reading.lapsed(session, place, look, **options)]


def test_the_runs_of_killed_workers_are_listed_in_order_after_their_ttl_and_live_ones_never(dsn: str) -> None:
    runs = ["r5", "r1", "r4", "r2", "r3", "r0"]  # in the order of their start
    with connect(dsn) as session, ExitStack() as stack:
        for number, run in enumerate(runs):
            store.start(session, run, file="f", movement="m", input_="{}", started_at=f"2026-01-01T00:00:0{number}Z")
        workers = {run: stack.enter_context(worker(dsn, run)) for run in runs}
        place = place_of(session, RUN_STORE)
        dead = ["r1", "r2", "r0"]
        for run in dead:
            workers[run].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        seen: list[tuple[float, list[str]]] = []

        def look() -> bool:
            seen.append((time.monotonic() - killed, lapsed(session, place)))
            return seen[-1][0] > 3 * TTL_MS / 1000

        until(look, deadline=30, what="three TTLs")
    early = [found for at, found in seen if at < TTL_MS / 1000 * 2 / 3 - 0.2]
    late = [found for at, found in seen if at > TTL_MS / 1000 + 0.2]
    assert len(early) > 3
    assert all(found == [] for found in early)
    assert len(late) > 3
    assert all(found == dead for found in late)
    assert all(found == [run for run in dead if run in found] for _, found in seen)


RUNS = 1_000_000
LAPSED = 1_000


@pytest.fixture(scope="module")
def crowded(server: Any, admin: Any, template: str) -> Iterator[str]:
    """A database with a million runs of a run store and of DBOS, of which a thousand lapsed."""
    from tests.support import databases

    with databases.database(admin, server.conninfo, template=template) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            dbos.make(conn, 123)
            conn.execute(
                "INSERT INTO run_store.runs (id, file, movement, status, started_at, input)"
                " SELECT 'r' || n, 'f', 'm', CASE WHEN n %% 100 = 0 THEN 'running' ELSE 'completed' END,"
                " now() - interval '30 days' + n * interval '1 s', '{}' FROM generate_series(1, %s) AS n",
                (RUNS,),
            )
            # 10,000 are running: 9,000 hold a lease, 500 let it lapse, 500 never took one.
            conn.execute(
                "INSERT INTO run_store.leases (run_id, token, expires_at) SELECT id, 't',"
                " now() + CASE WHEN n %% 20 = 1 THEN interval '-1 h' ELSE interval '1 h' END"
                " FROM (SELECT id, row_number() OVER () AS n FROM run_store.runs WHERE status = 'running') AS r"
                " WHERE n %% 20 <> 0".replace("%%", "%")
            )
            conn.execute(
                "INSERT INTO dbos.workflow_status (workflow_uuid, status, name, executor_id, application_version,"
                " created_at) SELECT 'r' || n, CASE WHEN n %% 100 = 0 THEN 'PENDING' ELSE 'SUCCESS' END, 'flow',"
                " CASE WHEN n %% 1000 = 0 THEN 'gone' ELSE 'w1' END, '1.0.0', n FROM generate_series(1, %s) AS n",
                (RUNS,),
            )
            conn.execute("VACUUM ANALYZE")
        yield dsn


@pytest.mark.slow
@pytest.mark.parametrize("source", [RUN_STORE, DBOS], ids=lambda source: source.name)
def test_a_million_runs_with_a_thousand_lapsed_are_answered_through_indexes(
    crowded: str, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans: list[str] = []
    with connect(crowded) as session, dbos.worker(crowded, "w1"):
        place = place_of(session, source)
        lapsed(session, place, limit=1)
        query = Session.query

        def explained(self: Session, statement: Any, params: Any = None, **options: Any) -> Any:
            text = statement if isinstance(statement, str) else statement.as_string()
            if "workflow_status" in text or "run_store" in text:
                (plan,) = query(self, f"EXPLAIN (FORMAT JSON) {text}", params)[0]
                plans.append(json.dumps(plan))
            return query(self, statement, params, **options)

        look = reading.looker(session, place)
        before = time.monotonic()
        tracemalloc.start()
        found = sum(1 for _ in reading.lapsed(session, place, look, stale_ms=60_000))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        took = time.monotonic() - before
        monkeypatch.setattr(Session, "query", explained)
        assert len(lapsed(session, place, limit=10)) == 10
        first = time.monotonic()
        monkeypatch.undo()
        assert len(lapsed(session, place, limit=10)) == 10
        first = time.monotonic() - first
    print(f"{source.name}: {found} lapsed of {RUNS} in {took:.2f} s, the first ten in {first:.3f} s, peak {peak} bytes")
    assert found == LAPSED
    assert plans
    assert not [plan for plan in plans if '"Seq Scan"' in plan]
    assert peak < 8_000_000


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_lapsed_runs(crowded: str) -> None:
    """All ten thousand running runs lapse: ten pages instead of three, and no more memory."""
    peaks = []
    with connect(crowded) as session:
        place = place_of(session, DBOS)
        for limit in (3_000, 10_000):
            look = reading.looker(session, place, none_live=True)
            tracemalloc.start()
            assert sum(1 for _ in reading.lapsed(session, place, look, stale_ms=0, limit=limit)) == limit
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < peaks[0] * 1.2
