"""What an operator does to runs and work: guarded by the row that was shown, and never against a sign of life."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from lockctl.db import Session
from lockctl.errors import UsageError
from lockctl.runs import buried, changing, reading, reviving, store
from lockctl.runs.places import Place, locate
from lockctl.runs.records import Change
from lockctl.sources import DBOS, RUN_STORE
from tests.support import dbos
from tests.support.sessions import connect
from tests.support.waiting import wait_until_waiting

Conn = psycopg.Connection[Any]
HOUR = 3_600_000


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    with connect(dsn) as fresh:
        yield fresh


@pytest.fixture
def place(session: Session) -> Place:
    (found,) = locate(session, [RUN_STORE], None)
    return found


@pytest.fixture(params=dbos.VERSIONS)
def flows(request: pytest.FixtureRequest, conn: Conn, session: Session) -> Place:
    """DBOS's tables beside the run store."""
    dbos.make(conn, request.param)
    (found,) = locate(session, [DBOS], None)
    return found


def start(session: Session, run: str) -> None:
    store.start(session, run, file="f", movement="m", input_="{}", started_at="2026-01-01T00:00:00Z")


def shown(session: Session, place: Place, *ids: str, **said: Any) -> list[changing.Shown]:
    return changing.show(session, place, ids, reading.looker(session, place, **said))


def change(session: Session, place: Place, verb: str, *ids: str, said: Any = None, **options: Any) -> list[Change]:
    return list(changing.apply(session, place, verb, shown(session, place, *ids, **(said or {})), **options))


def outcomes(changes: list[Change]) -> dict[str, str]:
    return {change.id: change.outcome for change in changes}


def why(changes: list[Change]) -> str:
    (change,) = changes
    assert change.outcome == "skipped"
    return change.why or ""


def status(conn: Conn, run: str) -> Any:
    row = conn.execute("SELECT status FROM run_store.runs WHERE id = %s", (run,)).fetchone()
    return row[0] if row else None


def lapsed(session: Session, place: Place) -> list[str]:
    return [run.id for run in reading.lapsed(session, place, reading.looker(session, place), stale_ms=0)]


# -- runs of the store -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lease", ["none", "lapsed"])
def test_a_requeued_run_is_parked_and_its_work_is_due(session: Session, place: Place, conn: Conn, lease: str) -> None:
    start(session, "r")
    table = store.leases(session)
    token = store.claim(session, table, "r", 1) if lease == "lapsed" else None
    assert lapsed(session, place) == ["r"]
    (done,) = change(session, place, "requeue", "r")
    assert done.outcome == "requeued"
    assert done.previous["holder"] == token
    assert status(conn, "r") == "parked"
    assert lapsed(session, place) == []
    (row,) = store.claim_due(session, limit=9, lease_ms=HOUR)
    assert (row.key, row.payload) == ("resume_timer:r", {"runId": "r"})
    assert store.claim(session, table, "r", HOUR) is not None


def test_a_worker_that_wakes_up_after_its_run_was_requeued_has_lost_its_fence(
    session: Session, place: Place, conn: Conn
) -> None:
    start(session, "r")
    table = store.leases(session)
    token = store.claim(session, table, "r", 1)
    assert token is not None
    change(session, place, "requeue", "r")
    assert not store.renew(session, table, "r", token, HOUR)
    assert store.claim(session, table, "r", HOUR)
    with pytest.raises(Exception, match="lost"):
        store.settle(session, "r", "completed", fence=token)
    assert status(conn, "r") == "parked"


def test_a_buried_resume_timer_comes_back_with_the_requeue(session: Session, place: Place) -> None:
    start(session, "r")
    store.enqueue(session, kind="resume_timer", key="resume_timer:r", payload={"runId": "r"})
    (row,) = store.claim_due(session, limit=1, lease_ms=HOUR)
    store.bury(session, row.id, row.claim, "gave up")
    change(session, place, "requeue", "r")
    (again,) = store.claim_due(session, limit=1, lease_ms=HOUR)
    assert (again.id, again.attempts) == (row.id, 1)


def test_a_run_whose_worker_lives_is_requeued_by_force_alone(session: Session, place: Place, conn: Conn) -> None:
    start(session, "r")
    token = store.claim(session, store.leases(session), "r", HOUR)
    assert token is not None
    assert "signs of life" in why(change(session, place, "requeue", "r"))
    assert status(conn, "r") == "running"
    assert outcomes(change(session, place, "requeue", "r", force=True)) == {"r": "requeued"}
    assert not store.renew(session, store.leases(session), "r", token, HOUR)


