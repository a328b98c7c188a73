"""lockctl on what DBOS's own SDK makes, with its own workers: runs only with Node and LOCKCTL_TEST_REAL=1.

The SDK is installed by npm into a temporary folder. Its schema before version 5 needs the extension uuid-ossp, which
a system's PostgreSQL has and the wheel's may not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.support import dbos
from tests.support import server as servers
from tests.support.cli import run_lockctl
from tests.support.waiting import until

pytestmark = [
    pytest.mark.skipif(not os.environ.get("LOCKCTL_TEST_REAL"), reason="LOCKCTL_TEST_REAL is not set"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="there is no npm"),
    pytest.mark.timeout(600),
]

SDKS = {69: "4.25.14", 108: "4.27.6", 123: "5.3.0"}
BURIED = float("inf")
WORKER = Path(__file__).with_name("dbos_worker.js")
TABLES = ("workflow_status", "operation_outputs", "application_versions", "workflow_input")


@dataclass(frozen=True)
class Real:
    """A database that the SDK made, and the folder that the SDK is installed in."""

    version: int
    folder: Path
    dsn: str
    url: str

    @contextmanager
    def worker(self, executor: str, *runs: str, version: str = "1.0.0") -> Iterator[subprocess.Popen[str]]:
        """A worker that has launched and enqueued `runs`; killed in the end."""
        command = ["node", str(WORKER), self.url, executor, version, ",".join(runs)]
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert "launched\n" in iter(process.stdout.readline, "")
                yield process
            finally:
                process.kill()

    def lockctl(self, *args: str, code: int = 0) -> Any:
        done = run_lockctl("--format", "json", *args, dsn=self.dsn)
        assert done.returncode == code, done.stderr
        return done.json()

    def status(self, run: str) -> tuple[str, str | None]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            row = dbos.row(conn, run)
        return row["status"], row["executor_id"]

    def attempts(self, run: str) -> float:
        """How often a worker has taken the run up; without end once it is buried."""
        with psycopg.connect(self.dsn) as conn:
            found = conn.execute(
                "SELECT status, recovery_attempts FROM dbos.workflow_status WHERE workflow_uuid = %s", (run,)
            ).fetchone()
        if found is None or found[0] == "ENQUEUED":
            return 0
        return BURIED if found[0] == "MAX_RECOVERY_ATTEMPTS_EXCEEDED" else float(found[1])

    def sleeps(self, run: str) -> bool:
        with psycopg.connect(self.dsn) as conn:
            found = conn.execute(
                "SELECT 1 FROM dbos.operation_outputs WHERE workflow_uuid = %s AND function_name = 'DBOS.sleep'", (run,)
            )
            return found.fetchone() is not None

    def wait(self, run: str, status: str, executor: str) -> None:
        until(lambda: self.status(run) == (status, executor), deadline=30, what=f"{run} {status} by {executor}")


@pytest.fixture(scope="module")
def contrib() -> Iterator[str]:
    """The conninfo of a server with uuid-ossp."""
    homes = [
        bin_dir for bin_dir in sorted(Path("/usr/lib/postgresql").glob("*/bin")) if (bin_dir / "postgres").exists()
    ]
    with pytest.MonkeyPatch.context() as patch:
        if homes and "LOCKCTL_PG_BIN" not in os.environ:
            patch.setenv("LOCKCTL_PG_BIN", str(homes[-1]))
        with servers.folder() as place, servers.running(place) as server:
            yield server.conninfo


@pytest.fixture(scope="module", params=sorted(SDKS))
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, contrib: str) -> Iterator[Real]:
    version: int = request.param
    name = f"real_{uuid.uuid4().hex}"
    with psycopg.connect(contrib, autocommit=True) as admin:
        there = admin.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'uuid-ossp'").fetchone()
        if version < 123 and there is None:
            pytest.skip("this PostgreSQL has no uuid-ossp, which schema 69 and 108 need")
        admin.execute(f"CREATE DATABASE {name}".encode())
        socket = admin.info.host
        port = admin.info.port
    folder = tmp_path_factory.mktemp(f"sdk-{version}")
    npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", f"@dbos-inc/dbos-sdk@{SDKS[version]}"]
    subprocess.run(npm, cwd=folder, check=True, timeout=300)
    url = f"postgresql://postgres@localhost:{port}/{name}?host={socket}"
    subprocess.run(["npx", "dbos", "schema", url], cwd=folder, check=True, timeout=120, capture_output=True)
    dsn = make_conninfo(contrib, dbname=name)
    yield Real(version, folder, dsn, url)
    with psycopg.connect(contrib, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def columns(conn: psycopg.Connection[Any]) -> dict[str, set[tuple[str, str, bool]]]:
    rows = conn.execute(
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_attribute AS a"
        " JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = 'dbos' AND c.relname = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped",
        (list(TABLES),),
    ).fetchall()
    found: dict[str, set[tuple[str, str, bool]]] = {}
    for table, name, kind, required in rows:
        found.setdefault(table, set()).add((name, kind, required))
    return found


def test_the_fixture_of_the_tests_has_the_columns_that_the_sdk_makes(real: Real, empty_dsn: str) -> None:
    with psycopg.connect(real.dsn) as theirs, psycopg.connect(empty_dsn, autocommit=True) as ours:
        dbos.make(ours, real.version)
        assert columns(ours) == columns(theirs)
        row = theirs.execute("SELECT version FROM dbos.dbos_migrations").fetchone()
    assert row == (real.version,)


def test_the_run_of_a_killed_worker_is_found_and_another_worker_finishes_it(real: Real) -> None:
    with real.worker("alive", "long-1") as _, real.worker("doomed", "short-1", "long-2") as doomed:
        until(lambda: real.sleeps("long-2"), deadline=30, what="the run's sleep")
        owners = {run: real.status(run)[1] for run in ("long-1", "long-2")}
        doomed.kill()
        doomed.wait(10)

        def orphans() -> list[Any]:
            found: list[Any] = real.lockctl("runs", "lapsed", "--source", "dbos", "--stale", "1ms")
            return found

        expected = {run for run, owner in owners.items() if owner == "doomed"}
        # Both workers take from one queue: whichever took a run holds it.
        found = until(lambda: [run for run in orphans() if run["id"].startswith("long")] or not expected, deadline=20)
        if isinstance(found, list):
            assert {run["id"] for run in found} == expected
            for run in found:
                assert (run["class"], run["holder"], run["queue"], run["queue_slots"]) == (
                    "executor_gone",
                    "doomed",
                    "flows",
                    1,
                )
                assert "dbos_transact_doomed_1.0.0" in run["evidence"]
                assert run["sleeping_until"] > run["last_activity_at"] > run["started_at"]
                real.lockctl("runs", "cancel", run["id"], "--source", "dbos", "--yes")
        status, owner = real.status("short-1")
        if (status, owner) == ("PENDING", "doomed"):
            (done,) = real.lockctl("runs", "requeue", "short-1", "--source", "dbos", "--yes")
            assert done["outcome"] == "requeued"
        real.wait("short-1", "SUCCESS", "alive" if owner == "doomed" else str(owner))


def test_a_run_alone_with_a_killed_worker_is_requeued_and_finished_by_another(real: Real) -> None:
    with real.worker("first", "mid-1") as first:
        real.wait("mid-1", "PENDING", "first")
        first.kill()
        first.wait(10)
    undecided = run_lockctl("runs", "lapsed", "--source", "dbos", "--stale", "1ms", "-f", "json", dsn=real.dsn)
    assert "mid-1" not in [run["id"] for run in undecided.json()]
    assert "no evidence" in undecided.stderr
    with real.worker("second"):
        found = real.lockctl("runs", "lapsed", "--source", "dbos", "--stale", "1ms")
        assert ("mid-1", "executor_gone") in [(run["id"], run["class"]) for run in found]
        (done,) = real.lockctl("runs", "requeue", "mid-1", "--source", "dbos", "--yes")
        assert (done["outcome"], done["previous"]["holder"]) == ("requeued", "first")
        real.wait("mid-1", "SUCCESS", "second")


def test_a_worker_of_another_version_recovers_nothing(real: Real) -> None:
    with real.worker("w1", "long-3", version="1.0.0") as old:
        real.wait("long-3", "PENDING", "w1")
        old.kill()
        old.wait(10)
    with real.worker("w1", version="2.0.0"):
        found = real.lockctl("runs", "lapsed", "--source", "dbos", "--stale", "1ms")
        (run,) = [run for run in found if run["id"] == "long-3"]
        assert run["class"] == "version_gone"
        assert "2.0.0" in run["evidence"]
        real.lockctl("runs", "cancel", "long-3", "--source", "dbos", "--yes")
    assert real.status("long-3")[0] == "CANCELLED"


def _more(real: Real, seen: float) -> float:
    """The attempts of the run once there are more than `seen`, until then nought."""
    found = real.attempts("brief")
    return found if found > seen else 0.0


def test_a_run_that_kills_its_worker_is_buried_and_revived(real: Real) -> None:
    attempts = 0.0
    while attempts != BURIED:
        with real.worker("fragile", *(() if attempts else ("brief",))) as fragile:
            # Killed only once it has taken the run up, or has given it up.
            attempts = until(partial(_more, real, attempts), deadline=30, what="another attempt")
            assert attempts in (1, 2, 3, 4, BURIED)
            fragile.kill()
            fragile.wait(10)
    (found,) = [row for row in real.lockctl("work", "buried", "--source", "dbos") if row["id"] == "brief"]
    assert (found["kind"], found["reason"]) == ("flow", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
    assert found["attempts"] > 1
    assert found["buried_at"]
    with real.worker("sturdy"):
        (done,) = real.lockctl("work", "revive", "brief", "--source", "dbos", "--yes")
        assert done["outcome"] == "revived"
        real.wait("brief", "SUCCESS", "sturdy")


def test_the_sdks_own_command_line_is_no_evidence(real: Real) -> None:
    with psycopg.connect(real.dsn, autocommit=True) as conn:
        dbos.run(conn, "stray", executor_id="local", application_version="9")
    command = ["npx", "dbos", "workflow", "list", "--sys-db-url", real.url]
    with subprocess.Popen(command, cwd=real.folder, stdout=subprocess.DEVNULL) as cli:
        done = run_lockctl("runs", "lapsed", "--source", "dbos", "-f", "json", dsn=real.dsn)
        cli.wait(60)
    assert "stray" not in [run["id"] for run in done.json()]
    assert "no evidence" in done.stderr
