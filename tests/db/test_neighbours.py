"""FireFlow and n8n at work on the same tables: never two holders, and each honours what the other holds."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from lockctl.leases import operations as leases
from lockctl.leases import sweep as sweeping
from tests.support.actors import FireFlow, N8n, skewed
from tests.support.places import Place
from tests.support.rivals import Critical, Try, beside, compete
from tests.support.tables import AGENT, FOREIGN

HOUR = 3_600_000
SKEW = timedelta(minutes=2)
"""Less than n8n's TTL: a main that is further off steals what others hold, whatever they do."""

fireflow_places = pytest.mark.parametrize(
    "place", [variant for variant in FOREIGN if variant.table == "ffdb_locks"], indirect=True, ids=lambda v: v.name
)
n8n_places = pytest.mark.parametrize(
    "place", [variant for variant in FOREIGN if variant.keys == 2], indirect=True, ids=lambda v: v.name
)


def lockctl_party(place: Place, key: tuple[str, ...], *, uuids: bool) -> Callable[[], Any]:
    @contextmanager
    def party() -> Iterator[Try]:
        with place.open() as (session, table):

            def attempt() -> Callable[[], object] | None:
                holder = str(uuid.uuid4()) if uuids else f"lockctl {uuid.uuid4()}"
                if leases.acquire(session, table, key, holder, 60_000).outcome != "acquired":
                    return None

                def release() -> None:
                    assert leases.extend(session, table, key, holder, 60_000).outcome == "extended"
                    assert leases.release(session, table, key, holder).outcome == "released"

                return release

            yield attempt

    return party


def sweeper_party(place: Place) -> Callable[[], Any]:
    """A sweep without grace beside them all: it may delete nothing that is held."""

    @contextmanager
    def party() -> Iterator[Try]:
        with place.open() as (session, table):

            def attempt() -> None:
                list(sweeping.sweep(session, sweeping.Tally(table), sweeping.Plan(grace_ms=0)))

            yield attempt

    return party


@fireflow_places
def test_fireflow_and_lockctl_never_hold_the_same_lock(place: Place) -> None:
    critical, zoned = Critical(), place.variant.name.endswith("-zoned")

    def fireflow() -> Callable[[], Any]:
        @contextmanager
        def party() -> Iterator[Try]:
            with place.connect() as conn:
                actor = FireFlow(conn, zoned=zoned)

                def attempt() -> Callable[[], object] | None:
                    holder = str(uuid.uuid4())
                    if not actor.acquire("nightly", holder, timedelta(minutes=1)):
                        return None

                    def release() -> None:
                        assert actor.release("nightly", holder)

                    return release

                yield attempt

        return party

    ours = lockctl_party(place, ("nightly",), uuids=False)
    parties = {"lockctl": [ours, ours], "fireflow": [fireflow(), fireflow()]}
    with beside(sweeper_party(place)):
        compete(critical, parties, rounds=30)
    assert critical.worst == 1


@n8n_places
@pytest.mark.parametrize("skew", [-SKEW, timedelta(0), SKEW], ids=["behind", "right", "ahead"])
def test_n8n_and_lockctl_never_hold_the_same_lock(place: Place, skew: timedelta) -> None:
    """Also where n8n's clock is off by less than its TTL: our leases are renewed long before they could be stolen."""
    critical = Critical()
    schema, _, relation = place.variant.relation.partition(".")
    prefix = relation.removesuffix("agent_task_run_lock")

    def n8n(by: timedelta) -> Callable[[], Any]:
        @contextmanager
        def party() -> Iterator[Try]:
            with place.connect() as conn:
                main = N8n(conn, schema=schema, prefix=prefix, clock=skewed(by))

                def attempt() -> Callable[[], object] | None:
                    holder = uuid.uuid4()
                    if not main.acquire(AGENT, "task", holder):
                        return None

                    def release() -> None:
                        assert main.renew(AGENT, "task", holder)
                        assert main.release(AGENT, "task", holder)

                    return release

                yield attempt

        return party

    @contextmanager
    def patient() -> Iterator[Try]:
        """lockctl with n8n's own TTL, which is longer than any skew here."""
        with place.open() as (session, table):

            def attempt() -> Callable[[], object] | None:
                holder = str(uuid.uuid4())
                if leases.acquire(session, table, (AGENT, "task"), holder, 300_000).outcome != "acquired":
                    return None

                def release() -> None:
                    assert leases.release(session, table, (AGENT, "task"), holder).outcome == "released"

                return release

            yield attempt

    with beside(sweeper_party(place)):
        compete(critical, {"lockctl": [patient, patient], "n8n": [n8n(skew), n8n(skew)]}, rounds=30)
    assert critical.worst == 1


@n8n_places
def test_a_live_n8n_holder_takes_a_forced_row_back_unless_another_was_faster(place: Place) -> None:
    """Measured on n8n: it renews without a look at the expiry; the note of force-expire says so."""
    schema, _, relation = place.variant.relation.partition(".")
    key, holder = (AGENT, "task"), uuid.uuid4()
    with place.connect() as conn, place.open() as (session, table):
        main = N8n(conn, schema=schema, prefix=relation.removesuffix("agent_task_run_lock"))
        assert main.acquire(*key, holder)
        row = leases.read(session, table, key)
        assert row is not None
        assert (row.holder, row.state, 290_000 < (row.remaining_ms or 0) <= 301_000) == (str(holder), "held", True)
        assert leases.force_expire(session, table, key, row).outcome == "expired"
        assert main.renew(*key, holder)
        assert leases.check(session, table, key, str(holder)).outcome == "held"

        row = leases.read(session, table, key)
        assert row is not None
        assert leases.force_expire(session, table, key, row).outcome == "expired"
        ours = str(uuid.uuid4())
        assert leases.acquire(session, table, key, ours, HOUR).outcome == "acquired"
        assert not main.renew(*key, holder)
        assert not main.acquire(*key, holder)
        assert not main.release(*key, holder)
        assert leases.release(session, table, key, ours).outcome == "released"


@fireflow_places
def test_fireflow_s_cleanup_deletes_what_we_expired_and_spares_what_we_hold(place: Place) -> None:
    zoned = place.variant.name.endswith("-zoned")
    with place.connect() as conn, place.open() as (session, table):
        actor = FireFlow(conn, zoned=zoned)
        place.fill(session, table, ["ours", "expired"])
        row = leases.read(session, table, ("expired",))
        assert row is not None
        leases.force_expire(session, table, ("expired",), row)
        assert actor.acquire("another", "it", timedelta(minutes=1))
        assert leases.read(session, table, ("expired",)) is None
        assert leases.extend(session, table, ("ours",), "ours", HOUR).outcome == "extended"
        assert not actor.acquire("ours", "it", timedelta(minutes=1))


def test_the_actors_would_be_caught(empty_dsn: str) -> None:
    """A party that takes the lease unasked is seen by the count: the tests above can fail."""
    critical = Critical()

    @contextmanager
    def rude() -> Iterator[Try]:
        with psycopg.connect(empty_dsn):
            yield lambda: lambda: None

    compete(critical, {"rude": [rude, rude, rude]}, rounds=40)
    assert critical.worst > 1
