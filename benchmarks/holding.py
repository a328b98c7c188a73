"""Waiting for a lease, and holding it while a command runs; beside plain polling, one process, and flock(1)."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.measure import LOCKCTL, Figure, Spent, in_turn, spend
from lockctl import embedded

_SECONDS = 20.0
_PROCESSES = 4
_TAKEOVER_AIM_MS = 50.0
_RUN_AIM = 1.1
_ROUNDS = 21

# The same two commands in one process: what `run` saves and adds is seen against that.
_BOTH = (
    "import sys; from lockctl.cli.app import run\n"
    "key = sys.argv[1]\n"
    "sys.exit(run(['acquire', 'ffdb_locks', key, '--holder', 'bench', '-q'])"
    " or run(['release', 'ffdb_locks', key, '--holder', 'bench', '-q']))"
)


@dataclass(frozen=True, slots=True)
class _Waited:
    median_ms: float
    worst_ms: float
    takeovers: int
    queries_per_second: float


def figures(conninfo: str, psql: str, environment: Mapping[str, str]) -> list[Figure]:
    """The rows of the results."""
    del psql
    found = _run(environment)
    with (
        tempfile.TemporaryDirectory(prefix="lockctl-bench-") as folder,
        embedded.start(Path(folder) / "postgres", settings={"max_connections": "250"}) as server,
    ):
        own = {**environment, "LOCKCTL_DSN": server.conninfo}
        subprocess.run([*LOCKCTL, "migrate", "upgrade", "ffdb@head", "-q"], env=own, check=True, capture_output=True)
        polled = _waiters(server.conninfo, own, 1, "poll")
        for count in (1, 100):
            waited = _waiters(server.conninfo, own, count, "wait")
            found.append(
                Figure(
                    f"takeover after a lapse, {count} waiter{'s' * (count > 1)} (median of {waited.takeovers})",
                    f"{waited.median_ms:.1f} ms (worst {waited.worst_ms:.0f} ms)",
                    f"an attempt each 250 ms, 1 waiter: {polled.median_ms:.1f} ms",
                    waited.median_ms / polled.median_ms,
                    f"≤ {_TAKEOVER_AIM_MS:.0f} ms",
                    waited.median_ms <= _TAKEOVER_AIM_MS,
                )
            )
            found.append(
                Figure(
                    f"queries per second, {count} waiter{'s' * (count > 1)} at the default delay",
                    f"{waited.queries_per_second:.1f} ({waited.queries_per_second / count:.1f} a waiter)",
                    f"an attempt each 250 ms, 1 waiter: {polled.queries_per_second:.1f}",
                    None,
                    "",
                    None,
                )
            )
    del conninfo
    return found


def _run(environment: Mapping[str, str]) -> list[Figure]:
    def ours(number: int) -> Spent:
        return spend([*LOCKCTL, "run", "ffdb_locks", f"run-{number}", "-q", "--", "true"], environment)

    def one_process(number: int) -> Spent:
        return spend([sys.executable, "-c", _BOTH, f"both-{number}"], environment)

    mine, theirs = in_turn(_ROUNDS, ours, one_process)
    run_s, both_s = _median(mine), _median(theirs)
    with tempfile.NamedTemporaryFile() as file:
        locked = _median([spend(["flock", file.name, "true"], environment) for _ in range(_ROUNDS)])
    return [
        Figure(
            "`run -- true`",
            f"{run_s * 1000:.0f} ms",
            f"acquire and release in one process: {both_s * 1000:.0f} ms",
            run_s / both_s,
            f"≤ {_RUN_AIM}",
            run_s / both_s <= _RUN_AIM,
        ),
        Figure(
            "`run -- true` beside flock(1), which knows one machine and no expiry",
            f"{run_s * 1000:.0f} ms",
            f"`flock FILE true`: {locked * 1000:.1f} ms",
            run_s / locked,
            "",
            None,
        ),
    ]


def _median(spent: list[Spent]) -> float:
    return statistics.median(each.seconds for each in spent)


def _waiters(conninfo: str, environment: Mapping[str, str], count: int, mode: str) -> _Waited:
    """`count` waiters in a few processes, for a while in which the lease lapses again and again."""
    shares = [count // _PROCESSES + (number < count % _PROCESSES) for number in range(_PROCESSES)]
    with psycopg.connect(conninfo, autocommit=True) as conn:
        conn.execute("DELETE FROM ffdb_locks")
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.waiters", str(share), str(_SECONDS), mode],
                env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
                stdout=subprocess.PIPE,
                text=True,
            )
            for share in shares
            if share
        ]
        time.sleep(_SECONDS / 4)  # all are there
        before, started = _transactions(conn), time.monotonic()
        time.sleep(_SECONDS / 2)
        rate = (_transactions(conn) - before) / (time.monotonic() - started)
        late = [float(word) for process in processes for word in process.communicate()[0].split()]
    return _Waited(statistics.median(late), max(late), len(late), rate)


def _transactions(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return int(row[0])
