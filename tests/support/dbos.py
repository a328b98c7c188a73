"""DBOS's system schema as its SDK makes it, in our own words: the tables that lockctl reads, and their columns.

`tests/real` compares this with what the SDK itself makes. Version 69 is of @dbos-inc/dbos-sdk 4.25.14, 108 of 4.27.6
and 123 of 5.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

Conn = psycopg.Connection[Any]
"""A connection in autocommit."""

VERSIONS = (69, 108, 123)

_EPOCH_MS = "(EXTRACT(epoch FROM now()) * 1000)::bigint"

_STATUS = f"""
    workflow_uuid text PRIMARY KEY, status text, name text, authenticated_user text, assumed_role text,
    authenticated_roles text, request text, output text, error text, executor_id text,
    created_at bigint NOT NULL DEFAULT {_EPOCH_MS}, updated_at bigint NOT NULL DEFAULT {_EPOCH_MS},
    application_version text, application_id text, class_name varchar(255) DEFAULT NULL,
    config_name varchar(255) DEFAULT NULL, recovery_attempts bigint DEFAULT 0, queue_name text,
    workflow_timeout_ms bigint, workflow_deadline_epoch_ms bigint, inputs text, started_at_epoch_ms bigint,
    deduplication_id text, priority integer NOT NULL DEFAULT 0, queue_partition_key text, forked_from text,
    owner_xid varchar(40) DEFAULT NULL, parent_workflow_id text, serialization text, delay_until_epoch_ms bigint,
    was_forked_from boolean NOT NULL DEFAULT false, rate_limited boolean NOT NULL DEFAULT false, completed_at bigint,
    attributes jsonb, schedule_name text, debounce_deadline_epoch_ms bigint,
    is_debounced boolean NOT NULL DEFAULT false"""

_OUTPUTS = """
    workflow_uuid text NOT NULL, function_id integer NOT NULL, output text, error text,
    function_name text NOT NULL DEFAULT '', child_workflow_id text, started_at_epoch_ms bigint,
    completed_at_epoch_ms bigint, serialization text, PRIMARY KEY (workflow_uuid, function_id)"""

_VERSIONS = f"""
    version_id text PRIMARY KEY, version_name text NOT NULL UNIQUE,
    version_timestamp bigint NOT NULL DEFAULT {_EPOCH_MS}, created_at bigint NOT NULL DEFAULT {_EPOCH_MS}"""

_INDEXES = (
    "CREATE INDEX workflow_status_created_at_index ON dbos.workflow_status (created_at)",
    (
        "CREATE UNIQUE INDEX uq_workflow_status_dedup_id ON dbos.workflow_status (queue_name, deduplication_id)"
        " WHERE deduplication_id IS NOT NULL"
    ),
    (
        "CREATE INDEX idx_workflow_status_failed ON dbos.workflow_status (status, created_at)"
        " WHERE status IN ('ERROR', 'CANCELLED', 'MAX_RECOVERY_ATTEMPTS_EXCEEDED')"
    ),
    "CREATE INDEX idx_workflow_status_pending ON dbos.workflow_status (created_at) WHERE status = 'PENDING'",
    (
        "CREATE INDEX idx_workflow_status_in_flight ON dbos.workflow_status (queue_name, status, priority, created_at)"
        " WHERE status IN ('ENQUEUED', 'PENDING')"
    ),
)

_CHANGES = {
    108: (
        "ALTER TABLE dbos.workflow_status ADD application_name text",
        "ALTER TABLE dbos.operation_outputs ADD application_name text",
        "ALTER TABLE dbos.application_versions ADD application_name text",
    ),
    123: (
        (
            "ALTER TABLE dbos.workflow_status ADD creator_xid text, ALTER owner_xid TYPE text,"
            " ALTER owner_xid DROP DEFAULT"
        ),
        f"ALTER TABLE dbos.operation_outputs ADD retention_timestamp bigint NOT NULL DEFAULT {_EPOCH_MS}",
        (
            "CREATE TABLE dbos.workflow_input (workflow_uuid text PRIMARY KEY, inputs text,"
            f" retention_timestamp bigint NOT NULL DEFAULT {_EPOCH_MS})"
        ),
    ),
}


def make(conn: Conn, version: int = 123) -> None:
    """The schema at `version`, in an empty database."""
    conn.execute("CREATE SCHEMA dbos")
    conn.execute("CREATE TABLE dbos.dbos_migrations (version bigint PRIMARY KEY)")
    for table, body in (
        ("workflow_status", _STATUS),
        ("operation_outputs", _OUTPUTS),
        ("application_versions", _VERSIONS),
    ):
        conn.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier("dbos", table), sql.SQL(body)))
    for statement in _INDEXES:
        conn.execute(sql.SQL(statement))
    for since, statements in _CHANGES.items():
        for statement in statements if version >= since else ():
            conn.execute(sql.SQL(statement))
    conn.execute("INSERT INTO dbos.dbos_migrations VALUES (%s)", (version,))


def run(conn: Conn, uuid: str, *, age: str = "10 min", **columns: Any) -> None:
    """A run that was created `age` ago: PENDING, of executor w1 at version 1.0.0 unless `columns` say otherwise."""
    values = {
        "workflow_uuid": uuid,
        "status": "PENDING",
        "name": "flow",
        "executor_id": "w1",
        "application_version": "1.0.0",
        "recovery_attempts": 1,
        **columns,
    }
    times = sql.SQL("(EXTRACT(epoch FROM now() - {}::interval) * 1000)::bigint").format(sql.Literal(age))
    conn.execute(
        sql.SQL("INSERT INTO dbos.workflow_status (created_at, updated_at, {}) VALUES ({times}, {times}, {})").format(
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(sql.Placeholder() * len(values)),
            times=times,
        ),
        list(values.values()),
    )


def step(conn: Conn, uuid: str, number: int, name: str, *, started: str, completed: str) -> None:
    """A step of a run; the times are intervals from now, such as `-3 min`."""
    conn.execute(
        "INSERT INTO dbos.operation_outputs"
        " (workflow_uuid, function_id, function_name, started_at_epoch_ms, completed_at_epoch_ms) VALUES (%s, %s, %s,"
        " (EXTRACT(epoch FROM now() + %s::interval) * 1000)::bigint,"
        " (EXTRACT(epoch FROM now() + %s::interval) * 1000)::bigint)",
        (uuid, number, name, started, completed),
    )


def launched(conn: Conn, version: str, application: str | None = None) -> None:
    """An application version that has launched, as the SDK notes it."""
    conn.execute("INSERT INTO dbos.application_versions (version_id, version_name) VALUES (%s, %s)", (version, version))
    if application is not None:
        conn.execute(
            "UPDATE dbos.application_versions SET application_name = %s WHERE version_name = %s", (application, version)
        )


def row(conn: Conn, uuid: str) -> dict[str, Any]:
    """A run as it is now."""
    from psycopg.rows import dict_row

    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute("SELECT * FROM dbos.workflow_status WHERE workflow_uuid = %s", (uuid,)).fetchone()
    assert found is not None
    return found


@contextmanager
def worker(dsn: str, executor: str, version: str = "1.0.0") -> Iterator[Conn]:
    """A session under the name that a worker of the SDK gives its sessions."""
    with psycopg.connect(dsn, autocommit=True, application_name=f"dbos_transact_{executor}_{version}") as session:
        yield session