@pytest.mark.parametrize("before", ["none", "lapsed"])
def test_a_lease_taken_since_the_run_was_shown_is_left(session: Session, place: Place, conn: Conn, before: str) -> None:
    start(session, "r")
    table = store.leases(session)
    if before == "lapsed":
        store.claim(session, table, "r", 1)
    seen = shown(session, place, "r")
    token = store.claim(session, table, "r", HOUR)
    assert token is not None
    for force in (False, True):
        assert "taken meanwhile" in why(list(changing.apply(session, place, "requeue", seen, force=force)))
    assert status(conn, "r") == "running"
    assert store.renew(session, table, "r", token, HOUR)
    assert store.claim_due(session, limit=1, lease_ms=HOUR) == []


def test_a_claim_of_the_same_moment_decides_who_gets_the_run(
    session: Session, place: Place, dsn: str, conn: Conn
) -> None:
    start(session, "r")
    seen = shown(session, place, "r")
    results: list[Change] = []
    with psycopg.connect(dsn) as worker:
        worker.execute(
            "INSERT INTO run_store.leases (run_id, token, expires_at) VALUES ('r', 'theirs', now() + interval '1 h')"
        )
        thread = threading.Thread(target=lambda: results.extend(changing.apply(session, place, "requeue", seen)))
        thread.start()
        wait_until_waiting(conn, "lockctl test%")
        worker.commit()
        thread.join(10)
    assert "taken meanwhile" in why(results)
    assert status(conn, "r") == "running"


@pytest.mark.parametrize("verb", ["requeue", "cancel", "fail"])
def test_a_run_that_ended_or_is_unknown_is_left(session: Session, place: Place, conn: Conn, verb: str) -> None:
    start(session, "done")
    store.settle(session, "done", "completed", outcome="{}")
    found = outcomes(change(session, place, verb, "done", "nope", "done"))
    assert found == {"done": "skipped", "nope": "not_found"}
    assert status(conn, "done") == "completed"


@pytest.mark.parametrize("verb", ["cancel", "fail"])
def test_a_run_that_was_settled_since_it_was_shown_is_left(
    session: Session, place: Place, conn: Conn, verb: str
) -> None:
    start(session, "r")
    seen = shown(session, place, "r")
    store.settle(session, "r", "completed", outcome="{}")
    assert "completed now" in why(list(changing.apply(session, place, verb, seen, reason="why")))
    row = conn.execute("SELECT status, outcome, cancel_reason FROM run_store.runs").fetchone()
    assert row == ("completed", "{}", None)


def test_cancel_asks_the_worker_and_fail_settles(session: Session, place: Place, conn: Conn) -> None:
    start(session, "r")
    assert outcomes(change(session, place, "cancel", "r", reason="too slow")) == {"r": "cancelled"}
    assert store.cancel_request(session, "r") == "too slow"
    assert status(conn, "r") == "running"
    assert outcomes(change(session, place, "fail", "r", reason="it hangs")) == {"r": "failed"}
    row = conn.execute("SELECT status, outcome, ended_at IS NOT NULL FROM run_store.runs").fetchone()
    assert row == ("failed", '{"error": "it hangs"}', True)


def test_a_queue_means_nothing_to_a_run_store(session: Session, place: Place) -> None:
    with pytest.raises(UsageError):
        change(session, place, "requeue", "r", queue="q")


# -- buried work -----------------------------------------------------------------------------------------------------


def bury(session: Session, key: str, kind: str = "mail", attempts: int = 1) -> str:
    store.enqueue(session, kind=kind, key=key, payload={"n": 1})
    for _ in range(attempts - 1):
        (row,) = store.claim_due(session, limit=1, lease_ms=HOUR)
        store.release(session, row.id, row.claim)
    (row,) = store.claim_due(session, limit=1, lease_ms=HOUR)
    store.bury(session, row.id, row.claim, "no such address")
    return row.id


def revive(session: Session, place: Place, seen: Any, **options: Any) -> list[Change]:
    return list(reviving.revive(session, place, seen, reading.looker(session, place), **options))


def test_revived_work_is_due_with_its_attempts_from_nought(session: Session, place: Place) -> None:
    work = bury(session, "mail:1", attempts=3)
    (done,) = revive(session, place, reviving.show(session, place, [work], reading.looker(session, place)))
    assert (done.outcome, done.previous["attempts"], done.previous["reason"]) == ("revived", 3, "no such address")
    (row,) = store.claim_due(session, limit=9, lease_ms=HOUR)
    assert (row.id, row.attempts) == (work, 1)
    assert list(buried.buried(session, place)) == []


