"""The components of lockctl's migrations: what each makes, each alone and all together, up and down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.errors import AheadError, BehindError, LockctlError, UsageError
from lockctl.migrations import bookkeeping, operations
from lockctl.migrations.records import MigrationRun

COMPONENTS = ("ffdb", "n8n", "plan", "runs")
TABLES = {
    "ffdb": ["public.ffdb_locks"],
    "n8n": ["public.agent_task_run_lock"],
    "plan": ["public.verrou"],
    "runs": ["run_store.leases", "run_store.runs", "run_store.work"],
}


def call(dsn: str, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An operation on a session of its own."""
    with Database(dsn, "the test", "migrate").connect(raw_times=False) as session:
        return operation(session, *args, **kwargs)


def tables(conn: psycopg.Connection[Any]) -> list[str]:
    """Every table of the database but the version table."""
    rows = conn.execute(
        "SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind = 'r' AND n.nspname !~ '^(pg_|information_schema)' AND c.relname <> %s ORDER BY 1",
        (bookkeeping.VERSION_TABLE,),
    )
    return [row[0] for row in rows]


@pytest.fixture
def empty(empty_dsn: str) -> Any:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        yield conn


def columns(conn: psycopg.Connection[Any], relation: str) -> list[tuple[Any, ...]]:
    return conn.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)"
        " FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum"
        " WHERE a.attrelid = %s::regclass AND a.attnum > 0 ORDER BY a.attnum",
        (relation,),
    ).fetchall()


def indexes(conn: psycopg.Connection[Any], relation: str) -> list[str]:
    return [
        row[0]
        for row in conn.execute(
            "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass AND NOT indisprimary"
            " ORDER BY 1",
            (relation,),
        )
    ]


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_goes_up_and_down_alone(empty_dsn: str, empty: Any, component: str) -> None:
    run: MigrationRun = call(empty_dsn, operations.upgrade, f"{component}@head")
    assert (run.result.outcome, run.error) == ("done", None)
    assert run.result.from_ == ()
    assert run.result.to == run.result.steps == (f"{component}_0001",)
    assert tables(empty) == TABLES[component]

    again = call(empty_dsn, operations.upgrade, component).result
    assert (again.outcome, again.steps, again.attempts) == ("nothing", (), 0)

    down = call(empty_dsn, operations.downgrade, f"{component}@base").result
    assert (down.outcome, down.to, down.steps) == ("done", (), (f"{component}_0001",))
    assert tables(empty) == []
    assert empty.execute("SELECT to_regnamespace('run_store')").fetchone() == (None,)
    assert call(empty_dsn, operations.downgrade, f"{component}@base").result.outcome == "nothing"


def test_all_go_up_together_and_one_comes_down_without_the_others(empty_dsn: str, empty: Any) -> None:
    assert call(empty_dsn, operations.upgrade, "heads").result.to == tuple(f"{name}_0001" for name in COMPONENTS)
    down = call(empty_dsn, operations.downgrade, "plan@-1").result
    assert down.steps == ("plan_0001",)
    assert tables(empty) == sorted(name for component in ("ffdb", "n8n", "runs") for name in TABLES[component])
    assert call(empty_dsn, operations.downgrade, "base").result.to == ()
    assert tables(empty) == []


def test_without_a_target_what_is_installed_goes_up(empty_dsn: str) -> None:
    with pytest.raises(UsageError) as none:
        call(empty_dsn, operations.upgrade)
    assert all(f"{name}@head" in (none.value.hint or "") for name in COMPONENTS)
    call(empty_dsn, operations.upgrade, "ffdb@head")
    assert call(empty_dsn, operations.upgrade).result.outcome == "nothing"


def test_the_tables_are_as_their_owners_make_them(empty_dsn: str, empty: Any) -> None:
    call(empty_dsn, operations.upgrade, "heads")
    now = "CURRENT_TIMESTAMP(3)"
    assert columns(empty, "ffdb_locks") == [
        ("lock_key", "text", True, None),
        ("lock_id", "text", True, None),
        ("expires_at", "timestamp with time zone", True, None),
        ("created_at", "timestamp with time zone", True, "now()"),
    ]
    assert columns(empty, "agent_task_run_lock") == [
        ("agentId", "character varying(36)", True, None),
        ("taskId", "character varying(32)", True, None),
        ("holderId", "uuid", True, None),
        ("heldUntil", "timestamp(3) with time zone", True, None),
        ("createdAt", "timestamp(3) with time zone", True, now),
        ("updatedAt", "timestamp(3) with time zone", True, now),
    ]
    assert columns(empty, "verrou") == [
        ("key", "character varying(255)", True, None),
        ("owner", "character varying(255)", True, None),
        ("expiration", "bigint", False, None),
    ]
    for relation, expiry in {
        "ffdb_locks": "expires_at",
        "agent_task_run_lock": '"heldUntil"',
        "verrou": "expiration",
        "run_store.leases": "expires_at",
    }.items():
        (index,) = indexes(empty, relation)
        assert index.endswith(f"({expiry})")


