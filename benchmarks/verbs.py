"""One-shot commands, reading and sweeping, beside psycopg and psql."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg

from benchmarks.measure import LOCKCTL, Figure, Spent, compare, in_turn, spend

TABLE = "ffdb_locks"
MILLION = 1_000_000
_HERE = Path(__file__).parent


def figures(dsn: str, psql: str, environment: dict[str, str]) -> list[Figure]:
    """Every figure of this module, on the database `dsn` that our migrations made."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return [
            _acquire(environment),
            *_reading(conn, psql, dsn, environment),
            *_sweeping(conn, psql, dsn, environment),
        ]


def fill(conn: psycopg.Connection, rows: int) -> None:
    """`rows` lapsed rows, without an index on the expiry: what an adopted table has."""
    conn.execute(f"TRUNCATE {TABLE}")
    for (index,) in conn.execute(
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = %s::regclass AND NOT indisprimary", (TABLE,)
    ).fetchall():
        conn.execute(f"DROP INDEX {index}")
    conn.execute(
        f"INSERT INTO {TABLE} (lock_key, lock_id, expires_at)"
        " SELECT 'flow/' || n, 'node-' || n %% 97, now() - interval '1 h' - n * interval '1 ms'"
        " FROM generate_series(1, %s) AS n",
        (rows,),
    )
    conn.execute(f"VACUUM ANALYZE {TABLE}")
    conn.execute("CHECKPOINT")


def _acquire(environment: dict[str, str]) -> Figure:
    def ours(number: int) -> Spent:
        return spend((*LOCKCTL, "acquire", TABLE, f"ours-{number}"), environment)

    def peer(number: int) -> Spent:
        return spend((sys.executable, str(_HERE / "bare_acquire.py"), f"peer-{number}"), environment)

    in_turn(2, lambda n: ours(-n - 1), lambda n: peer(-n - 1))  # fills the caches of both
    return compare("one-shot `acquire`", *in_turn(31, ours, peer), "bare psycopg script", 1.15)


def _reading(conn: psycopg.Connection, psql: str, dsn: str, environment: dict[str, str]) -> list[Figure]:
    small = (*LOCKCTL, "inspect", TABLE, "--limit", "50")
    fill(conn, 50)
    few = [spend(small, environment) for _ in range(15)]
    fill(conn, MILLION)
    many = [spend(small, environment) for _ in range(15)]
    copy = (
        "COPY (SELECT json_build_object('table', 'ffdb_locks', 'relation', 'public.ffdb_locks', 'key',"
        " json_build_array(lock_key), 'holder', lock_id, 'state', CASE WHEN expires_at > clock_timestamp()"
        " THEN 'held' ELSE 'lapsed' END, 'expires_at', to_char(expires_at AT TIME ZONE 'UTC',"
        " 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), 'remaining_ms',"
        " floor(extract(epoch FROM expires_at - clock_timestamp()) * 1000), 'created_at',"
        " to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), 'updated_at', NULL)"
        f" FROM {TABLE} ORDER BY lock_key) TO STDOUT"
    )
    ours, peer = in_turn(
        3,
        lambda _: spend((*LOCKCTL, "inspect", TABLE, "-f", "jsonl"), environment),
        lambda _: spend((psql, "-X", "-q", "-d", dsn, "-c", copy), environment),
    )
    peak = max(spent.peak_mb for spent in ours)
    return [
        compare("`inspect --limit 50`, 1,000,000 rows", many, few, "the same on 50 rows", 1.2),
        compare("`inspect -f jsonl`, 1,000,000 rows", ours, peer, "psql COPY of the same JSON", 3.0),
        Figure("… its peak memory", f"{peak:.0f} MB", "", None, "≤ 80 MB", peak <= 80),
    ]


def _sweeping(conn: psycopg.Connection, psql: str, dsn: str, environment: dict[str, str]) -> list[Figure]:
    sweep = (*LOCKCTL, "sweep", TABLE, "--grace", "0s")
    delete = (psql, "-X", "-q", "-d", dsn, "-c", f"DELETE FROM {TABLE} WHERE expires_at <= now()")

    def ours(_: int) -> Spent:
        fill(conn, MILLION)
        return spend(sweep, environment)

    def peer(_: int) -> Spent:
        fill(conn, MILLION)
        return spend(delete, environment)

    mine, theirs = in_turn(3, ours, peer)
    tenth: list[Spent] = []
    for _ in range(3):
        fill(conn, MILLION // 10)
        tenth.append(spend(sweep, environment))
    growth = compare("`sweep`, 1,000,000 rows", mine, tenth, "100,000 rows", 11)
    peak = max(spent.peak_mb for spent in mine)
    return [
        compare("`sweep` of 1,000,000 lapsed rows", mine, theirs, "one DELETE in psql", 1.25),
        growth,
        Figure("… its peak memory", f"{peak:.0f} MB", "", None, "≤ 80 MB", peak <= 80),
    ]
