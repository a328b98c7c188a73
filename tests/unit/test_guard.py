"""The guard process, and the groups that it names."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockctl import clock
from lockctl.leases import guard
from lockctl.leases.guard import Group
from tests.support.waiting import until


@contextmanager
def sleeping(*, stubborn: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process group of two; a stubborn one minds no TERM."""
    script = f"trap '' {'TERM' if stubborn else 'USR2'}; sleep 300 & echo ready; wait; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(params=["pidfd", "number"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How groups are named: as this kernel can, and as an older one does."""
    if request.param == "number":
        monkeypatch.setattr(os, "pidfd_open", lambda _pid: (_ for _ in ()).throw(OSError()), raising=False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_a_group_is_alive_until_its_last_member_ends() -> None:
    with sleeping() as process:
        group = Group(process.pid, guard.start_time(process.pid), os.getsid(0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert group.alive()
        assert group.end(signal.SIGTERM)
        until(lambda: not group.alive(), what="the end of the group")
        until(lambda: not group.signal(0), what="the number's end")


@pytest.mark.usefixtures("way")
def test_a_member_that_nobody_waited_for_is_not_alive() -> None:
    with sleeping() as process:
        group = Group(process.pid, guard.start_time(process.pid), os.getsid(0))
        group.signal(signal.SIGKILL)
        until(lambda: not group.alive(), what="the end of the group")
        assert group.signal(0)  # the leader is still to be waited for


@pytest.mark.usefixtures("way")
def test_a_number_that_was_given_anew_is_never_signalled() -> None:
    with sleeping() as process:
        for group in (Group(process.pid, "1", os.getsid(0)), Group(process.pid, "1", 1)):
            assert not group.signal(signal.SIGKILL)
            assert not group.alive()
        assert process.poll() is None


def test_members_whose_leader_has_ended_are_known_by_their_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", lambda _pid: (_ for _ in ()).throw(OSError()), raising=False)
    with sleeping() as process:
        started = guard.start_time(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not Group(process.pid, started, os.getsid(0) + 1).signal(0)
        assert Group(process.pid, started, os.getsid(0)).signal(0)


class Guarded:
    """A guard with a group, and our end of its pipe."""

    def __init__(self, group: int | None, *, grace: float = 0.3, let_live: bool = False) -> None:
        reader, self.writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(reader), str(grace), "1" if let_live else "0"],
            pass_fds=(reader,),
        )
        os.close(reader)
        if group is not None:
            self.tell(f"group {group} {guard.start_time(group)} {os.getsid(group)}")

    def tell(self, line: str) -> None:
        os.write(self.writer, f"{line}\n".encode())

    def leave(self) -> None:
        """As when we die."""
        os.close(self.writer)


def ended(group: int) -> bool:
    return not Group(group).alive()


def test_it_ends_the_group_at_the_times_it_was_told() -> None:
    with sleeping(stubborn=True) as process:
        guarded = Guarded(process.pid)
        now = clock.now()
        guarded.tell(f"by {now + 0.2} {now + 0.6}")
        until(lambda: ended(process.pid), what="the end of the group")
        assert now + 0.6 <= clock.now()
        guarded.tell("bye")
        assert guarded.process.wait(10) == 0
        guarded.leave()


def test_a_later_word_takes_the_place_of_an_earlier() -> None:
    with sleeping() as process:
        guarded = Guarded(process.pid)
        now = clock.now()
        guarded.tell(f"by {now + 0.5} {now + 1}\nby inf inf")
        time.sleep(1.2)  # the time that it must let pass
        assert not ended(process.pid)
        guarded.tell("bye")
        assert guarded.process.wait(10) == 0
        guarded.leave()
        assert not ended(process.pid)


@pytest.mark.parametrize("stubborn", [False, True])
def test_our_end_is_the_groups(stubborn: bool) -> None:
    with sleeping(stubborn=stubborn) as process:
        guarded = Guarded(process.pid)
        guarded.leave()
        until(lambda: ended(process.pid), what="the end of the group")
        assert guarded.process.wait(10) == 0


def test_our_end_is_not_the_end_of_a_group_that_may_live_or_was_never_there() -> None:
    with sleeping() as process:
        for guarded in (Guarded(process.pid, let_live=True), Guarded(None)):
            guarded.leave()
            assert guarded.process.wait(10) == 0
        assert not ended(process.pid)


def test_it_minds_no_signal_but_kill() -> None:
    with sleeping() as process:
        guarded = Guarded(process.pid)
        status = f"/proc/{guarded.process.pid}/status"

        def ignored() -> int:
            with open(status) as lines:  # noqa: PTH123
                return next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))

        until(lambda: ignored() & 1 << signal.SIGTERM - 1, what="the guard's start")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP):
            guarded.process.send_signal(number)
        guarded.tell("bye")
        assert guarded.process.wait(10) == 0
        guarded.leave()


def test_the_guard_imports_little() -> None:
    script = (
        f"import sys; sys.path.insert(0, {os.path.dirname(guard.__file__)!r}); import guard\n"  # noqa: PTH120
        "print(sorted({'lockctl', 'subprocess', 'threading', 'psycopg', 'pathlib'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout == "[]\n"
