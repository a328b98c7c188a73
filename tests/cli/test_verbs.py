"""The lock verbs as scripts meet them: JSON fields, exit codes, and which stream has what."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from lockctl.leases import token
from tests.support.cli import Result
from tests.support.quick import run_quick

ROW = {"table", "relation", "key", "holder", "state", "expires_at", "remaining_ms", "created_at", "updated_at"}
RESULT = {"outcome", "lock", "previous", "lease"}
HOUR = 3_600_000


@pytest.fixture
def lockctl(dsn: str) -> Any:
    """lockctl on this test's database; the first word may be an exit code that is expected instead of 0."""

    def run(*args: str, code: int = 0, **options: Any) -> Result:
        done = run_quick(*args, dsn=dsn, **options)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def result(lockctl: Any, *args: str, code: int = 0) -> dict[str, Any]:
    """The result object of a verb, checked for its fields; standard error is silent beside it."""
    done = lockctl("-f", "json", *args, code=code)
    found: dict[str, Any] = done.json()
    assert done.stderr == ""
    assert set(found) >= RESULT
    for row in (found["lock"], found["previous"]):
        assert row is None or set(row) == ROW
    return found


def lapse(dsn: str, seconds: int = 120) -> None:
    with psycopg.connect(dsn) as conn:
        conn.execute(f"UPDATE ffdb_locks SET expires_at = clock_timestamp() - interval '{seconds} s'".encode())


def test_every_outcome_has_its_exit_code_and_its_object(lockctl: Any, dsn: str) -> None:
    """The table of outcomes in the contract, line by line."""
    key, a, b = ("ffdb_locks", "nightly"), ("--holder", "a"), ("--holder", "b")

    free = result(lockctl, "check", *key, code=4)
    assert free["outcome"] == "free"
    assert free["lock"] == {
        **dict.fromkeys(ROW),
        "table": "ffdb_locks",
        "relation": "public.ffdb_locks",
        "key": ["nightly"],
        "state": "free",
    }
    assert result(lockctl, "release", *key, *a)["outcome"] == "free"
    assert result(lockctl, "release", *key, "--force", "-y")["outcome"] == "free"
    assert result(lockctl, "extend", *key, *a, code=4)["outcome"] == "not_held"
    assert result(lockctl, "force-expire", *key, "-y", code=4)["outcome"] == "not_held"

    acquired = result(lockctl, "acquire", *key, *a, "--ttl", "1h")
    assert (acquired["outcome"], acquired["previous"]) == ("acquired", None)
    assert token.read(acquired["lease"]) == token.Lease("ffdb_locks", ("nightly",), "a", HOUR)
    lock = acquired["lock"]
    assert (lock["holder"], lock["state"], lock["updated_at"]) == ("a", "held", None)
    assert HOUR - 60_000 < lock["remaining_ms"] <= HOUR
    assert lock["expires_at"].endswith("Z")
    assert len(lock["expires_at"]) == len("2026-11-29T17:00:00.123456Z")

    for holder in (a, b):
        held = result(lockctl, "acquire", *key, *holder, code=3)
        assert (held["outcome"], held["lock"]["holder"], held["lease"]) == ("held", "a", None)
    assert result(lockctl, "check", *key)["outcome"] == "held"
    assert result(lockctl, "check", *key, *a)["outcome"] == "held"
    assert result(lockctl, "check", *key, *b, code=3)["outcome"] == "held"

    extended = result(lockctl, "extend", *key, *a, "--ttl", "2h")
    assert (extended["outcome"], extended["previous"]["expires_at"]) == ("extended", lock["expires_at"])
    assert extended["lock"]["remaining_ms"] > HOUR
    foreign = [("extend", *b), ("release", *b), ("release", *b, "--force", "-y"), ("force-expire", *b, "-y")]
    for verb, *more in foreign:
        held = result(lockctl, verb, *key, *more, code=3)
        assert (held["outcome"], held["lock"]["holder"], held["previous"]) == ("held", "a", None)

    expired = result(lockctl, "force-expire", *key, "-y", "--reason", "its host is gone")
    assert (expired["outcome"], expired["previous"]["state"], expired["lock"]["state"]) == ("expired", "held", "lapsed")
    assert (expired["lock"]["holder"], expired["lock"]["remaining_ms"] < 0) == ("a", True)

    lapse(dsn)
    assert result(lockctl, "check", *key, *b, code=4)["outcome"] == "lapsed"
    for verb, *more in [("extend", *a), ("extend", *b), ("force-expire", "-y"), ("force-expire", *a, "-y")]:
        assert result(lockctl, verb, *key, *more, code=4)["outcome"] == "not_held"
    assert result(lockctl, "extend", *key, *b, "--revive", code=3)["outcome"] == "held"
    assert result(lockctl, "release", *key, *b, code=3)["outcome"] == "held"
    assert result(lockctl, "extend", *key, *a, "--revive")["outcome"] == "extended"

    lapse(dsn)
    taken = result(lockctl, "acquire", *key, *b)
    assert (taken["previous"]["holder"], taken["previous"]["state"]) == ("a", "lapsed")
    released = result(lockctl, "release", *key, *b)
    assert (released["outcome"], released["lock"], released["previous"]["holder"]) == ("released", None, "b")
    result(lockctl, "acquire", *key, *a)
    forced = result(lockctl, "release", *key, "--force", "-y", "--reason", "gone")
    assert (forced["outcome"], forced["previous"]["holder"]) == ("released", "a")


