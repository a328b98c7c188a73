"""`migrate exec`: a command that knows nothing of lockctl waits no longer than the lock timeout, and is judged."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from lockctl.db import Database
from lockctl.errors import (
    AheadError,
    BehindError,
    BlockedError,
    LockctlError,
    PartialError,
    UsageError,
)
from lockctl.leases.child import NotFoundError
from lockctl.migrations.execute import Expectation, execute
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event, MigrationRun, quiet
from tests.support import databases, network
from tests.support.foreign import client, dying, silent, stubborn
from tests.support.migrating import Heard
from tests.support.network import Network
from tests.support.traffic import Traffic

Conn = psycopg.Connection[Any]

LOCK_TIMEOUT_S = 1.0
MARGIN_S = 1.0
ONCE = Policy(limits=Limits(lock_timeout_ms=1_000), retries=0)
OFTEN = Policy(limits=Limits(lock_timeout_ms=700), retries=20)
ALTER = "ALTER TABLE item ADD COLUMN IF NOT EXISTS a int"
BUMP = "UPDATE version SET version = 2"
TO_2 = Expectation("version", version="2")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network.running() as running:
        yield running


@pytest.fixture
def dsn(net: Network) -> Iterator[str]:
    conninfo = net.server.conninfo
    with psycopg.connect(conninfo, autocommit=True) as admin, databases.database(admin, conninfo) as dsn:
        yield net.dsn(dsn)


@pytest.fixture
def conn(dsn: str) -> Iterator[Conn]:
    with psycopg.connect(dsn, autocommit=True, application_name="the test") as conn:
        conn.execute(
            "CREATE TABLE item (id int); CREATE TABLE version (version bigint); INSERT INTO version VALUES (1)"
        )
        yield conn


@pytest.fixture
def idle(dsn: str, conn: Conn) -> Iterator[Conn]:
    """A session that forgot its transaction after reading `item`."""
    with psycopg.connect(dsn, application_name="forgotten psql") as idle:
        idle.execute("SELECT count(*) FROM item")
        yield idle
        idle.rollback()


class Played:
    def __init__(self, run: MigrationRun, heard: Heard, output: str) -> None:
        self.run, self.heard, self.output = run, heard, output

    @property
    def warnings(self) -> str:
        return "\n".join(event.message for event in self.heard.all("warning"))


def play(
    dsn: str,
    argv: Sequence[str],
    policy: Policy = ONCE,
    expectation: Expectation | None = None,
    no_clients: str | None = None,
    react: Callable[[Event], None] = quiet,
) -> Played:
    heard, output = Heard(react), bytearray()
    with Database(dsn, "the test", "migrate exec").connect() as session:
        run = execute(
            session,
            argv,
            expectation=expectation,
            no_clients=no_clients,
            policy=policy,
            notify=heard,
            output=output.extend,
        )
    return Played(run, heard, output.decode())


def altered(conn: Conn) -> bool:
    row = conn.execute(
        "SELECT count(*) FROM pg_attribute WHERE attrelid = 'item'::regclass AND attname = 'a'"
    ).fetchone()
    return row == (1,)


def others(conn: Conn) -> list[str]:
    """Sessions in this database beside the test's, the blocker's and lockctl's own, which may just be closing."""
    rows = conn.execute(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND application_name NOT IN ('the test', 'forgotten psql', 'traffic')"
        " AND application_name NOT LIKE 'lockctl migrate exec %'"
    )
    return [row[0] for row in rows]


# -- a free database ---------------------------------------------------------------------------------------------------


