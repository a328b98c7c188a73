"""`lockctl run`: the command, its exit status, its environment, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.cli import LOCKCTL, popen_lockctl, run_lockctl
from tests.support.runs import Marked, appeared, ended, guard_of, kill, row, running
from tests.support.waiting import until


def test_case_16_the_exit_status_is_the_commands(dsn: str, conn: psycopg.Connection) -> None:
    assert run_lockctl("run", "ffdb_locks", "nightly", "--", "sh", "-c", "exit 37", dsn=dsn).returncode == 37
    assert run_lockctl("run", "ffdb_locks", "nightly", "--", "sh", "-c", "kill -9 $$", dsn=dsn).returncode == 137
    assert row(conn, "nightly") is None


@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/no/such/command", 127), ("/etc", 126)])
def test_a_command_that_cannot_be_executed_takes_no_lease(
    dsn: str, conn: psycopg.Connection, command: str, code: int
) -> None:
    done = run_lockctl("run", "ffdb_locks", "nightly", "--", command, dsn=dsn)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert row(conn, "nightly") is None


def test_a_file_that_the_kernel_refuses_is_not_executable_and_the_lease_is_given_back(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    done = run_lockctl("run", "ffdb_locks", "nightly", "--", str(broken), dsn=dsn)
    assert done.returncode == 126
    assert row(conn, "nightly") is None


def test_a_script_whose_interpreter_is_missing_is_not_said_to_be_missing_itself(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    """As with the line ends of another system: `#!/bin/sh\\r`."""
    script = tmp_path / "script"
    script.write_bytes(b"#!/bin/sh\r\ntrue\r\n")
    script.chmod(0o755)
    done = run_lockctl("run", "ffdb_locks", "nightly", "--", str(script), dsn=dsn)
    assert (done.returncode, "interpreter" in done.stderr, "carriage return" in done.stderr) == (127, True, True)
    assert row(conn, "nightly") is None


def test_what_follows_the_dashes_is_the_commands_untouched(dsn: str) -> None:
    words = ["--ttl", "-x", "", "a b", "--", "[blue]", "--dsn=x"]
    done = run_lockctl("run", "ffdb_locks", "nightly", "--", "printf", "%s|", *words, dsn=dsn)
    assert done.stdout == "".join(f"{word}|" for word in words)


def test_the_key_may_look_like_an_option(dsn: str) -> None:
    done = run_lockctl("run", "ffdb_locks", "--key", "-n", "--", "sh", "-c", "echo $LOCKCTL_KEY", dsn=dsn)
    assert (done.returncode, done.stdout) == (0, '["-n"]\n')


def test_without_a_command_it_is_a_usage_error(dsn: str) -> None:
    for words in (["run", "ffdb_locks", "nightly"], ["run", "ffdb_locks", "nightly", "--"]):
        assert run_lockctl(*words, dsn=dsn).returncode == 2


@pytest.mark.parametrize("ttl", ["999ms", "1ms"])
def test_a_ttl_too_short_to_be_renewed_is_refused_with_the_reason(dsn: str, ttl: str) -> None:
    done = run_lockctl("run", "ffdb_locks", "nightly", "--ttl", ttl, "--", "true", dsn=dsn)
    assert done.returncode == 2
    assert "too short to be renewed safely" in done.stderr


def test_a_held_lease_is_a_conflict_with_the_exit_code_of_ones_choice(dsn: str) -> None:
    assert run_lockctl("acquire", "ffdb_locks", "nightly", dsn=dsn).returncode == 0
    for words, code in (([], 3), (["-E", "75"], 75), (["--conflict-exit-code=0"], 0)):
        done = run_lockctl("run", "ffdb_locks", "nightly", *words, "--", "echo", "ran", dsn=dsn)
        assert (done.returncode, done.stdout) == (code, "")
    done = run_lockctl("run", "ffdb_locks", "nightly", "--format", "json", "--", "echo", "ran", dsn=dsn)
    assert done.json()["outcome"] == "held"


def test_the_command_is_told_its_lease_and_its_database(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    out = tmp_path / "env"
    with running(dsn, "nightly", "sh", "-c", f"env > {out}.new; mv {out}.new {out}; sleep 300") as process:
        env = dict(line.split("=", 1) for line in appeared(out).splitlines() if "=" in line)
        assert env["LOCKCTL_TABLE"] == "ffdb_locks"
        assert json.loads(env["LOCKCTL_KEY"]) == ["nightly"]
        held = row(conn, "nightly")
        assert held is not None
        assert env["LOCKCTL_HOLDER"] == held[0]
        assert env["LOCKCTL_DSN"] == dsn
        token = env["LOCKCTL_LEASE"]
        assert run_lockctl("check", "--lease", token, dsn=dsn).returncode == 0
        kill(process, signal.SIGTERM)


def test_no_pass_dsn_keeps_the_database_from_the_command(dsn: str) -> None:
    done = run_lockctl("run", "ffdb_locks", "nightly", "--no-pass-dsn", "--", "env", dsn=dsn)
    assert "LOCKCTL_LEASE=" in done.stdout
    assert "LOCKCTL_DSN" not in done.stdout


def test_inside_the_command_check_and_extend_need_no_arguments(dsn: str, tmp_path: Path) -> None:
    """Also where the database was chosen by options and the configuration lies elsewhere."""
    config = tmp_path / "elsewhere.toml"
    config.write_text('[profiles.p]\ndsn_env = "THE_DATABASE"\nschema = "public"\n')
    lockctl = " ".join(LOCKCTL)
    script = f"cd / && {lockctl} check -f json && {lockctl} extend --ttl 5m && {lockctl} check -f json"
    done = run_lockctl(
        *("--config", str(config), "--profile", "p", "run", "ffdb_locks", "nightly", "--", "sh", "-c", script),
        env={"THE_DATABASE": dsn},
    )
    assert done.returncode == 0, done.stderr
    before, after = done.jsonl()
    assert before["lock"]["remaining_ms"] <= 60_000 < after["lock"]["remaining_ms"]


def test_a_database_that_the_libpq_variables_chose_is_the_commands_too(dsn: str, tmp_path: Path) -> None:
    """Even where the command stands beside a configuration that would choose another."""
    (tmp_path / "lockctl.toml").write_text('default_profile = "p"\n[profiles.p]\ndsn = "host=/nowhere dbname=x"\n')
    params = conninfo_to_dict(dsn)
    env = {
        f"PG{word}": str(params[name]) for word, name in (("HOST", "host"), ("DATABASE", "dbname"), ("USER", "user"))
    }
    script = f"cd {tmp_path} && {' '.join(LOCKCTL)} check -f json"
    done = run_lockctl("run", "ffdb_locks", "nightly", "--", "sh", "-c", script, env=env)
    assert done.returncode == 0, done.stderr
    assert done.json()["outcome"] == "held"


def test_renewal_never_shortens_what_the_command_extended(dsn: str, conn: psycopg.Connection) -> None:
    script = f"{' '.join(LOCKCTL)} extend --ttl 1h && exec sleep 300"
    with running(dsn, "nightly", "sh", "-c", script, ttl="1s") as process:
        until(lambda: (row(conn, "nightly") or ("", 0.0))[1] > 3000, what="the extension")
        seen = conn.execute("SELECT xmin::text FROM ffdb_locks").fetchone()
        until(lambda: conn.execute("SELECT xmin::text FROM ffdb_locks").fetchone() != seen, what="a renewal")
        held = row(conn, "nightly")
        assert held is not None
        assert held[1] > 3000
        kill(process, signal.SIGTERM)
        assert ended(process)[0] == 143


def test_the_command_inherits_nothing_of_ours_and_what_we_were_given(dsn: str, tmp_path: Path) -> None:
    """No database socket, no lock file of the embedded server, no pipe; but the descriptors of our caller."""
    given = tmp_path / "given"
    given.write_text("given\n")
    script = f'exec 7<{given}; {" ".join(LOCKCTL)} run ffdb_locks nightly -- sh -c "ls -l /proc/self/fd; cat <&7"'
    done = run_lockctl("-c", script, dsn=dsn, command=["sh"])
    assert done.returncode == 0, done.stderr
    assert "socket:" not in done.stdout
    assert ".lock" not in done.stdout
    assert done.stdout.endswith("given\n")


@pytest.mark.parametrize("words", [("verrou", "plan-7"), ("agent_task_run_lock", "agent-1", "task-1")])
def test_it_is_the_same_for_other_tables(dsn: str, words: tuple[str, ...]) -> None:
    script = f"{' '.join(LOCKCTL)} check -q -f json && {' '.join(LOCKCTL)} extend && exit 7"
    done = run_lockctl("run", *words, "--", "sh", "-c", script, dsn=dsn)
    assert done.returncode == 7, done.stderr
    assert done.json()["lock"]["key"] == list(words[1:])
    assert run_lockctl("check", *words, dsn=dsn).returncode == 4


def test_a_lease_that_never_expires_is_held_as_long_as_its_command_runs(dsn: str, conn: psycopg.Connection) -> None:
    """Verrou's null: no expiry to be confirmed, and a renewal gives it none."""
    token = run_lockctl("acquire", "verrou", "plan-7", "--ttl", "1s", dsn=dsn).stdout.strip()
    conn.execute("UPDATE verrou SET expiration = NULL")
    seen = conn.execute("SELECT xmin::text FROM verrou").fetchone()
    mark = Marked()
    with popen_lockctl("run", "--lease", token, "--", "sh", "-c", mark.sleeper(), dsn=dsn) as process:
        until(mark.processes, what="the command")
        for _ in range(2):
            last = seen
            until(lambda last=last: conn.execute("SELECT xmin::text FROM verrou").fetchone() != last, what="a renewal")  # type: ignore[misc]
            seen = conn.execute("SELECT xmin::text FROM verrou").fetchone()
        assert conn.execute("SELECT expiration FROM verrou").fetchone() == (None,)
        kill(process, signal.SIGTERM)
        assert ended(process) == (143, "")


