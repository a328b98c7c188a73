"""A one-shot command is mostly imports: what it does not use it must not import."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.cli import clean_env, home

HEAVY = {"alembic", "sqlalchemy", "mako", "rich", "tabulate", "prometheus_client", "pglast", "msgspec", "platformdirs"}


def imported(dsn: str, *args: str) -> set[str]:
    """The names of all modules that a command imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "lockctl", *args],
        env=clean_env(dsn),
        cwd=home(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 4), done.stderr[-2000:]
    return set(re.findall(r"^import time: .*\| +(\S+)$", done.stderr, re.MULTILINE))


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("line", ["--help", "acquire --help", "--version", "sweep --help"])
def test_help_imports_neither_the_database_nor_the_drawing(line: str) -> None:
    found = imported("host=/nonexistent", *line.split())
    assert not packages(found) & {"psycopg", "psycopg_binary", "alembic", "sqlalchemy", "tabulate", "rich"}
    assert "lockctl.db" not in found


@pytest.mark.parametrize(
    "line",
    [
        "acquire ffdb_locks nightly",
        "-f json acquire ffdb_locks nightly",
        "check ffdb_locks nightly",
        "extend ffdb_locks nightly --holder h",
        "-f json release ffdb_locks nightly --holder h",
        "force-expire ffdb_locks nightly -y",
        "inspect",
        "-f csv inspect ffdb_locks",
        "tables",
        "sweep",
    ],
)
def test_a_one_shot_command_imports_neither_alembic_nor_rich(dsn: str, line: str) -> None:
    found = imported(dsn, *line.split())
    assert "psycopg" in packages(found)
    assert not packages(found) & HEAVY, sorted(packages(found) & HEAVY)
    assert not {"lockctl.migrations", "lockctl.runs", "lockctl.embedded", "lockctl.demo"} & found


def test_what_is_asked_for_is_imported(dsn: str) -> None:
    """The test above would see it."""
    assert "rich" in packages(imported(dsn, "-f", "table", "inspect"))
    assert "tabulate" in packages(imported(dsn, "-f", "psql", "inspect"))
