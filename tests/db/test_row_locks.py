"""Case 4: somebody's open transaction holds the row, or the key, for longer than the TTL.

What is computed before the wait is wrong after it: an expiry in the past, a lapsed lease extended, a stranger's row
changed. So each verb is sent behind a lock that is held until a whole TTL is over by the server's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from lockctl.db import Session
from lockctl.leases import operations as leases
from lockctl.leases.operations import LockedTable
from lockctl.records import LeaseResult
from tests.support.places import CONFIGURED, OURS, Place
from tests.support.tables import FOREIGN
from tests.support.waiting import until, wait_until_blocked

TTL = 250
HOUR = 3_600_000
SOME = [OURS[0], OURS[2], FOREIGN[0], FOREIGN[2], CONFIGURED[0]]

pytestmark = pytest.mark.parametrize("place", SOME, indirect=True, ids=lambda variant: variant.name)

Verb = Callable[[Session, LockedTable], LeaseResult]


class Blocker:
    """An open transaction on the row of `nightly`, and a way to see the server's time pass."""

    def __init__(self, place: Place, conn: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> None:
        self.place, self.conn, self.other = place, conn, other
        self.key_column = sql.Identifier(place.description().key[-1])

    def run(self, statement: str, *values: Any) -> None:
        table = self.place.description()
        self.conn.execute(
            sql.SQL(statement).format(
                table=self.place.relation,
                key=self.key_column,
                holder=sql.Identifier(table.holder),
                expires=self.place.expiry,
            ),
            values,
        )

    def lock(self) -> None:
        self.run("SELECT 1 FROM {table} WHERE {key} = 'nightly' FOR UPDATE")

    def a_ttl_passes(self) -> None:
        row = self.other.execute("SELECT clock_timestamp()").fetchone()
        over = "SELECT clock_timestamp() > %s + %s * interval '1 ms'"
        until(lambda: self.other.execute(over, (row and row[0], TTL + 50)).fetchone() == (True,), what="a TTL")


@contextmanager
def behind(
    place: Place, verb: Verb, prepare: Callable[[Blocker], None]
) -> Iterator[tuple[Blocker, Future[LeaseResult]]]:
    """Run `verb` behind what `prepare` locked, for longer than a TTL; the body ends the transaction."""
    with (
        place.connect() as conn,
        place.connect() as other,
        ThreadPoolExecutor(1) as pool,
        place.open() as (session, table),
    ):
        blocker = Blocker(place, conn, other)
        conn.execute("BEGIN")
        prepare(blocker)
        answer = pool.submit(verb, session, table)
        try:
            wait_until_blocked(other, session.pid)
            blocker.a_ttl_passes()
            yield blocker, answer
        finally:
            conn.execute("ROLLBACK")


def acquiring(place: Place) -> Verb:
    return lambda session, table: leases.acquire(session, table, place.variant.key(), place.variant.holder("us"), TTL)


def full(result: LeaseResult) -> bool:
    """A TTL ahead when the answer was made: what was computed before the wait would be in the past."""
    left = result.lock.remaining_ms if result.lock else None
    return left is not None and TTL / 2 < left <= TTL + 1000


def put(place: Place, *, seconds: float, ttl_ms: int = HOUR) -> None:
    """A lease of `nightly` that lapsed so many seconds ago (negative: it has them left)."""
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"], ttl_ms=ttl_ms)
    place.age(ttl_ms / 1000 + seconds)


def test_acquire_of_a_lapsed_row_that_is_locked_has_its_full_ttl_ahead(place: Place) -> None:
    put(place, seconds=60)
    with behind(place, acquiring(place), Blocker.lock) as (blocker, answer):
        blocker.conn.execute("COMMIT")
        taken = answer.result(30)
    assert taken.outcome == "acquired"
    assert full(taken)


def test_acquire_behind_an_insert_that_is_rolled_back_has_its_full_ttl_ahead(place: Place) -> None:
    with behind(place, acquiring(place), lambda blocker: _insert(blocker, place, lapses_in=60)) as (blocker, answer):
        blocker.conn.execute("ROLLBACK")
        taken = answer.result(30)
    assert taken.outcome == "acquired"
    assert full(taken)


def test_acquire_behind_an_insert_that_is_committed_is_denied_while_that_lease_lives(place: Place) -> None:
    with behind(place, acquiring(place), lambda blocker: _insert(blocker, place, lapses_in=60)) as (blocker, answer):
        blocker.conn.execute("COMMIT")
        denied = answer.result(30)
    assert denied.outcome == "held"
    assert denied.lock is not None
    assert denied.lock.holder == place.variant.holder("them")


def test_acquire_behind_an_insert_whose_lease_lapsed_meanwhile_takes_it_over(place: Place) -> None:
    with behind(place, acquiring(place), lambda blocker: _insert(blocker, place, lapses_in=0.1)) as (blocker, answer):
        blocker.conn.execute("COMMIT")
        taken = answer.result(30)
    assert taken.outcome == "acquired"
    assert full(taken)


def test_acquire_behind_a_delete_has_its_full_ttl_ahead(place: Place) -> None:
    put(place, seconds=-60)
    with behind(place, acquiring(place), lambda it: it.run("DELETE FROM {table} WHERE {key} = 'nightly'")) as (
        blocker,
        answer,
    ):
        blocker.conn.execute("COMMIT")
        taken = answer.result(30)
    assert taken.outcome == "acquired"
    assert full(taken)


def test_extend_of_a_lease_that_lapses_while_it_waits_is_refused(place: Place) -> None:
    put(place, seconds=-1)
    holder = place.variant.holder("nightly")
    with behind(
        place,
        lambda session, table: leases.extend(session, table, place.variant.key(), holder, HOUR),
        Blocker.lock,
    ) as (blocker, answer):
        before = place.rows()
        with place.open() as (session, table):
            until(lambda: leases.check(session, table, place.variant.key(), None).outcome == "lapsed", what="the lapse")
        blocker.conn.execute("COMMIT")
        refused = answer.result(30)
    assert refused.outcome == "not_held"
    assert place.rows() == before


def test_extend_that_waited_gives_the_full_time_from_now(place: Place) -> None:
    put(place, seconds=-60)
    holder = place.variant.holder("nightly")
    with behind(
        place,
        lambda session, table: leases.extend(session, table, place.variant.key(), holder, TTL),
        Blocker.lock,
    ) as (blocker, answer):
        blocker.conn.execute("COMMIT")
        longer = answer.result(30)
    assert longer.outcome == "extended"
    assert full(longer)


def test_force_expire_and_release_judge_the_holder_after_the_wait(place: Place) -> None:
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"])
        shown = leases.read(session, table, place.variant.key())
    assert shown is not None

    def steal(blocker: Blocker) -> None:
        blocker.run("UPDATE {table} SET {holder} = %s WHERE {key} = 'nightly'", place.variant.holder("them"))

    verbs: list[Verb] = [
        lambda session, table: leases.force_expire(session, table, place.variant.key(), shown),
        lambda session, table: leases.release_shown(session, table, shown),
        lambda session, table: leases.release(session, table, place.variant.key(), place.variant.holder("nightly")),
    ]
    for verb in verbs:
        with behind(place, verb, steal) as (blocker, answer):
            blocker.conn.execute("COMMIT")
            refused = answer.result(30)
        assert refused.outcome == "held"
        assert refused.lock is not None
        assert refused.lock.holder == place.variant.holder("them")
        with place.connect() as conn:
            Blocker(place, conn, conn).run(
                "UPDATE {table} SET {holder} = %s WHERE {key} = 'nightly'", place.variant.holder("nightly")
            )


def test_force_expire_that_waited_lapses_at_once_and_tells_of_a_renewal(place: Place) -> None:
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"])
        shown = leases.read(session, table, place.variant.key())
    assert shown is not None
    step = "3600000" if place.variant.table == "verrou" else "interval '1 hour'"

    def renew(blocker: Blocker) -> None:
        blocker.run(f"UPDATE {{table}} SET {{expires}} = {{expires}} + {step} WHERE {{key}} = 'nightly'")

    with behind(
        place,
        lambda session, table: leases.force_expire(session, table, place.variant.key(), shown),
        renew,
    ) as (blocker, answer):
        blocker.conn.execute("COMMIT")
        expired = answer.result(30)
    assert (expired.outcome, expired.renewed) == ("expired", True)
    assert expired.lock is not None
    assert expired.lock.state == "lapsed"


def _insert(blocker: Blocker, place: Place, *, lapses_in: float) -> None:
    """Somebody's insert of the same key, not committed: lockctl's own statement within an open transaction."""
    with place.open() as (_, table):
        values = {
            **table.sql.params(place.variant.key(), holder=place.variant.holder("them"), ttl=int(lapses_in * 1000)),
            "revive": True,
        }
        blocker.conn.execute(sql.SQL("{}").format(table.sql.acquire()), values)
