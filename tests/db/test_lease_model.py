"""A few holders and an operator do anything in any order, beside a model that is obviously right.

Time passes by ageing every row: the server's clock goes on by itself, so nothing here depends on how fast it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lockctl.catalog import Catalog
from lockctl.db import Database, Session
from lockctl.leases import operations, sweep
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe

HOLDERS = ("ann", "ben", "cleo")
KEYS = ("x", "y")
TTLS = (1_000_000, 5_000_000, 20_000_000)
"""Milliseconds, so long that the time which the test itself takes never matters."""
STEPS = (400_000, 3_000_000, 30_000_000)

holders, keys, ttls = st.sampled_from(HOLDERS), st.sampled_from(KEYS), st.sampled_from(TTLS)


@dataclass
class Row:
    """A row of the model: `left` milliseconds of its lease, lapsed when not above nought."""

    holder: str
    left: int

    @property
    def live(self) -> bool:
        return self.left > 0


class Leases(RuleBasedStateMachine):
    """The verbs, and the model's word on what each must answer."""

    session: ClassVar[Session]
    table: ClassVar[LockedTable]

    @initialize()
    def empty(self) -> None:
        self.session.query("DELETE FROM ffdb_locks")
        self.rows: dict[str, Row] = {}

    @rule(key=keys, holder=holders, ttl=ttls)
    def acquire(self, key: str, holder: str, ttl: int) -> None:
        result = operations.acquire(self.session, self.table, (key,), holder, ttl)
        row = self.rows.get(key)
        if row is not None and row.live:
            assert result.outcome == "held"
            assert result.lock is not None
            assert result.lock.holder == row.holder
        else:
            assert result.outcome == "acquired"
            assert (result.previous is not None) == (row is not None)
            self.rows[key] = Row(holder, ttl)

    @rule(key=keys, holder=holders, ttl=ttls, revive=st.booleans())
    def extend(self, key: str, holder: str, ttl: int, revive: bool) -> None:
        result = operations.extend(self.session, self.table, (key,), holder, ttl, revive=revive)
        row = self.rows.get(key)
        if row is None or not (row.live or revive):
            assert result.outcome == "not_held"
        elif row.holder != holder:
            assert result.outcome == "held"
        else:
            assert result.outcome == "extended"
            row.left = ttl

    @rule(key=keys, holder=holders, ttl=ttls, revive=st.booleans())
    def renew(self, key: str, holder: str, ttl: int, revive: bool) -> None:
        result = operations.renew(self.session, self.table, (key,), holder, ttl, revive=revive)
        row = self.rows.get(key)
        if row is not None and row.holder == holder and (row.live or revive):
            assert result.outcome == "extended"
            row.left = max(row.left, ttl)
        else:
            assert result.outcome in ("held", "not_held")

    @rule(key=keys, holder=holders)
    def release(self, key: str, holder: str) -> None:
        result = operations.release(self.session, self.table, (key,), holder)
        row = self.rows.get(key)
        if row is None:
            assert result.outcome == "free"
        elif row.holder != holder:
            assert result.outcome == "held"
        else:
            assert result.outcome == "released"
            del self.rows[key]

    @rule(key=keys, holder=holders)
    def force_expire(self, key: str, holder: str) -> None:
        shown = operations.read(self.session, self.table, (key,))
        row = self.rows.get(key)
        assert (shown is None) == (row is None)
        if shown is None or row is None:
            return
        result = operations.force_expire(self.session, self.table, (key,), shown)
        assert result.outcome == ("expired" if row.live else "not_held")
        row.left = min(row.left, 0)

    @precondition(lambda self: any(not row.live for row in self.rows.values()))
    @rule()
    def swept(self) -> None:
        tally = sweep.Tally(self.table)
        for _ in sweep.sweep(self.session, tally, sweep.Plan(grace_ms=0)):
            pass
        lapsed = [key for key, row in self.rows.items() if not row.live]
        assert tally.swept == len(lapsed)
        for key in lapsed:
            del self.rows[key]

    @rule(step=st.sampled_from(STEPS))
    def time_passes(self, step: int) -> None:
        self.session.query("UPDATE ffdb_locks SET expires_at = expires_at - %s * interval '1 millisecond'", (step,))
        for row in self.rows.values():
            row.left -= step

    @invariant()
    def the_table_is_as_the_model_says(self) -> None:
        for key in KEYS:
            found = operations.read(self.session, self.table, (key,))
            row = self.rows.get(key)
            assert (found is None) == (row is None)
            if found is not None and row is not None:
                assert found.holder == row.holder
                assert found.live == row.live
                assert found.remaining_ms is not None
                assert abs(found.remaining_ms - row.left) < 200_000


def test_no_sequence_of_verbs_contradicts_the_model(dsn: str) -> None:
    with Database(dsn, "the test", "model").connect() as session:
        Leases.session = session
        Leases.table = LockedTable.of(describe(session, Catalog.of().get("ffdb_locks"), None))
        run_state_machine_as_test(
            Leases,
            settings=settings(
                max_examples=60,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