@pytest.mark.parametrize("meanwhile", ["re-armed", "claimed", "buried again", "deleted"])
def test_work_that_changed_since_it_was_shown_is_left(
    session: Session, place: Place, conn: Conn, meanwhile: str
) -> None:
    work = bury(session, "mail:1")
    seen = reviving.show(session, place, [work], reading.looker(session, place))
    if meanwhile == "deleted":
        conn.execute("DELETE FROM run_store.work")
    elif meanwhile == "buried again":
        bury(session, "mail:1")
    else:
        store.enqueue(session, kind="mail", key="mail:1", payload={})
        if meanwhile == "claimed":
            store.claim_due(session, limit=1, lease_ms=HOUR)
    before = conn.execute("SELECT * FROM run_store.work").fetchall()
    found = why(revive(session, place, seen))
    assert {"re-armed": "re-armed", "claimed": "claimed", "buried again": "buried anew", "deleted": "deleted"}[
        meanwhile
    ] in found
    assert conn.execute("SELECT * FROM run_store.work").fetchall() == before


def test_all_of_a_kind_is_revived_but_what_was_buried_after_the_question(session: Session, place: Place) -> None:
    first = [bury(session, f"mail:{n}") for n in range(3)]
    call = bury(session, "call:1", kind="call")
    until = buried.moment(session, place)
    late = bury(session, "mail:late")
    found = outcomes(revive(session, place, reviving.every(session, place, "mail", until)))
    assert found == dict.fromkeys(first, "revived")
    assert [row.id for row in buried.buried(session, place)] == [call, late]


def test_a_thousand_rows_are_revived_in_batches(session: Session, place: Place, conn: Conn) -> None:
    conn.execute(
        "INSERT INTO run_store.work (id, kind, key, payload, due_at, attempts, buried_at, buried_reason)"
        " SELECT 'w' || n, 'mail', 'k' || n, '{}', now(), 5, '2026-01-01', 'x' FROM generate_series(1, 1200) AS n"
    )
    found = revive(session, place, reviving.every(session, place, None, buried.moment(session, place)))
    assert len({change.id for change in found if change.outcome == "revived"}) == 1200
    assert conn.execute("SELECT count(*) FROM run_store.work WHERE attempts = 0 AND buried_at IS NULL").fetchone() == (
        1200,
    )


def test_work_that_is_not_buried_or_unknown_is_left(session: Session, place: Place, conn: Conn) -> None:
    store.enqueue(session, kind="mail", key="mail:1", payload={})
    row = conn.execute("SELECT id FROM run_store.work").fetchone()
    assert row is not None
    found = revive(session, place, reviving.show(session, place, [row[0], "nope"], reading.looker(session, place)))
    assert outcomes(found) == {row[0]: "skipped", "nope": "not_found"}


# -- DBOS ------------------------------------------------------------------------------------------------------------


def test_a_requeued_run_is_as_a_recovering_worker_leaves_it(session: Session, flows: Place, conn: Conn) -> None:
    dbos.run(conn, "r", queue_name="q", recovery_attempts=2, started_at_epoch_ms=5, owner_xid="o")
    dbos.run(conn, "plain")
    before = dbos.row(conn, "r")
    assert outcomes(change(session, flows, "requeue", "r", "plain")) == {"r": "requeued", "plain": "requeued"}
    after = dbos.row(conn, "r")
    changed = {name for name in after if after[name] != before[name]}
    has_creator = "creator_xid" in after
    assert changed == {"status", "started_at_epoch_ms", "updated_at"} | ({"owner_xid"} if has_creator else set())
    assert (after["status"], after["started_at_epoch_ms"]) == ("ENQUEUED", None)
    assert dbos.row(conn, "plain")["queue_name"] == "_dbos_internal_queue"


def test_a_run_goes_onto_the_queue_of_choice(session: Session, flows: Place, conn: Conn) -> None:
    dbos.run(conn, "r", queue_name="q")
    change(session, flows, "requeue", "r", queue="other")
    assert dbos.row(conn, "r")["queue_name"] == "other"


def test_a_run_of_a_connected_worker_is_requeued_by_force_alone(
    session: Session, flows: Place, conn: Conn, dsn: str
) -> None:
    dbos.run(conn, "r")
    with dbos.worker(dsn, "w1"):
        assert "dbos_transact_w1_1.0.0" in why(change(session, flows, "requeue", "r"))
        assert dbos.row(conn, "r")["status"] == "PENDING"
        assert outcomes(change(session, flows, "requeue", "r", force=True)) == {"r": "requeued"}


def test_a_worker_that_came_back_since_the_run_was_shown_keeps_it(
    session: Session, flows: Place, conn: Conn, dsn: str
) -> None:
    dbos.run(conn, "r")
    seen = shown(session, flows, "r", none_live=True)
    with dbos.worker(dsn, "w1"):
        assert "came back" in why(list(changing.apply(session, flows, "requeue", seen)))
    assert dbos.row(conn, "r")["status"] == "PENDING"


