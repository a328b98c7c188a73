"""DBOS's runs: which of them nobody will recover, on every schema version that is known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from lockctl.db import Session
from lockctl.errors import BehindError
from lockctl.runs import buried, queues, reading
from lockctl.runs.detail import detail
from lockctl.runs.places import Place, locate, present
from lockctl.runs.reading import Tally
from lockctl.runs.records import Run
from lockctl.sources import DBOS
from tests.support import dbos
from tests.support.sessions import connect

Conn = psycopg.Connection[tuple[object, ...]]


@pytest.fixture(params=dbos.VERSIONS)
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def db(empty_dsn: str, version: int) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        dbos.make(conn, version)
        yield conn


@pytest.fixture
def session(db: Conn, empty_dsn: str) -> Iterator[Session]:
    with connect(empty_dsn, read_only=True) as fresh:
        yield fresh


@pytest.fixture
def place(session: Session) -> Place:
    (found,) = locate(session, [DBOS], None)
    return found


def lapsed(session: Session, place: Place, *, tally: Tally | None = None, **said: object) -> list[Run]:
    look = reading.looker(session, place, **said)  # type: ignore[arg-type]
    return list(reading.lapsed(session, place, look, stale_ms=60_000, tally=tally))


def classes(runs: list[Run]) -> dict[str, str | None]:
    return {run.id: run.class_ for run in runs}


def test_a_run_is_classed_by_what_its_executor_shows(db: Conn, session: Session, place: Place, empty_dsn: str) -> None:
    dbos.run(db, "alive", executor_id="w1")
    dbos.run(db, "gone", executor_id="w2")
    dbos.run(db, "old", executor_id="w1", application_version="0.9")
    dbos.run(db, "nobody's", executor_id=None)
    with dbos.worker(empty_dsn, "w1"):
        found = lapsed(session, place)
    assert classes(found) == {"gone": "executor_gone", "old": "version_gone", "nobody's": "no_executor"}
    assert {run.holder for run in found} == {"w1", "w2", None}
    assert "dbos_transact_w2_1.0.0" in next(run.evidence or "" for run in found if run.id == "gone")


def test_a_live_executor_of_another_application_recovers_nothing(
    db: Conn, session: Session, place: Place, empty_dsn: str, version: int
) -> None:
    if version < 108:
        pytest.skip("applications have names since schema 100")
    dbos.launched(db, "1.0.0", "chorus")
    dbos.run(db, "theirs", application_name="chorus")
    dbos.run(db, "ours", application_name="flow")
    dbos.run(db, "anyone's")
    with dbos.worker(empty_dsn, "w1"):
        assert classes(lapsed(session, place)) == {"ours": "application_gone"}


def test_enqueued_runs_carry_the_id_of_whoever_enqueued_them_and_are_no_orphans(
    db: Conn, session: Session, place: Place, empty_dsn: str
) -> None:
    for status in ("ENQUEUED", "DELAYED", "SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"):
        dbos.run(db, status, status=status, executor_id="gone")
    with dbos.worker(empty_dsn, "w1"):
        assert lapsed(session, place) == []


def test_the_sessions_of_the_command_line_are_no_evidence(
    db: Conn, session: Session, place: Place, empty_dsn: str
) -> None:
    dbos.run(db, "r", executor_id="local")
    tally = Tally()
    with dbos.worker(empty_dsn, "local", ""):
        assert lapsed(session, place, tally=tally) == []
        assert tally.undecided == 1
        with dbos.worker(empty_dsn, "w1"):
            assert classes(lapsed(session, place)) == {"r": "executor_gone"}


def test_without_any_evidence_runs_are_counted_and_not_called_lapsed(db: Conn, session: Session, place: Place) -> None:
    dbos.run(db, "r")
    dbos.run(db, "nobody's", executor_id=None)
    tally = Tally()
    assert classes(lapsed(session, place, tally=tally)) == {"nobody's": "no_executor"}
    assert (tally.undecided, tally.executors) == (1, {"w1"})
    assert lapsed(session, place, live=["w1"], none_live=False)[0].id == "nobody's"
    assert classes(lapsed(session, place, none_live=True)) == {"r": "executor_gone", "nobody's": "no_executor"}


def test_sessions_of_another_database_are_no_evidence(db: Conn, session: Session, place: Place, dsn: str) -> None:
    dbos.run(db, "r")
    tally = Tally()
    with dbos.worker(dsn, "w1"):
        assert lapsed(session, place, tally=tally) == []
    assert tally.undecided == 1


def test_age_is_that_of_its_creation_and_they_come_oldest_first(db: Conn, session: Session, place: Place) -> None:
    for run, age in (("b", "2 hours"), ("c", "1 hour"), ("a", "3 hours"), ("young", "30 s")):
        dbos.run(db, run, age=age)
    found = lapsed(session, place, none_live=True)
    assert [run.id for run in found] == ["a", "b", "c"]
    assert found[0].age_ms is not None
    assert found[0].age_ms // 60_000 == 180


def test_a_run_says_its_queue_its_slot_its_attempts_its_deadline_and_its_steps(
    db: Conn, session: Session, place: Place
) -> None:
    past = "(EXTRACT(epoch FROM now() - interval '1 min') * 1000)::bigint"
    dbos.run(db, "r", queue_name="q", recovery_attempts=3)
    dbos.run(db, "s", queue_name="q")
    dbos.run(db, "plain")
    dbos.run(db, "waiting", queue_name="q", status="ENQUEUED")
    db.execute(f"UPDATE dbos.workflow_status SET workflow_deadline_epoch_ms = {past} WHERE workflow_uuid = 'r'")
    dbos.step(db, "r", 1, "fetch", started="-9 min", completed="-8 min")
    dbos.step(db, "r", 2, "DBOS.sleep", started="-7 min", completed="1 hour")
    tally = Tally()
    found = {run.id: run for run in lapsed(session, place, none_live=True, tally=tally)}
    run = found["r"]
    assert (run.queue, run.queue_slots, run.attempts) == ("q", 1, 3)
    assert (found["plain"].queue, found["plain"].queue_slots) == (None, None)
    steps = db.execute("SELECT started_at_epoch_ms, completed_at_epoch_ms FROM dbos.operation_outputs ORDER BY 1 DESC")
    newest = steps.fetchone()
    assert newest is not None
    assert run.last_activity_at == _text(db, newest[0])
    assert run.sleeping_until == _text(db, newest[1])
    assert run.deadline_at is not None
    assert "past its deadline" in (run.evidence or "")
    assert found["plain"].last_activity_at is None
    assert tally.slots == {"q": 2}
    assert queues.slots(session, place, ["q"]) == {"q": 2}


def _text(db: Conn, epoch_ms: object) -> str:
    row = db.execute(
        "SELECT to_char(to_timestamp(%s / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')", (epoch_ms,)
    ).fetchone()
    assert row is not None
    return str(row[0])


def test_a_sleep_that_is_over_is_no_sleep(db: Conn, session: Session, place: Place) -> None:
    dbos.run(db, "r")
    dbos.step(db, "r", 1, "DBOS.sleep", started="-7 min", completed="-1 min")
    (run,) = lapsed(session, place, none_live=True)
    assert run.sleeping_until is None


def test_pages_of_runs_of_one_moment_are_complete(db: Conn, session: Session, place: Place) -> None:
    db.execute(
        "INSERT INTO dbos.workflow_status (workflow_uuid, status, executor_id, created_at)"
        " SELECT 'r' || n, 'PENDING', 'gone', 1000 FROM generate_series(1, 2500) AS n"
    )
    found = lapsed(session, place, none_live=True)
    assert len({run.id for run in found}) == len(found) == 2500


def test_buried_are_runs_that_were_recovered_too_often(db: Conn, session: Session, place: Place, version: int) -> None:
    dbos.run(
        db,
        "r",
        status="MAX_RECOVERY_ATTEMPTS_EXCEEDED",
        recovery_attempts=51,
        completed_at=1_700_000_000_000,
        inputs='{"json": [1]}' if version < 123 else None,
    )
    if version >= 123:
        db.execute("INSERT INTO dbos.workflow_input (workflow_uuid, inputs) VALUES ('r', %s)", ('{"json": [1]}',))
    dbos.run(db, "other", status="ERROR")
    (found,) = buried.buried(session, place)
    assert (found.source, found.id, found.kind, found.key, found.attempts) == ("dbos", "r", "flow", None, 51)
    assert found.reason == "MAX_RECOVERY_ATTEMPTS_EXCEEDED"
    assert found.buried_at == "2023-11-14T22:13:20.000000Z"
    assert found.payload == {"json": [1]}
    (counted,) = buried.summary(session, place)
    assert (counted.kind, counted.reason, counted.count) == ("flow", "MAX_RECOVERY_ATTEMPTS_EXCEEDED", 1)
    assert list(buried.buried(session, place, kind="other")) == []


def test_a_burial_that_left_no_time_of_its_end_was_the_last_change(db: Conn, session: Session, place: Place) -> None:
    dbos.run(db, "r", status="MAX_RECOVERY_ATTEMPTS_EXCEEDED")
    (found,) = buried.buried(session, place)
    row = db.execute("SELECT updated_at FROM dbos.workflow_status").fetchone()
    assert row is not None
    assert found.buried_at == _text(db, row[0])


def test_one_run_is_shown_with_its_steps_and_what_can_be_done(db: Conn, session: Session, place: Place) -> None:
    dbos.run(db, "r")
    dbos.step(db, "r", 1, "fetch", started="-9 min", completed="-8 min")
    found = detail(session, place, "r", reading.looker(session, place, none_live=True))
    assert found is not None
    assert found.run.class_ == "executor_gone"
    assert [(step.number, step.name) for step in found.steps] == [(1, "fetch")]
    assert found.lease is None
    assert found.next[0].startswith("lockctl runs requeue --source dbos r ")
    assert detail(session, place, "nope", reading.looker(session, place)) is None


def test_one_id_connected_from_several_hosts_is_found(db: Conn, session: Session, place: Place, empty_dsn: str) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(dbos.worker(empty_dsn, "w1"))
        look = reading.looker(session, place)
        assert list(look().shared_ids()) == []
        assert look().sessions == {"dbos_transact_w1_1.0.0": ("a local socket",)}


def test_a_database_without_the_schema_is_behind(empty_dsn: str) -> None:
    with connect(empty_dsn) as session:
        places = locate(session, [DBOS], None)
        with pytest.raises(BehindError, match=r"dbos\.workflow_status"):
            present(places, lambda _: "runs", named=True)
