"""Cases 7 and 8: a key is data, whatever it looks like; what a column can't take is refused before anything else."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockctl.catalog import BUILT_IN, LockTable
from lockctl.db import Database, Session
from lockctl.errors import UsageError
from lockctl.leases import inspect as reading
from lockctl.leases import operations as leases
from lockctl.leases import sweep as sweeping
from lockctl.leases import token
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from tests.support.places import OURS, Place
from tests.support.tables import FOREIGN

MINUTE = 60_000

storable = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=32)
"""Any text that PostgreSQL stores."""


@pytest.fixture
def session(dsn: str) -> Iterator[Session]:
    with Database(dsn=dsn, source="the tests", command="test").connect() as opened:
        yield opened


def built_in(session: Session, name: str) -> LockedTable:
    return LockedTable.of(describe(session, next(table for table in BUILT_IN if table.name == name), None))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.tuples(storable, storable, storable), holder=storable)
def test_any_text_that_postgresql_stores_is_a_key(session: Session, words: tuple[str, str, str], holder: str) -> None:
    """Case 7: acquired, shown, carried by the token, extended, found by the holder, swept and released as it is."""
    for name, key in (("ffdb_locks", words[:1]), ("agent_task_run_lock", words[:2]), ("verrou", words[2:])):
        table = built_in(session, name)
        owner = str(uuid.uuid5(uuid.NAMESPACE_OID, holder)) if name == "agent_task_run_lock" else holder
        taken = leases.acquire(session, table, key, owner, MINUTE)
        assert taken.outcome == "acquired"
        assert taken.lease is not None
        assert token.read(taken.lease) == token.Lease(name, key, owner, MINUTE)
        assert taken.lease.isascii()
        (row,) = reading.rows(session, table, reading.Filter(holder=owner))
        assert (row.key, row.holder) == (key, owner)
        assert leases.extend(session, table, key, owner, MINUTE).outcome == "extended"
        assert leases.force_expire(session, table, key, row).outcome == "expired"
        plan = sweeping.Plan(grace_ms=0, rows=True, except_key=key)
        assert list(sweeping.sweep(session, sweeping.Tally(table), plan)) == []
        assert leases.release(session, table, key, owner).outcome == "released"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.sets(st.tuples(storable, storable), min_size=2, max_size=9), batch=st.integers(1, 4))
def test_pages_and_batches_meet_every_key_once(session: Session, keys: set[tuple[str, str]], batch: int) -> None:
    table = built_in(session, "agent_task_run_lock")
    for key in keys:
        assert leases.acquire(session, table, key, str(uuid.uuid4()), 1).outcome == "acquired"
    page, reading.PAGE = reading.PAGE, batch
    try:
        found = [row.key for row in reading.rows(session, table, reading.Filter())]
    finally:
        reading.PAGE = page
    assert (len(found), set(found)) == (len(keys), keys)
    session.query('UPDATE agent_task_run_lock SET "heldUntil" = "heldUntil" - interval \'1 minute\'')
    tally = sweeping.Tally(table)
    deleted = [row.key for row in sweeping.sweep(session, tally, sweeping.Plan(0, batch, rows=True))]
    assert (len(deleted), set(deleted), tally.skipped) == (len(keys), keys, 0)


LONG = "漢" * 300


@pytest.mark.parametrize("place", [*OURS, FOREIGN[2]], indirect=True, ids=lambda variant: variant.name)
def test_a_value_that_the_column_cannot_take_is_refused_untruncated_and_first(place: Place) -> None:
    """Case 8: every verb refuses it with a usage error that says what the column takes, and nothing changes."""
    variant = place.variant
    bad_keys: list[tuple[str, ...]] = [tuple("a\0" for _ in variant.key()), tuple("\udc80" for _ in variant.key())]
    bad_holders = ["no\0pe", "\udcff"]
    with place.open() as (session, table):
        place.fill(session, table, ["nightly"])
        if any(column.limit for column in table.shape.keys):
            bad_keys.append(tuple(LONG for _ in variant.key()))
        if table.shape.holder.limit:
            bad_holders.append(LONG)
        if variant.uuid_holder:
            bad_holders += ["", "host-1", "0" * 31]
        before = place.rows()
        key, holder = variant.key(), variant.holder("nightly")
        for bad in bad_keys:
            for verb in (leases.acquire, leases.extend):
                with pytest.raises(UsageError):
                    verb(session, table, bad, holder, MINUTE)
            with pytest.raises(UsageError):
                leases.release(session, table, bad, holder)
            with pytest.raises(UsageError):
                leases.check(session, table, bad, None)
            with pytest.raises(UsageError):
                list(reading.rows(session, table, reading.Filter(key=bad)))
        for bad_holder in bad_holders:
            for verb in (leases.acquire, leases.extend):
                with pytest.raises(UsageError):
                    verb(session, table, key, bad_holder, MINUTE)
            with pytest.raises(UsageError):
                leases.release(session, table, key, bad_holder)
            with pytest.raises(UsageError):
                leases.check(session, table, key, bad_holder)
        assert place.rows() == before


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("uuid", ["11111111-1111-1111-1111-111111111111"], ["", "x", "1" * 31]),
        ("smallint", ["-32768", "32767"], ["32768", "", "1e3", "1.0", "x"]),
        ("integer", ["-2147483648", "7"], ["2147483648", " ", "0x1"]),
        ("bigint", ["9223372036854775807"], ["9223372036854775808", "--1"]),
        ("char(3)", ["abc", "漢漢漢"], ["abcd"]),
        ("varchar(3)", ["abc", "   "], ["abc ", "漢漢漢漢"]),
        ("text", ["", " x ", LONG], []),
    ],
)
def test_keys_of_every_type_are_exact_or_refused(empty_dsn: str, kind: str, good: list[str], bad: list[str]) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(f"CREATE TABLE locks (k {kind} PRIMARY KEY, h text, until timestamptz NOT NULL)".encode())
    description = LockTable(name="locks", relation="locks", key=("k",), holder="h", expires="until")
    with Database(dsn=empty_dsn, source="the tests", command="test").connect() as session:
        table = LockedTable.of(describe(session, description, None))
        for word in good:
            assert leases.acquire(session, table, (word,), "me", MINUTE).outcome == "acquired"
            assert leases.check(session, table, (word,), "me").outcome == "held"
        for word in bad:
            with pytest.raises(UsageError):
                leases.acquire(session, table, (word,), "me", MINUTE)
        shown: list[Any] = [row.key[0] for row in reading.rows(session, table, reading.Filter())]
        assert sorted(shown) == sorted(good)


def test_a_uuid_is_the_same_holder_however_it_is_spelled(session: Session) -> None:
    table = built_in(session, "agent_task_run_lock")
    owner = uuid.UUID(int=0xABCDEF)
    leases.acquire(session, table, ("a", "t"), str(owner).upper(), MINUTE)
    assert leases.extend(session, table, ("a", "t"), "{" + owner.hex + "}", MINUTE).outcome == "extended"
    assert leases.check(session, table, ("a", "t"), owner.urn).outcome == "held"
    assert leases.release(session, table, ("a", "t"), owner.hex).outcome == "released"


@pytest.mark.parametrize("place", [FOREIGN[2], FOREIGN[3]], indirect=True, ids=lambda variant: variant.name)
def test_a_key_that_refers_to_nothing_is_said_to(place: Place) -> None:
    with place.open() as (session, table), pytest.raises(UsageError, match=r"refers to nothing.*ghost"):
        leases.acquire(session, table, ("ghost", "task"), str(uuid.uuid4()), MINUTE)
    assert place.rows() == []