def test_a_run_that_another_worker_took_since_it_was_shown_is_left(session: Session, flows: Place, conn: Conn) -> None:
    dbos.run(conn, "r")
    seen = shown(session, flows, "r", none_live=True)
    conn.execute("UPDATE dbos.workflow_status SET executor_id = 'w2', updated_at = updated_at + 1")
    for verb in ("requeue", "cancel"):
        assert "w2 took it" in why(list(changing.apply(session, flows, verb, seen, force=True)))


def test_recent_steps_are_a_sign_of_life_where_no_worker_can_be_seen(
    session: Session, flows: Place, conn: Conn, dsn: str
) -> None:
    dbos.run(conn, "r")
    dbos.step(conn, "r", 1, "fetch", started="-10 s", completed="-9 s")
    assert "newest step" in why(change(session, flows, "requeue", "r"))
    with dbos.worker(dsn, "w2"):  # the workers can be seen, and its own is not there
        assert outcomes(change(session, flows, "requeue", "r")) == {"r": "requeued"}


def test_a_cancelled_run_is_as_the_sdk_leaves_it(session: Session, flows: Place, conn: Conn) -> None:
    dbos.run(conn, "r", queue_name="q", deduplication_id="d", started_at_epoch_ms=5)
    assert outcomes(change(session, flows, "cancel", "r", reason="x")) == {"r": "cancelled"}
    row = dbos.row(conn, "r")
    assert row["status"] == "CANCELLED"
    assert row["completed_at"] >= row["created_at"]
    assert (row["queue_name"], row["deduplication_id"], row["started_at_epoch_ms"]) == (None, None, None)
    assert why(change(session, flows, "cancel", "r")).startswith("it is CANCELLED")


def test_dbos_has_no_failing_from_outside(session: Session, flows: Place) -> None:
    with pytest.raises(UsageError):
        change(session, flows, "fail", "r")


def bury_run(conn: Conn, run: str = "r") -> None:
    dbos.run(
        conn,
        run,
        status="MAX_RECOVERY_ATTEMPTS_EXCEEDED",
        recovery_attempts=51,
        workflow_deadline_epoch_ms=7,
        completed_at=9,
    )


def test_a_revived_run_is_as_the_sdks_resume_leaves_it(session: Session, flows: Place, conn: Conn) -> None:
    bury_run(conn)
    (done,) = revive(session, flows, reviving.show(session, flows, ["r"], reading.looker(session, flows)))
    assert (done.outcome, done.previous["attempts"]) == ("revived", 51)
    row = dbos.row(conn, "r")
    assert (row["status"], row["queue_name"]) == ("ENQUEUED", "_dbos_internal_queue")
    assert (row["recovery_attempts"], row["workflow_deadline_epoch_ms"], row["completed_at"]) == (0, None, None)
    assert row["application_version"] == "1.0.0"


def test_a_revived_run_goes_onto_the_queue_of_choice(session: Session, flows: Place, conn: Conn) -> None:
    bury_run(conn)
    revive(session, flows, reviving.show(session, flows, ["r"], reading.looker(session, flows)), queue="other")
    assert dbos.row(conn, "r")["queue_name"] == "other"


def test_a_run_of_a_live_executor_is_revived_by_force_alone(
    session: Session, flows: Place, conn: Conn, dsn: str
) -> None:
    bury_run(conn)
    seen = reviving.show(session, flows, ["r"], reading.looker(session, flows))
    with dbos.worker(dsn, "w1"):
        assert "live" in why(revive(session, flows, seen))
        assert outcomes(revive(session, flows, seen, force=True)) == {"r": "revived"}


def test_a_run_that_is_not_buried_is_not_revived(session: Session, flows: Place, conn: Conn) -> None:
    dbos.run(conn, "r")
    assert (
        why(revive(session, flows, reviving.show(session, flows, ["r"], reading.looker(session, flows))))
        == "it is not buried"
    )


CHANGES: dict[str, Callable[[Session, Place], Any]] = {
    "requeue": lambda session, flows: change(session, flows, "requeue", "r"),
    "cancel": lambda session, flows: change(session, flows, "cancel", "r"),
}


@pytest.mark.parametrize("verb", sorted(CHANGES))
def test_times_are_read_after_the_wait_for_the_row(
    session: Session, flows: Place, conn: Conn, dsn: str, verb: str
) -> None:
    dbos.run(conn, "r")
    with psycopg.connect(dsn) as other:
        other.execute("SELECT FROM dbos.workflow_status FOR UPDATE")
        thread = threading.Thread(target=CHANGES[verb], args=(session, flows))
        thread.start()
        wait_until_waiting(conn, "lockctl test%")
        row = conn.execute("SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint").fetchone()
        assert row is not None
        other.rollback()
        thread.join(10)
    assert dbos.row(conn, "r")["updated_at"] >= row[0]
