"""Exit 7: a wait that ends without the lease says who was in the way, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.blocked import holding
from tests.support.cli import popen_lockctl
from tests.support.quick import run_quick
from tests.support.waiting import until, wait_until_waiting

LOCK = "SELECT 1 FROM ffdb_locks WHERE lock_key = 'nightly' FOR UPDATE"
BLOCKER = {
    "pid", "blocked_by", "root", "kind", "gid", "user", "application", "client", "state", "xact_age_ms", "wait_ms",
    "lock_mode", "relation", "query",
}  # fmt: skip
VERBS = [
    ("acquire", "ffdb_locks", "nightly"),
    ("extend", "ffdb_locks", "nightly", "--holder", "me"),
    ("release", "ffdb_locks", "nightly", "--holder", "me"),
    ("force-expire", "ffdb_locks", "nightly", "-y"),
]


@pytest.fixture
def held(dsn: str) -> str:
    assert run_quick("acquire", "ffdb_locks", "nightly", "--holder", "me", "--ttl", "1h", dsn=dsn).returncode == 0
    return dsn


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_a_session_in_the_way_is_named(held: str, verb: tuple[str, ...]) -> None:
    with holding(held, LOCK, application="a forgotten \x1b[1mpsql") as pid:
        done = run_quick("--timeout", "700ms", *verb, dsn=held)
        assert (done.returncode, done.stdout, "\x1b" in done.stderr) == (7, "", False)
        sentence = done.stderr.splitlines()[-2]
        for word in (f"pid {pid}", "postgres", "a forgotten", "idle in transaction", "open for"):
            assert word in sentence
        failed = run_quick("-f", "json", "--timeout", "700ms", *verb, dsn=held)
        assert (failed.returncode, failed.stdout) == (7, "")
        (blocker,) = failed.error()["blockers"]
        assert set(blocker) >= BLOCKER
        assert (blocker["pid"], blocker["root"], blocker["kind"]) == (pid, True, "session")
        assert (blocker["user"], blocker["state"]) == ("postgres", "idle in transaction")
        assert blocker["xact_age_ms"] > 0
    row = run_quick("-f", "json", "check", "ffdb_locks", "nightly", dsn=held).json()["lock"]
    assert (row["holder"], row["state"]) == ("me", "held")


@pytest.fixture
def prepared(held: str, conn: psycopg.Connection[Any]) -> Iterator[str]:
    """A prepared transaction that holds the row, after its session has gone."""
    gid = f"forgotten-{conn.info.dbname}"
    with psycopg.connect(held) as other:
        other.execute(LOCK)
        other.execute(f"PREPARE TRANSACTION '{gid}'".encode())
    yield gid
    conn.execute(f"ROLLBACK PREPARED '{gid}'".encode())


def test_a_prepared_transaction_in_the_way_is_named(held: str, prepared: str) -> None:
    done = run_quick("--timeout", "700ms", "release", "ffdb_locks", "nightly", "--holder", "me", dsn=held)
    assert (done.returncode, prepared in done.stderr, "ROLLBACK PREPARED" in done.stderr) == (7, True, True)
    error = run_quick(
        "-f", "json", "--timeout", "700ms", "release", "ffdb_locks", "nightly", "--holder", "me", dsn=held
    ).error()
    (blocker,) = error["blockers"]
    assert (blocker["pid"], blocker["kind"], blocker["gid"]) == (0, "prepared", prepared)


@pytest.mark.parametrize("timeout", ["120ms", "250ms", "1s"])
def test_a_short_deadline_names_the_blocker_too(held: str, timeout: str) -> None:
    """However short the wait was: after it, it would be too late to ask."""
    with holding(held, LOCK) as pid:
        done = run_quick("--timeout", timeout, *VERBS[1], dsn=held)
        assert done.returncode == 7, done.stderr
        assert f"pid {pid}" in done.stderr


def test_a_lock_on_the_whole_table_is_waited_for_no_longer_than_the_deadline(held: str) -> None:
    with holding(held, "LOCK TABLE ffdb_locks IN ACCESS EXCLUSIVE MODE") as pid:
        for words in (("check", "ffdb_locks", "nightly"), ("inspect", "ffdb_locks"), ("sweep", "ffdb_locks")):
            done = run_quick("--timeout", "600ms", *words, dsn=held)
            assert (done.returncode, f"pid {pid}" in done.stderr) == (7, True), done.stderr


def test_the_wait_ends_well_when_the_blocker_goes(held: str, conn: psycopg.Connection[Any]) -> None:
    with psycopg.connect(held) as blocker, popen_lockctl(*VERBS[1], dsn=held) as process:
        blocker.execute(LOCK)
        wait_until_waiting(conn, "lockctl extend %")
        conn.execute("SELECT pg_terminate_backend(%s)", (blocker.info.backend_pid,))
        assert process.wait(30) == 0
        blocker.close()


@pytest.mark.parametrize(("signum", "code"), [(2, 130), (15, 143)])
def test_a_signal_ends_the_wait_and_what_waits_in_the_server(
    held: str, conn: psycopg.Connection[Any], signum: int, code: int
) -> None:
    with holding(held, LOCK), popen_lockctl("acquire", "ffdb_locks", "nightly", dsn=held) as process:
        pid = wait_until_waiting(conn, "lockctl acquire %")
        process.send_signal(signum)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, b"Traceback" in err) == (code, b"", False)
        gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        until(lambda: conn.execute(gone, (pid,)).fetchone(), what="the end of what waited")