def test_a_warning_that_nobody_can_read_ends_nothing(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    go, out = tmp_path / "go", tmp_path / "out"
    script = f"echo ready > {out}; while ! test -e {go}; do sleep 0.02; done; exit 4"
    words = ["run", "ffdb_locks", "nightly", "--ttl", "1s", "--format", "json", "--", "sh", "-c", script]
    with popen_lockctl(*words, dsn=dsn) as process:
        appeared(out)
        assert process.stderr is not None
        process.stderr.close()
        seen = conn.execute("SELECT expires_at FROM ffdb_locks").fetchone()
        ours = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'lockctl run%'"
        conn.execute(f"{ours} AND datname = current_database()")
        until(lambda: conn.execute("SELECT expires_at FROM ffdb_locks").fetchone() != seen, what="a renewal")
        go.touch()
        assert process.wait(30) == 4


def test_keep_does_not_release(dsn: str, conn: psycopg.Connection) -> None:
    done = run_lockctl("run", "ffdb_locks", "nightly", "--keep", "--ttl", "1m", "--", "true", dsn=dsn)
    assert done.returncode == 0
    held = row(conn, "nightly")
    assert held is not None
    assert 50 < held[1] <= 60


def test_a_lease_is_handed_over_by_its_token_and_stays_the_same_lease(dsn: str, conn: psycopg.Connection) -> None:
    token = run_lockctl("acquire", "ffdb_locks", "nightly", "--ttl", "20s", dsn=dsn).stdout.strip()
    before = conn.execute("SELECT lock_id, created_at FROM ffdb_locks").fetchone()
    look = "SELECT lock_id, created_at FROM ffdb_locks"
    script = f'test "$LOCKCTL_LEASE" = {token} && {" ".join(LOCKCTL)} check'
    done = run_lockctl("run", "--lease", token, "--keep", "--", "sh", "-c", script, dsn=dsn)
    assert done.returncode == 0, done.stderr
    assert conn.execute(look).fetchone() == before
    assert run_lockctl("run", "--", "true", dsn=dsn, env={"LOCKCTL_LEASE": token}).returncode == 0
    assert conn.execute(look).fetchone() is None
    assert run_lockctl("run", "--lease", token, "--", "echo", "ran", dsn=dsn).returncode == 4


def test_a_lease_that_another_took_is_not_continued(dsn: str, conn: psycopg.Connection) -> None:
    token = run_lockctl("acquire", "ffdb_locks", "nightly", dsn=dsn).stdout.strip()
    conn.execute("UPDATE ffdb_locks SET lock_id = 'other'")
    done = run_lockctl("run", "--lease", token, "--", "echo", "ran", dsn=dsn)
    assert (done.returncode, done.stdout) == (3, "")
    for words in (["--wait", "1s"], ["--holder", "x"], ["ffdb_locks", "nightly"]):
        assert run_lockctl("run", "--lease", token, *words, "--", "true", dsn=dsn).returncode == 2
    assert run_lockctl("run", "--lease", token[:-2], "--", "true", dsn=dsn).returncode == 2


def test_members_of_the_group_that_outlive_the_command_end_before_the_release(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    """TERM first, KILL for those that do not mind it; while they are there the lease is held."""
    mark, out = Marked(), tmp_path / "out"
    stubborn = f"trap 'echo term >> {out}' TERM; while :; do sleep 0.05; done"
    with running(dsn, "nightly", "sh", "-c", f'sh -c "$0" {mark.word} & exit 5', stubborn, kill_after="1s") as process:
        assert appeared(out) == "term\n"
        assert row(conn, "nightly") is not None
        code, stderr = ended(process)
    assert code == 5
    assert "left processes in its group" in stderr
    assert not mark.processes()
    assert row(conn, "nightly") is None


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM])
def test_case_15_signals_reach_the_command_and_the_lease_is_released_afterwards(
    dsn: str, conn: psycopg.Connection, tmp_path: Path, number: signal.Signals
) -> None:
    out = tmp_path / "out"
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name} >> {out}; exit 9' {name}; echo ready >> {out}; while :; do sleep 0.02; done"
    with running(dsn, "nightly", "bash", "-c", script) as process:
        appeared(out)
        assert row(conn, "nightly") is not None
        kill(process, number)
        assert ended(process)[0] == 9
    assert out.read_text() == f"ready\ngot {name}\n"
    assert row(conn, "nightly") is None


