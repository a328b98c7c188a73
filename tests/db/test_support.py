"""The ground that the other tests stand on holds."""

from __future__ import annotations

import psycopg
import pytest


def test_each_test_has_a_database_of_its_own(dsn: str, empty_dsn: str) -> None:
    with psycopg.connect(dsn) as one, psycopg.connect(empty_dsn) as other:
        assert one.info.dbname != other.info.dbname


def test_the_pooler_refuses_options(pgbouncer_dsn: str) -> None:
    with psycopg.connect(pgbouncer_dsn) as conn:
        assert conn.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
        psycopg.connect(pgbouncer_dsn, options="-c lock_timeout=1s")


def test_the_lenient_pooler_drops_options(lenient_pgbouncer_dsn: str) -> None:
    with psycopg.connect(lenient_pgbouncer_dsn, options="-c lock_timeout=7s") as conn:
        assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)


def test_the_standby_follows_and_is_read_only(conn: psycopg.Connection, standby_dsn: str) -> None:
    with psycopg.connect(standby_dsn, autocommit=True) as copy:
        assert copy.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            copy.execute("CREATE TABLE t ()")
