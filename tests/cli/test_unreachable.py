"""Exit 6: a server that is not there, does not answer, or goes away; each in one line with a hint, by the deadline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lockctl.embedded import Server
from tests.support.blocked import holding
from tests.support.cli import Result, popen_lockctl
from tests.support.proxy import Proxy
from tests.support.quick import run_quick
from tests.support.waiting import wait_until_waiting

VERBS = [
    ("inspect",),
    ("tables",),
    ("check", "ffdb_locks", "nightly"),
    ("acquire", "ffdb_locks", "nightly"),
    ("extend", "ffdb_locks", "nightly", "--holder", "h"),
    ("release", "ffdb_locks", "nightly", "--holder", "h"),
    ("force-expire", "ffdb_locks", "nightly", "-y"),
    ("sweep",),
]
verbs = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket_dir, server.port) as running:
        yield running


def judge(done: Result) -> None:
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (6, "", False), done.stderr
    assert len(done.stderr.splitlines()) <= 2


@verbs
def test_a_server_that_refuses_or_is_not_there(proxy: Proxy, dsn: str, tmp_path: Path, verb: tuple[str, ...]) -> None:
    proxy.refuse()
    for address in (proxy.dsn(dsn), make_conninfo(dsn, host=str(tmp_path)), make_conninfo(dsn, dbname="nobody")):
        judge(run_quick(*verb, dsn=address))
        error = run_quick("-f", "json", *verb, dsn=address).error()
        assert (error["error"], bool(error["message"]), bool(error["hint"])) == ("unreachable", True, True)


@verbs
def test_a_server_that_does_not_answer_is_left_at_the_deadline(proxy: Proxy, dsn: str, verb: tuple[str, ...]) -> None:
    proxy.stall()
    judge(run_quick("--timeout", "300ms", *verb, dsn=proxy.dsn(dsn)))


def test_a_session_that_an_administrator_ends_is_lost(dsn: str, conn: psycopg.Connection[Any]) -> None:
    """acquire looks again and says what became of it; the others say that the connection is gone."""
    conn.execute("INSERT INTO ffdb_locks VALUES ('nightly', 'h', now() - interval '1 h')")
    with holding(dsn, "SELECT 1 FROM ffdb_locks FOR UPDATE"):
        for verb in VERBS[3:6]:
            with popen_lockctl(*verb, dsn=dsn) as process:
                pid = wait_until_waiting(conn, f"lockctl {verb[0]} %")
                conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
                out, err = process.communicate(timeout=30)
            assert (process.returncode, out, b"Traceback" in err) == (6, b"", False)
            assert (b"not granted" in err) == (verb[0] == "acquire")
    assert conn.execute("SELECT lock_id FROM ffdb_locks").fetchone() == ("h",)
