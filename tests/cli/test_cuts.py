"""A connection that is cut at every moment of acquire, and an acquire whose result nobody can take.

Afterwards the row is held and its token was printed, or the row is free: never a lease that nobody knows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockctl.catalog import BUILT_IN
from lockctl.db import Database
from lockctl.embedded import Server
from lockctl.leases import grant, token
from lockctl.leases import operations as leases
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from tests.support import pooler
from tests.support.cli import LOCKCTL, Result, clean_env, popen_lockctl
from tests.support.proxy import Proxy, Side
from tests.support.quick import run_quick
from tests.support.waiting import until, wait_until_waiting

ACQUIRE = ("acquire", "ffdb_locks", "nightly", "--ttl", "1h")


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket_dir, server.port) as running:
        yield running


def row(conn: psycopg.Connection[Any]) -> Any:
    return conn.execute(
        "SELECT lock_id, expires_at > clock_timestamp() FROM ffdb_locks WHERE lock_key = 'nightly'"
    ).fetchone()


def judge(conn: psycopg.Connection[Any], done: Result, before: Any) -> None:
    """Held, and the token says by whom; or as it was before."""
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        assert row(conn) == (token.read(done.stdout.strip()).holder, True)
    else:
        assert (done.returncode, done.stdout) == (6, ""), done.stderr
        assert row(conn) == before, done.stderr


@pytest.mark.parametrize("lapsed", [False, True], ids=["free", "lapsed"])
@pytest.mark.parametrize("side", list(Side), ids=lambda side: side.value)
def test_a_cut_before_every_message_leaves_no_unknown_lease(
    proxy: Proxy, dsn: str, conn: psycopg.Connection[Any], side: Side, lapsed: bool
) -> None:
    def reset() -> Any:
        conn.execute("DELETE FROM ffdb_locks")
        if lapsed:
            conn.execute("INSERT INTO ffdb_locks VALUES ('nightly', 'late', now() - interval '1 h')")
        return row(conn)

    reset()
    assert run_quick(*ACQUIRE, dsn=proxy.dsn(dsn)).returncode == 0
    length = len(proxy.messages(side, 0))
    assert length > 10
    granted = set()
    for message in range(1, length + 1):
        before = reset()
        proxy.cut_at(message, side)
        done = run_quick(*ACQUIRE, dsn=proxy.dsn(dsn))
        judge(conn, done, before)
        granted.add(done.returncode)
    assert granted == {0, 6}, "no cut came after the grant, or none before"


def test_a_cut_within_a_message_leaves_no_unknown_lease(proxy: Proxy, dsn: str, conn: psycopg.Connection[Any]) -> None:
    for side, counts in ((Side.CLIENT, range(1, 4000, 331)), (Side.SERVER, range(1, 2400, 173))):
        for count in counts:
            conn.execute("DELETE FROM ffdb_locks")
            proxy.cut_after(count, side)
            judge(conn, run_quick(*ACQUIRE, dsn=proxy.dsn(dsn)), None)


def test_a_cut_through_a_pooler_leaves_no_unknown_lease(
    pgbouncer: pooler.Pooler, pgbouncer_dsn: str, conn: psycopg.Connection[Any]
) -> None:
    with Proxy(pgbouncer.place, 6432) as proxy:
        through = proxy.dsn(pgbouncer_dsn)
        assert run_quick(*ACQUIRE, dsn=through).returncode == 0
        connection = proxy.connections - 1
        granted = set()
        for side in Side:
            length = len(proxy.messages(side, connection))
            for message in range(1, length + 1, 2):
                conn.execute("DELETE FROM ffdb_locks")
                proxy.cut_at(10_000, side)  # the first is the one whose options the pooler refuses
                proxy.cut_at(message, side)
                done = run_quick(*ACQUIRE, dsn=through)
                judge(conn, done, None)
                granted.add(done.returncode)
        assert granted == {0, 6}


def test_when_the_server_cannot_be_asked_again_it_says_what_may_be(
    proxy: Proxy, dsn: str, conn: psycopg.Connection[Any]
) -> None:
    """Nobody can know then: the error names the holder that may have it, so that it can be released by hand."""
    assert run_quick(*ACQUIRE, dsn=proxy.dsn(dsn)).returncode == 0
    last = len(proxy.messages(Side.SERVER, 0))
    conn.execute("DELETE FROM ffdb_locks")
    proxy.cut_at(last, Side.SERVER)
    proxy.cut_at(1, Side.SERVER)
    done = run_quick(*ACQUIRE, dsn=proxy.dsn(dsn))
    assert (done.returncode, done.stdout) == (6, "")
    assert "could not be found out" in done.stderr
    assert row(conn)[0] in done.stderr
    assert run_quick("release", "ffdb_locks", "nightly", "--holder", row(conn)[0], dsn=dsn).returncode == 0


def test_a_statement_that_is_still_on_its_way_is_granted_nothing_later(dsn: str) -> None:
    """The lost connection's session is idle and its statement is somewhere in the network: the session is ended."""
    database = Database(dsn=dsn, source="the tests", command="acquire")
    with database.connect() as lost, database.connect() as fresh:
        grant.end_former(fresh, database.name)
        assert fresh.query("SELECT 1 FROM pg_stat_activity WHERE pid = %s", (lost.pid,)) == []
        table = LockedTable.of(describe(fresh, BUILT_IN[0], None))
        assert leases.read(fresh, table, ("nightly",)) is None


