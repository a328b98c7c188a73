"""The whole story on an embedded PostgreSQL: every step is a real command in a process of its own, with its output.

The tables are made as FireFlow, n8n and Verrou make them (docs/systems.md), in a server of the demo's own, which is
gone afterwards.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from lockctl import clock, embedded
from lockctl.db import Database
from lockctl.errors import LockctlError

# As the applications' own migrations leave them; the zoneless expiry is FireFlow's, the camel case n8n's.
_TABLES = """
CREATE TABLE ffdb_locks (
    lock_key text PRIMARY KEY, lock_id text NOT NULL,
    expires_at timestamp NOT NULL, created_at timestamp NOT NULL DEFAULT now());
CREATE TABLE agents (id varchar(36) PRIMARY KEY, name varchar(128) NOT NULL);
CREATE TABLE agent_task_run_lock (
    "agentId" varchar(36) NOT NULL REFERENCES agents (id) ON DELETE CASCADE, "taskId" varchar(32) NOT NULL,
    "holderId" uuid NOT NULL, "heldUntil" timestamptz(3) NOT NULL,
    "createdAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    "updatedAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), PRIMARY KEY ("agentId", "taskId"));
CREATE TABLE verrou (key varchar(255) PRIMARY KEY, owner varchar(255) NOT NULL, expiration bigint);
INSERT INTO agents VALUES ('a5f1c9d2', 'release notes');
INSERT INTO agent_task_run_lock ("agentId", "taskId", "holderId", "heldUntil")
VALUES ('a5f1c9d2', 'daily', '7d0f3f8a-6b1e-4b7e-9d53-0f5a3c1e2b44', now() + interval '200 s');
INSERT INTO ffdb_locks (lock_key, lock_id, expires_at)
SELECT 'flow-' || n, 'node-' || n % 7, (now() AT TIME ZONE 'UTC') - n * interval '1 min'
  FROM generate_series(5, 2504) AS n;
"""


class Stage(NamedTuple):
    """Where the demo plays: the database, the environment of its commands, and where it speaks to."""

    dsn: str
    environment: dict[str, str]
    folder: Path
    write: Callable[[str], None]

    def say(self, text: str) -> None:
        self.write(f"\n# {text}")

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "lockctl", *words]

    def run(self, *words: str, expect: int = 0, shown: str | None = None) -> str:
        """Run one command, show it and what it wrote, and hold it to the exit code the story needs."""
        self.write(f"$ {shown or shlex.join(['lockctl', *words])}")
        done = subprocess.run(
            self.command(*words), env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        for text in (done.stdout, done.stderr):
            if text:
                self.write(text.rstrip("\n"))
        if done.returncode:
            self.write(f"(exit code {done.returncode})")
        if done.returncode != expect:
            raise LockctlError(f"the demo expected exit code {expect} from: {shlex.join(['lockctl', *words])}")
        return done.stdout.strip()

    def answer(self, *words: str) -> int:
        """The exit code of a command that is not shown."""
        done = subprocess.run(
            self.command(*words), env=self.environment, cwd=self.folder, capture_output=True, check=False
        )
        return done.returncode


def play(write: Callable[[str], None]) -> None:
    """Tell the story through `write` (one call a block of lines). Raises LockctlError when a step goes wrong."""
    folder = Path(tempfile.mkdtemp(prefix="lockctl-demo-"))
    started = clock.now()
    try:
        with embedded.start(folder / "postgres", settings={"fsync": "off"}) as server:
            stage = Stage(server.conninfo, _environment(server.conninfo, folder), folder, write)
            write("# a PostgreSQL of the demo's own, with tables as FireFlow, n8n and Verrou make them")
            with Database(dsn=server.conninfo, source="the demo", command="demo").connect() as session:
                for statement in _TABLES.split(";\n"):
                    if statement.strip():
                        session.query(statement)
            for scene in (_look, _hold, _crash, _force, _sweep, _migrate, _blocked, _after_a_crash):
                scene(stage)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    write(f"\n# that took {clock.now() - started:.0f} s; the server and its data are gone")


def _environment(dsn: str, folder: Path) -> dict[str, str]:
    """A user's environment without what would lead the commands to another database or configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LOCKCTL_"))}
    return {**kept, "LOCKCTL_DSN": dsn, "XDG_CONFIG_HOME": str(folder)}


def _look(stage: Stage) -> None:
    stage.say("which lock tables are here, and what is in them?")
    stage.run("tables", "--format", "simple")
    stage.run("inspect", "--summary", "--format", "simple")


