"""Case 24: a missing privilege is named, with what to run; a missing table is one line that names it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import databases
from tests.support import tables as real
from tests.support.cli import Result
from tests.support.quick import run_quick

Ask = Callable[..., Result]


@pytest.fixture
def role(admin: databases.Admin, conn: psycopg.Connection[Any]) -> Iterator[str]:
    """A role that may connect and nothing more."""
    name = f"r_{uuid.uuid4().hex}"
    admin.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield name
    conn.execute(f"DROP OWNED BY {name}".encode())
    admin.execute(f"DROP ROLE {name}".encode())


@pytest.fixture
def ask(dsn: str, conn: psycopg.Connection[Any], role: str) -> Ask:
    """Grant (or revoke) what the first word says, and run lockctl as the role."""

    def run(grants: str, *args: str) -> Result:
        for grant in filter(None, grants.split(";")):
            conn.execute(grant.replace("ROLE", role).encode())
        return run_quick(*args, dsn=make_conninfo(dsn, user=role))

    return run


def test_who_may_only_select_can_inspect_and_is_told_what_release_needs(ask: Ask, dsn: str, role: str) -> None:
    run_quick("acquire", "ffdb_locks", "nightly", "--holder", "me", dsn=dsn)
    grants = "GRANT SELECT ON ffdb_locks TO ROLE"
    assert ask(grants, "inspect", "ffdb_locks").stdout.count("nightly") == 1
    assert ask("", "check", "ffdb_locks", "nightly").returncode == 0
    assert ask("", "tables").returncode == 0
    for verb, missing in (
        ("release ffdb_locks nightly --holder me", "DELETE"),
        ("release ffdb_locks nightly --force -y", "DELETE"),
        ("acquire ffdb_locks other", "INSERT, UPDATE"),
        ("extend ffdb_locks nightly --holder me", "UPDATE"),
        ("force-expire ffdb_locks nightly -y", "UPDATE"),
        ("sweep ffdb_locks", "UPDATE, DELETE"),
    ):
        done = ask("", *verb.split())
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (10, "", False), done.stderr
        assert f"role {role} lacks {missing} on public.ffdb_locks" in done.stderr
        assert f"GRANT {missing} ON public.ffdb_locks TO" in done.stderr
        error = ask("", "-f", "json", *verb.split()).error()
        assert (error["error"], missing in error["message"], "GRANT" in error["hint"]) == ("denied", True, True)
    assert len(run_quick("-f", "jsonl", "inspect", dsn=dsn).jsonl()) == 1


def test_the_grants_that_the_hints_name_are_enough(ask: Ask) -> None:
    grants = {"acquire": "SELECT, INSERT, UPDATE", "extend": "SELECT, UPDATE", "release": "SELECT, DELETE"}
    lease: tuple[str, ...] = ("verrou", "k", "--ttl", "1h")
    for verb, needed in grants.items():
        grant = f"REVOKE ALL ON verrou FROM ROLE;GRANT {needed} ON verrou TO ROLE"
        done = ask(grant, verb, *lease)
        assert done.returncode == 0, done.stderr
        lease = lease if verb == "release" else ("--lease", done.stdout.strip() or lease[1])
    swept = ask("GRANT SELECT, UPDATE, DELETE ON verrou TO ROLE", "sweep", "verrou", "--grace", "0s")
    assert swept.returncode == 0


def test_a_schema_that_may_not_be_used_is_named(ask: Ask) -> None:
    done = ask("GRANT SELECT ON run_store.leases TO ROLE", "check", "run_leases", "x")
    assert (done.returncode, "USAGE on schema run_store" in done.stderr) == (10, True), done.stderr
    both = ask("REVOKE SELECT ON run_store.leases FROM ROLE", "check", "run_leases", "x")
    assert both.returncode == 10
    granted = ask(
        "GRANT USAGE ON SCHEMA run_store TO ROLE;GRANT SELECT ON run_store.leases TO ROLE", "check", "run_leases", "x"
    )
    assert granted.returncode == 4


def test_a_search_path_that_may_not_be_used_is_denied_and_not_missing(ask: Ask) -> None:
    """Without USAGE on `public` its tables are out of sight; the privilege is missing, not the table."""
    done = ask("REVOKE USAGE ON SCHEMA public FROM PUBLIC;GRANT SELECT ON verrou TO ROLE", "check", "verrou", "x")
    assert (done.returncode, "USAGE" in done.stderr, "schema public" in done.stderr) == (10, True, True), done.stderr
    assert ask("GRANT USAGE ON SCHEMA public TO ROLE", "check", "verrou", "x").returncode == 4


def test_what_one_table_denies_does_not_hide_the_others(ask: Ask, dsn: str) -> None:
    for table in ("ffdb_locks", "verrou"):
        run_quick("acquire", table, "nightly", "--ttl", "1ms", dsn=dsn)
    grants = "GRANT SELECT ON verrou TO ROLE;GRANT USAGE ON SCHEMA run_store TO ROLE"
    for words in (("inspect",), ("inspect", "--summary"), ("sweep", "--dry-run", "--grace", "0s")):
        done = ask(grants, "-f", "json", *words)
        assert done.returncode == 10
        assert {row["table"] for row in done.json()} == {"verrou"}, words
        assert "ffdb_locks" in done.stderr
    done = ask("GRANT UPDATE, DELETE ON verrou TO ROLE", "-f", "json", "sweep", "--grace", "0s")
    assert (done.returncode, [(row["table"], row["swept"]) for row in done.json()]) == (10, [("verrou", 1)])


@pytest.mark.parametrize("verb", ["inspect", "check", "acquire", "extend", "release", "force-expire", "sweep"])
def test_a_missing_table_is_one_line_that_names_it_and_what_to_run(empty_dsn: str, verb: str) -> None:
    key = {"inspect": (), "sweep": ()}.get(verb, ("nightly",))
    more = {"extend": ("--holder", "h"), "release": ("--holder", "h"), "force-expire": ("-y",)}.get(verb, ())
    done = run_quick(verb, "ffdb_locks", *key, *more, dsn=empty_dsn)
    assert (done.returncode, done.stdout) == (8, "")
    first, hint = done.stderr.splitlines()
    assert "ffdb_locks" in first
    assert "lockctl migrate upgrade ffdb@head" in hint
    error = run_quick("-f", "json", verb, "ffdb_locks", *key, *more, dsn=empty_dsn).error()
    assert (error["error"], "migrate upgrade" in error["hint"]) == ("behind", True)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        ("CREATE TABLE ffdb_locks (lock_key text PRIMARY KEY, lock_id text, expires timestamptz)", "expires_at"),
        (
            "CREATE TABLE ffdb_locks AS TABLE template",
            "key",
        ),
        (
            "CREATE TABLE ffdb_locks (lock_key text PRIMARY KEY, lock_id text, expires_at date)",
            "expires_at",
        ),
        ("CREATE VIEW ffdb_locks AS SELECT 'k' AS lock_key, 'h' AS lock_id, now() AS expires_at", "table"),
        ("CREATE TABLE ffdb_locks (LIKE template INCLUDING ALL, node int NOT NULL)", "node"),
    ],
    ids=["no column", "no key", "type", "view", "more"],
)
def test_a_table_of_another_shape_is_behind_and_names_the_column(empty_dsn: str, make: str, named: str) -> None:
    with psycopg.connect(empty_dsn) as conn:
        real.fireflow(conn, relation="template")
        conn.execute(make.encode())
    done = run_quick("acquire", "ffdb_locks", "nightly", dsn=empty_dsn)
    assert (done.returncode, done.stdout, named in done.stderr) == (8, "", True), done.stderr
    assert "Traceback" not in done.stderr
