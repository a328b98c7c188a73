"""Cases 5 and 6: the database's clock decides, in no zone but UTC; the client's clock and zone change no answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from lockctl.leases import inspect as reading
from lockctl.leases import operations as leases
from lockctl.leases import sweep as sweeping
from tests.support.actors import FireFlow
from tests.support.cli import run_lockctl
from tests.support.places import CONFIGURED, OURS, Place
from tests.support.tables import FOREIGN

HOUR = 3_600_000
SOME = [OURS[0], OURS[2], FOREIGN[0], FOREIGN[1], FOREIGN[2], CONFIGURED[0]]
some_places = pytest.mark.parametrize("place", SOME, indirect=True, ids=lambda variant: variant.name)


def changes_within_the_hour() -> str:
    """A zone whose clocks go forward by an hour in half an hour from now, as POSIX writes it."""
    soon = datetime.now(UTC) - timedelta(hours=5) + timedelta(minutes=30)
    late = soon + timedelta(days=60)
    rules = [f"J{(day - timedelta(days=_leap(day))).timetuple().tm_yday}/{day:%H:%M:%S}" for day in (soon, late)]
    return f"AST5ADT,{','.join(rules)}"


def _leap(day: datetime) -> int:
    """POSIX's J form counts no 29th of February."""
    leap_year = day.year % 4 == 0 and (day.year % 100 != 0 or day.year % 400 == 0)
    return int(leap_year and day.timetuple().tm_yday > 60)


def live_a_life(place: Place) -> None:
    """A lease's life, whose every answer must be the same wherever the clocks of the session stand."""
    key, mine = place.variant.key(), place.variant.holder("nightly")
    with place.open() as (session, table):
        started = datetime.now(UTC)
        place.fill(session, table, ["nightly"], ttl_ms=HOUR)
        row = leases.read(session, table, key)
        assert row is not None
        assert (row.state, row.expires_at is not None) == ("held", True)
        assert row.remaining_ms is not None
        assert HOUR - 30_000 < row.remaining_ms <= HOUR + 1_000
        for value, expected in ((row.expires_at, HOUR), (row.created_at, 0), (row.updated_at, 0)):
            if value is not None:
                distance = datetime.fromisoformat(value) - started
                assert abs(distance / timedelta(milliseconds=1) - expected) < 30_000
        assert _stored(place) - started < timedelta(milliseconds=HOUR + 30_000)
        assert _stored(place) - started > timedelta(milliseconds=HOUR - 30_000)
        assert leases.acquire(session, table, key, place.variant.holder("other"), HOUR).outcome == "held"

        assert leases.extend(session, table, key, mine, 24 * HOUR).outcome == "extended"
        assert abs(_stored(place) - started - timedelta(days=1)) < timedelta(seconds=30)
        assert sweeping.count(session, table, sweeping.Plan(grace_ms=0)).swept == 0

        place.age(25 * 3600)
        row = leases.read(session, table, key)
        assert row is not None
        assert (row.state, -HOUR - 30_000 < (row.remaining_ms or 0) <= -HOUR + 1_000) == ("lapsed", True)
        (found,) = reading.rows(session, table, reading.Filter(state="lapsed", lapsed_for_ms=HOUR - 60_000))
        assert found.key == key
        assert list(reading.rows(session, table, reading.Filter(lapsed_for_ms=HOUR + 60_000))) == []
        assert leases.acquire(session, table, key, place.variant.holder("other"), HOUR).outcome == "acquired"
        assert abs(_stored(place) - datetime.now(UTC) - timedelta(hours=1)) < timedelta(seconds=30)


def _stored(place: Place) -> datetime:
    """The expiry as it stands in the table, read as its owner reads it: zoneless is UTC, an integer milliseconds."""
    with place.connect() as conn:
        row = conn.execute(sql.SQL("SELECT {} FROM {}").format(place.expiry, place.relation)).fetchone()
    assert row is not None
    if isinstance(row[0], int):
        return datetime.fromtimestamp(row[0] / 1000, UTC)
    value: datetime = row[0]
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def zone_of_the_database(place: Place, zone: str) -> None:
    with place.connect() as conn:
        name = sql.Identifier(str(conninfo_to_dict(place.dsn)["dbname"]))
        conn.execute(sql.SQL("ALTER DATABASE {} SET TimeZone TO {}").format(name, sql.Literal(zone)))
    with psycopg.connect(place.dsn) as conn:
        assert conn.info.parameter_status("TimeZone") == zone