def test_the_run_store_answers_its_questions_through_indexes(empty_dsn: str, empty: Any) -> None:
    call(empty_dsn, operations.upgrade, "runs@head")
    empty.execute(
        "INSERT INTO run_store.runs (id, file, movement, status, started_at, input)"
        " SELECT 'r' || n, 'f', 'm', CASE WHEN n % 100 = 0 THEN 'running' ELSE 'completed' END,"
        " now() - n * interval '1 second', '{}' FROM generate_series(1, 20000) AS n"
    )
    empty.execute(
        "INSERT INTO run_store.work (kind, key, payload, due_at)"
        " SELECT 'k' || n %% 20, 'key' || n, jsonb_build_object('runId', 'r' || n), now() - n * interval '1 second'"
        " FROM generate_series(1, 20000) AS n",
        (),
    )
    empty.execute("UPDATE run_store.work SET buried_at = now(), buried_reason = 'no' WHERE key LIKE 'key1__'")
    empty.execute("ANALYZE run_store.runs, run_store.leases, run_store.work")

    def plan(statement: str) -> str:
        return "\n".join(row[0] for row in empty.execute("EXPLAIN " + statement))

    lapsed = plan(
        "SELECT r.id FROM run_store.runs r LEFT JOIN run_store.leases l ON l.run_id = r.id WHERE r.status = 'running'"
        " AND r.started_at < now() - interval '5 minutes' AND (l.run_id IS NULL OR l.expires_at <= now())"
        " ORDER BY r.started_at, r.id LIMIT 50"
    )
    assert "runs_running_idx" in lapsed
    assert "Sort" not in lapsed
    assert "runs_started_at_idx" in plan("SELECT id FROM run_store.runs ORDER BY started_at DESC, id DESC LIMIT 50")
    due = "WHERE buried_at IS NULL AND due_at <= now() AND (claimed_until IS NULL OR claimed_until <= now())"
    assert "work_due_idx" in plan(f"SELECT id FROM run_store.work {due} ORDER BY due_at, id LIMIT 10")
    one_kind = plan(f"SELECT id FROM run_store.work {due} AND kind = 'k7' ORDER BY due_at, id LIMIT 10")
    assert "work_kind_due_idx" in one_kind
    assert "work_buried_idx" in plan("SELECT id FROM run_store.work WHERE buried_at IS NOT NULL ORDER BY buried_at, id")
    assert "work_run_idx" in plan("SELECT id FROM run_store.work WHERE payload ->> 'runId' = 'r7'")


WRONG = (
    "nope",
    "nope@head",
    "head",
    "ffdb@nope",
    "ffdb_",
    "ffdb_0001@head",
    "",
    " ",
    "ffdb@head@x",
    "a:b",
    "%s",
    "ffdb@+9",
)


@pytest.mark.parametrize("target", WRONG)
def test_a_wrong_target_is_a_usage_error_in_one_line_that_names_the_components(empty_dsn: str, target: str) -> None:
    for operation in (operations.upgrade, operations.verify):
        with pytest.raises(UsageError) as wrong:
            call(empty_dsn, operation, target)
        assert "\n" not in wrong.value.message
        assert "ffdb@head" in (wrong.value.hint or "")


@pytest.mark.parametrize(("operation", "target"), [
    (operations.upgrade, "ffdb@base"),
    (operations.upgrade, "base"),
    (operations.downgrade, "ffdb"),
    (operations.downgrade, "ffdb@head"),
    (operations.downgrade, "heads"),
    (operations.downgrade, "zzz"),
    (operations.downgrade, "ffdb@-2"),
])  # fmt: skip
def test_a_target_in_the_wrong_direction_is_a_usage_error(
    empty_dsn: str, operation: Callable[..., Any], target: str
) -> None:
    call(empty_dsn, operations.upgrade, "ffdb@head")
    with pytest.raises(UsageError) as wrong:
        call(empty_dsn, operation, target)
    assert "\n" not in wrong.value.message


def test_a_revision_by_its_id_is_a_target_too(empty_dsn: str) -> None:
    assert call(empty_dsn, operations.upgrade, "plan_0001").result.to == ("plan_0001",)
    assert call(empty_dsn, operations.downgrade, "plan_0001").result.outcome == "nothing"


def test_a_revision_of_a_newer_lockctl_stops_its_component_only(empty_dsn: str, empty: Any) -> None:
    call(empty_dsn, operations.upgrade, "heads")
    empty.execute("UPDATE lockctl_alembic_version SET version_num = 'plan_0009' WHERE version_num = 'plan_0001'")
    for target in ("plan@head", "heads"):
        with pytest.raises(AheadError, match="plan_0009"):
            call(empty_dsn, operations.upgrade, target)
    with pytest.raises(AheadError):
        call(empty_dsn, operations.downgrade, "base")
    down = call(empty_dsn, operations.downgrade, "ffdb@base").result
    assert (down.outcome, down.to) == ("done", ("n8n_0001", "plan_0009", "runs_0001"))
    assert call(empty_dsn, operations.upgrade, "ffdb@head").result.outcome == "done"


