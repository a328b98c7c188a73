"""What `migrate plan` says of a statement is what a server does: the same locks, rewrites and scans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.migrations import lockrules, sqlfile
from lockctl.migrations.plan import PlannedLock, plan

Conn = psycopg.Connection[Any]

SCENE = """
CREATE TABLE owner (id int PRIMARY KEY, name text);
CREATE TABLE item (id int PRIMARY KEY, owner_id int REFERENCES owner, label varchar(9) NOT NULL, n int);
ALTER TABLE item ADD CONSTRAINT positive CHECK (n > 0) NOT VALID;
CREATE TABLE part (id int, item_id int REFERENCES item ON DELETE CASCADE);
CREATE INDEX item_n ON item (n);
CREATE UNIQUE INDEX item_label ON item (label);
CREATE TABLE parted (id int) PARTITION BY LIST (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE loose (id int);
CREATE VIEW seen AS SELECT id FROM owner;
CREATE MATERIALIZED VIEW kept AS SELECT id FROM owner;
CREATE SEQUENCE numbers;
CREATE FUNCTION steady() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION shaky() RETURNS int LANGUAGE plpgsql VOLATILE AS 'BEGIN RETURN 1; END';
CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER acts AFTER INSERT ON item FOR EACH ROW EXECUTE FUNCTION act();
CREATE POLICY own ON item USING (true);
INSERT INTO owner VALUES (1, 'x');
INSERT INTO item VALUES (1, 1, 'a', 1);
"""

AE, SRE, SUE = "ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE"

CASES: dict[str, dict[str, tuple[str, str | None]]] = {
    "ALTER TABLE item ADD COLUMN c int": {"item": (AE, None)},
    "ALTER TABLE item ADD COLUMN c int NOT NULL DEFAULT 3": {"item": (AE, None)},
    "ALTER TABLE item ADD COLUMN c timestamptz DEFAULT now()": {"item": (AE, None)},
    "ALTER TABLE item ADD COLUMN c int DEFAULT steady()": {"item": (AE, None)},
    "ALTER TABLE item ADD COLUMN c int DEFAULT shaky()": {"item": (AE, "rewrite")},
    "ALTER TABLE item ADD COLUMN c float DEFAULT random()": {"item": (AE, "rewrite")},
    "ALTER TABLE item ADD COLUMN c uuid DEFAULT gen_random_uuid()": {"item": (AE, "rewrite")},
    "ALTER TABLE item ADD COLUMN c serial": {"item": (AE, "rewrite")},
    "ALTER TABLE item ADD COLUMN c int GENERATED ALWAYS AS IDENTITY": {"item": (AE, "rewrite")},
    "ALTER TABLE item ADD COLUMN c int GENERATED ALWAYS AS (n * 2) STORED": {"item": (AE, "rewrite")},
    "ALTER TABLE part ADD COLUMN c int NOT NULL": {"part": (AE, "scan")},
    "ALTER TABLE item ADD COLUMN c int REFERENCES owner": {"item": (AE, None), "owner": (SRE, None)},
    "ALTER TABLE item DROP COLUMN n": {"item": (AE, None)},
    "ALTER TABLE item ALTER COLUMN n TYPE bigint": {"item": (AE, "rewrite")},
    "ALTER TABLE item ALTER COLUMN n SET NOT NULL": {"item": (AE, "scan")},
    "ALTER TABLE item ALTER COLUMN label DROP NOT NULL": {"item": (AE, None)},
    "ALTER TABLE item ALTER COLUMN n SET DEFAULT 3": {"item": (AE, None)},
    "ALTER TABLE item ALTER COLUMN n SET STATISTICS 50": {"item": (SUE, None)},
    "ALTER TABLE item SET (fillfactor = 70)": {"item": (SUE, None)},
    "ALTER TABLE item SET (fillfactor = 70), ALTER COLUMN n SET NOT NULL": {"item": (AE, "scan")},
    "ALTER TABLE item ADD CONSTRAINT c CHECK (n < 9)": {"item": (AE, "scan")},
    "ALTER TABLE item ADD CONSTRAINT c CHECK (n < 9) NOT VALID": {"item": (AE, None)},
    "ALTER TABLE item ADD CONSTRAINT c UNIQUE (n)": {"item": (AE, "scan")},
    "ALTER TABLE item ADD CONSTRAINT c UNIQUE USING INDEX item_label": {"item": (AE, None)},
    "ALTER TABLE item ADD FOREIGN KEY (n) REFERENCES owner": {"item": (SRE, "scan"), "owner": (SRE, None)},
    "ALTER TABLE item ADD FOREIGN KEY (n) REFERENCES owner NOT VALID": {"item": (SRE, None), "owner": (SRE, None)},
    "ALTER TABLE item VALIDATE CONSTRAINT positive": {"item": (SUE, "scan")},
    "ALTER TABLE item DROP CONSTRAINT item_owner_id_fkey": {"item": (AE, None), "owner": (AE, None)},
    "ALTER TABLE item DROP CONSTRAINT positive": {"item": (AE, None)},
    "ALTER TABLE item DISABLE TRIGGER acts": {"item": (SRE, None)},
    "ALTER TABLE item ENABLE ROW LEVEL SECURITY": {"item": (AE, None)},
    "ALTER TABLE item CLUSTER ON item_n": {"item": (SUE, None)},
    "ALTER TABLE loose SET UNLOGGED": {"loose": (AE, "rewrite")},
    "ALTER TABLE parted ATTACH PARTITION loose FOR VALUES IN (2)": {"parted": (SUE, None), "loose": (AE, "scan")},
    "ALTER TABLE parted DETACH PARTITION parted_1": {"parted": (AE, None), "parted_1": (AE, None)},
    "ALTER TABLE item RENAME COLUMN n TO m": {"item": (AE, None)},
    "ALTER TABLE item RENAME TO items": {"items": (AE, None)},
    "ALTER INDEX item_n RENAME TO item_m": {"item_m": (SUE, None)},
    "CREATE INDEX ON item (owner_id)": {"item": ("SHARE", "scan")},
    "DROP INDEX item_n": {"item": (AE, None), "item_n": (AE, None)},
    "REINDEX INDEX item_n": {"item": ("SHARE", "scan"), "item_n": (AE, None)},
    "REINDEX TABLE item": {"item": ("SHARE", "scan")},
    "DROP TABLE part": {"part": (AE, None), "item": (AE, None)},
    "DROP VIEW seen": {"seen": (AE, None)},
    "DROP SEQUENCE numbers": {"numbers": (AE, None)},
    "DROP TRIGGER acts ON item": {"item": (AE, None)},
    "DROP POLICY own ON item": {"item": (AE, None)},
    "CREATE TRIGGER again AFTER UPDATE ON item FOR EACH ROW EXECUTE FUNCTION act()": {"item": (SRE, None)},
    "CREATE POLICY mine ON item USING (true)": {"item": (AE, None)},
    "CREATE TABLE child (id int REFERENCES item)": {"item": (SRE, None)},
    "CREATE TABLE parted_3 PARTITION OF parted FOR VALUES IN (3)": {"parted": (AE, None)},
    "CREATE TABLE heir () INHERITS (loose)": {"loose": (SUE, None)},
    "CREATE TABLE alike (LIKE owner)": {"owner": ("ACCESS SHARE", None)},
    "CREATE OR REPLACE VIEW seen AS SELECT id FROM owner": {"seen": (AE, None), "owner": ("ACCESS SHARE", None)},
    "COMMENT ON COLUMN item.n IS 'x'": {"item": (SUE, None)},
    "COMMENT ON TABLE item IS 'x'": {"item": (SUE, None)},
    "TRUNCATE owner CASCADE": {"owner": (AE, None), "item": (AE, None), "part": (AE, None)},
    "REFRESH MATERIALIZED VIEW kept": {"kept": (AE, "rewrite")},
    "LOCK TABLE item IN EXCLUSIVE MODE": {"item": ("EXCLUSIVE", None)},
    "CLUSTER item USING item_n": {"item": (AE, "rewrite")},
    "SELECT * FROM item JOIN owner ON true": {"item": ("ACCESS SHARE", None), "owner": ("ACCESS SHARE", None)},
    "SELECT * FROM item FOR UPDATE": {"item": ("ROW SHARE", None)},
    "UPDATE part SET id = 2": {"part": ("ROW EXCLUSIVE", None)},
    "DELETE FROM part USING loose WHERE true": {"part": ("ROW EXCLUSIVE", None), "loose": ("ACCESS SHARE", None)},
    "INSERT INTO loose SELECT id FROM owner": {"loose": ("ROW EXCLUSIVE", None), "owner": ("ACCESS SHARE", None)},
    "ALTER SEQUENCE numbers INCREMENT 3": {"numbers": (SRE, None)},
    "DO $$ BEGIN IF true THEN DROP TABLE loose; END IF; END $$": {"loose": (AE, None)},
}


@pytest.fixture(scope="module")
def scene(server: Any, admin: Conn) -> Iterator[str]:
    from tests.support.databases import database

    with database(admin, server.conninfo) as dsn:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(SCENE.encode())
        yield dsn


def planned(dsn: str, statement: str) -> list[PlannedLock]:
    with Database(dsn, "the test", "migrate plan").connect(read_only=True) as session:
        return list(plan(sqlfile.parse(statement, "f").steps, session))


def strongest(found: list[PlannedLock]) -> dict[str, tuple[str, str | None]]:
    locks: dict[str, tuple[str, str | None]] = {}
    for lock in found:
        if lock.relation is None or lock.lock_mode is None:
            continue
        mode, effect = locks.get(lock.relation, ("ACCESS SHARE", None))
        locks[lock.relation] = (
            max(mode, lock.lock_mode, key=lockrules.MODES.index),
            max(effect, lock.effect, key=lockrules.EFFECTS.index),
        )
    return locks


@pytest.mark.parametrize("statement", CASES)
def test_a_statement_takes_the_locks_that_the_plan_names(scene: str, statement: str) -> None:
    expected = CASES[statement]
    found = strongest(planned(scene, statement))
    renamed = {"items": "item", "item_m": "item_n"}
    assert found == {renamed.get(name, name): value for name, value in expected.items()}
    measured = measure(scene, statement, tuple(expected))
    for name, (mode, effect) in expected.items():
        assert measured[name][0] == mode, name
        # A new file that nothing is copied into is no rewrite.
        if not statement.startswith(("TRUNCATE", "ALTER SEQUENCE")):
            assert measured[name][1] == (effect == "rewrite"), name
        # The rows of a referenced table are looked up one by one or joined, as the planner likes.
        exact = mode in (AE, SRE, SUE, "SHARE") and effect != "rewrite" and not statement.startswith("TRUNCATE")
        if exact and not (name == "owner" and mode == SRE):
            assert measured[name][2] == (effect == "scan"), f"{name}: scanned {measured[name][2]}"


def measure(dsn: str, statement: str, names: tuple[str, ...]) -> dict[str, tuple[str, bool, bool]]:
    """The strongest lock that `statement` held on each relation, whether it got a new file, and was scanned."""
    modes = {name.title().replace(" ", "") + "Lock": name for name in lockrules.MODES}
    relation = "SELECT oid::int8, pg_relation_filenode(oid) FROM pg_class WHERE relname = ANY (%s)"
    scans = "SELECT relid::int8, seq_scan FROM pg_stat_xact_user_tables"
    with psycopg.connect(dsn) as conn:
        every = "SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        before: dict[int, int] = dict(conn.execute(relation, ([row[0] for row in conn.execute(every)],)).fetchall())
        conn.rollback()
        conn.execute(statement.encode())
        held = conn.execute(
            "SELECT relation::int8, mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation IS NOT NULL"
        ).fetchall()
        scanned: dict[int, int] = dict(conn.execute(scans).fetchall())
        oids: dict[str, int] = dict(
            conn.execute("SELECT relname::text, oid::int8 FROM pg_class WHERE relname = ANY (%s)", (list(names),))
        )
        after: dict[int, int] = dict(conn.execute(relation, (list(names),)).fetchall())
        conn.rollback()
        gone: dict[str, int] = dict(
            conn.execute("SELECT relname::text, oid::int8 FROM pg_class WHERE relname = ANY (%s)", (list(names),))
        )
        conn.rollback()
    answer = {}
    for name in names:
        oid = oids.get(name) or gone[name]
        own = [modes[mode] for relid, mode in held if relid == oid]
        mode = max(own, key=lockrules.MODES.index)
        rewritten = oid in after and "INDEX" not in statement.split()[:2] and before.get(oid) != after[oid]
        answer[name] = (mode, rewritten, bool(scanned.get(oid)))
    return answer


def test_without_a_database_what_only_the_catalogue_knows_is_said() -> None:
    (table,) = plan(sqlfile.parse("DROP TABLE part", "f").steps)
    assert table.note == "and on every table that a foreign key of it references"
    (column,) = plan(sqlfile.parse("ALTER TABLE t ADD c int DEFAULT f()", "f").steps)
    assert (column.effect, column.note) == ("rewrite", "unless f() is stable or immutable")


def test_the_plan_changes_nothing_and_names_sizes(scene: str) -> None:
    (first, second) = planned(scene, "DROP TABLE part")
    assert (first.relation, second.relation) == ("part", "item")
    assert second.size_bytes is not None
    assert second.size_bytes > 0
    with psycopg.connect(scene) as conn:
        assert conn.execute("SELECT to_regclass('part') IS NOT NULL").fetchone() == (True,)


def test_code_put_together_at_run_time_is_not_passed_over_in_silence() -> None:
    (row,) = plan(sqlfile.parse("DO $$ BEGIN EXECUTE 'DROP TABLE t'; END $$", "f").steps)
    assert row.note == "runs code whose locks are not in this text"
