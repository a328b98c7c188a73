"""A fresh database for each test, cloned from one that the real migrations made."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tests.support.cli import run_lockctl

TEMPLATE = "lockctl_template"

Admin = psycopg.Connection[Any]
"""A connection in autocommit to the database `postgres`."""


def build_template(dsn: str) -> None:
    """Bring the empty database of `dsn` to the newest schema, as an operator would."""
    if importlib.util.find_spec("lockctl.migrations") is None:
        return
    done = run_lockctl("migrate", "upgrade", "heads", dsn=dsn)
    assert done.returncode == 0, done.stderr


@contextmanager
def database(admin: Admin, conninfo: str, *, template: str = "template0") -> Iterator[str]:
    """The conninfo of a new database, dropped afterwards whoever is still connected."""
    name = f"t_{uuid.uuid4().hex}"
    create(admin, name, template)
    try:
        yield make_conninfo(conninfo, dbname=name)
    finally:
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def create(admin: Admin, name: str, template: str = "template0") -> None:
    """Make the database `name`; a copy of files beats copying through the WAL, with fsync off."""
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy")
    admin.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
