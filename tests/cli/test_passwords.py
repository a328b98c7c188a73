"""Case 22: a password is nowhere in what lockctl says, however wrong the address is that it stands in."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.cli import popen_lockctl
from tests.support.quick import run_quick
from tests.support.waiting import until

MALFORMED = [
    "postgresql://u:hunter2@h:port/db",
    "postgresql://u:hunter2@[::1/db",
    "postgresql://u:hunter2@h:99999999/db",
    "postgresql://u:hunter2@ss@127.0.0.1:1/db",
    "postgresql://u:hunter2/ss@127.0.0.1:1/db",
    "postgresql://u:12/hunter2#x@127.0.0.1:1/db",
    "postgresql://u:12#hunter2@127.0.0.1:1/db",
    "postgresql://u:12?hunter2@127.0.0.1:1/db",
    "postgresql://u:hunter2%zz@127.0.0.1:1/db",
    "postgresql://u:hunter2@127.0.0.1:1/db?nope=1",
    "postgresql://u:hunter2@127.0.0.1:1/db?sslmode=nope",
    "postgresql://u:hunter2@127.0.0.1:1/db?connect_timeout=x",
    "postgresql://u@127.0.0.1:1/db?pasword=hunter2",
    "postgresql://u@127.0.0.1:1/db?password=hunter2&x",
    "postgresql://u@127.0.0.1:1/db&password=hunter2",
    "postgresql://127.0.0.1:1,u:hunter2@h/db",
    "postgresql:///u:hunter2@h/db",
    "postgresql//u:hunter2@h/db",
    "postgresql:/u:hunter2@h/db",
    "postgres:u:hunter2@h/db",
    "pg://u:hunter2@h/db",
    "mysql://u:hunter2@h/db?sslmode=require",
    "jdbc:postgresql://h/db?user=u&password=hunter2",
    "u:hunter2@h/db",
    "psql postgresql://u:hunter2@h/db",
    "host=127.0.0.1 port=1 password='hunter2",
    "host=127.0.0.1 port=1 password=one hunter2",
    "host=127.0.0.1 port=x password=hunter2",
    "host=127.0.0.1 port=1 pasword=hunter2",
    "host=127.0.0.1;password=hunter2;dbname=x",
    "host=127.0.0.1,password=hunter2",
    "host=127.0.0.1 port=1 dbname=x&password=hunter2",
    "host=127.0.0.1 port=1 dbname=postgresql://u:hunter2@h/db",
    "Server=h;Port=5432;Password=hunter2",
    "host=127.0.0.1 port=1 password=hunter2\x01 dbname",
    "postgresql+psycopg://u:hunter2@h:x/db",
]


# Given as a word of the command line, these could be anything.
_NO_ADDRESS = ("password=one", "pasword", "u:12", " dbname")
CASES = [(dsn, given) for given in ("option", "variable", "profile") for dsn in MALFORMED]
CASES += [
    (dsn, "misplaced") for dsn in MALFORMED if not dsn.startswith("u:") and not any(w in dsn for w in _NO_ADDRESS)
]


@pytest.mark.parametrize(("dsn", "given"), CASES)
def test_a_password_in_a_malformed_address_is_never_repeated(dsn: str, given: str, tmp_path: Path) -> None:
    args, env = ["tables"], {}
    if given == "option":
        args += ["--dsn", dsn]
    elif given == "variable":
        env["LOCKCTL_DSN"] = dsn
    elif given == "profile":
        (tmp_path / "lockctl.toml").write_text("[profiles.p]\ndsn = " + toml(dsn))
        args += ["--profile", "p"]
    else:
        args += [dsn]
    for fmt in ("table", "json"):
        done = run_quick("-v", "-v", "-f", fmt, "--timeout", "2s", *args, env=env, cwd=tmp_path)
        assert done.returncode in (2, 6), done.stderr
        assert "hunter2" not in done.stdout + done.stderr


def toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\x01", "\\u0001")
    return f'"{escaped}"\n'


@pytest.mark.parametrize(
    "password", ["hunter2", 'hun"ter2', "hun\\ter2", "hünter2", "hun ter2", "hun'ter2", "h\tunter2"]
)
def test_a_password_in_a_good_address_is_never_repeated(password: str, tmp_path: Path) -> None:
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    dsn = f"host=127.0.0.1 port=1 user=u password='{quoted}' dbname=db"
    for fmt in ("table", "json"):
        done = run_quick("-vv", "-f", fmt, "inspect", dsn=dsn)
        assert done.returncode == 6
        for form in (password, quoted, repr(password)[1:-1], password.encode("unicode_escape").decode()):
            assert form not in done.stdout + done.stderr


def test_a_weak_password_does_not_break_the_json_of_an_error() -> None:
    """A password may be a word of the error object itself: only what is said is searched for it."""
    for password in ("error", "usage", "e", '"'):
        done = run_quick("-f", "json", "tables", dsn=f"host=127.0.0.1 port=1 password='{password}'")
        assert (done.returncode, done.error()["error"]) == (6, "unreachable")


def test_a_password_is_in_no_title_of_a_process_or_a_connection(dsn: str, conn: psycopg.Connection) -> None:
    secret = f"{dsn} password=hunter2"
    conn.execute("INSERT INTO ffdb_locks VALUES ('nightly', 'x', now())")
    with psycopg.connect(dsn) as blocker:
        blocker.execute("SELECT 1 FROM ffdb_locks FOR UPDATE")
        with popen_lockctl("-v", "acquire", "ffdb_locks", "nightly", dsn=secret) as process:
            sessions = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'lockctl %'"
            names = until(lambda: conn.execute(sessions).fetchall(), what="lockctl's session")
            assert str(process.pid) in names[0][0]
            assert "hunter2" not in str(names)
            assert b"hunter2" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            blocker.rollback()
            out, err = process.communicate(timeout=30)
    assert (process.returncode, b"hunter2" in out + err) == (0, False)
    assert conninfo_to_dict(secret)["password"] == "hunter2"
    assert os.environ.get("PGPASSWORD") is None
