"""Case 21: what destroys asks first; where nobody can be asked it ends at once and changes nothing."""

from __future__ import annotations

import os
import pty
import signal
import subprocess

import psycopg
import pytest

from tests.support.cli import LOCKCTL, clean_env, on_terminal
from tests.support.quick import run_quick

FORCED = [("release", "ffdb_locks", "nightly", "--force"), ("force-expire", "ffdb_locks", "nightly")]
both = pytest.mark.parametrize("verb", FORCED, ids=["release", "force-expire"])


@pytest.fixture
def held(dsn: str) -> str:
    assert run_quick("acquire", "ffdb_locks", "nightly", "--holder", "somebody", "--ttl", "1h", dsn=dsn).returncode == 0
    return dsn


def state(dsn: str) -> str:
    return str(run_quick("-f", "json", "check", "ffdb_locks", "nightly", dsn=dsn).json()["lock"]["state"])


@both
@pytest.mark.parametrize("answer", [None, "y\n"], ids=["nothing", "a piped yes"])
def test_with_neither_a_terminal_nor_yes_it_ends_at_once(held: str, verb: tuple[str, ...], answer: str | None) -> None:
    done = run_quick(*verb, dsn=held, input=answer)
    assert (done.returncode, done.stdout, "--yes" in done.stderr) == (2, "", True)
    nowhere = run_quick(*verb, dsn="host=/nonexistent")
    assert (nowhere.returncode, "--yes" in nowhere.stderr) == (2, True), "it must not even connect"
    assert state(held) == "held"


@both
@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("", 1), ("nope", 1), ("y", 0), ("YES", 0), ("\x04", 1)])
def test_on_a_terminal_it_shows_the_row_and_asks(held: str, verb: tuple[str, ...], answer: str, code: int) -> None:
    with on_terminal(*verb, dsn=held) as terminal:
        terminal.expect_exact("held by somebody for another")
        terminal.expect_exact("[y/N]")
        assert state(held) == "held"
        if answer == "\x04":
            terminal.sendeof()
        else:
            terminal.sendline(answer)
        terminal.expect([r"nothing was changed", r"released", r"has lapsed now"])
        terminal.wait()
    assert terminal.exitstatus == code
    assert state(held) == ("held" if code else "free" if verb[0] == "release" else "lapsed")


@both
@pytest.mark.parametrize("flag", ["-y", "--yes"])
def test_yes_asks_nothing(held: str, verb: tuple[str, ...], flag: str) -> None:
    done = run_quick(flag, *verb, "--reason", "its \x1b[1mhost\nis gone", dsn=held)
    assert (done.returncode, done.stdout, "\x1b" in done.stderr, "[y/N]" in done.stderr) == (0, "", False, False)
    assert state(held) != "held"


@both
def test_the_question_is_not_on_standard_output(held: str, verb: tuple[str, ...]) -> None:
    """A terminal for standard input and error, a pipe for standard output, as in `… -f json | jq`."""
    mine, theirs = pty.openpty()
    command = [*LOCKCTL, "-f", "json", *verb]
    with subprocess.Popen(command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, env=clean_env(held)) as process:
        os.close(theirs)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(mine, 4096)
        os.write(mine, b"y\n")
        assert process.stdout is not None
        out = process.stdout.read()
        assert (process.wait(20), out[:1], out.count(b"\n")) == (0, b"{", 1)
    os.close(mine)


@both
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_question_is_no_answer(held: str, verb: tuple[str, ...], signum: signal.Signals) -> None:
    with on_terminal(*verb, dsn=held) as terminal:
        terminal.expect_exact("[y/N]")
        terminal.kill(signum)
        terminal.expect(r".*$")
        assert "Traceback" not in terminal.read()
        terminal.wait()
    assert terminal.exitstatus == 128 + signum
    assert state(held) == "held"


@both
@pytest.mark.parametrize("change", ["renewed", "stolen", "released"])
def test_what_happens_while_it_asks_is_seen(held: str, verb: tuple[str, ...], change: str) -> None:
    """The change is guarded by the holder that was shown: a renewal is told of, another holder keeps the row."""
    statement = {
        "renewed": "UPDATE ffdb_locks SET expires_at = expires_at + interval '1 h'",
        "stolen": "UPDATE ffdb_locks SET lock_id = 'other'",
        "released": "DELETE FROM ffdb_locks",
    }[change]
    expected = {"renewed": 0, "stolen": 3, "released": 0 if verb[0] == "release" else 4}[change]
    with on_terminal(*verb, dsn=held) as terminal:
        terminal.expect_exact("[y/N]")
        with psycopg.connect(held) as conn:
            conn.execute(statement.encode())
        terminal.sendline("y")
        shown = terminal.read()
        terminal.wait()
    assert terminal.exitstatus == expected
    assert ("renewed" in shown) == (change == "renewed")
    assert (state(held) == "held") == (change == "stolen")
