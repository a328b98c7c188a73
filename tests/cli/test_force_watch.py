"""`force-expire --watch`: does the holder come back?"""

from __future__ import annotations

from pathlib import Path

import psycopg

from tests.support.cli import popen_lockctl, run_lockctl
from tests.support.runs import Marked, ended, running
from tests.support.waiting import until

FORCE = ("force-expire", "ffdb_locks", "nightly", "-y", "--format", "json")


def acquire(dsn: str) -> None:
    assert run_lockctl("acquire", "ffdb_locks", "nightly", "--holder", "first", "--ttl", "1h", dsn=dsn).returncode == 0


def test_a_dead_holder_stays_away(dsn: str) -> None:
    acquire(dsn)
    done = run_lockctl(*FORCE, "--watch", "700ms", "--timeout", "5s", dsn=dsn)
    result = done.json()
    assert (done.returncode, result["outcome"], result["lock"]["state"]) == (0, "expired", "lapsed")
    assert result["previous"]["state"] == "held"


def test_a_live_holder_is_told_as_revived(dsn: str) -> None:
    """A command under `run` renews past its expiry, as n8n does."""
    mark = Marked()
    with running(dsn, "nightly", "sh", "-c", mark.sleeper(), ttl="3s"):
        until(mark.processes, what="the command")
        done = run_lockctl(*FORCE, "--watch", "20s", dsn=dsn)
    assert (done.returncode, done.json()["outcome"]) == (3, "revived")
    assert done.json()["lock"]["holder"] == done.json()["previous"]["holder"]


def test_another_that_takes_it_is_told_at_once(dsn: str, conn: psycopg.Connection) -> None:
    acquire(dsn)
    with popen_lockctl(*FORCE, "--watch", "1h", dsn=dsn) as process:
        until(
            lambda: conn.execute("SELECT 1 FROM ffdb_locks WHERE expires_at <= clock_timestamp()").fetchone(),
            what="the forced lapse",
        )
        assert run_lockctl("acquire", "ffdb_locks", "nightly", "--holder", "second", dsn=dsn).returncode == 0
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b'"outcome":"expired"' in out
    assert b'"holder":"second"' in out


def test_a_row_that_is_deleted_meanwhile_is_told_too(dsn: str, conn: psycopg.Connection) -> None:
    acquire(dsn)
    with popen_lockctl(*FORCE[:-2], "--watch", "1h", dsn=dsn) as process:
        until(
            lambda: conn.execute("SELECT 1 FROM ffdb_locks WHERE expires_at <= clock_timestamp()").fetchone(),
            what="the forced lapse",
        )
        conn.execute("DELETE FROM ffdb_locks")
        code, stderr = ended(process)
    assert code == 0
    assert "first did not take ffdb_locks nightly back; its row is gone" in stderr


def test_a_renewal_that_was_too_short_to_be_seen_still_counts(dsn: str, conn: psycopg.Connection) -> None:
    acquire(dsn)
    with popen_lockctl(*FORCE, "--watch", "1h", dsn=dsn) as process:
        until(
            lambda: conn.execute("SELECT 1 FROM ffdb_locks WHERE expires_at <= clock_timestamp()").fetchone(),
            what="the forced lapse",
        )
        conn.execute("UPDATE ffdb_locks SET expires_at = clock_timestamp() + interval '1 microsecond'")
        out, _ = process.communicate(timeout=20)
    assert process.returncode == 3
    assert b'"outcome":"revived"' in out


def test_n8ns_pace_is_minded(dsn: str, tmp_path: Path) -> None:
    table = ("agent_task_run_lock", "agent-1", "task-1")
    taken = run_lockctl("acquire", *table, dsn=dsn)
    assert taken.returncode == 0, taken.stderr
    done = run_lockctl("force-expire", *table, "-y", "--watch", "300ms", dsn=dsn)
    assert done.returncode == 0
    assert "renews only every 1m: watch longer" in done.stderr
