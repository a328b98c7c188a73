"""The store slot's contract on runs, leases and work: one test for each of its sentences."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lockctl.db import Session
from lockctl.errors import LostError, NotHeldError, UsageError
from lockctl.leases import operations
from lockctl.leases.operations import LockedTable
from lockctl.runs import reading, store
from lockctl.runs.places import Place, locate
from lockctl.runs.records import Run
from lockctl.sources import RUN_STORE
from tests.support.sessions import connect

Conn = psycopg.Connection[tuple[object, ...]]
HOUR = 3_600_000


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    with connect(dsn) as fresh:
        yield fresh


@pytest.fixture
def leases(session: Session) -> LockedTable:
    return store.leases(session)


@pytest.fixture
def place(session: Session) -> Place:
    (found,) = locate(session, [RUN_STORE], None)
    return found


def start(session: Session, run: str, ago: str = "1 hour") -> None:
    at = session.one("SELECT to_char(clock_timestamp() - %s::interval, 'YYYY-MM-DD HH24:MI:SS.US')", (ago,))[0]
    store.start(session, run, file="flow.yaml", movement="nightly", input_="{}", started_at=f"{at}Z")


def lapsed(session: Session, place: Place, *, stale_ms: int = 60_000, limit: int | None = None) -> list[str]:
    return [run.id for run in runs_lapsed(session, place, stale_ms=stale_ms, limit=limit)]


def runs_lapsed(session: Session, place: Place, *, stale_ms: int = 60_000, limit: int | None = None) -> list[Run]:
    look = reading.looker(session, place)
    return list(reading.lapsed(session, place, look, stale_ms=stale_ms, limit=limit))


def expire(conn: Conn, run: str) -> None:
    conn.execute("UPDATE run_store.leases SET expires_at = now() - interval '1 s' WHERE run_id = %s", (run,))


def run_row(conn: Conn, run: str) -> tuple[object, ...]:
    row = conn.execute("SELECT status, outcome, ended_at IS NOT NULL FROM run_store.runs WHERE id = %s", (run,))
    found = row.fetchone()
    assert found is not None
    return found


def claim_one(session: Session, **options: object) -> store.Claimed:
    (row,) = store.claim_due(session, limit=10, lease_ms=HOUR, **options)  # type: ignore[arg-type]
    return row


def mail(session: Session, key: str = "mail:1", **options: object) -> None:
    store.enqueue(session, kind="mail", key=key, payload={"to": "x"}, **options)  # type: ignore[arg-type]


# -- runs ------------------------------------------------------------------------------------------------------------


def test_a_started_run_is_running(session: Session, conn: Conn) -> None:
    start(session, "r")
    assert run_row(conn, "r") == ("running", None, False)


def test_starting_a_run_twice_is_refused_and_changes_nothing(session: Session, conn: Conn) -> None:
    start(session, "r")
    store.settle(session, "r", "completed", outcome="{}")
    with pytest.raises(UsageError):
        start(session, "r")
    assert run_row(conn, "r") == ("completed", "{}", True)


def test_lapsed_are_running_runs_whose_lease_was_never_taken(session: Session, place: Place) -> None:
    start(session, "r")
    (run,) = runs_lapsed(session, place)
    assert (run.id, run.class_, run.holder) == ("r", "never_leased", None)


def test_lapsed_are_running_runs_whose_lease_lapsed(
    session: Session, place: Place, leases: LockedTable, conn: Conn
) -> None:
    start(session, "r")
    token = store.claim(session, leases, "r", HOUR)
    assert lapsed(session, place) == []
    expire(conn, "r")
    (run,) = runs_lapsed(session, place)
    assert (run.class_, run.holder) == ("lease_lapsed", token)


@pytest.mark.parametrize("status", ["completed", "parked", "failed"])
def test_lapsed_are_running_runs_alone(session: Session, place: Place, status: str) -> None:
    start(session, "r")
    store.settle(session, "r", status)
    assert lapsed(session, place) == []


def test_lapsed_are_runs_started_more_than_stale_ms_ago(session: Session, place: Place) -> None:
    start(session, "old", "70 s")
    start(session, "young", "50 s")
    assert lapsed(session, place, stale_ms=60_000) == ["old"]


def test_lapsed_are_listed_oldest_first_and_to_a_limit(session: Session, place: Place) -> None:
    for run, ago in (("b", "2 hours"), ("c", "1 hour"), ("a", "3 hours")):
        start(session, run, ago)
    assert lapsed(session, place) == ["a", "b", "c"]
    assert lapsed(session, place, limit=2) == ["a", "b"]


@pytest.mark.parametrize("status", ["completed", "parked", "running", "failed"])
def test_a_run_is_settled_with_its_status_and_its_outcome_as_it_was_given(
    session: Session, conn: Conn, status: str
) -> None:
    start(session, "r")
    outcome = '{ "writes": [],  "returned": 1.10 }'
    store.settle(session, "r", status, outcome=outcome)
    assert run_row(conn, "r") == (status, outcome, status in ("completed", "failed"))


def test_a_run_has_no_other_status(session: Session) -> None:
    start(session, "r")
    with pytest.raises(UsageError):
        store.settle(session, "r", "cancelled")


def test_settling_an_unknown_run_says_so(session: Session) -> None:
    with pytest.raises(NotHeldError):
        store.settle(session, "r", "completed")


def test_mark_failed_settles_with_the_message_as_error(session: Session, conn: Conn) -> None:
    start(session, "r")
    store.mark_failed(session, "r", 'no "such" host')
    assert run_row(conn, "r") == ("failed", '{"error": "no \\"such\\" host"}', True)


def test_a_cancel_request_is_kept_with_its_reason(session: Session, conn: Conn) -> None:
    start(session, "r")
    assert store.cancel_request(session, "r") is None
    store.request_cancel(session, "r", "too slow")
    assert store.cancel_request(session, "r") == "too slow"
    assert run_row(conn, "r")[0] == "running"


def test_runs_are_listed_most_recent_first_and_to_a_limit(session: Session, place: Place) -> None:
    for run, ago in (("b", "2 hours"), ("c", "1 hour"), ("a", "3 hours")):
        start(session, run, ago)
    found = reading.recent(session, place, reading.looker(session, place), limit=2)
    assert [run.id for run in found] == ["c", "b"]


# -- leases ----------------------------------------------------------------------------------------------------------


def test_a_claim_gives_a_token_or_none_while_another_holds_it(session: Session, leases: LockedTable) -> None:
    token = store.claim(session, leases, "r", HOUR)
    assert token
    assert store.claim(session, leases, "r", HOUR) is None


def test_a_lapsed_lease_is_claimed_under_a_new_token(session: Session, leases: LockedTable, conn: Conn) -> None:
    token = store.claim(session, leases, "r", HOUR)
    expire(conn, "r")
    assert store.claim(session, leases, "r", HOUR) not in (None, token)


def test_a_renewal_says_whether_the_lease_is_still_held(session: Session, leases: LockedTable, conn: Conn) -> None:
    token = store.claim(session, leases, "r", HOUR)
    assert token is not None
    assert store.renew(session, leases, "r", token, HOUR)
    assert not store.renew(session, leases, "r", "another", HOUR)
    expire(conn, "r")
    assert not store.renew(session, leases, "r", token, HOUR)
    assert not store.renew(session, leases, "other", token, HOUR)


def test_a_release_frees_the_lease_of_its_token_alone(session: Session, leases: LockedTable) -> None:
    token = store.claim(session, leases, "r", HOUR)
    assert token is not None
    store.release_lease(session, leases, "r", "another")
    assert store.claim(session, leases, "r", HOUR) is None
    store.release_lease(session, leases, "r", token)
    assert store.claim(session, leases, "r", HOUR) is not None


def test_the_lock_verbs_work_on_the_same_leases(session: Session, leases: LockedTable) -> None:
    token = store.claim(session, leases, "r", HOUR)
    shown = operations.read(session, leases, ["r"])
    assert shown is not None
    assert shown.holder == token
    assert operations.force_expire(session, leases, ["r"], shown).outcome == "expired"
    assert not store.renew(session, leases, "r", str(token), HOUR)


def test_dropping_the_state_of_a_run_needs_its_fence(session: Session, leases: LockedTable) -> None:
    start(session, "r")
    token = store.claim(session, leases, "r", HOUR)
    assert token is not None
    assert not store.drop_lease(session, "r", "another")
    assert operations.read(session, leases, ["r"]) is not None
    assert store.drop_lease(session, "r", token)
    assert operations.read(session, leases, ["r"]) is None


@pytest.mark.parametrize("how", ["lapsed", "released", "taken"])
def test_a_lost_fence_writes_nothing(session: Session, leases: LockedTable, conn: Conn, how: str) -> None:
    start(session, "r")
    token = store.claim(session, leases, "r", HOUR)
    assert token is not None
    if how == "released":
        store.release_lease(session, leases, "r", token)
    else:
        expire(conn, "r")
    if how == "taken":
        assert store.claim(session, leases, "r", HOUR)
    before = run_row(conn, "r")
    with pytest.raises(LostError):
        store.park(session, "r", due_in_ms=0, fence=token)
    with pytest.raises(LostError):
        store.settle(session, "r", "completed", fence=token)
    assert run_row(conn, "r") == before
    assert store.claim_due(session, limit=1, lease_ms=HOUR) == []


def test_parking_for_a_timer_is_one_fenced_write_of_the_run_and_its_resume_timer(
    session: Session, leases: LockedTable, conn: Conn
) -> None:
    start(session, "r")
    token = store.claim(session, leases, "r", HOUR)
    assert token is not None
    store.park(session, "r", due_in_ms=0, fence=token)
    assert run_row(conn, "r")[0] == "parked"
    row = claim_one(session)
    assert (row.kind, row.key, row.payload, row.attempts) == ("resume_timer", "resume_timer:r", {"runId": "r"}, 1)


# -- work ------------------------------------------------------------------------------------------------------------


def test_due_work_is_leased_and_attempts_count_this_claim_too(session: Session) -> None:
    mail(session)
    row = claim_one(session)
    assert (row.kind, row.key, row.payload, row.attempts) == ("mail", "mail:1", {"to": "x"}, 1)
    assert store.claim_due(session, limit=10, lease_ms=HOUR) == []


def test_work_is_claimed_when_it_is_due_by_the_given_time_soonest_first(session: Session) -> None:
    mail(session, "later", due_in_ms=HOUR)
    mail(session, "second")
    mail(session, "first", due_in_ms=-1000)
    assert [row.key for row in store.claim_due(session, limit=9, lease_ms=HOUR)] == ["first", "second"]
    at = session.one("SELECT (now() + interval '2 hours')::text")[0]
    assert [row.key for row in store.claim_due(session, limit=9, lease_ms=HOUR, due_by=at)] == ["later"]


def test_kinds_lease_only_rows_of_those_kinds_and_none_given_is_every_kind(session: Session) -> None:
    mail(session)
    store.enqueue(session, kind="call", key="call:1", payload={})
    assert [row.kind for row in store.claim_due(session, limit=9, lease_ms=HOUR, kinds=["call"])] == ["call"]
    assert store.claim_due(session, limit=9, lease_ms=HOUR, kinds=[]) == []
    assert [row.kind for row in store.claim_due(session, limit=9, lease_ms=HOUR)] == ["mail"]


def test_a_claim_that_lapsed_is_claimed_again_and_was_an_attempt(session: Session) -> None:
    mail(session)
    store.claim_due(session, limit=1, lease_ms=-1)
    assert claim_one(session).attempts == 2


def test_complete_removes_the_row_of_its_claim_alone(session: Session, conn: Conn) -> None:
    mail(session)
    row = claim_one(session)
    store.complete(session, row.id, "another")
    assert conn.execute("SELECT count(*) FROM run_store.work").fetchone() == (1,)
    store.complete(session, row.id, row.claim)
    assert conn.execute("SELECT count(*) FROM run_store.work").fetchone() == (0,)


def test_a_failed_release_was_an_attempt_and_is_the_default(session: Session) -> None:
    mail(session)
    row = claim_one(session)
    store.release(session, row.id, row.claim)
    assert claim_one(session).attempts == 2


def test_a_busy_release_gives_the_attempt_back(session: Session) -> None:
    mail(session)
    for _ in range(3):
        row = claim_one(session)
        assert row.attempts == 1
        store.release(session, row.id, row.claim, why=store.BUSY)


def test_a_rescheduled_release_starts_the_attempts_over(session: Session) -> None:
    mail(session)
    for expected in (1, 2):
        row = claim_one(session)
        assert row.attempts == expected
        store.release(session, row.id, row.claim, why=store.FAILED)
    row = claim_one(session)
    store.release(session, row.id, row.claim, why=store.RESCHEDULED)
    assert claim_one(session).attempts == 1


def test_a_released_row_is_due_at_the_given_time(session: Session) -> None:
    mail(session)
    row = claim_one(session)
    store.release(session, row.id, row.claim, due_in_ms=HOUR)
    assert store.claim_due(session, limit=1, lease_ms=HOUR) == []


def test_another_claim_releases_nothing(session: Session) -> None:
    mail(session)
    row = claim_one(session)
    store.release(session, row.id, "another")
    assert store.claim_due(session, limit=1, lease_ms=HOUR) == []


def test_work_is_released_for_one_of_three_reasons(session: Session) -> None:
    with pytest.raises(UsageError):
        store.release(session, "w", "c", why="tired")


def test_a_buried_row_is_kept_with_its_reason_unleased_and_never_claimed_again(session: Session, conn: Conn) -> None:
    mail(session)
    row = claim_one(session)
    store.bury(session, row.id, row.claim, "no such address")
    found = conn.execute("SELECT buried_reason, buried_at IS NOT NULL, claim, attempts FROM run_store.work").fetchall()
    assert found == [("no such address", True, None, 1)]
    assert store.claim_due(session, limit=1, lease_ms=HOUR) == []


def test_another_claim_buries_nothing(session: Session, conn: Conn) -> None:
    mail(session)
    row = claim_one(session)
    store.bury(session, row.id, "another", "no such address")
    assert conn.execute("SELECT buried_at FROM run_store.work").fetchall() == [(None,)]


def test_a_row_that_was_re_armed_since_the_claim_is_only_unleased_by_a_burial(session: Session, conn: Conn) -> None:
    mail(session)
    row = claim_one(session)
    mail(session)
    store.bury(session, row.id, row.claim, "no such address")
    assert conn.execute("SELECT buried_at, claim FROM run_store.work").fetchall() == [(None, None)]
    assert claim_one(session).attempts == 1


@pytest.mark.parametrize("end", ["complete", "release"])
def test_a_row_that_was_re_armed_since_the_claim_is_only_unleased_by_its_end(session: Session, end: str) -> None:
    mail(session)
    row = claim_one(session)
    mail(session)
    if end == "complete":
        store.complete(session, row.id, row.claim)
    else:
        store.release(session, row.id, row.claim, due_in_ms=HOUR)
    assert claim_one(session).attempts == 1


def test_a_re_armed_row_stays_leased_until_its_claim_ends(session: Session) -> None:
    mail(session)
    claim_one(session)
    mail(session)
    assert store.claim_due(session, limit=1, lease_ms=HOUR) == []


def test_enqueue_of_its_key_brings_a_buried_row_back_its_attempts_from_nought(session: Session, conn: Conn) -> None:
    mail(session)
    for _ in range(2):
        row = claim_one(session)
        store.release(session, row.id, row.claim)
    row = claim_one(session)
    store.bury(session, row.id, row.claim, "no such address")
    mail(session)
    again = claim_one(session)
    assert (again.id, again.attempts) == (row.id, 1)
    assert conn.execute("SELECT buried_at, buried_reason FROM run_store.work").fetchall() == [(None, None)]
