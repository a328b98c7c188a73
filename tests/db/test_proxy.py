"""The proxy breaks a connection where it is told to, and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest

from lockctl.embedded import Server
from tests.support.proxy import Proxy, Side
from tests.support.waiting import until


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket_dir) as running:
        yield running


def test_it_forwards_and_counts_the_same_messages_every_time(proxy: Proxy, empty_dsn: str) -> None:
    for _ in range(2):
        with psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as conn:
            assert conn.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)
    until(lambda: proxy.messages(Side.CLIENT, 1)[-1] == b"X", what="the goodbye of the second connection")
    for side in Side:
        assert proxy.messages(side, 0) == proxy.messages(side, 1)
    assert proxy.messages(Side.CLIENT)[0] == b""
    assert proxy.messages(Side.SERVER)[-1] == b"Z"


def test_a_cut_at_every_message_of_either_side_breaks_that_connection_alone(proxy: Proxy, empty_dsn: str) -> None:
    dsn = proxy.dsn(empty_dsn)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("SELECT 1")
    lengths = {side: len(proxy.messages(side)) for side in Side}
    lengths[Side.CLIENT] -= 1  # the goodbye: nobody waits for an answer to it
    for side, length in lengths.items():
        for message in range(1, length + 1):
            proxy.cut_at(message, side)
            with pytest.raises(psycopg.OperationalError), psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("SELECT 1")
            assert len(proxy.messages(side, proxy.connections - 1)) == message - 1
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("SELECT 1")


def test_a_cut_before_the_answer_leaves_the_statement_done(proxy: Proxy, empty_dsn: str) -> None:
    with psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as conn:
        conn.execute("SELECT 1")
    started = proxy.messages(Side.SERVER).index(b"Z") + 1
    proxy.cut_at(started + 1, Side.SERVER)
    with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as conn:
        conn.execute("CREATE TABLE t ()")
    with psycopg.connect(empty_dsn) as conn:
        assert conn.execute("SELECT to_regclass('t') IS NOT NULL").fetchone() == (True,)


def test_a_cut_after_some_bytes_comes_within_a_message(proxy: Proxy, empty_dsn: str) -> None:
    proxy.cut_after(100_000, Side.SERVER)
    with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as conn:
        conn.execute("SELECT repeat('x', 1000000)")


def test_refused_and_then_accepted_again(proxy: Proxy, empty_dsn: str) -> None:
    with psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as stays:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError, match="refused"):
            psycopg.connect(proxy.dsn(empty_dsn))
        stays.execute("SELECT 1")
        proxy.accept()
        with psycopg.connect(proxy.dsn(empty_dsn)):
            pass


def test_a_stalled_connection_waits_and_goes_on(proxy: Proxy, empty_dsn: str) -> None:
    with psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as conn, psycopg.connect(empty_dsn) as look:
        proxy.stall()
        answered = threading.Event()

        def ask() -> None:
            conn.execute("CREATE TABLE t ()")
            answered.set()

        asking = threading.Thread(target=ask)
        asking.start()
        assert not answered.wait(0.1)
        assert look.execute("SELECT to_regclass('t')").fetchone() == (None,)
        proxy.resume()
        asking.join(10)
        assert answered.is_set()


def test_a_cut_now_ends_what_is_there(proxy: Proxy, empty_dsn: str, admin: psycopg.Connection) -> None:
    with psycopg.connect(proxy.dsn(empty_dsn), autocommit=True) as conn:
        pid = conn.info.backend_pid
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
    gone = "SELECT 1 WHERE NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
    until(lambda: admin.execute(gone, (pid,)).fetchone(), what="the end of the server's session")