def test_the_command_gets_our_limits_behind_its_own_options_and_a_name(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=7MB -c lock_timeout=9")
    shown = ["SHOW work_mem", "SHOW lock_timeout", "SHOW client_connection_check_interval", "SHOW application_name"]
    played = play(dsn, client(dsn, *shown))
    assert played.run.result.outcome == "done"
    assert played.output.split("\n")[:3] == ["7MB", "1s", "1s"]
    assert played.output.split("\n")[3].startswith("lockctl exec ")


def test_the_result_tells_the_version_before_and_after(dsn: str, conn: Conn) -> None:
    played = play(dsn, client(dsn, ALTER, BUMP), expectation=TO_2)
    result = played.run.result
    assert (result.outcome, result.from_, result.to) == ("done", ("1",), ("2",))
    again = play(dsn, client(dsn, ALTER, BUMP), expectation=TO_2).run.result
    assert (again.outcome, again.from_, again.to, again.steps) == ("nothing", ("2",), ("2",), ())


def test_its_own_failure_keeps_its_exit_status_and_is_not_tried_again(dsn: str, conn: Conn) -> None:
    played = play(dsn, [sys.executable, "-c", "print('no'); raise SystemExit(37)"], OFTEN)
    assert isinstance(played.run.error, LockctlError)
    assert (played.run.error.exit_code, played.run.result.attempts) == (37, 1)
    assert played.run.result.outcome == "failed"
    assert played.output == "no\n"


def test_a_command_that_kills_itself_has_the_status_of_its_signal(dsn: str, conn: Conn) -> None:
    played = play(dsn, [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    assert isinstance(played.run.error, LockctlError)
    assert played.run.error.exit_code == 137


def test_a_command_that_is_not_there_is_told_before_anything_else(dsn: str, conn: Conn) -> None:
    with pytest.raises(NotFoundError, match="nosuch"):
        play(dsn, ["nosuch"])


@pytest.mark.parametrize(
    ("expectation", "error", "words"),
    [
        (Expectation("version", version="3"), BehindError, "exit status 0, yet version shows version 1, not 3"),
        (Expectation("version", version="0"), AheadError, "shows version 1, not 0"),
        (Expectation("nowhere", version="1"), BehindError, "shows version none, not 1"),
        (Expectation(columns=("item.id", "public.item.b")), BehindError, "column public.item.b is not there"),
        (Expectation(columns=("missing.x",)), BehindError, "column missing.x is not there"),
    ],
)
def test_success_is_judged_by_what_the_database_shows(
    dsn: str, conn: Conn, expectation: Expectation, error: type[LockctlError], words: str
) -> None:
    played = play(dsn, [sys.executable, "-c", ""], expectation=expectation)
    assert isinstance(played.run.error, error)
    assert words in played.run.error.message
    assert played.run.result.outcome == "failed"


def test_the_advisory_lock_of_the_applications_launches_is_held_meanwhile(dsn: str, conn: Conn) -> None:
    policy = Policy(limits=ONCE.limits, advisory_locks=("4711",))
    taken = "SELECT pg_try_advisory_lock(4711)"
    assert play(dsn, client(dsn, taken), policy).output == "False\n"
    assert conn.execute(taken).fetchone() == (True,)


# -- behind a reader ------------------------------------------------------------------------------------------------


def test_a_command_that_takes_our_limits_is_blocked_and_the_blocker_named(dsn: str, conn: Conn, idle: Conn) -> None:
    played = play(dsn, client(dsn, ALTER, BUMP), expectation=TO_2)
    assert isinstance(played.run.error, BlockedError)
    result = played.run.result
    assert (result.outcome, result.from_, result.to) == ("blocked", ("1",), ("1",))
    assert [(each.pid, each.relation) for each in result.blockers] == [(idle.info.backend_pid, "item")]
    assert 700 <= result.waited_ms <= 2_000
    assert "canceling statement due to lock timeout" in played.output
    assert "cancelled" not in played.heard.names()
    assert not altered(conn)
    assert others(conn) == []


@pytest.mark.parametrize("name", [None, "mine"])
def test_one_that_overrides_our_limits_or_its_name_in_its_url_is_cancelled_by_the_watchdog(
    net: Network, dsn: str, conn: Conn, idle: Conn, name: str | None
) -> None:
    parameters = {"options": "-c lock_timeout=0"} | ({} if name is None else {"application_name": name})
    played = play(dsn, client(net.url(dsn, **parameters), ALTER, BUMP), expectation=TO_2)
    assert played.run.result.outcome == "blocked"
    assert [each.pid for each in played.run.result.blockers] == [idle.info.backend_pid]
    assert len(played.heard.all("cancelled")) == 1
    assert ("found by its port" in played.warnings) == (name is not None)
    assert not altered(conn)
    assert others(conn) == []


def test_others_wait_no_longer_than_the_lock_timeout_because_of_such_a_command(
    net: Network, dsn: str, conn: Conn, idle: Conn
) -> None:
    url = net.url(dsn, options="-c lock_timeout=0", application_name="mine")
    with Traffic(dsn, ["SELECT count(*) FROM item", "INSERT INTO item VALUES (1)"]) as traffic:
        assert play(dsn, client(url, ALTER)).run.result.outcome == "blocked"
    assert traffic.count > 0
    assert traffic.longest < LOCK_TIMEOUT_S + MARGIN_S


def test_the_waits_of_one_transaction_are_added_up(net: Network, dsn: str, conn: Conn, idle: Conn) -> None:
    conn.execute("CREATE TABLE first (id int)")
    with psycopg.connect(dsn, application_name="forgotten psql") as holder:
        holder.execute("SELECT count(*) FROM first")
        leaving = threading.Timer(1.5, holder.rollback)
        leaving.start()
        both = "LOCK TABLE first, item IN ACCESS EXCLUSIVE MODE"
        policy = Policy(limits=Limits(lock_timeout_ms=1_500), retries=0)
        with Traffic(dsn, ["SELECT count(*) FROM first"]) as traffic:
            played = play(dsn, client(dsn, "BEGIN", both, "COMMIT"), policy)
        leaving.join()
    assert played.run.result.outcome == "blocked"
    assert traffic.longest < 1.5 + MARGIN_S


def test_a_wait_is_known_from_the_database_when_the_command_says_nothing(dsn: str, conn: Conn, idle: Conn) -> None:
    played = play(dsn, silent(dsn, ALTER))
    assert played.output == ""
    assert isinstance(played.run.error, BlockedError)
    assert [each.pid for each in played.run.result.blockers] == [idle.info.backend_pid]


def test_it_is_run_again_as_a_whole_and_goes_through_when_the_reader_leaves(dsn: str, conn: Conn, idle: Conn) -> None:
    def leave(event: Event) -> None:
        if event.event == "retry":
            idle.rollback()

    played = play(dsn, client(dsn, ALTER, BUMP), OFTEN, TO_2, react=leave)
    result = played.run.result
    assert (result.outcome, result.to, result.attempts) == ("done", ("2",), 2)
    assert altered(conn)


def test_a_deadlock_counts_as_a_lock_timeout(dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch) -> None:
    conn.execute("CREATE TABLE first (id int)")
    # The command is the one whose wait the server breaks.
    monkeypatch.setenv("PGOPTIONS", "-c deadlock_timeout=100ms")
    held = "SELECT count(*) FROM pg_locks WHERE relation = 'first'::regclass AND granted"
    with psycopg.connect(dsn, application_name="forgotten psql") as other:
        other.execute("LOCK TABLE item")

        def cross() -> None:
            while conn.execute(held).fetchone() == (0,):
                time.sleep(0.02)
            other.execute("LOCK TABLE first")
            other.rollback()

        crossing = threading.Thread(target=cross)
        crossing.start()
        words = ["BEGIN", "LOCK TABLE first", "SELECT pg_sleep(1)", "LOCK TABLE item", "COMMIT"]
        played = play(dsn, client(dsn, *words), Policy(limits=Limits(lock_timeout_ms=5_000)))
        crossing.join()
    assert "deadlock detected" in played.output
    assert (played.run.result.outcome, played.run.result.attempts) == ("done", 2)


def test_when_the_runners_lock_is_lost_meanwhile_it_is_said(
    dsn: str, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockctl.migrations.execute._CHECK_EVERY_S", 0.2)
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE '%runner'"
    played = play(dsn, client(dsn, kill, "SELECT pg_sleep(1)"))
    assert "the runner's lock was lost" in played.warnings
    assert "another migration may begin" in played.warnings


def test_a_command_that_goes_on_without_the_cancelled_statement_is_no_success(dsn: str, conn: Conn, idle: Conn) -> None:
    unjudged = play(dsn, stubborn(dsn, ALTER, BUMP))
    assert isinstance(unjudged.run.error, PartialError)
    assert unjudged.run.result.outcome == "partial"
    # The version says 2, and a column is missing: what a version alone would take for a success.
    judged = Expectation("version", version="2", columns=("item.a",))
    blocked = play(dsn, stubborn(dsn, ALTER, BUMP), expectation=judged)
    assert blocked.run.result.outcome == "blocked"

    def leave(event: Event) -> None:
        if event.event == "retry":
            idle.rollback()

    done = play(dsn, stubborn(dsn, ALTER, BUMP), OFTEN, judged, react=leave)
    assert done.run.error is None
    assert altered(conn)


def test_a_session_left_waiting_by_a_command_that_died_does_not_commit_later(
    net: Network, dsn: str, conn: Conn, idle: Conn
) -> None:
    url = net.url(dsn, options="-c lock_timeout=0 -c client_connection_check_interval=0", application_name="mine")
    policy = Policy(limits=Limits(lock_timeout_ms=20_000), retries=0)
    played = play(dsn, dying(url, ALTER), policy)
    assert isinstance(played.run.error, LockctlError)
    assert played.run.error.exit_code == 5
    assert "terminated" in played.heard.names()
    idle.rollback()
    assert others(conn) == []
    assert not altered(conn)


def test_what_the_command_left_running_ends_with_it(dsn: str, conn: Conn) -> None:
    left = [*client(dsn, "SELECT pg_sleep(60)")]
    script = f"import subprocess, time; subprocess.Popen({left!r}); time.sleep(1.5)"
    started = time.monotonic()
    assert play(dsn, [sys.executable, "-c", script]).run.result.outcome == "done"
    assert time.monotonic() - started < 30
    assert others(conn) == []


def test_without_a_name_or_a_port_it_says_that_it_saw_no_session(
    net: Network, dsn: str, conn: Conn, idle: Conn
) -> None:
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    socket = f"host={net.server.socket_dir} port={net.server.port} user=postgres dbname={name} application_name=mine"
    played = play(dsn, client(f"{socket} options='-c lock_timeout=2s'", ALTER))
    assert "no session of python" in played.warnings
    assert played.run.result.outcome == "blocked"


# -- the preflight --------------------------------------------------------------------------------------------------


def test_more_than_one_version_row_is_an_error_before_the_command_runs(dsn: str, conn: Conn) -> None:
    conn.execute("INSERT INTO version VALUES (2)")
    with pytest.raises(LockctlError, match=r"holds 2 rows \(1, 2\)"):
        play(dsn, client(dsn, ALTER), expectation=TO_2)
    assert not altered(conn)


def test_an_expected_column_that_is_none_is_an_error_before_the_command_runs(dsn: str, conn: Conn) -> None:
    with pytest.raises(UsageError, match="'nodots' is no column"):
        play(dsn, client(dsn, ALTER), expectation=Expectation(columns=("nodots",)))
    assert not altered(conn)


def test_sessions_that_should_be_scaled_to_zero_stop_it(dsn: str, conn: Conn, idle: Conn) -> None:
    played = play(dsn, client(dsn, ALTER), no_clients="forgotten*")
    assert isinstance(played.run.error, BlockedError)
    assert (played.run.result.outcome, played.run.result.attempts) == ("blocked", 0)
    assert [each.pid for each in played.run.result.blockers] == [idle.info.backend_pid]
    idle.rollback()
    assert play(dsn, client(dsn, ALTER), no_clients="dbos_*").run.result.outcome == "done"


def test_what_may_stand_in_the_way_is_said_beforehand(dsn: str, conn: Conn) -> None:
    conn.execute("INSERT INTO item VALUES (1), (1)")
    with pytest.raises(psycopg.Error):
        conn.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON item (id)")
    with psycopg.connect(dsn) as preparing:
        preparing.execute("CREATE TABLE held ()")
        preparing.execute("PREPARE TRANSACTION 'forgotten'")
    with psycopg.connect(dsn, application_name="forgotten psql") as old:
        old.execute("SELECT 1")
        pid = old.info.backend_pid
        age = "SELECT clock_timestamp() - xact_start > interval '1 second' FROM pg_stat_activity WHERE pid = %s"
        while conn.execute(age, (pid,)).fetchone() != (True,):
            time.sleep(0.05)
        played = play(dsn, client(dsn, "SELECT 1"))
    conn.execute("ROLLBACK PREPARED 'forgotten'")
    assert "index broken on item is INVALID" in played.warnings
    assert "prepared transaction 'forgotten' of postgres" in played.warnings
    assert f"pid {pid}" in played.warnings


def test_a_role_that_owns_nothing_is_told_so(dsn: str, conn: Conn) -> None:
    conn.execute("DROP ROLE IF EXISTS stranger")
    conn.execute("CREATE ROLE stranger LOGIN; GRANT SELECT ON version TO stranger")
    try:
        as_stranger = psycopg.conninfo.make_conninfo(dsn, user="stranger")
        played = play(as_stranger, client(dsn, BUMP), expectation=TO_2)
        assert "role stranger does not own item, version in schema public (owner: postgres)" in played.warnings
        assert played.run.result.outcome == "done"
    finally:
        conn.execute("DROP OWNED BY stranger; DROP ROLE stranger")