def test_without_a_format_only_acquire_and_check_write_anything(lockctl: Any) -> None:
    """`lease=$(lockctl acquire …) || exit` works: the token alone; sentences go to standard error."""
    key = ("ffdb_locks", "nightly")
    acquired = lockctl("acquire", *key, "--ttl", "5m")
    assert token.read(acquired.stdout).key == ("nightly",)
    assert acquired.stdout.count("\n") == 1
    assert "acquired" in acquired.stderr
    denied = lockctl("acquire", *key, code=3)
    assert (denied.stdout, denied.stderr.count("\n")) == ("", 1)
    lease = ("--lease", acquired.stdout.strip())
    checked = lockctl("check", *key)
    assert checked.stdout.splitlines()[0].split("\t")[:4] == ["table", "relation", "key", "holder"]
    assert len(checked.stdout.splitlines()) == 2
    assert lockctl("extend", *lease).stdout == ""
    assert lockctl("force-expire", *key, "-y").stdout == ""
    assert lockctl("release", *lease).stdout == ""
    for quiet in (lockctl("-q", "acquire", *key), lockctl("release", *key, "--force", "-y", "-q")):
        assert quiet.stderr == ""


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_token_stands_for_table_key_holder_and_ttl(lockctl: Any, given: str) -> None:
    lease = lockctl("acquire", "agent_task_run_lock", "a", "t", "--ttl", "7m").stdout.strip()
    words = ("--lease", lease) if given == "option" else ()
    env = {} if given == "option" else {"LOCKCTL_LEASE": lease}

    def verb(name: str, *more: str, code: int = 0) -> Any:
        return lockctl("-f", "json", name, *words, *more, env=env, code=code).json()

    assert verb("check")["lock"]["key"] == ["a", "t"]
    assert 360_000 < verb("extend")["lock"]["remaining_ms"] <= 420_000
    assert verb("extend", "--ttl", "9m")["lock"]["remaining_ms"] > 420_000
    assert verb("release")["outcome"] == "released"
    assert verb("release")["outcome"] == "free"
    assert verb("check", code=4)["outcome"] == "free"


def test_a_token_in_the_environment_is_for_the_verbs_that_take_one(lockctl: Any) -> None:
    """A job that runs under a lease must not expire it, or take it again, by leaving the table out."""
    lease = lockctl("acquire", "ffdb_locks", "nightly").stdout.strip()
    env = {"LOCKCTL_LEASE": lease}
    for words in (("acquire",), ("force-expire", "-y")):
        refused = lockctl(*words, env=env, code=2)
        assert "which table?" in refused.stderr
    assert lockctl("check", "ffdb_locks", "other", env=env, code=4).stdout != ""
    assert lockctl("inspect", env=env).stdout.count("nightly") == 1
    assert lockctl("check", env=env).returncode == 0


@pytest.mark.parametrize("damage", ["cut", "letter", "version", "empty", "other"])
def test_a_damaged_token_is_a_usage_error(lockctl: Any, damage: str) -> None:
    lease = token.write(token.Lease("ffdb_locks", ("nightly",), "me", 1000))
    broken = {
        "cut": lease[:-3],
        "letter": lease[:20] + ("A" if lease[20] != "A" else "B") + lease[21:],
        "version": lease.replace("lease1_", "lease2_"),
        "empty": "",
        "other": "hunter2",
    }[damage]
    for verb in ("extend", "check", "release"):
        done = lockctl(verb, "--lease", broken, code=2)
        assert (done.stdout, done.stderr.count("\n") <= 2) == ("", True)


def test_two_answers_to_which_lease_are_a_usage_error(lockctl: Any) -> None:
    lease = token.write(token.Lease("ffdb_locks", ("nightly",), "me", 1000))
    for words in (
        ("extend", "ffdb_locks", "nightly", "--lease", lease),
        ("extend", "--key", "nightly", "--lease", lease),
        ("extend", "--lease", lease, "--holder", "me"),
        ("extend", "ffdb_locks", "nightly"),
        ("release", "ffdb_locks", "nightly"),
        ("check", "ffdb_locks", "nightly", "--key", "nightly"),
        ("check",),
    ):
        assert lockctl(*words, code=2).stdout == ""


def test_acquire_purges_the_other_expired_rows_only_when_told_to(lockctl: Any, dsn: str) -> None:
    for key in ("one", "two", "three"):
        lockctl("acquire", "ffdb_locks", key)
    lapse(dsn, seconds=1)
    lockctl("acquire", "ffdb_locks", "live")
    taken = result(lockctl, "acquire", "ffdb_locks", "one", "--purge-expired", "--holder", "me")
    assert taken["previous"]["state"] == "lapsed"
    shown = lockctl("-f", "jsonl", "inspect", "ffdb_locks").jsonl()
    assert [row["key"] for row in shown] == [["live"], ["one"]]


def test_the_default_ttls_are_those_of_the_owners(lockctl: Any) -> None:
    expected = {"ffdb_locks": 60, "agent_task_run_lock": 300, "verrou": 30, "run_leases": 60}
    for table, seconds in expected.items():
        key = ("a", "t") if table == "agent_task_run_lock" else ("k",)
        left = result(lockctl, "acquire", table, *key)["lock"]["remaining_ms"]
        assert (seconds - 20) * 1000 < left <= seconds * 1000
