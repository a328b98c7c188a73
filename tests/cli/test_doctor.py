"""The doctor, as a process: what it finds, and the exit code of what it finds."""

from __future__ import annotations

import psycopg

from tests.support import tables
from tests.support.cli import run_lockctl


def _found(dsn: str, *args: str, expect: int = 0) -> dict[str, dict[str, str]]:
    result = run_lockctl("doctor", "--format", "json", *args, dsn=dsn)
    assert result.returncode == expect, result.stderr
    return {row["check"]: row for row in result.json()}


def test_a_database_with_our_tables_is_in_order(dsn: str) -> None:
    found = _found(dsn)
    assert {row["status"] for row in found.values()} == {"ok"}
    assert "runs_0001" in found["schema version"]["detail"]
    assert set(found["connection"]) == {"check", "status", "detail", "fix"}


def test_a_table_of_another_shape_fails_and_names_the_column(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE verrou (key varchar(255) PRIMARY KEY, owner varchar(255) NOT NULL)")
    found = _found(empty_dsn, expect=8)
    assert found["table verrou"]["status"] == "fail"
    assert '"expiration"' in found["table verrou"]["detail"]


def test_a_missing_privilege_is_named_with_the_grant(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        tables.fireflow(conn)
        conn.execute("DROP ROLE IF EXISTS doctor_reader")
        conn.execute("CREATE ROLE doctor_reader LOGIN")
        conn.execute("GRANT SELECT ON ffdb_locks TO doctor_reader")
    found = _found(f"{empty_dsn} user=doctor_reader")
    row = found["privileges ffdb_locks"]
    assert row["status"] == "warn"
    assert row["fix"] == 'GRANT INSERT, UPDATE, DELETE ON public.ffdb_locks TO "doctor_reader"'


def test_an_owner_whose_clock_is_ahead_shows_in_its_expiries(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        tables.n8n(conn)
        tables.add_agent(conn, "a")
        conn.execute(
            'INSERT INTO agent_task_run_lock ("agentId", "taskId", "holderId", "heldUntil")'
            " VALUES ('a', 't', gen_random_uuid(), now() + interval '360 s')"
        )
    row = _found(empty_dsn)["clock of agent_task_run_lock"]
    assert row["status"] == "warn"
    assert "1m later" in row["detail"]


def test_a_standby_is_said_to_be_one(standby_dsn: str) -> None:
    assert _found(standby_dsn)["standby"]["status"] == "warn"


def test_no_connection_is_a_finding_too() -> None:
    found = _found("host=127.0.0.1 port=1 dbname=x connect_timeout=2", expect=6)
    assert found["connection"]["status"] == "fail"
