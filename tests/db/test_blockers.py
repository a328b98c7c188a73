"""Who blocks whom: each blocker is named as what it is, walked to the root."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from lockctl.activity import acts, blockers
from lockctl.db import Database, Session, describe
from lockctl.records import Blocker
from tests.support import server as servers
from tests.support.blocked import holding, waiting
from tests.support.cli import run_lockctl
from tests.support.waiting import until

Conn = psycopg.Connection[Any]


@pytest.fixture
def watch(empty_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, x int)")
        conn.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
        yield conn


@pytest.fixture
def session(empty_dsn: str) -> Iterator[Session]:
    with Database(empty_dsn, "the test", "blockers").connect(read_only=True) as session:
        yield session


def test_an_idle_transaction_with_its_lock_and_its_query(empty_dsn: str, watch: Conn, session: Session) -> None:
    with (
        holding(empty_dsn, "SELECT count(*) FROM t", "forgotten psql") as idle,
        waiting(empty_dsn, watch, "ALTER TABLE t ADD COLUMN y int") as pid,
    ):
        (blocker,) = blockers.sample(session, pid)
        (hidden,) = blockers.sample(session, pid, show_query=False)
    assert blocker.pid == idle
    assert (blocker.kind, blocker.root, blocker.blocked_by) == ("session", True, ())
    assert (blocker.application, blocker.state) == ("forgotten psql", "idle in transaction")
    assert (blocker.lock_mode, blocker.relation) == ("AccessShareLock", "t")
    assert blocker.client == "local"
    assert (blocker.xact_age_ms or -1) >= 0
    assert blocker.query == "SELECT count(*) FROM t"
    assert hidden.query is None


def test_a_long_query_is_cut(empty_dsn: str, watch: Conn, session: Session) -> None:
    with (
        holding(empty_dsn, f"SELECT count(*) FROM t -- {'long ' * 200}"),
        waiting(empty_dsn, watch, "LOCK TABLE t") as pid,
    ):
        (blocker,) = blockers.sample(session, pid)
    assert len(blocker.query or "") == blockers.QUERY_LENGTH


def test_a_chain_of_three_is_walked_to_the_root(empty_dsn: str, watch: Conn, session: Session) -> None:
    with (
        holding(empty_dsn, "UPDATE t SET x = 5 WHERE id = 1") as root,
        waiting(empty_dsn, watch, "WITH a AS (UPDATE t SET x = 6 WHERE id = 1) SELECT 1") as second,
        waiting(empty_dsn, watch, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE") as third,
        waiting(empty_dsn, watch, "SELECT count(*) FROM t") as fourth,
    ):
        found = {blocker.pid: blocker for blocker in blockers.sample(session, fourth)}
        everybody = blockers.tree(session)
    assert set(found) == {root, second, third}
    assert found[third].blocked_by == tuple(sorted((root, second)))
    assert "ahead in the queue" in (found[third].note or "")
    assert found[second].blocked_by == (root,)
    assert (found[second].lock_mode, found[second].relation) == ("ShareLock", "t")
    assert (found[second].wait_ms or -1) >= 0
    assert [pid for pid, blocker in found.items() if blocker.root] == [root]
    assert [blocker.root for blocker in everybody] == [True, False, False, False]
    assert {blocker.pid for blocker in everybody} == {*found, fourth}
    (waiter,) = [blocker for blocker in everybody if blocker.pid == fourth]
    assert (waiter.lock_mode, waiter.relation, waiter.blocked_by) == ("AccessShareLock", "t", (third,))


def test_a_prepared_transaction_has_its_gid_and_the_way_to_end_it(
    empty_dsn: str, watch: Conn, session: Session
) -> None:
    gid = f"it's {uuid.uuid4()}"
    with psycopg.connect(empty_dsn) as preparing:
        preparing.execute("UPDATE t SET x = 9 WHERE id = 1")
        preparing.execute(f"PREPARE TRANSACTION '{gid.replace(chr(39), chr(39) * 2)}'")
    try:
        for statement in ("ALTER TABLE t ADD COLUMN y int", "UPDATE t SET x = 1 WHERE id = 1"):
            with waiting(empty_dsn, watch, statement) as pid:
                (blocker,) = blockers.sample(session, pid)
                transactions = blockers.holders(session, [blocker])
                assert blockers.remain(session, transactions)
            assert (blocker.pid, blocker.kind, blocker.gid, blocker.root) == (0, "prepared", gid, True)
            assert "ROLLBACK PREPARED 'it''s " in (blocker.note or "")
            assert "ROLLBACK PREPARED" in describe(blocker)
            done = acts.end(session, blocker, "terminate", min_age_ms=1)
            assert done is not None
            assert done.done == "spared"
    finally:
        watch.execute(f"ROLLBACK PREPARED '{gid.replace(chr(39), chr(39) * 2)}'")
    assert not blockers.remain(session, transactions)


def test_a_session_behind_a_prepared_transaction_leads_to_it(empty_dsn: str, watch: Conn, session: Session) -> None:
    with psycopg.connect(empty_dsn) as preparing:
        preparing.execute("LOCK TABLE t IN SHARE MODE")
        preparing.execute("PREPARE TRANSACTION 'lead'")
    try:
        with (
            waiting(empty_dsn, watch, "LOCK TABLE t IN EXCLUSIVE MODE") as second,
            waiting(empty_dsn, watch, "LOCK TABLE t IN ACCESS EXCLUSIVE MODE") as third,
        ):
            found = {blocker.pid: blocker for blocker in blockers.sample(session, third)}
        assert found[second].blocked_by == (0,)
        assert (found[0].gid, found[0].root, found[second].root) == ("lead", True, False)
    finally:
        watch.execute("ROLLBACK PREPARED 'lead'")


def test_our_own_sessions_are_called_so(empty_dsn: str, watch: Conn, session: Session) -> None:
    with (
        Database(empty_dsn, "the test", "migrate upgrade").connect() as own,
        own.transaction(),
    ):
        own.query("LOCK TABLE t")
        own_pid = own.pid
        with waiting(empty_dsn, watch, "SELECT * FROM t", "lockctl of somebody else's") as pid:
            (blocker,) = blockers.sample(session, pid)
            everybody = {found.pid: found.kind for found in blockers.tree(session)}
    assert blocker.kind == "own"
    assert everybody == {own_pid: "own", pid: "session"}


def test_what_this_role_may_not_see_is_named_with_the_role_to_grant(empty_dsn: str, watch: Conn, admin: Conn) -> None:
    role = f"watcher_{uuid.uuid4().hex[:8]}"
    admin.execute(f"CREATE ROLE {role} LOGIN")
    try:
        with (
            holding(empty_dsn, "SELECT count(*) FROM t", "forgotten psql"),
            waiting(empty_dsn, watch, "ALTER TABLE t ADD COLUMN y int") as pid,
            Database(make_conninfo(empty_dsn, user=role), "the test", "blockers").connect(read_only=True) as limited,
        ):
            (blocker,) = blockers.sample(limited, pid)
            transactions = blockers.holders(limited, [blocker])
            assert blockers.remain(limited, transactions)
            act = acts.end(limited, blocker, "terminate", min_age_ms=1)
            done = run_lockctl("blockers", dsn=make_conninfo(empty_dsn, user=role))
        assert (blocker.user, blocker.query) == ("postgres", "<insufficient privilege>")
        assert blocker.note is not None
        assert f"GRANT pg_read_all_stats (or pg_monitor) TO {role}" in blocker.note
        assert act is not None
        assert (act.done, "not visible" in act.message) == ("spared", True)
        assert f"TO {role}" in done.stderr
    finally:
        admin.execute(f"DROP ROLE {role}")


def test_a_vacuum_of_somebody_is_a_session(empty_dsn: str, watch: Conn, session: Session) -> None:
    watch.execute("INSERT INTO t SELECT n, n FROM generate_series(10, 40000) n; DELETE FROM t WHERE id > 20")
    with psycopg.connect(empty_dsn, autocommit=True, application_name="vacuumdb") as vacuuming:
        vacuuming.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
        with psycopg.connect(empty_dsn, autocommit=True) as spare:
            import threading

            def run() -> None:
                with pytest.raises(psycopg.errors.QueryCanceled):
                    vacuuming.execute("VACUUM t")

            thread = threading.Thread(target=run)
            thread.start()
            held = "SELECT 1 FROM pg_locks WHERE pid = %s AND relation = 't'::regclass AND granted"
            until(lambda: spare.execute(held, (vacuuming.info.backend_pid,)).fetchone(), what="the vacuum")
            try:
                with waiting(empty_dsn, spare, "ALTER TABLE t ADD COLUMN y int") as pid:
                    (blocker,) = blockers.sample(session, pid)
            finally:
                spare.execute("SELECT pg_cancel_backend(%s)", (vacuuming.info.backend_pid,))
                thread.join(10)
    assert (blocker.kind, blocker.application, blocker.lock_mode) == ("session", "vacuumdb", "ShareUpdateExclusiveLock")
    assert blocker.query == "VACUUM t"


def test_an_autovacuum_and_one_that_prevents_wraparound() -> None:
    settings = {**servers.SETTINGS, "autovacuum": "on", "autovacuum_naptime": "1s", "autovacuum_max_workers": "2"}
    slow = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    with (
        servers.folder() as place,
        servers.running(place, settings) as server,
        psycopg.connect(server.conninfo, autocommit=True) as conn,
        Database(server.conninfo, "the test", "blockers").connect(read_only=True) as session,
    ):
        conn.execute(f"CREATE TABLE ordinary (id int) WITH (autovacuum_vacuum_threshold = 10, {slow})")
        never = "autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 2000000000"
        conn.execute(f"CREATE TABLE old (id int) WITH (autovacuum_freeze_max_age = 100000, {never}, {slow})")
        conn.execute("CREATE TABLE burnt (id int) WITH (autovacuum_enabled = off)")
        conn.execute("INSERT INTO old SELECT generate_series(1, 100000)")
        conn.execute(
            "DO $$ BEGIN FOR n IN 1..100001 LOOP BEGIN INSERT INTO burnt VALUES (n);"
            " EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END $$"
        )
        conn.execute("INSERT INTO ordinary SELECT generate_series(1, 100000); DELETE FROM ordinary")
        seen: dict[str, Blocker] = {}
        for table in ("ordinary", "old"):
            held = (
                "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.query LIKE 'autovacuum: VACUUM%%'"
                " AND l.relation = %s::regclass AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'"
            )
            until(lambda: conn.execute(held, (table,)).fetchone(), deadline=30, what=f"the vacuum of {table}")  # noqa: B023
            with waiting(server.conninfo, conn, f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE") as pid:
                (seen[table],) = blockers.sample(session, pid, show_query=False)
                act = acts.end(session, seen["old"], "terminate", min_age_ms=1) if "old" in seen else None
    assert [seen[table].kind for table in ("ordinary", "old")] == ["autovacuum", "autovacuum"]
    assert "yields" in (seen["ordinary"].note or "")
    assert seen["old"].note == blockers.WRAPAROUND
    assert act is not None
    assert (act.done, "wraparound" in act.message) == ("spared", True)


def test_the_command_shows_waiters_and_blockers_alike(empty_dsn: str, watch: Conn) -> None:
    nothing = run_lockctl("blockers", "-f", "json", dsn=empty_dsn)
    assert nothing.returncode == 0
    with (
        holding(empty_dsn, "SELECT count(*) FROM t") as idle,
        waiting(empty_dsn, watch, "ALTER TABLE t ADD COLUMN y int") as pid,
    ):
        rows = run_lockctl("blockers", "-f", "json", "--no-query", dsn=empty_dsn).json()
        with_query = run_lockctl("blockers", "-f", "json", dsn=empty_dsn).json()
    ours = [row for row in rows if row["pid"] in (idle, pid)]
    assert [(row["pid"], row["blocked_by"], row["root"]) for row in ours] == [
        (idle, [], True),
        (pid, [idle], False),
    ]
    assert {row["query"] for row in ours} == {None}
    assert list(rows[0])[:14] == [
        "pid", "blocked_by", "root", "kind", "gid", "user", "application", "client", "state", "xact_age_ms", "wait_ms",
        "lock_mode", "relation", "query",
    ]  # fmt: skip
    assert "ALTER TABLE t ADD COLUMN y int" in {row["query"] for row in with_query}


def test_nobody_waits_is_said_and_an_empty_list(empty_dsn: str) -> None:
    with servers.folder() as place, servers.running(place) as server:
        done = run_lockctl("blockers", "-f", "tsv", dsn=server.conninfo)
        assert (done.returncode, "nobody waits" in done.stderr) == (0, True)
        assert run_lockctl("blockers", "-f", "json", dsn=server.conninfo).json() == []


def test_no_session_of_ours_compiles_its_queries(session: Session) -> None:
    """Compiling the look at the locks took seconds, in which CREATE INDEX CONCURRENTLY waited for its snapshot."""
    assert session.one("SHOW jit") == ("off",)