def _hold(stage: Stage) -> None:
    stage.say("take a lease: the token on standard output is all that a script needs")
    taking = ("acquire", "ffdb_locks", "nightly", "--ttl", "5m")
    token = stage.run(*taking, shown=f"lease=$(lockctl {' '.join(taking)})")
    stage.say("somebody else is told who holds it, and gets exit code 3")
    stage.run("acquire", "ffdb_locks", "nightly", expect=3)
    stage.run("extend", "--lease", token, "--ttl", "10m", shown='lockctl extend --lease "$lease" --ttl 10m')
    stage.run("release", "--lease", token, shown='lockctl release --lease "$lease"')


def _crash(stage: Stage) -> None:
    stage.say("a lease is held while a command runs; here lockctl itself is killed in the middle")
    words = ("run", "verrou", "plan:42", "--ttl", "3s", "--holder", "worker-1", "--", "sleep", "600")
    stage.write(f"$ {shlex.join(['lockctl', *words])} & sleep 1; kill -KILL $!")
    holder = subprocess.Popen(
        stage.command(*words),
        env=stage.environment,
        cwd=stage.folder,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _until(
        lambda: stage.answer("check", "verrou", "plan:42", "--holder", "worker-1") == 0,
        "the demo's lease was not taken",
    )
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    stage.say("the command has ended with it; the row stays until it lapses, and nobody starts the plan twice")
    stage.run("acquire", "verrou", "plan:42", "--holder", "worker-2", expect=3)
    stage.say("whoever waits takes over the moment it lapses")
    stage.run("acquire", "verrou", "plan:42", "--holder", "worker-2", "--wait", "20s")


def _until(condition: Callable[[], bool], failure: str) -> None:
    deadline = clock.Deadline.after(20_000)
    while not condition():
        if deadline.passed:
            raise LockctlError(failure)
        time.sleep(0.05)


def _force(stage: Stage) -> None:
    stage.say("an n8n task is stuck behind a main that is gone: make its lease lapse now")
    stage.run("inspect", "agent_task_run_lock", "--format", "simple")
    stage.run("force-expire", "agent_task_run_lock", "a5f1c9d2", "daily", "--reason", "main-2 was drained", "--yes")
    stage.run("check", "agent_task_run_lock", "a5f1c9d2", "daily", expect=4)


def _sweep(stage: Stage) -> None:
    stage.say("what crashed holders left behind, and the sweep that cron runs")
    stage.run("inspect", "ffdb_locks", "--lapsed-for", "1d", "--sort", "expires", "--limit", "3", "--format", "simple")
    stage.run("sweep", "ffdb_locks", "--dry-run", "--format", "json")
    stage.run("sweep", "ffdb_locks", "--format", "json")


def _migrate(stage: Stage) -> None:
    stage.say("lockctl's own tables, under a lock timeout: what is there is adopted, what is not is made")
    stage.run("migrate", "upgrade", "runs@head", "--lock-timeout", "2s")
    stage.run("migrate", "upgrade", "ffdb@head", "--lock-timeout", "2s")
    stage.run("migrate", "current", "--format", "simple")


def _blocked(stage: Stage) -> None:
    stage.say("a forgotten transaction is in the way of a migration: it gives up in time, and names who it was")
    report = Database(dsn=stage.dsn, source="the demo", command="report", name="psql -f report.sql")
    with report.connect() as session, session.transaction():
        session.query("SELECT count(*) FROM ffdb_locks")
        (stage.folder / "column.sql").write_text("ALTER TABLE ffdb_locks ADD COLUMN note text;\n", encoding="utf-8")
        stage.run("migrate", "apply", "column.sql", "--lock-timeout", "300ms", "--retries", "1", expect=7)
    stage.run("migrate", "apply", "column.sql", "--lock-timeout", "2s")


def _after_a_crash(stage: Stage) -> None:
    from lockctl.runs import store

    stage.say("two workers, each with a run; one renews its lease, the other is gone, and a job gave up")
    with Database(dsn=stage.dsn, source="the demo", command="worker").connect() as session:
        for run in ("run-alive", "run-orphan"):
            store.start(session, run, file="flow.lf", movement="main", input_="{}")
        leases = store.leases(session)
        store.claim(session, leases, "run-alive", 60_000)
        store.claim(session, leases, "run-orphan", 200)
        store.enqueue(session, kind="mail", key="mail:7", payload={"to": "ops"})
        for claimed in store.claim_due(session, limit=1, lease_ms=60_000):
            store.bury(session, claimed.id, claimed.claim, "the address does not exist")
    stage.say("which runs will never move again by themselves, and what was given up?")
    _until(
        lambda: stage.answer("runs", "lapsed", "--stale", "1s", "--fail-if-any") == 4, "the demo's run did not lapse"
    )
    stage.run("runs", "lapsed", "--stale", "1s", "--format", "json")
    (buried,) = json.loads(stage.run("work", "buried", "--format", "json"))
    stage.run("work", "revive", buried["id"], "--yes")
