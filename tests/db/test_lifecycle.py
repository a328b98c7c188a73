"""One test body for every table of the catalogue, in each way in which such a table comes to be."""

from __future__ import annotations

from datetime import UTC, datetime

from lockctl import clock
from lockctl.leases import operations as leases
from lockctl.leases import token
from lockctl.records import LeaseResult, LockRow
from tests.support.places import Place

HOUR = 3_600_000


def row_of(result: LeaseResult) -> LockRow:
    assert result.lock is not None
    return result.lock


def moment(text: str | None) -> datetime:
    assert text is not None
    return datetime.fromisoformat(text)


def almost(milliseconds: int | None, expected: int) -> bool:
    """Not longer than expected, and not shorter than a slow machine and a column of whole seconds explain."""
    return milliseconds is not None and expected - 30_000 < milliseconds <= expected + 1_000


def test_acquire_gives_the_lease_to_one_and_denies_it_to_all_others_and_to_itself(place: Place) -> None:
    key, mine, other = place.variant.key(), place.variant.holder("mine"), place.variant.holder("other")
    with place.open() as (session, table):
        assert leases.read(session, table, key) is None
        assert leases.check(session, table, key, None).outcome == "free"

        taken = leases.acquire(session, table, key, mine, HOUR)
        row = row_of(taken)
        assert (taken.outcome, taken.previous) == ("acquired", None)
        assert (row.table, row.relation) == (place.variant.table, place.variant.relation)
        assert (row.key, row.holder, row.state) == (key, mine, "held")
        assert almost(row.remaining_ms, HOUR)
        assert moment(row.expires_at) > datetime.now(UTC)

        assert taken.lease is not None
        assert token.read(taken.lease) == token.Lease(place.variant.table, key, mine, HOUR)

        before = place.rows()
        for holder in (other, mine):
            denied = leases.acquire(session, table, key, holder, HOUR)
            assert (denied.outcome, denied.lease, row_of(denied).holder) == ("held", None, mine)
        assert place.rows() == before
        assert leases.check(session, table, key, other).outcome == "held"


def test_a_new_row_has_the_times_that_its_table_wants(place: Place) -> None:
    with place.open() as (session, table):
        row = row_of(leases.acquire(session, table, place.variant.key(), place.variant.holder(), HOUR))
        for column, value in ((table.shape.created, row.created_at), (table.shape.updated, row.updated_at)):
            assert (value is None) == (column is None)
            if column is not None:
                assert abs((moment(value) - datetime.now(UTC)).total_seconds()) < 30


def test_extend_gives_a_new_remaining_time_to_its_holder_alone(place: Place) -> None:
    key, mine, other = place.variant.key(), place.variant.holder("mine"), place.variant.holder("other")
    with place.open() as (session, table):
        first = row_of(leases.acquire(session, table, key, mine, HOUR))
        longer = leases.extend(session, table, key, mine, 2 * HOUR)
        assert (longer.outcome, longer.previous and longer.previous.expires_at) == ("extended", first.expires_at)
        assert almost(row_of(longer).remaining_ms, 2 * HOUR)
        assert row_of(longer).created_at == first.created_at
        if table.shape.updated is not None:
            assert moment(row_of(longer).updated_at) >= moment(first.updated_at)
        shorter = leases.extend(session, table, key, mine, 60_000)
        assert almost(row_of(shorter).remaining_ms, 60_000)

        before = place.rows()
        refused = leases.extend(session, table, key, other, HOUR)
        assert (refused.outcome, row_of(refused).holder) == ("held", mine)
        assert place.rows() == before


def test_force_expire_makes_it_lapse_and_keeps_the_row(place: Place) -> None:
    key, mine = place.variant.key(), place.variant.holder("mine")
    with place.open() as (session, table):
        held = row_of(leases.acquire(session, table, key, mine, HOUR))
        expired = leases.force_expire(session, table, key, held)
        row = row_of(expired)
        assert (expired.outcome, expired.renewed) == ("expired", False)
        assert (row.holder, row.state, row.created_at) == (mine, "lapsed", held.created_at)
        assert row.remaining_ms is not None
        assert row.remaining_ms < 0
        assert expired.previous is not None
        assert (expired.previous.expires_at, expired.previous.state) == (held.expires_at, "held")
        assert leases.check(session, table, key, mine).outcome == "lapsed"
        assert leases.force_expire(session, table, key, held).outcome == "not_held"


def test_a_lapsed_lease_is_extended_only_by_revive_and_only_for_its_holder(place: Place) -> None:
    key, mine, other = place.variant.key(), place.variant.holder("mine"), place.variant.holder("other")
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"])
        place.age(7200)
        mine = place.variant.holder("nightly")
        before = place.rows()
        for holder in (mine, other):
            assert leases.extend(session, table, key, holder, HOUR).outcome == "not_held"
        refused = leases.extend(session, table, key, other, HOUR, revive=True)
        assert (refused.outcome, row_of(refused).holder) == ("held", mine)
        assert place.rows() == before
        revived = leases.extend(session, table, key, mine, HOUR, revive=True)
        assert (revived.outcome, row_of(revived).state) == ("extended", "held")


