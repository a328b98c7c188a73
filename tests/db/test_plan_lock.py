"""Every row of PlanLock's table (docs/systems.md), by the command line and by the Python class."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from lockctl import PlanLock, Retry
from lockctl.errors import UnreachableError, UsageError
from tests.support.cli import LOCKCTL, run_lockctl
from tests.support.waiting import until


@pytest.fixture
def lock(dsn: str) -> Iterator[PlanLock]:
    with PlanLock("verrou", "plan-7", dsn=dsn, ttl="20s") as made:
        yield made


@pytest.fixture
def other(dsn: str) -> Iterator[PlanLock]:
    with PlanLock("verrou", "plan-7", dsn=dsn, ttl="20s", holder="other") as made:
        yield made


def lapse(conn: psycopg.Connection) -> None:
    conn.execute("UPDATE verrou SET expiration = 1")


def rows(conn: psycopg.Connection) -> list[tuple[str, str]]:
    return conn.execute("SELECT key, owner FROM verrou").fetchall()


def test_acquire_with_retry(lock: PlanLock, other: PlanLock, conn: psycopg.Connection) -> None:
    assert lock.acquire()
    for retry in (Retry(attempts=3, delay=5), Retry(timeout="50ms"), Retry(attempts=2, delay="5ms", timeout=1000)):
        assert not other.acquire(retry)
    lapse(conn)
    assert other.acquire(Retry(attempts=3))
    assert rows(conn) == [("plan-7", "other")]
    with pytest.raises(UsageError):
        other.acquire(Retry(attempts=0))


def test_acquire_with_retry_on_the_command_line(dsn: str, lock: PlanLock, conn: psycopg.Connection) -> None:
    assert lock.acquire()
    words = ("acquire", "verrou", "plan-7", "--attempts", "3", "--delay", "5ms", "--wait", "10s")
    assert run_lockctl(*words, dsn=dsn).returncode == 3
    assert lock.release()
    assert run_lockctl(*words, dsn=dsn).returncode == 0


def test_acquire_immediately(dsn: str, lock: PlanLock, other: PlanLock) -> None:
    assert lock.acquire_immediately()
    assert not other.acquire_immediately()
    assert not lock.acquire_immediately()  # asking again is `extend`
    assert run_lockctl("acquire", "verrou", "plan-7", dsn=dsn).returncode == 3


def test_extend_gives_a_new_remaining_time_and_does_nothing_when_no_longer_held(
    dsn: str, lock: PlanLock, other: PlanLock, conn: psycopg.Connection
) -> None:
    assert not lock.extend()
    assert lock.acquire()
    assert lock.extend("1h")
    assert 3_500_000 < (lock.remaining() or 0) <= 3_600_000
    assert lock.extend(5_000)
    assert 0 < (lock.remaining() or 0) <= 5_000
    assert lock.extend()
    assert 15_000 < (lock.remaining() or 0) <= 20_000
    token = lock.serialize()
    assert run_lockctl("extend", "--lease", token, "--ttl", "1m", dsn=dsn).returncode == 0
    assert 20_000 < (lock.remaining() or 0) <= 60_000
    lapse(conn)
    assert not lock.extend()
    assert other.acquire()
    before = conn.execute("SELECT * FROM verrou").fetchall()
    assert not lock.extend()
    assert conn.execute("SELECT * FROM verrou").fetchall() == before
    assert other.release()
    assert not lock.extend()
    assert rows(conn) == []


def test_get_owner_get_remaining_time_is_locked(
    dsn: str, lock: PlanLock, other: PlanLock, conn: psycopg.Connection
) -> None:
    assert (lock.owner, lock.is_locked(), lock.remaining()) == ("", False, 0)
    assert other.acquire()
    assert lock.is_locked()
    assert lock.owner == "other"
    assert lock.remaining() == 0
    assert 0 < (other.remaining() or 0) <= 20_000
    assert run_lockctl("check", "verrou", "plan-7", dsn=dsn).returncode == 0
    shown = run_lockctl("inspect", "verrou", "plan-7", "--format", "json", dsn=dsn).json()
    assert shown[0]["holder"] == "other"
    lapse(conn)
    assert not lock.is_locked()
    assert lock.owner == ""
    assert (other.remaining() or 1) < 0
    assert run_lockctl("check", "verrou", "plan-7", dsn=dsn).returncode == 4


def test_a_lease_that_never_expires_has_no_remaining_time(other: PlanLock, conn: psycopg.Connection) -> None:
    assert other.acquire()
    conn.execute("UPDATE verrou SET expiration = NULL")
    assert other.remaining() is None
    assert other.is_locked()


def test_release_is_idempotent_and_never_releases_anothers(
    dsn: str, lock: PlanLock, other: PlanLock, conn: psycopg.Connection
) -> None:
    assert not lock.release()
    assert lock.acquire()
    token = lock.serialize()
    lapse(conn)
    assert other.acquire()
    assert not lock.release()
    assert run_lockctl("release", "--lease", token, dsn=dsn).returncode == 3
    assert rows(conn) == [("plan-7", "other")]
    assert other.release()
    assert not other.release()
    assert run_lockctl("release", "--lease", token, dsn=dsn).returncode == 0


def test_run_returns_executed_and_result_and_releases_either_way(
    dsn: str, lock: PlanLock, other: PlanLock, conn: psycopg.Connection
) -> None:
    def inside() -> str:
        assert other.run(lambda: "never") == (False, None)
        return lock.owner

    executed, result = lock.run(inside)
    assert executed
    assert result
    assert rows(conn) == []

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lock.run(fail)
    assert rows(conn) == []
    done = run_lockctl("run", "verrou", "plan-7", "--", "sh", "-c", "echo it; exit 3", dsn=dsn)
    assert (done.returncode, done.stdout) == (3, "it\n")
    assert rows(conn) == []


def test_serialize_and_restore_hand_a_lease_to_another_process(
    dsn: str, lock: PlanLock, conn: psycopg.Connection
) -> None:
    with pytest.raises(UsageError):
        lock.serialize()
    assert lock.acquire()
    token = lock.serialize()
    script = (
        "import sys; from lockctl import PlanLock\n"
        "with PlanLock.restore(sys.argv[1], dsn=sys.argv[2]) as lock:\n"
        "    print(lock.is_locked(), lock.extend('1h'), lock.owner, lock.serialize() == sys.argv[1])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, token, dsn], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.split() == ["True", "True", rows(conn)[0][1], "True"]
    assert (lock.remaining() or 0) > 20_000
    assert run_lockctl("release", "--lease", token, dsn=dsn).returncode == 0
    assert not lock.is_locked()
    with pytest.raises(UsageError):
        PlanLock.restore(token[:-1], dsn=dsn)


def test_a_broken_connection_is_made_anew(lock: PlanLock, conn: psycopg.Connection) -> None:
    assert lock.acquire()
    ours = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE application_name LIKE 'lockctl plan-lock%' AND datname = current_database()"
    )
    end = f"SELECT pg_terminate_backend(pid) FROM ({ours}) AS them"
    for use in (lock.extend, lock.is_locked, lock.release):
        assert conn.execute(end).fetchall()
        until(lambda: not conn.execute(ours).fetchall(), what="the end of the session")
        assert use()


def test_a_server_that_is_not_there_is_unreachable() -> None:
    with (
        PlanLock("verrou", "x", dsn="host=127.0.0.1 port=1 dbname=x", timeout="2s") as lock,
        pytest.raises(UnreachableError),
    ):
        lock.is_locked()


def test_importing_lockctl_imports_no_database_library() -> None:
    script = "import sys, lockctl; sys.exit('psycopg' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([LOCKCTL[0], "-c", script], check=False, timeout=60).returncode == 0
