"""Sources of a deployment: the same meaning on other tables, columns and types, in any time zone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lockctl.config import load
from lockctl.db import Database, Session
from lockctl.errors import BehindError
from lockctl.runs import buried, changing, reading, reviving
from lockctl.runs.detail import detail
from lockctl.runs.places import Place, locate, present
from lockctl.sources import BUILT_IN, Source
from tests.support import dbos

Conn = psycopg.Connection[Any]

NAMES = """
[sources.mine]
like = "run_store"
runs = { relation = "wf.runs", id = "run_id", name = "title", status = "state", started_at = "began", \
updated_at = false, ended_at = false, outcome = "result", running = ["RUNNING"], ended = ["DONE", "FAILED"], \
parked = "WAITING", failed = "FAILED", cancel_requested_at = false, cancel_reason = false, input = false }
"""
APART = (
    NAMES
    + """
leases = { relation = "wf.leases", run_id = "run", token = "owner", expires_at = "until" }
work = { relation = "wf.work", id = "work_id", due_at = "due", buried = "dead", buried_at = false, reason = "why", \
claim = false, claimed_until = false, claimed_armed = false, armed = false, updated_at = false }
"""
)
WITHIN = (
    NAMES
    + """
leases = { relation = "wf.runs", run_id = "run_id", token = "owner", expires_at = "until" }
work = { relation = "wf.work", id = "work_id", due_at = "due", buried = "dead", reason = "why", \
claim = false, claimed_until = false, claimed_armed = false, armed = false, updated_at = false }
"""
)


@dataclass(frozen=True)
class Kind:
    """A way to keep times: `now` in the column's type, and what a minute is in it."""

    type: str
    now: str
    minute: str


KINDS = (
    Kind("timestamptz", "now()", "interval '1 min'"),
    Kind("timestamp", "(now() AT TIME ZONE 'UTC')", "interval '1 min'"),
    Kind("bigint", "(extract(epoch FROM now()) * 1000)::bigint", "60000"),
)


@dataclass(frozen=True)
class Deployment:
    source: Source
    place: Place
    session: Session
    conn: Conn
    kind: Kind
    within: bool

    def run(
        self, name: str, *, state: str = "RUNNING", began: int = -60, owner: str | None = None, until: int = 0
    ) -> str:
        """A run that began so many minutes from now, with a lease until so many minutes from now; its id."""
        at = f"{self.kind.now} + %s * {self.kind.minute}"
        row = self.conn.execute(
            f"INSERT INTO wf.runs (title, state, began) VALUES (%s, %s, {at}) RETURNING run_id::text",
            (name, state, began),
        ).fetchone()
        assert row is not None
        if owner is not None and self.within:
            self.conn.execute(
                f"UPDATE wf.runs SET owner = %s, until = {at} WHERE run_id::text = %s", (owner, until, row[0])
            )
        elif owner is not None:
            self.conn.execute(f"INSERT INTO wf.leases VALUES (%s, %s, {at})", (row[0], owner, until))
        return str(row[0])

    def lapsed(self) -> list[tuple[str | None, str | None]]:
        found = reading.lapsed(self.session, self.place, reading.looker(self.session, self.place), stale_ms=60_000)
        return [(run.name, run.class_) for run in found]


@pytest.fixture(
    params=[(kind, within) for kind in KINDS for within in (False, True)], ids=lambda p: f"{p[0].type}-{p[1]}"
)
def wf(
    request: pytest.FixtureRequest, empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Deployment]:
    """A deployment's tables: uuid ids, other names, times of one kind; the lease beside the run or within it."""
    kind, within = request.param
    monkeypatch.setenv("PGTZ", "Pacific/Kiritimati")
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA wf")
        columns = f", owner text, until {kind.type}" if within else ""
        conn.execute(
            "CREATE TABLE wf.runs (run_id uuid PRIMARY KEY DEFAULT gen_random_uuid(), title text, state text NOT NULL,"
            f" began {kind.type} NOT NULL, result jsonb{columns})"
        )
        if not within:
            conn.execute(f"CREATE TABLE wf.leases (run text PRIMARY KEY, owner text, until {kind.type} NOT NULL)")
        dead = "boolean NOT NULL DEFAULT false" if not within else kind.type
        conn.execute(
            "CREATE TABLE wf.work (work_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind text NOT NULL,"
            f" key text NOT NULL UNIQUE, payload text NOT NULL, due {kind.type} NOT NULL,"
            f" attempts int NOT NULL DEFAULT 0, dead {dead}, why text)"
        )
        config = tmp_path / "lockctl.toml"
        config.write_text(WITHIN if within else APART)
        source = load(str(config)).sources["mine"]
        with Database(empty_dsn, "the test", "test").connect() as session:
            (place,) = locate(session, [source], None)
            yield Deployment(source, place, session, conn, kind, within)