def test_a_takeover_is_a_new_row_where_its_owner_sees_it_as_one(place: Place) -> None:
    key, late, heir = place.variant.key(), place.variant.holder("nightly"), place.variant.holder("heir")
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"])
        place.age(7200)
        lapsed = leases.read(session, table, key)
        taken = leases.acquire(session, table, key, heir, HOUR)
        row, previous = row_of(taken), taken.previous
        assert (taken.outcome, row.holder, row.state) == ("acquired", heir, "held")
        assert almost(row.remaining_ms, HOUR)
        assert previous is not None
        assert (previous.holder, previous.state) == (late, "lapsed")
        assert lapsed is not None
        if table.shape.created is None:
            assert row.created_at is None
        elif place.description().created_on_takeover:
            assert moment(row.created_at) > moment(lapsed.created_at)
        else:
            assert row.created_at == lapsed.created_at
        if table.shape.updated is not None:
            assert moment(row.updated_at) >= moment(lapsed.updated_at)


def test_the_late_release_of_a_lease_that_was_taken_over_is_refused(place: Place) -> None:
    """Case 1: A's lease lapsed and B took it; A's release and extend must not touch what is B's."""
    key, late, heir = place.variant.key(), place.variant.holder("nightly"), place.variant.holder("heir")
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"])
        place.age(7200)
        assert leases.acquire(session, table, key, heir, HOUR).outcome == "acquired"
        before = place.rows()
        refused = leases.release(session, table, key, late)
        assert (refused.outcome, row_of(refused).holder) == ("held", heir)
        assert leases.extend(session, table, key, late, HOUR, revive=True).outcome == "held"
        assert place.rows() == before

        given = leases.release(session, table, key, heir)
        assert (given.outcome, given.lock) == ("released", None)
        assert given.previous is not None
        assert given.previous.holder == heir
        assert leases.release(session, table, key, heir).outcome == "free"
        assert place.rows() == []


def test_extend_of_a_deleted_row_inserts_nothing(place: Place) -> None:
    """Case 2: neither a lapsed lease nor one whose row is gone comes back by extending it."""
    key, mine = place.variant.key(), place.variant.holder()
    with place.open() as (session, table):
        for revive in (False, True):
            gone = leases.extend(session, table, key, mine, HOUR, revive=revive)
            assert (gone.outcome, gone.lock, gone.previous) == ("not_held", None, None)
        assert place.rows() == []


def test_a_forced_change_for_a_holder_that_no_longer_has_it_is_refused(place: Place) -> None:
    """Case 3: what was shown is A's, and B has it now: B keeps it, whether expired or released by force."""
    key, former, heir = place.variant.key(), place.variant.holder("former"), place.variant.holder("heir")
    with place.open() as (session, table):
        shown = row_of(leases.acquire(session, table, key, former, HOUR))
        leases.release(session, table, key, former)
        assert leases.force_expire(session, table, key, shown).outcome == "not_held"
        assert leases.release_shown(session, table, shown).outcome == "free"
        leases.acquire(session, table, key, heir, HOUR)
        before = place.rows()
        for refused in (
            leases.force_expire(session, table, key, shown),
            leases.release_shown(session, table, shown),
        ):
            assert (refused.outcome, row_of(refused).holder) == ("held", heir)
        assert place.rows() == before


def test_a_renewal_since_the_row_was_shown_is_reported_and_not_refused(place: Place) -> None:
    key, mine = place.variant.key(), place.variant.holder()
    with place.open() as (session, table):
        shown = row_of(leases.acquire(session, table, key, mine, HOUR))
        leases.extend(session, table, key, mine, 2 * HOUR)
        expired = leases.force_expire(session, table, key, shown)
        assert (expired.outcome, expired.renewed) == ("expired", True)
        revived = row_of(leases.extend(session, table, key, mine, HOUR, revive=True))
        leases.extend(session, table, key, mine, 2 * HOUR)
        released = leases.release_shown(session, table, revived)
        assert (released.outcome, released.renewed) == ("released", True)


def test_a_lease_that_its_holder_had_before_is_not_taken_for_one_just_granted(place: Place) -> None:
    """The answer was lost, and the row has the same holder: what remains of it tells which lease it is."""
    key, mine = place.variant.key(), place.variant.holder("mine")
    with place.open() as (session, table):
        for had in (2 * HOUR, HOUR // 2):
            leases.acquire(session, table, key, mine, had)
            sent = clock.now()
            assert leases.acquire(session, table, key, mine, HOUR).outcome == "held"
            assert leases.granted_since(session, table, key, mine, HOUR, sent) is None
            leases.release(session, table, key, mine)
        sent = clock.now()
        assert leases.granted_since(session, table, key, mine, HOUR, sent) is None
        leases.acquire(session, table, key, mine, HOUR)
        found = leases.granted_since(session, table, key, mine, HOUR, sent)
        assert found is not None
        assert (found.outcome, found.lease is not None) == ("acquired", True)
        assert leases.granted_since(session, table, key, place.variant.holder("other"), HOUR, sent) is None
