"""What a migration behind long readers costs everybody else: with lockctl, bare, and bare with a lock timeout."""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psycopg

from benchmarks.measure import LOCKCTL, Figure

LOCK_TIMEOUT_S = 5.0
# One transaction takes three locks, each of them in less than the lock timeout but the last.
READERS = (("bench_a", 4.0), ("bench_b", 8.0), ("bench_c", 14.0))
MIGRATION = "BEGIN;\n" + "".join(f"ALTER TABLE {table} ADD COLUMN x int;\n" for table, _ in READERS) + "COMMIT;\n"
ENDINGS_S = (0.4, 1.3, 1.9, 2.6, 3.3)


class Others:
    """A session for each table that reads it again and again; `longest` is the longest such read in seconds."""

    def __init__(self, dsn: str, tables: Sequence[str]) -> None:
        self.longest = 0.0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(dsn, table)) for table in tables]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _read(self, dsn: str, table: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            while not self._stop.wait(0.02):
                started = time.perf_counter()
                conn.execute(f"SELECT count(*) FROM {table}")
                self.longest = max(self.longest, time.perf_counter() - started)


def figures(dsn: str, psql: str, environment: dict[str, str]) -> list[Figure]:
    """Every figure of this module, on a server that nobody else uses."""
    with tempfile.TemporaryDirectory(prefix="lockctl-bench-") as folder:
        file = Path(folder) / "three.sql"
        file.write_text(MIGRATION)
        one = Path(folder) / "one.sql"
        one.write_text("ALTER TABLE bench_a ADD COLUMN x int;\n")
        bare = (psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", dsn)
        ours = (*LOCKCTL, "migrate", "apply")
        timeout = {**environment, "PGOPTIONS": f"-c lock_timeout={LOCK_TIMEOUT_S:.0f}s"}
        with_lockctl = _longest(dsn, (*ours, str(file), "--lock-timeout", f"{LOCK_TIMEOUT_S:.0f}s"), environment)
        alone = _longest(dsn, (*bare, "-f", str(file)), environment)
        with_timeout = _longest(dsn, (*bare, "-f", str(file)), timeout)
        late = max(_late(dsn, (*ours, str(one), "--lock-timeout", "1s"), environment, end) for end in ENDINGS_S)
        bare_late = max(_late(dsn, (*bare, "-f", str(one)), environment, end) for end in ENDINGS_S[:2])
    name = f"longest wait of other sessions, three tables, lock timeout {LOCK_TIMEOUT_S:.0f} s"
    share = with_lockctl / LOCK_TIMEOUT_S
    aim = "≤ 1.1 × the lock timeout"
    return [
        Figure(name, f"{with_lockctl:.2f} s", f"{alone:.2f} s (psql)", with_lockctl / alone, aim, share <= 1.1),
        Figure(
            "… beside a runner that gives up",
            f"{with_lockctl:.2f} s",
            f"{with_timeout:.2f} s (psql, lock_timeout {LOCK_TIMEOUT_S:.0f} s; it fails)",
            with_lockctl / with_timeout,
            aim,
            share <= 1.1,
        ),
        Figure(
            "from the blocker's end to the migration's end, the worst of five",
            f"{late * 1000:.0f} ms",
            f"{bare_late * 1000:.0f} ms (psql, which waits on and on)",
            None,
            "≤ 1.5 s",
            late <= 1.5,
        ),
    ]


def _longest(dsn: str, words: Sequence[str], environment: Mapping[str, str]) -> float:
    """Play the scene with the migration `words`: the longest wait of the others, in seconds."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for table, _ in READERS:
            conn.execute(f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int)")
    readers = [_Reader(dsn, table, seconds) for table, seconds in READERS]
    with Others(dsn, [table for table, _ in READERS]) as others:
        subprocess.run(words, env=dict(environment), capture_output=True, check=False)
        for reader in readers:
            reader.join()
    return others.longest


def _late(dsn: str, words: Sequence[str], environment: Mapping[str, str], reader_s: float) -> float:
    """Seconds from the end of a reader, `reader_s` after the first wait for it, to the end of the command."""
    with psycopg.connect(dsn, autocommit=True) as conn, psycopg.connect(dsn) as reader:
        conn.execute("DROP TABLE IF EXISTS bench_a; CREATE TABLE bench_a (id int)")
        reader.execute("SELECT count(*) FROM bench_a")
        child = subprocess.Popen(words, env=dict(environment), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _until(lambda: conn.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone() is not None)
        time.sleep(reader_s)
        reader.rollback()
        ended = time.perf_counter()
        if child.wait() != 0:
            raise RuntimeError(f"{' '.join(words)}: exit code {child.returncode}")
        return time.perf_counter() - ended


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("the migration never waited for the reader")
        time.sleep(0.01)


class _Reader:
    """A session that has read `table` and forgets its transaction for some seconds."""

    def __init__(self, dsn: str, table: str, seconds: float) -> None:
        self.conn = psycopg.connect(dsn)
        self.conn.execute(f"SELECT count(*) FROM {table}")
        self.timer = threading.Timer(seconds, self.conn.close)
        self.timer.start()

    def join(self) -> None:
        self.timer.join()