def test_case_12_the_whole_group_ends_when_the_row_is_deleted(dsn: str, conn: psycopg.Connection) -> None:
    mark = Marked()
    with running(dsn, "nightly", "sh", "-c", f"{mark.sleeper()} & wait", ttl="1500ms") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        conn.execute("DELETE FROM ffdb_locks")
        code, stderr = ended(process)
    assert code == 5
    assert "somebody deleted its row" in stderr
    mark.gone()


def test_case_12_a_row_that_another_took_ends_it_too_and_stays_the_others(dsn: str, conn: psycopg.Connection) -> None:
    mark = Marked()
    words = [*("run", "ffdb_locks", "nightly", "--ttl", "1s", "--lost-exit-code", "88", "--format", "json", "--")]
    with popen_lockctl(*words, "sh", "-c", f"trap '' TERM; {mark.sleeper()}", dsn=dsn) as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        conn.execute("UPDATE ffdb_locks SET lock_id = 'other', expires_at = clock_timestamp() + interval '1 hour'")
        code, stderr = ended(process)
    assert code == 88
    error = json.loads(stderr.splitlines()[-1])
    assert error["error"] == "lost"
    assert "other" in error["message"]
    mark.gone()
    assert (row(conn, "nightly") or ("", 0))[0] == "other"