@some_places
@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati"])
@pytest.mark.parametrize("given", ["database", "PGTZ", "PGOPTIONS"])
def test_the_zone_of_a_session_changes_no_remaining_second(
    place: Place, zone: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 5: whoever sets the TimeZone, the same seconds remain, also in a column without time zone."""
    if given == "database":
        zone_of_the_database(place, zone)
    else:
        monkeypatch.setenv(given, zone if given == "PGTZ" else f"-c TimeZone={zone} -c DateStyle=German")
    live_a_life(place)


@some_places
def test_a_lease_across_a_daylight_saving_change_lives_its_full_ttl(place: Place) -> None:
    """Case 5: the clocks of the server's zone jump within the hour; the lease neither loses nor wins one."""
    zone_of_the_database(place, changes_within_the_hour())
    with psycopg.connect(place.dsn) as conn:
        jump = "SELECT date_part('hour', (now() + interval '1 hour')::timestamp - now()::timestamp)"
        assert conn.execute(jump).fetchone() == (2,), "the zone of the test does not jump"
    live_a_life(place)


@pytest.mark.parametrize("place", [FOREIGN[0]], indirect=True, ids=["fireflow-zoneless"])
def test_fireflow_in_utc_and_lockctl_in_any_zone_mean_the_same_moment(place: Place) -> None:
    zone_of_the_database(place, "Pacific/Kiritimati")
    with place.connect() as conn, place.open() as (session, table):
        owner = FireFlow(conn)
        assert owner.acquire("nightly", "its", timedelta(minutes=1))
        assert leases.acquire(session, table, ("nightly",), "ours", HOUR).outcome == "held"
        place.age(61)
        assert leases.acquire(session, table, ("nightly",), "ours", 60_000).outcome == "acquired"
        assert not owner.acquire("nightly", "its", timedelta(minutes=1))
        place.age(61)
        assert owner.acquire("nightly", "its", timedelta(minutes=1))


SKEW = """
import datetime, os, time

by = float(os.environ["SKEW_S"])
now, now_ns, at, at_ns = time.time, time.time_ns, time.clock_gettime, time.clock_gettime_ns
time.time = lambda: now() + by
time.time_ns = lambda: now_ns() + int(by * 1e9)
time.clock_gettime = lambda clock: at(clock) + (by if clock == time.CLOCK_REALTIME else 0)
time.clock_gettime_ns = lambda clock: at_ns(clock) + int(by * 1e9 if clock == time.CLOCK_REALTIME else 0)
true = datetime.datetime


class Skewed(true):
    @classmethod
    def now(cls, tz=None):
        return true.now(tz) + datetime.timedelta(seconds=by)

    @classmethod
    def utcnow(cls):
        return true.utcnow() + datetime.timedelta(seconds=by)


datetime.datetime = Skewed
"""


@pytest.mark.parametrize("hours", [1, -1], ids=["ahead", "behind"])
def test_a_client_clock_that_is_an_hour_off_decides_nothing(dsn: str, tmp_path: Path, hours: int) -> None:
    """Case 6: every wall clock of the lockctl process is wrong; live stays busy, lapsed stays lapsed."""
    (tmp_path / "sitecustomize.py").write_text(SKEW)
    wrong: Mapping[str, str | None] = {
        "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}",
        "SKEW_S": str(hours * 3600),
        "TZ": "Pacific/Kiritimati",
    }

    def off(*args: str) -> Any:
        return run_lockctl("-f", "json", *args, dsn=dsn, env=wrong)

    shown = run_lockctl(env=wrong, command=["python3", "-c", "import datetime as d; print(d.datetime.now(d.UTC))"])
    assert abs(datetime.fromisoformat(shown.stdout.strip()) - datetime.now(UTC)) > timedelta(minutes=50)

    taken = run_lockctl("acquire", "ffdb_locks", "live", "--ttl", "10m", "--holder", "right", dsn=dsn)
    assert taken.returncode == 0
    denied = off("acquire", "ffdb_locks", "live")
    assert (denied.returncode, denied.json()["outcome"]) == (3, "held")
    assert 500_000 < denied.json()["lock"]["remaining_ms"] <= 600_000
    assert off("check", "ffdb_locks", "live").returncode == 0
    assert off("inspect", "ffdb_locks", "--state", "lapsed").json() == []

    mine = off("acquire", "ffdb_locks", "mine", "--ttl", "10m", "--holder", "wrong")
    assert 500_000 < mine.json()["lock"]["remaining_ms"] <= 600_000
    seen = run_lockctl("-f", "json", "check", "ffdb_locks", "mine", dsn=dsn).json()["lock"]
    assert 500_000 < seen["remaining_ms"] <= 600_000
    assert off("extend", "ffdb_locks", "mine", "--holder", "wrong", "--ttl", "20m").returncode == 0

    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE ffdb_locks SET expires_at = clock_timestamp() - interval '2 minutes'")
    assert off("check", "ffdb_locks", "mine").json()["outcome"] == "lapsed"
    assert off("extend", "ffdb_locks", "mine", "--holder", "wrong").returncode == 4
    assert off("sweep", "ffdb_locks", "--grace", "5m").json()[0]["swept"] == 0
    assert off("acquire", "ffdb_locks", "live", "--holder", "wrong").json()["outcome"] == "acquired"
    assert off("sweep", "ffdb_locks").json()[0]["swept"] == 1
