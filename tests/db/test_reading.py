"""Reading and sweeping, one test body for every table of the catalogue in each way in which it comes to be."""

from __future__ import annotations

from typing import Any

import pytest

from lockctl.leases import inspect as reading
from lockctl.leases import operations as leases
from lockctl.leases import sweep as sweeping
from tests.support.places import Place

HOUR = 3_600_000

FILTERS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["a", "b", "c", "d"]),
    ({"state": "held"}, ["b", "c"]),
    ({"state": "lapsed"}, ["a", "d"]),
    ({"lapsed_for_ms": 4 * HOUR}, ["a"]),
    ({"expires_within_ms": 2 * HOUR}, ["b"]),
    ({"holder": "c"}, ["c"]),
    ({"key": "d"}, ["d"]),
]


def test_inspect_and_sweep_agree_on_what_has_lapsed(place: Place) -> None:
    variant = place.variant
    with place.open() as (session, table):
        place.fill(session, table, ["a", "b", "c", "d"], ttl_ms=HOUR)
        leases.extend(session, table, variant.key("c"), variant.holder("c"), 12 * HOUR)
        place.age(8 * 3600, "a")
        place.age(2 * 3600, "d")
        for wanted, expected in FILTERS:
            chosen = {**wanted}
            if "holder" in chosen:
                chosen["holder"] = variant.holder(chosen["holder"])
            if "key" in chosen:
                chosen["key"] = variant.key(chosen["key"])
            found = list(reading.rows(session, table, reading.Filter(**chosen)))
            assert [row.key for row in found] == [variant.key(word) for word in expected], wanted
            counts = {line.state: line.count for line in reading.summary(session, table, reading.Filter(**chosen))}
            assert sum(counts.values()) == len(expected), wanted

        plan = sweeping.Plan(grace_ms=4 * HOUR, rows=True)
        assert sweeping.count(session, table, plan).swept == 1
        deleted = list(sweeping.sweep(session, tally := sweeping.Tally(table), plan))
        assert ([row.key for row in deleted], tally.swept) == ([variant.key("a")], 1)
        list(sweeping.sweep(session, tally := sweeping.Tally(table), sweeping.Plan(grace_ms=0)))
        assert tally.result().swept == 1
        left = reading.rows(session, table, reading.Filter())
        assert [row.key for row in left] == [variant.key("b"), variant.key("c")]


@pytest.mark.parametrize("sort", ["key", "expires", "created"])
def test_every_order_reads_every_row_once_page_by_page(
    place: Place, sort: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PAGE", 3)
    words = [f"k{number:02}" for number in range(10)]
    with place.open() as (session, table):
        if sort == "created" and table.shape.created is None:
            pytest.skip("the table keeps no such time")
        place.fill(session, table, words)
        for number, word in enumerate(words[:5]):
            place.age(60 * number, word)
        found = list(reading.rows(session, table, reading.Filter(), sort=sort))
        assert sorted(row.key for row in found) == [place.variant.key(word) for word in words]
        field = {"key": "key", "expires": "expires_at", "created": "created_at"}[sort]
        values = [getattr(row, field) for row in found]
        assert values == sorted(values)
        assert len(list(reading.rows(session, table, reading.Filter(), sort=sort, limit=4))) == 4
