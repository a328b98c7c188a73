"""`lockctl run` on a terminal: job control works as without it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psycopg
import pytest

from tests.support.cli import LOCKCTL, clean_env, home, on_terminal
from tests.support.runs import Marked, row
from tests.support.waiting import until


@pytest.fixture
def shell(dsn: str, tmp_path: Path) -> Iterator[pexpect.spawn[str]]:
    """An interactive shell with job control, in which `lockctl` is ours."""
    ours = tmp_path / "bin" / "lockctl"
    ours.parent.mkdir()
    ours.write_text(f'#!/bin/sh\nexec {" ".join(LOCKCTL)} "$@"\n')
    ours.chmod(0o755)
    env = clean_env(dsn)
    child = pexpect.spawn(
        "bash",
        ["--norc", "--noprofile", "-i"],
        env={**env, "PS1": "ready> ", "PATH": f"{ours.parent}:{env['PATH']}"},
        cwd=home(),
        encoding="utf-8",
        timeout=20,
        echo=False,
    )
    child.expect("ready> ")
    child.sendline("bind 'set enable-bracketed-paste off'")
    child.expect("ready> ")
    try:
        yield child
    finally:
        child.close(force=True)


COUNTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: (seen.append(1), print(f"interrupted {len(seen)}", flush=True)))
print("begun", flush=True)
end = time.monotonic() + 2
while time.monotonic() < end:
    time.sleep(0.01)
sys.exit(7)
"""


def test_ctrl_c_reaches_the_command_once(dsn: str, conn: psycopg.Connection) -> None:
    with on_terminal("run", "ffdb_locks", "nightly", "--", "python3", "-c", COUNTS, dsn=dsn) as child:
        child.expect("begun")
        child.sendintr()
        child.expect("interrupted 1")
        child.expect(pexpect.EOF)
        assert "interrupted 2" not in (child.before or "")
        child.wait()
        assert child.exitstatus == 7
    assert row(conn, "nightly") is None


def test_ctrl_c_ends_the_command_and_then_the_lease(dsn: str, conn: psycopg.Connection) -> None:
    with on_terminal("run", "ffdb_locks", "nightly", "--", "sh", "-c", "echo begun; exec sleep 300", dsn=dsn) as child:
        child.expect("begun")
        child.sendintr()
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 130
    assert row(conn, "nightly") is None


def test_the_command_reads_from_the_terminal(dsn: str) -> None:
    script = "echo name?; read name; echo hello $name"
    with on_terminal("run", "ffdb_locks", "nightly", "--", "sh", "-c", script, dsn=dsn) as child:
        child.expect(r"name\?")
        child.sendline("anna")
        child.expect("hello anna")
        child.expect(pexpect.EOF)


def test_ctrl_z_stops_it_and_fg_and_bg_continue_it(
    shell: pexpect.spawn[str], dsn: str, conn: psycopg.Connection
) -> None:
    mark = Marked()
    script = "echo begun; while read line; do echo got $line; done"
    shell.sendline(f"lockctl run ffdb_locks nightly --ttl 1m -- sh -c '{script}' {mark.word}")
    shell.expect("begun")
    shell.sendcontrol("z")
    shell.expect("stopped, so the lease is not renewed")
    shell.expect("ready> ")
    assert {each.status() for each in mark.processes() if each.name() == "sh"} == {"stopped"}
    assert row(conn, "nightly") is not None
    shell.sendline("fg")
    shell.expect("lockctl run")
    until(lambda: "stopped" not in {each.status() for each in mark.processes()}, what="the command's going on")
    shell.sendline("one")
    shell.expect("got one")
    shell.sendcontrol("z")
    shell.expect("ready> ")
    shell.sendline("bg; wait %1; echo waited")
    shell.expect("waited")  # it reads from the terminal, so it is stopped in the background
    shell.sendline("fg")
    shell.expect("lockctl run")
    shell.sendline("two")
    shell.expect("got two")
    shell.sendeof()
    shell.expect("ready> ")
    shell.sendline("echo status $?")
    shell.expect("status 0")
    assert row(conn, "nightly") is None


def test_in_the_background_it_runs_on_and_is_brought_to_the_front(shell: pexpect.spawn[str]) -> None:
    shell.sendline("lockctl run ffdb_locks nightly -- sh -c 'sleep 0.5; read line; echo got $line' &")
    shell.expect("ready> ")
    shell.sendline("until jobs | grep -q Stopped; do sleep 0.05; done; echo it stopped")
    shell.expect("it stopped")
    shell.sendline("fg")
    shell.expect("lockctl run")
    shell.sendline("three")
    shell.expect("got three")


def test_a_command_that_stays_stopped_is_ended_before_its_lease_lapses(
    shell: pexpect.spawn[str], conn: psycopg.Connection
) -> None:
    mark = Marked()
    script = 'print("begun", flush=True); import time; time.sleep(300)'
    shell.sendline(f"lockctl run ffdb_locks nightly --ttl 4s -- python3 -c '{script}' {mark.word}")
    shell.expect("begun")
    shell.sendcontrol("z")
    shell.expect("ready> ")
    held = row(conn, "nightly")
    assert held is not None
    mark.gone(deadline=held[1])
    shell.sendline("fg; echo status $?")
    shell.expect("status 6")


def test_a_terminal_that_stops_writers_in_the_background_does_not_stop_us(
    shell: pexpect.spawn[str], conn: psycopg.Connection
) -> None:
    mark = Marked()
    shell.sendline("stty tostop")
    shell.expect("ready> ")
    shell.sendline(f"lockctl run ffdb_locks nightly --ttl 1s -- sh -c 'echo begun; sleep 300; true' {mark.word}")
    shell.expect("begun")
    conn.execute("DELETE FROM ffdb_locks")
    shell.expect("the lease was lost")
    shell.expect("ready> ")
    shell.sendline("echo status $?")
    shell.expect("status 5")


def test_a_script_ends_with_the_command_that_ctrl_c_ended(dsn: str) -> None:
    """As it would without lockctl: the terminal's signal would have reached the script too."""
    script = f"{' '.join(LOCKCTL)} run ffdb_locks nightly -- sh -c 'echo begun; exec sleep 300'; echo went on"
    child = pexpect.spawn("sh", ["-c", script], env=clean_env(dsn), cwd=home(), encoding="utf-8", timeout=20)
    try:
        child.expect("begun")
        child.sendintr()
        child.expect(pexpect.EOF)
        assert "went on" not in (child.before or "")
        child.wait()
        assert child.signalstatus == signal.SIGINT
    finally:
        child.close(force=True)


def test_a_waiter_shows_its_progress_on_a_terminal_and_takes_it_away(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute(
        "INSERT INTO ffdb_locks (lock_key, lock_id, expires_at)"
        " VALUES ('nightly', 'other', clock_timestamp() + interval '1 hour')"
    )
    with on_terminal("acquire", "ffdb_locks", "nightly", "--wait", "1m", "--delay", "20ms", dsn=dsn) as child:
        child.expect("is held by other for another")
        child.expect("waiting up to 1m for other; its lease has 59m")
        conn.execute("UPDATE ffdb_locks SET lock_id = 'third'")
        child.expect("is held by third for another")
        conn.execute("DELETE FROM ffdb_locks")
        child.expect("lease1_")
        child.expect(pexpect.EOF)