@pytest.mark.parametrize(
    "fmt", [(), ("-f", "json"), ("-f", "table"), ("-q",)], ids=lambda fmt: " ".join(fmt) or "token"
)
@pytest.mark.parametrize("stdout", ["closed", "full", "left"])
def test_a_lease_whose_token_cannot_be_written_is_given_back(
    dsn: str, conn: psycopg.Connection[Any], fmt: tuple[str, ...], stdout: str
) -> None:
    conn.execute("INSERT INTO ffdb_locks VALUES ('other', 'x', now() + interval '1 h')")
    if stdout == "left":
        with popen_lockctl(*fmt, *ACQUIRE, dsn=dsn) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            code, said = process.wait(30), process.stderr.read().decode()
    else:
        redirect = ">&-" if stdout == "closed" else ">/dev/full"
        done = subprocess.run(
            ["sh", "-c", f'"$@" {redirect}', "sh", *LOCKCTL, *fmt, *ACQUIRE],
            env=clean_env(dsn),
            capture_output=True,
            text=True,
            check=False,
        )
        code, said = done.returncode, done.stderr
    assert code == 1
    assert ("given back" in said, "Traceback" in said) == (True, False)
    assert row(conn) is None
    assert conn.execute("SELECT count(*) FROM ffdb_locks").fetchone() == (1,)


def test_a_denial_that_cannot_be_written_gives_nothing_back(dsn: str, conn: psycopg.Connection[Any]) -> None:
    conn.execute("INSERT INTO ffdb_locks VALUES ('nightly', 'x', now() + interval '1 h')")
    with popen_lockctl("-f", "json", *ACQUIRE, dsn=dsn) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) in (1, 3)
    assert row(conn) == ("x", True)


SLOW = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_lock(42); PERFORM pg_advisory_unlock(42); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON ffdb_locks
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()
"""


@pytest.mark.parametrize(
    ("signum", "code", "moment"),
    [
        (2, 130, "before the commit"),
        (15, 143, "before the commit"),
        (2, 130, "after the commit"),
        (15, 143, "after the commit"),
        pytest.param(15, 143, "and the network is dead", marks=pytest.mark.slow),
    ],
)
def test_a_signal_in_the_middle_of_acquire_leaves_the_row_free(
    proxy: Proxy, dsn: str, conn: psycopg.Connection[Any], signum: int, code: int, moment: str
) -> None:
    """Case 14 for the one-shot command: the commit is held up in the server, or its answer in the network."""
    conn.execute(SLOW.encode())
    with psycopg.connect(dsn, autocommit=True) as gate, popen_lockctl("-v", *ACQUIRE, dsn=proxy.dsn(dsn)) as process:
        gate.execute("SELECT pg_advisory_lock(42)")
        wait_until_waiting(conn, "lockctl acquire %")
        if moment == "before the commit":
            process.send_signal(signum)
        else:
            proxy.stall()
            gate.execute("SELECT pg_advisory_unlock(42)")
            until(lambda: row(conn), what="the commit")
            process.send_signal(signum)
            if moment == "after the commit":
                proxy.resume()
        out, err = process.communicate(timeout=60)
        proxy.resume()
    assert (process.returncode, out, b"Traceback" in err) == (code, b"", False)
    if moment == "and the network is dead":
        assert row(conn) is not None
    else:
        assert row(conn) is None
