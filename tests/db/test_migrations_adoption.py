"""Tables that were there: adopted as they are, and left by a downgrade."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.errors import BehindError
from lockctl.migrations import operations
from lockctl.migrations.records import Event
from tests.support import tables as real

Conn = psycopg.Connection[Any]

PICTURE = (
    "SELECT oid, xmin, relfilenode, relowner, relacl, obj_description(oid) FROM pg_class WHERE oid = %(r)s::regclass",
    "SELECT attname, atttypid, atttypmod, xmin FROM pg_attribute WHERE attrelid = %(r)s::regclass ORDER BY attnum",
    "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %(r)s::regclass ORDER BY 1",
    "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %(r)s::regclass ORDER BY 1",
)


@pytest.fixture
def empty(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


def call(dsn: str, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with Database(dsn, "the test", "migrate").connect(raw_times=False) as session:
        return operation(session, *args, **kwargs)


def picture(conn: Conn, relation: str) -> list[Any]:
    """Everything about a table that a migration could have changed, and that it is still the same one."""
    return [conn.execute(statement, {"r": relation}).fetchall() for statement in PICTURE]


@pytest.mark.parametrize(("make", "component", "relation", "schema"), [
    (real.fireflow, "ffdb", "public.ffdb_locks", None),
    (lambda conn: real.fireflow(conn, zoned=True), "ffdb", "public.ffdb_locks", None),
    (real.n8n, "n8n", "public.agent_task_run_lock", None),
    (lambda conn: real.n8n(conn, schema="n8n_app"), "n8n", "n8n_app.agent_task_run_lock", "n8n_app"),
    (real.verrou, "plan", "public.verrou", None),
], ids=["fireflow-zoneless", "fireflow-zoned", "n8n", "n8n-schema", "verrou"])  # fmt: skip
def test_a_real_table_is_adopted_and_survives_the_downgrade(
    empty_dsn: str, empty: Conn, make: Callable[[Conn], None], component: str, relation: str, schema: str | None
) -> None:
    make(empty)
    before = picture(empty, relation)
    events: list[Event] = []
    up = call(empty_dsn, operations.upgrade, f"{component}@head", schema=schema, notify=events.append)
    assert (up.result.outcome, up.error) == ("done", None)
    assert "adopted" in [event.event for event in events]
    assert picture(empty, relation) == before
    assert call(empty_dsn, operations.verify, schema=schema).outcome == "current"

    events.clear()
    down = call(empty_dsn, operations.downgrade, f"{component}@base", schema=schema, notify=events.append)
    assert down.result.outcome == "done"
    assert "left" in [event.event for event in events]
    assert picture(empty, relation) == before


def test_the_prefixed_table_of_a_deployment_is_none_of_a_components_business(empty_dsn: str, empty: Conn) -> None:
    real.n8n(empty, schema="n8n_app", prefix="acme_")
    before = picture(empty, "n8n_app.acme_agent_task_run_lock")
    call(empty_dsn, operations.upgrade, "heads")
    call(empty_dsn, operations.downgrade, "base")
    assert picture(empty, "n8n_app.acme_agent_task_run_lock") == before


ODD = {
    "column-missing": (
        "CREATE TABLE ffdb_locks (lock_key text PRIMARY KEY, lock_id text, created_at timestamptz)",
        "ffdb",
        "expires_at",
    ),
    "expiry-date": (
        "CREATE TABLE ffdb_locks (lock_key text PRIMARY KEY, lock_id text, expires_at date, created_at timestamptz)",
        "ffdb",
        "expires_at",
    ),
    "no-primary-key": (
        "CREATE TABLE ffdb_locks (lock_key text, lock_id text, expires_at timestamp, created_at timestamp)",
        "ffdb",
        "lock_key",
    ),
    "view": (
        "CREATE VIEW ffdb_locks AS SELECT 'a' AS lock_key, 'b' AS lock_id, now() AS expires_at, now() AS created_at",
        "ffdb",
        "ffdb_locks is not a",
    ),
    "holder-bytea": (
        'CREATE TABLE agent_task_run_lock ("agentId" text, "taskId" text, "holderId" bytea, "heldUntil" date)',
        "n8n",
        "holderId",
    ),
    "expiry-text": ("CREATE TABLE verrou (key text PRIMARY KEY, owner text, expiration text)", "plan", "expiration"),
    "runs": ("CREATE SCHEMA run_store CREATE TABLE runs (id text PRIMARY KEY, status text)", "runs", "file"),
    "leases": (
        "CREATE SCHEMA run_store CREATE TABLE leases (run_id text PRIMARY KEY, token text)",
        "runs",
        "expires_at",
    ),
    "work": ("CREATE SCHEMA run_store CREATE TABLE work (id bigint PRIMARY KEY)", "runs", "id"),
}


@pytest.mark.parametrize(("ddl", "component", "names"), ODD.values(), ids=ODD)
def test_another_shape_is_behind_and_the_column_is_named(
    empty_dsn: str, empty: Conn, ddl: str, component: str, names: str
) -> None:
    empty.execute(ddl)
    run = call(empty_dsn, operations.upgrade, f"{component}@head")
    assert run.result.outcome == "failed"
    assert isinstance(run.error, BehindError)
    assert names in run.error.message
    assert run.result.to == ()
    assert call(empty_dsn, operations.current) == []


def test_the_owner_of_a_missing_table_has_to_make_it(empty_dsn: str, empty: Conn) -> None:
    empty.execute('CREATE TABLE agents ("id" varchar(36) PRIMARY KEY)')
    run = call(empty_dsn, operations.upgrade, "n8n@head")
    assert isinstance(run.error, BehindError)
    assert "agents" in run.error.message
    assert "upgrade n8n" in (run.error.hint or "")
    assert empty.execute("SELECT to_regclass('agent_task_run_lock')").fetchone() == (None,)
    assert call(empty_dsn, operations.upgrade, "ffdb@head").result.outcome == "done"


def test_a_table_that_took_the_place_of_ours_is_left(empty_dsn: str, empty: Conn) -> None:
    call(empty_dsn, operations.upgrade, "ffdb@head")
    empty.execute("DROP TABLE ffdb_locks")
    real.fireflow(empty)
    assert call(empty_dsn, operations.downgrade, "ffdb@base").result.outcome == "done"
    assert empty.execute("SELECT to_regclass('ffdb_locks')").fetchone() != (None,)


def test_only_the_created_part_of_the_run_store_goes(empty_dsn: str, empty: Conn) -> None:
    empty.execute(
        "CREATE SCHEMA run_store CREATE TABLE leases (run_id text PRIMARY KEY, token text NOT NULL,"
        " expires_at timestamptz NOT NULL, claimed_at timestamptz, renewed_at timestamptz)"
    )
    before = picture(empty, "run_store.leases")
    assert call(empty_dsn, operations.upgrade, "runs@head").result.outcome == "done"
    assert call(empty_dsn, operations.downgrade, "runs@base").result.outcome == "done"
    assert picture(empty, "run_store.leases") == before
    left = empty.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'run_store'::regnamespace"
    )
    assert left.fetchall() == [("leases",)]


def test_a_schema_that_holds_something_else_by_now_is_left(empty_dsn: str, empty: Conn) -> None:
    call(empty_dsn, operations.upgrade, "runs@head")
    empty.execute("CREATE FUNCTION run_store.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    assert call(empty_dsn, operations.downgrade, "runs@base").result.outcome == "done"
    assert empty.execute("SELECT run_store.mine()").fetchone() == (1,)


@pytest.mark.parametrize("mine", [False, True], ids=["created", "adopted"])
def test_the_printed_script_decides_as_the_command_does(empty_dsn: str, empty: Conn, mine: bool) -> None:
    if mine:
        real.fireflow(empty)
    empty.execute('CREATE SCHEMA "My Locks%"')
    for _ in range(2):
        with empty.cursor() as cursor:
            cursor.execute(operations.sql("ffdb", schema="My Locks%"))
        empty.execute('DELETE FROM "My Locks%".lockctl_alembic_version')
    script = operations.sql("heads")
    assert script.count("SET LOCAL lock_timeout = '5000ms';") == 4
    with empty.cursor() as cursor:
        cursor.execute(script)
    assert call(empty_dsn, operations.verify).outcome == "current"
    assert call(empty_dsn, operations.downgrade, "base").result.outcome == "done"
    there = empty.execute("SELECT to_regclass('ffdb_locks') IS NOT NULL").fetchone()
    assert there == (mine,)


def test_the_printed_script_refuses_where_the_owner_is_there_without_its_table(empty: Conn) -> None:
    empty.execute("CREATE TABLE agents (id varchar(36) PRIMARY KEY)")
    with pytest.raises(psycopg.errors.RaiseException, match="upgrade n8n"), empty.cursor() as cursor:
        cursor.execute(operations.sql("n8n"))