def test_a_schema_of_its_own_keeps_its_own_books(empty_dsn: str, empty: Any) -> None:
    empty.execute('CREATE SCHEMA "My Locks%"')
    assert call(empty_dsn, operations.upgrade, "ffdb@head", schema="My Locks%").result.outcome == "done"
    assert tables(empty) == ["My Locks%.ffdb_locks"]
    assert [row.revision for row in call(empty_dsn, operations.current, schema="My Locks%")] == ["ffdb_0001"]
    assert call(empty_dsn, operations.current) == []
    assert call(empty_dsn, operations.upgrade, "heads").result.outcome == "done"
    assert call(empty_dsn, operations.downgrade, "base").result.outcome == "done"
    assert tables(empty) == ["My Locks%.ffdb_locks"]


def test_a_schema_that_is_missing_is_named(empty_dsn: str) -> None:
    with pytest.raises(BehindError, match='schema "gone" does not exist'):
        call(empty_dsn, operations.upgrade, "ffdb@head", schema="gone")


def test_the_books_are_found_along_the_search_path(empty_dsn: str, empty: Any) -> None:
    call(empty_dsn, operations.upgrade, "ffdb@head")
    empty.execute("CREATE SCHEMA first")
    moved = psycopg.conninfo.make_conninfo(empty_dsn, options="-c search_path=first,public")
    assert [row.revision for row in call(moved, operations.current)] == ["ffdb_0001"]
    assert call(moved, operations.upgrade, "plan@head").result.to == ("ffdb_0001", "plan_0001")
    assert tables(empty) == ["first.verrou", "public.ffdb_locks"]


def test_alembic_runs_on_a_connection_of_somebody_else(empty_dsn: str, empty: Any) -> None:
    import sqlalchemy
    from alembic import command

    from lockctl.migrations.scripts import config

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(empty_dsn))
    with engine.connect() as connection:
        settings = config()
        settings.attributes["connection"] = connection
        command.upgrade(settings, "heads")
    with engine.connect() as connection:
        # In a transaction of theirs alembic leaves the commit to them.
        with connection.begin() as transaction:
            settings = config()
            settings.attributes["connection"] = connection
            command.downgrade(settings, "plan@base")
            transaction.rollback()
        assert tables(empty) == sorted(name for names in TABLES.values() for name in names)
    engine.dispose()


def test_current_and_history(empty_dsn: str) -> None:
    assert call(empty_dsn, operations.current) == []
    call(empty_dsn, operations.upgrade, "n8n@head")
    (current,) = call(empty_dsn, operations.current)
    assert (current.component, current.revision, current.is_head, current.is_current) == ("n8n", "n8n_0001", True, True)
    history = call(empty_dsn, operations.history)
    assert [(row.component, row.is_current) for row in history] == [(name, name == "n8n") for name in COMPONENTS]
    assert all(row.doc for row in history)


@pytest.mark.parametrize(
    "there", ["CREATE TABLE verrou (key text PRIMARY KEY, owner text)", "CREATE TABLE agents (id varchar(36))"]
)
def test_what_a_later_step_would_refuse_is_refused_before_the_first(empty_dsn: str, empty: Any, there: str) -> None:
    empty.execute(there)
    before = tables(empty)
    run: MigrationRun = call(empty_dsn, operations.upgrade, "heads")
    assert (run.result.outcome, run.result.steps) == ("failed", ())
    assert isinstance(run.error, BehindError)
    assert tables(empty) == before


def test_a_step_that_fails_leaves_nothing_and_what_was_committed_stays(empty_dsn: str, empty: Any) -> None:
    empty.execute("CREATE TYPE verrou AS (x int)")  # no table, and yet its name
    run: MigrationRun = call(empty_dsn, operations.upgrade, "heads")
    assert run.result.outcome == "failed"
    assert run.error is not None
    assert run.result.to == run.result.steps == ("runs_0001",)
    assert tables(empty) == TABLES["runs"]


def test_the_session_is_in_autocommit_afterwards(empty_dsn: str, empty: Any) -> None:
    with Database(empty_dsn, "the test", "migrate").connect(raw_times=False) as session:
        operations.upgrade(session, "ffdb@head")
        assert session.conn.autocommit
        empty.execute("DROP TABLE ffdb_locks")
        empty.execute("CREATE TABLE ffdb_locks (lock_key text)")
        operations.downgrade(session, "ffdb@base")
        run = operations.upgrade(session, "ffdb@head")
        assert isinstance(run.error, LockctlError)
        assert session.conn.autocommit
        assert session.one("SELECT 1") == (1,)
