"""Lock tables as the real systems make them, not as our migrations do.

Shapes: FireFlow's from its schema documentation, n8n's from version 2.41.1 on PostgreSQL, Verrou's from its own store.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

Conn = psycopg.Connection[Any]
"""A connection in autocommit."""

AGENT = "agent-1"
"""An agent that every n8n of the tests has."""


def fireflow(conn: Conn, *, zoned: bool = False, relation: str = "ffdb_locks") -> None:
    """`ffdb_locks`; its ORM's default is a timestamp without time zone, into which the application writes UTC."""
    kind = "timestamp with time zone" if zoned else "timestamp without time zone"
    statement = """
        CREATE TABLE {relation} (
            lock_key text NOT NULL PRIMARY KEY,
            lock_id text NOT NULL,
            expires_at {kind} NOT NULL,
            created_at {kind} NOT NULL DEFAULT now()
        )"""
    conn.execute(sql.SQL(statement).format(relation=sql.Identifier(relation), kind=sql.SQL(kind)))


def n8n(conn: Conn, *, schema: str = "public", prefix: str = "") -> None:
    """`agents` and `agent_task_run_lock`; n8n hashes the names of the constraints from those of the tables."""
    pk, fk = ("PK_f593adaf7230e964d3c25deda64", "FK_b57a2862ae869aab24e54cefd48")
    if prefix or schema != "public":
        pk, fk = ("PK_0f6f1e2a9f0c4a8bb2f1a3d5c77", "FK_77aa01c9e4d84b6d9a5be0f2c11")
    statement = """
        CREATE SCHEMA IF NOT EXISTS {schema};
        CREATE TABLE {agents} (
            "id" varchar(36) NOT NULL PRIMARY KEY,
            "name" varchar(128) NOT NULL,
            "createdAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
            "updatedAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)
        );
        CREATE TABLE {locks} (
            "agentId" varchar(36) NOT NULL,
            "taskId" varchar(32) NOT NULL,
            "holderId" uuid NOT NULL,
            "heldUntil" timestamptz(3) NOT NULL,
            "createdAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
            "updatedAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
            CONSTRAINT {pk} PRIMARY KEY ("agentId", "taskId"),
            CONSTRAINT {fk} FOREIGN KEY ("agentId") REFERENCES {agents} ("id") ON DELETE CASCADE
        )"""
    names = {
        "schema": sql.Identifier(schema),
        "agents": sql.Identifier(schema, f"{prefix}agents"),
        "locks": sql.Identifier(schema, f"{prefix}agent_task_run_lock"),
        "pk": sql.Identifier(pk),
        "fk": sql.Identifier(fk),
    }
    for part in statement.split(";"):
        conn.execute(sql.SQL(part).format(**names))
    add_agent(conn, AGENT, schema=schema, prefix=prefix)


def add_agent(conn: Conn, agent: str, *, schema: str = "public", prefix: str = "") -> None:
    """An agent for locks to refer to."""
    statement = sql.SQL('INSERT INTO {} ("id", "name") VALUES (%s, %s)')
    conn.execute(statement.format(sql.Identifier(schema, f"{prefix}agents")), (agent, f"the agent {agent}"))


def verrou(conn: Conn, *, relation: str = "verrou") -> None:
    """Verrou's table: epoch milliseconds, null for a lease that never expires."""
    statement = """
        CREATE TABLE {} (
            "key" varchar(255) NOT NULL PRIMARY KEY,
            "owner" varchar(255) NOT NULL,
            "expiration" bigint NULL
        )"""
    conn.execute(sql.SQL(statement).format(sql.Identifier(relation)))


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a deployment has a lock table.

    `table` is its name in the catalogue, `config` the `lockctl.toml` that names it where the built-in entry does not
    fit, `relation` what lockctl calls it, and `make` lays it into an empty database.
    """

    name: str
    table: str
    relation: str
    make: Callable[[Conn], None]
    keys: int = 1
    uuid_holder: bool = False
    config: str = ""

    def key(self, word: str = "nightly") -> tuple[str, ...]:
        """A key that the table takes, one for each `word`."""
        return (AGENT, word) if self.keys == 2 else (word,)

    def holder(self, word: str = "somebody") -> str:
        """A holder that the column takes, the same for the same `word`."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, word)) if self.uuid_holder else word


_ACME = '[tables.acme]\nlike = "agent_task_run_lock"\nrelation = "n8n_app.acme_agent_task_run_lock"\n'

FOREIGN = (
    Variant("fireflow-zoneless", "ffdb_locks", "public.ffdb_locks", fireflow),
    Variant("fireflow-zoned", "ffdb_locks", "public.ffdb_locks", lambda conn: fireflow(conn, zoned=True)),
    Variant("n8n", "agent_task_run_lock", "public.agent_task_run_lock", n8n, keys=2, uuid_holder=True),
    Variant(
        "n8n-acme",
        "acme",
        "n8n_app.acme_agent_task_run_lock",
        lambda conn: n8n(conn, schema="n8n_app", prefix="acme_"),
        keys=2,
        uuid_holder=True,
        config=_ACME,
    ),
    Variant("verrou", "verrou", "public.verrou", verrou),
)
"""The tables as their own systems make them: `pytest.mark.parametrize("variant", FOREIGN, ids=lambda v: v.name)`."""