def test_lapsed_runs_are_found_by_their_meaning(wf: Deployment) -> None:
    wf.run("never", began=-50)
    wf.run("lapsed", began=-60, owner="w1", until=-1)
    wf.run("held", owner="w2", until=1)
    wf.run("young", began=0)
    wf.run("done", state="DONE")
    assert wf.lapsed() == [("lapsed", "lease_lapsed"), ("never", "never_leased")]
    found = reading.recent(wf.session, wf.place, reading.looker(wf.session, wf.place), limit=1)
    assert [run.name for run in found] == ["young"]


def test_a_run_is_requeued_failed_and_shown(wf: Deployment) -> None:
    run = wf.run("r", owner="w1", until=-1)
    look = reading.looker(wf.session, wf.place)
    (done,) = changing.apply(wf.session, wf.place, "requeue", changing.show(wf.session, wf.place, [run], look))
    assert done.outcome == "requeued"
    found = detail(wf.session, wf.place, run, look)
    assert found is not None
    assert found.run.status == "WAITING"
    assert [(item.key, item.state) for item in found.work] == [(f"resume_timer:{run}", "due")]
    (failed,) = changing.apply(
        wf.session, wf.place, "fail", changing.show(wf.session, wf.place, [run], look), reason="why"
    )
    assert failed.outcome == "failed"
    row = wf.conn.execute("SELECT state, result FROM wf.runs").fetchone()
    assert row == ("FAILED", {"error": "why"})
    with pytest.raises(BehindError, match="no column for a cancellation"):
        list(changing.apply(wf.session, wf.place, "cancel", changing.show(wf.session, wf.place, [wf.run("s")], look)))


def test_a_run_that_is_held_is_left(wf: Deployment) -> None:
    run = wf.run("r", owner="w1", until=1)
    look = reading.looker(wf.session, wf.place)
    (left,) = changing.apply(wf.session, wf.place, "requeue", changing.show(wf.session, wf.place, [run], look))
    assert (left.outcome, "signs of life" in (left.why or "")) == ("skipped", True)


def test_work_is_buried_by_its_marker_and_revived(wf: Deployment) -> None:
    marker = "true" if not wf.within else wf.kind.now
    wf.conn.execute(
        f"INSERT INTO wf.work (kind, key, payload, due, attempts, dead, why)"
        f" VALUES ('mail', 'k', 'no json', {wf.kind.now}, 3, {marker}, 'gave up')"
    )
    (found,) = buried.buried(wf.session, wf.place)
    assert (found.key, found.attempts, found.reason, found.payload) == ("k", 3, "gave up", "no json")
    assert (found.buried_at is not None) == wf.within
    look = reading.looker(wf.session, wf.place)
    seen = reviving.show(wf.session, wf.place, [found.id], look)
    (done,) = reviving.revive(wf.session, wf.place, seen, look)
    assert done.outcome == "revived"
    assert list(buried.buried(wf.session, wf.place)) == []
    row = wf.conn.execute("SELECT attempts, why FROM wf.work").fetchone()
    assert row == (0, None)


def test_a_table_or_column_that_is_missing_is_named(wf: Deployment) -> None:
    wf.conn.execute("ALTER TABLE wf.runs RENAME COLUMN title TO name")
    with pytest.raises(BehindError, match=r'wf\.runs has no column "title"'):
        locate(wf.session, [wf.source], None)
    wf.conn.execute("DROP TABLE wf.runs")
    with pytest.raises(BehindError, match=r"wf\.runs of source mine does not exist"):
        present(locate(wf.session, [wf.source], None), lambda _: "runs", named=True)


def test_a_column_of_a_wrong_type_is_named(wf: Deployment) -> None:
    wf.conn.execute("ALTER TABLE wf.runs ALTER began TYPE text USING began::text")
    with pytest.raises(BehindError, match=r'column "began" of wf\.runs has type text'):
        locate(wf.session, [wf.source], None)


def test_two_sources_of_one_table_are_one(dsn: str) -> None:
    with Database(dsn, "the test", "test").connect() as session, psycopg.connect(dsn, autocommit=True) as conn:
        dbos.make(conn)
        twin = BUILT_IN[0]._replace(name="twin")
        found = present(locate(session, [*BUILT_IN, twin], None), lambda _: "runs", named=False)
        assert [place.source.name for place in found] == ["run_store", "dbos"]
