"""verify: current, behind or ahead, by reading alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.errors import DeniedError, UsageError
from lockctl.migrations import operations
from lockctl.migrations.records import Verification

Conn = psycopg.Connection[Any]
ALL = ("ffdb_0001", "n8n_0001", "plan_0001", "runs_0001")


def verify(dsn: str, target: str | None = None, **kwargs: Any) -> Verification:
    with Database(dsn, "the test", "migrate verify").connect(read_only=True) as session:
        return operations.verify(session, target, **kwargs)


@pytest.mark.parametrize("target", [None, "heads", "plan@head", "plan", "plan_0001"])
def test_current(dsn: str, target: str | None) -> None:
    found = verify(dsn, target)
    assert (found.outcome, found.code, found.detail) == ("current", 0, None)
    assert found.found == ALL
    assert found.expected == (("plan_0001",) if target and "plan" in target else ALL)


def test_nothing_installed_is_behind_and_nothing_is_created(empty_dsn: str) -> None:
    for target in (None, "ffdb@head", "heads"):
        found = verify(empty_dsn, target)
        assert (found.outcome, found.code, found.found) == ("behind", 8, ())
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT count(*) FROM pg_class WHERE relname LIKE 'lockctl%'").fetchone() == (0,)


def test_a_component_that_is_not_installed_is_behind_only_when_asked_for(dsn: str, conn: Conn) -> None:
    conn.execute("DELETE FROM lockctl_alembic_version WHERE version_num = 'plan_0001'")
    assert verify(dsn).outcome == "current"
    assert verify(dsn, "ffdb").outcome == "current"
    for target in ("plan@head", "heads"):
        found = verify(dsn, target)
        assert found.outcome == "behind"
        assert "plan" in (found.detail or "")


def test_an_unknown_revision_is_ahead_for_its_component(dsn: str, conn: Conn) -> None:
    conn.execute("UPDATE lockctl_alembic_version SET version_num = 'plan_0009' WHERE version_num = 'plan_0001'")
    for target in (None, "heads", "plan@head"):
        found = verify(dsn, target)
        assert (found.outcome, found.code) == ("ahead", 9)
        assert "plan_0009" in (found.detail or "")
    assert verify(dsn, "ffdb@head").outcome == "current"


def test_a_revision_of_nobody_is_ahead(dsn: str, conn: Conn) -> None:
    conn.execute("INSERT INTO lockctl_alembic_version VALUES ('f00dcafe')")
    assert verify(dsn).outcome == "ahead"


def test_base_is_no_state_to_verify(dsn: str) -> None:
    with pytest.raises(UsageError, match="ffdb@base"):
        verify(dsn, "ffdb@base")


def test_a_table_that_is_gone_or_differs_is_behind(dsn: str, conn: Conn) -> None:
    conn.execute("ALTER TABLE run_store.work RENAME COLUMN armed TO rearmed")
    found = verify(dsn)
    assert found.outcome == "behind"
    assert "armed" in (found.detail or "")
    assert verify(dsn, "ffdb@head").outcome == "current"
    conn.execute("DROP TABLE ffdb_locks")
    found = verify(dsn, "ffdb@head")
    assert (found.outcome, "ffdb_locks" in (found.detail or "")) == ("behind", True)


@pytest.fixture
def reader(dsn: str, conn: Conn) -> Iterator[str]:
    """A role that may connect, and nothing else."""
    row = conn.execute("SELECT 'reader_' || substr(md5(random()::text), 1, 8)").fetchone()
    assert row is not None
    conn.execute(f"CREATE ROLE {row[0]} LOGIN")
    yield row[0]
    conn.execute(f"DROP OWNED BY {row[0]}")
    conn.execute(f"DROP ROLE {row[0]}")


def test_select_alone_is_enough(dsn: str, conn: Conn, reader: str) -> None:
    as_reader = psycopg.conninfo.make_conninfo(dsn, user=reader)
    with pytest.raises(DeniedError, match="lockctl_alembic_version"):
        verify(as_reader)
    conn.execute(f"GRANT SELECT ON lockctl_alembic_version TO {reader}")
    assert verify(as_reader).outcome == "current"


def test_on_a_standby(standby_dsn: str) -> None:
    assert verify(standby_dsn).outcome == "current"