def test_a_lease_found_lost_only_at_the_release_is_lost_whatever_the_command_returned(
    dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    go, out = tmp_path / "go", tmp_path / "out"
    script = f"echo ready > {out}; while ! test -e {go}; do sleep 0.02; done; exit 0"
    with running(dsn, "nightly", "sh", "-c", script, ttl="10m") as process:
        appeared(out)
        conn.execute("DELETE FROM ffdb_locks")
        go.touch()
        assert ended(process)[0] == 5


def test_case_18_after_a_kill_the_group_ends_and_the_lease_is_refused_until_its_ttl_is_over(
    dsn: str, conn: psycopg.Connection
) -> None:
    mark = Marked()
    with running(dsn, "nightly", "sh", "-c", f"trap '' HUP; {mark.sleeper()}", ttl="3s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        guard = guard_of(process)
        kill(process, signal.SIGKILL)
        process.wait()
        mark.gone()
    assert run_lockctl("acquire", "ffdb_locks", "nightly", dsn=dsn).returncode == 3
    until(lambda: not psutil.pid_exists(guard.pid) or guard.status() == psutil.STATUS_ZOMBIE, what="the guard's end")
    held = row(conn, "nightly")
    assert held is not None
    assert held[1] <= 3
    assert run_lockctl("acquire", "ffdb_locks", "nightly", "--wait", "10s", dsn=dsn).returncode == 0


def test_a_group_that_minds_no_term_is_killed_after_lockctls_own_death(dsn: str) -> None:
    mark = Marked()
    command = ("sh", "-c", f"trap '' TERM HUP; {mark.sleeper()}")
    with running(dsn, "nightly", *command, ttl="30s", kill_after="200ms") as process:
        until(mark.processes, what="the command")
        kill(process, signal.SIGKILL)
        mark.gone()


def test_the_command_may_be_let_live(dsn: str) -> None:
    mark = Marked()
    words = ["run", "ffdb_locks", "nightly", "--let-live", "--", "sh", "-c", mark.sleeper()]
    with popen_lockctl(*words, dsn=dsn) as process:
        until(mark.processes, what="the command")
        guard = guard_of(process)
        kill(process, signal.SIGKILL)
        until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE, what="the guard's end")
        left = mark.processes()
        assert left
        for each in left:
            each.kill()


def test_a_guard_that_was_killed_is_replaced_and_guards(dsn: str) -> None:
    mark = Marked()
    with running(dsn, "nightly", "sh", "-c", mark.sleeper()) as process:
        until(mark.processes, what="the command")
        first = guard_of(process)
        first.kill()
        until(lambda: guard_of(process).pid != first.pid, what="another guard")
        kill(process, signal.SIGKILL)
        mark.gone()


def test_a_lockctl_that_is_stopped_does_not_keep_its_command_past_the_expiry(
    dsn: str, conn: psycopg.Connection
) -> None:
    mark = Marked()
    with running(dsn, "nightly", "sh", "-c", mark.sleeper(), ttl="3s") as process:
        until(lambda: mark.processes() and row(conn, "nightly"), what="the command")
        kill(process, signal.SIGSTOP)
        seen = row(conn, "nightly")
        assert seen is not None
        end = time.monotonic() + seen[1]
        mark.gone(deadline=seen[1])
        assert time.monotonic() < end
        kill(process, signal.SIGCONT)
        assert ended(process)[0] == 6


def test_no_guard_is_left_after_a_run(dsn: str) -> None:
    with running(dsn, "nightly", "true") as process:
        ended(process)
        assert not [each for each in psutil.process_iter(["ppid"]) if each.info["ppid"] == process.pid]


def test_a_command_with_its_own_background_group_member_gone_costs_no_wait(dsn: str) -> None:
    """A member that ended and that nobody waited for is nobody to wait for."""
    script = "import os, time\nif os.fork() == 0: os._exit(0)\ntime.sleep(0.2)"
    done = run_lockctl("run", "ffdb_locks", "nightly", "--kill-after", "30s", "--", "python3", "-c", script, dsn=dsn)
    assert done.returncode == 0
    assert "left processes" not in done.stderr
