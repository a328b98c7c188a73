"""Lock tables of other systems as deployments really have them: odd names, triggers, row-level security, odd keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import databases
from tests.support.quick import run_quick

Conn = psycopg.Connection[Any]

CONFIG = """
[tables.odd]
relation = "odd"
key = ["k"]
holder = "h"
expires = "e"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "odd.toml"
    path.write_text(CONFIG)
    return str(path)


@pytest.fixture
def role(admin: databases.Admin, conn: Conn) -> Iterator[str]:
    name = f"r_{uuid.uuid4().hex}"
    admin.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield name
    conn.execute(f"DROP OWNED BY {name}".encode())
    admin.execute(f"DROP ROLE {name}".encode())


def test_names_with_a_percent_sign_are_names(dsn: str, conn: Conn, tmp_path: Path) -> None:
    conn.execute('CREATE SCHEMA "100%"')
    conn.execute('CREATE TABLE "100%"."%s %(x)s" ("k%" text PRIMARY KEY, "h%s" text, "e:%" timestamptz)')
    path = tmp_path / "percent.toml"
    path.write_text('[tables.odd]\nrelation = \'"100%"."%s %(x)s"\'\nkey = ["k%"]\nholder = "h%s"\nexpires = "e:%"\n')
    for line, code in (
        ("acquire odd k%s --holder %d", 0),
        ("acquire odd k%s", 3),
        ("check odd k%s --holder %d", 0),
        ("extend odd k%s --holder %d", 0),
        ("inspect odd --holder %d --sort expires", 0),
        ("inspect odd --summary", 0),
        ("force-expire odd k%s -y", 0),
        ("sweep odd --grace 0s --dry-run", 0),
        ("sweep odd --grace 0s --rows", 0),
        ("acquire odd k%s --holder %d", 0),
        ("release odd k%s --holder %d", 0),
        ("sweep odd", 0),
        ("doctor", 0),
    ):
        done = run_quick("--config", str(path), *line.split(), dsn=dsn)
        assert (done.returncode, "placeholder" in done.stdout + done.stderr) == (code, False), (line, done.stderr)


def test_a_deferrable_key_can_not_hold_leases(dsn: str, conn: Conn, config: str) -> None:
    conn.execute("CREATE TABLE odd (k text PRIMARY KEY DEFERRABLE, h text, e timestamptz)")
    done = run_quick("--config", config, "acquire", "odd", "k", dsn=dsn)
    assert (done.returncode, "deferrable" in done.stderr) == (8, True), done.stderr


def test_a_trigger_that_undoes_the_change_is_named(dsn: str, conn: Conn, config: str) -> None:
    """Neither "try again", nor that there was no row."""
    conn.execute("CREATE TABLE odd (k text PRIMARY KEY, h text, e timestamptz)")
    conn.execute("INSERT INTO odd VALUES ('there', 'me', now() + interval '1 h')")
    conn.execute("CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    conn.execute("CREATE TRIGGER undo BEFORE INSERT OR UPDATE OR DELETE ON odd FOR EACH ROW EXECUTE FUNCTION undo()")
    for line in ("acquire odd new", "extend odd there --holder me", "release odd there --holder me"):
        done = run_quick("--config", config, *line.split(), dsn=dsn)
        assert (done.returncode, done.stdout, "a trigger" in done.stderr) == (1, "", True), (line, done.stderr)
    done = run_quick("--config", config, "force-expire", "odd", "there", "-y", dsn=dsn)
    assert (done.returncode, "a trigger" in done.stderr) == (1, True), done.stderr


def test_a_policy_that_keeps_a_row_from_the_role_is_named(dsn: str, conn: Conn, config: str, role: str) -> None:
    """A row that a policy shows and does not let be changed is not "not held"."""
    conn.execute("CREATE TABLE odd (k text PRIMARY KEY, h text, e timestamptz)")
    conn.execute("INSERT INTO odd VALUES ('there', 'me', now() + interval '1 h')")
    conn.execute("ALTER TABLE odd ENABLE ROW LEVEL SECURITY")
    conn.execute("CREATE POLICY seen ON odd FOR SELECT USING (true)")
    conn.execute(f"GRANT ALL ON odd TO {role}".encode())
    for line in (
        "acquire odd there",
        "extend odd there --holder me",
        "release odd there --holder me",
        "force-expire odd there -y",
        "run odd new -- true",
    ):
        done = run_quick("--config", config, *line.split(), dsn=make_conninfo(dsn, user=role))
        held = 3 if line.startswith("acquire") else 10
        assert done.returncode in (held, 10), (line, done.stderr)
        if done.returncode == 10:
            assert "row-level security" in done.stderr, line
    # The rest of the table is as free as it looks.
    conn.execute("CREATE POLICY rest ON odd USING (k <> 'there')")
    done = run_quick("--config", config, "extend", "odd", "gone", "--holder", "me", dsn=make_conninfo(dsn, user=role))
    assert done.returncode == 4, done.stderr


def test_a_holder_of_whole_numbers_must_be_given(dsn: str, conn: Conn, config: str) -> None:
    conn.execute("CREATE TABLE odd (k text PRIMARY KEY, h bigint, e timestamptz)")
    done = run_quick("--config", config, "acquire", "odd", "k", dsn=dsn)
    assert (done.returncode, "--holder" in done.stderr) == (2, True), done.stderr
    assert run_quick("--config", config, "acquire", "odd", "k", "--holder", "7", dsn=dsn).returncode == 0


def test_an_empty_holder_can_be_seen_in_a_sentence(dsn: str) -> None:
    assert "as ''" in run_quick("acquire", "ffdb_locks", "k", "--holder=", dsn=dsn).stderr
    assert "held by ''" in run_quick("acquire", "ffdb_locks", "k", dsn=dsn).stderr


def test_idle_sessions_that_the_role_would_lose_are_kept(
    dsn: str, conn: Conn, admin: databases.Admin, role: str
) -> None:
    """A holder of leases is idle most of the time: `idle_session_timeout` would end its connection at each renewal."""
    admin.execute(f"ALTER ROLE {role} SET idle_session_timeout = '200ms'".encode())
    conn.execute(f"GRANT ALL ON ffdb_locks TO {role}".encode())
    done = run_quick(
        *("run", "ffdb_locks", "nightly", "--ttl", "2s", "--", "sleep", "1.5"), dsn=make_conninfo(dsn, user=role)
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_expiry_that_the_applications_trigger_caps_is_taken_as_it_is(dsn: str, conn: Conn) -> None:
    conn.execute(
        "CREATE FUNCTION cap() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN NEW.expires_at := least(NEW.expires_at, clock_timestamp() + interval '30 s'); RETURN NEW; END $$"
    )
    conn.execute("CREATE TRIGGER cap BEFORE INSERT OR UPDATE ON ffdb_locks FOR EACH ROW EXECUTE FUNCTION cap()")
    done = run_quick("acquire", "ffdb_locks", "nightly", "--ttl", "1h", "-f", "json", dsn=dsn)
    assert done.returncode == 0, done.stderr
    assert 0 < done.json()["lock"]["remaining_ms"] <= 30_000
