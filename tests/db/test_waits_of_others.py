"""What other sessions wait while a migration stands behind a long reader: no longer than the lock timeout.

Each scene is played with lockctl, and with the same statements bare, where everybody waits until the readers end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
import pytest

from lockctl.activity.blockers import sample
from lockctl.db import Database
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.engine import Engine, Progress, Step
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import quiet
from tests.support.traffic import Traffic, readers

pytestmark = pytest.mark.slow

LOCK_TIMEOUT_S = 1.0
MARGIN_S = 1.0
"""For a machine with everything else running on its two cores."""


@dataclass(frozen=True)
class Scene:
    """`migration` is one transaction; `reading` who reads what for how many seconds; `traffic` what others do."""

    migration: Sequence[str]
    reading: Sequence[tuple[str, float]]
    traffic: Sequence[str]

    @property
    def reader_s(self) -> float:
        return max(seconds for _, seconds in self.reading)


SETUP = """
CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE c (id int PRIMARY KEY);
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child1 (id int REFERENCES parent); CREATE TABLE child2 (id int REFERENCES parent);
INSERT INTO a VALUES (1); INSERT INTO b VALUES (1); INSERT INTO c VALUES (1); INSERT INTO parent VALUES (1);
"""
SCENES = {
    "one table": Scene(
        ["ALTER TABLE a ADD COLUMN x int"],
        [("a", 4.5)],
        ["SELECT count(*) FROM a", "UPDATE a SET id = id"],
    ),
    # Each lock is waited for less than the lock timeout; whoever is behind the first table waits for them all.
    "three tables in one transaction": Scene(
        [f"ALTER TABLE {name} ADD COLUMN x int" for name in "abc"],
        [("a", 0.8), ("b", 1.6), ("c", 4.5)],
        ["SELECT count(*) FROM a", "UPDATE b SET id = id", "SELECT count(*) FROM c"],
    ),
    "one statement over three tables": Scene(
        ["LOCK TABLE a, b, c IN ACCESS EXCLUSIVE MODE"],
        [("a", 0.8), ("b", 1.6), ("c", 4.5)],
        ["SELECT count(*) FROM a", "UPDATE b SET id = id", "SELECT count(*) FROM c"],
    ),
    "a DROP with foreign keys": Scene(
        ["DROP TABLE child1, child2"],
        [("parent", 4.5)],
        ["SELECT count(*) FROM parent", "UPDATE parent SET id = id"],
    ),
}


@pytest.fixture(params=SCENES)
def scene(request: pytest.FixtureRequest, empty_dsn: str) -> Scene:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute(SETUP)
    return SCENES[request.param]


def migrate(dsn: str, statements: Sequence[str]) -> Progress:
    def run(attempt: Attempt) -> None:
        with attempt.transaction():
            for statement in statements:
                attempt.execute(statement)

    policy = Policy(Limits(lock_timeout_ms=int(LOCK_TIMEOUT_S * 1000)))
    with Database(dsn, "the test", "migrate apply", sampler=sample).connect() as session:
        return Engine(session, policy, quiet).run([Step("scene", "the scene", run)])


def test_nobody_waits_longer_than_the_lock_timeout(empty_dsn: str, scene: Scene) -> None:
    with readers(empty_dsn, scene.reading), Traffic(empty_dsn, scene.traffic) as traffic:
        progress = migrate(empty_dsn, scene.migration)
    assert (progress.outcome, progress.error) == ("done", None)
    assert progress.attempts > 1
    assert traffic.count > 20
    assert traffic.longest < LOCK_TIMEOUT_S + MARGIN_S


def test_without_lockctl_everybody_waits_until_the_reader_ends(empty_dsn: str, scene: Scene) -> None:
    started = time.monotonic()
    with readers(empty_dsn, scene.reading), Traffic(empty_dsn, scene.traffic) as traffic:
        with psycopg.connect(empty_dsn) as conn:
            for statement in scene.migration:
                conn.execute(statement.encode())
        assert time.monotonic() - started >= scene.reader_s * 0.9
    assert traffic.longest > LOCK_TIMEOUT_S + MARGIN_S
