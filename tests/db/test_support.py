"""The ground that the other tests stand on holds."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from tests.support.actors import FireFlow, N8n, skewed
from tests.support.tables import AGENT, FOREIGN, Variant, fireflow, n8n


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


@pytest.mark.parametrize("zoned", [False, True])
def test_two_fireflows_exclude_each_other_until_the_lock_lapses(empty_dsn: str, zoned: bool) -> None:
    with psycopg.connect(empty_dsn, autocommit=True, options="-c TimeZone=America/New_York") as conn:
        fireflow(conn, zoned=zoned)
        one, later = (FireFlow(conn, zoned=zoned, clock=skewed(timedelta(minutes=ahead))) for ahead in (0, 2))
        assert one.acquire("nightly", "one", timedelta(minutes=1))
        assert not one.acquire("nightly", "two", timedelta(minutes=1))
        assert later.acquire("nightly", "two", timedelta(minutes=1))
        assert not one.release("nightly", "one")
        assert later.release("nightly", "two")


@pytest.mark.parametrize(("schema", "prefix"), [("public", ""), ("n8n_app", "acme_")])
def test_two_mains_of_n8n_exclude_each_other_until_the_lock_lapses(empty_dsn: str, schema: str, prefix: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        n8n(conn, schema=schema, prefix=prefix)
        one, later = (N8n(conn, schema=schema, prefix=prefix, clock=skewed(timedelta(minutes=m))) for m in (0, 6))
        mine, theirs = uuid4(), uuid4()
        assert one.acquire(AGENT, "daily", mine)
        assert one.acquire(AGENT, "daily", mine)
        assert not one.acquire(AGENT, "daily", theirs)
        assert one.renew(AGENT, "daily", mine)
        assert later.acquire(AGENT, "daily", theirs)
        assert not one.renew(AGENT, "daily", mine)
        assert not one.release(AGENT, "daily", mine)
        assert later.release(AGENT, "daily", theirs)


@pytest.mark.parametrize("variant", FOREIGN, ids=lambda variant: variant.name)
def test_each_foreign_table_is_where_it_says(empty_dsn: str, variant: Variant) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        variant.make(conn)
        assert conn.execute("SELECT to_regclass(%s) IS NOT NULL", (variant.relation,)).fetchone() == (True,)
