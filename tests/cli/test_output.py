"""Cases 7, 19 and 20: standard output is data alone, exact or legible, and whoever reads it may leave."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
from typing import Any

import psycopg
import pytest

from lockctl.render import OWN_FORMATS
from lockctl.render.tabulated import known_formats
from tests.support.cli import LOCKCTL, clean_env, on_terminal, popen_lockctl
from tests.support.quick import run_quick

KEYS = [
    "[blue]",
    "[/x]",
    "[bold red]x[/]",
    ":warning:",
    "1e5",
    "00123",
    "0x1F",
    "-n",
    "",
    " lead and trail ",
    "a\nb",
    "a\tb\\c\\n",
    "\x1b[31mred\x07",
    "\u202eevil\u200b",
    "漢字" * 60,
    'say "hi", it\'s',
    "null",
    "%s {x} $HOME `id`",
    "a|b",
    "é\u0301",
]


@pytest.fixture
def odd(conn: psycopg.Connection[Any], dsn: str) -> str:
    """A database whose keys and holders are text that looks like something else."""
    for key in KEYS:
        conn.execute("INSERT INTO ffdb_locks VALUES (%s, %s, now() + interval '1 h')", (key, key))
    return dsn


def test_odd_keys_are_exact_where_programs_read(odd: str) -> None:
    """Case 7: the very text in json, jsonl, csv, and in tsv after its four escapes are undone."""
    expected = sorted(KEYS)

    def out(fmt: str) -> str:
        return run_quick("-f", fmt, "inspect", "ffdb_locks", dsn=odd).stdout

    assert sorted(row["key"][0] for row in json.loads(out("json"))) == expected
    assert sorted(json.loads(line)["holder"] for line in out("jsonl").splitlines()) == expected
    rows = list(csv.DictReader(io.StringIO(out("csv"), newline="")))
    assert sorted(row["key"] for row in rows) == sorted(row["holder"] for row in rows) == expected
    lines = out("tsv").split("\n")[1:-1]
    named = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}
    cells = [
        re.sub(
            r"\\(?:[tn\\]|x[0-9a-f]{2})", lambda m: named.get(m[0]) or chr(int("0" + m[0][1:], 0)), line.split("\t")[2]
        )
        for line in lines
    ]
    assert sorted(cells) == expected


def test_odd_keys_break_no_format(odd: str, conn: psycopg.Connection[Any]) -> None:
    """Case 7 and 20: as many lines as plain keys have, no control byte, no number made of a text, no line cut."""
    people = sorted({*OWN_FORMATS, *known_formats()} - {"json", "jsonl", "csv", "tsv"})
    outputs = {fmt: run_quick("-f", fmt, "inspect", "ffdb_locks", dsn=odd) for fmt in ["tsv", *people]}
    conn.execute("UPDATE ffdb_locks SET lock_key = 'plain ' || ctid::text, lock_id = 'plain'")
    for fmt, shown in outputs.items():
        assert (shown.returncode, shown.stderr) == (0, ""), fmt
        hidden = r"[\x00-\x08\x0b-\x1f\x7f]" if fmt == "tsv" else r"[\x00-\x08\x0b-\x1f\x7f\u202e\u200b]"
        assert not re.search(hidden, shown.stdout), fmt
        for text in ("1e5", "00123", "0x1F"):
            assert re.search(rf"\b{text}\b", shown.stdout), fmt
        assert "漢字" * 60 in shown.stdout, fmt
        plain = run_quick("-f", fmt, "inspect", "ffdb_locks", dsn=odd)
        assert len(shown.stdout.split("\n")) == len(plain.stdout.split("\n")), fmt


def test_odd_keys_are_legible_in_sentences_and_questions(odd: str) -> None:
    for key in ("\x1b[31mred\x07", "a\nb"):
        done = run_quick("acquire", "ffdb_locks", f"--key={key}", dsn=odd)
        assert (done.returncode, "\x1b" in done.stderr, done.stderr.count("\n")) == (3, False, 1)
        with on_terminal("release", "ffdb_locks", f"--key={key}", "--force", dsn=odd) as terminal:
            terminal.expect_exact("[y/N]")
            assert "\x1b[31m" not in (terminal.before or "")
            terminal.sendline("n")
            terminal.expect(r"nothing was changed")


def test_a_pipe_gets_whole_lines_without_colour(odd: str) -> None:
    """Case 20: piped output is neither wrapped at 80 columns nor coloured, whatever the environment asks for."""
    env = {"COLUMNS": "40", "FORCE_COLOR": "1", "CLICOLOR_FORCE": "1"}
    for fmt in ("table", "tsv", "psql"):
        done = run_quick("-f", fmt, "inspect", "ffdb_locks", "--limit", "3", dsn=odd, env=env)
        assert "\x1b" not in done.stdout + done.stderr
        assert max(map(len, done.stdout.splitlines())) > 100


@pytest.mark.parametrize("fmt", ["tsv", "csv", "json", "jsonl", "table", "plain"])
def test_a_reader_that_leaves_is_no_error(conn: psycopg.Connection[Any], dsn: str, fmt: str) -> None:
    """Case 20: `| head -1` gets its line, and standard error is silent."""
    conn.execute("INSERT INTO ffdb_locks SELECT 'k' || n, repeat('x', 99), now() FROM generate_series(1, 3000) AS n")
    with popen_lockctl("-f", fmt, "inspect", "ffdb_locks", dsn=dsn) as process:
        head = subprocess.run(["head", "-1"], stdin=process.stdout, capture_output=True, check=True)
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)
    assert head.stdout.count(b"\n") == 1


def test_a_closed_standard_output_is_said_in_one_line(dsn: str) -> None:
    for redirect in (">&-", ">/dev/full"):
        shell = f'"$@" -f json tables {redirect}'
        done = subprocess.run(
            ["sh", "-c", shell, "sh", *LOCKCTL], env=clean_env(dsn), capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert (done.stderr.count("\n") <= 2, "Traceback" in done.stderr) == (True, False)


def test_a_reader_that_has_left_does_not_change_what_the_exit_code_says(dsn: str) -> None:
    """check answers by its exit code, and a change that was made stays made."""
    run_quick("acquire", "ffdb_locks", "held", "--holder", "me", dsn=dsn)
    for words, code in (
        ("check ffdb_locks free", 4),
        ("check ffdb_locks held", 0),
        ("check ffdb_locks held --holder you", 3),
        ("-f json extend ffdb_locks held --holder you", 3),
        ("-f json extend ffdb_locks free --holder you", 4),
        ("-f json release ffdb_locks held --holder me", 0),
    ):
        with popen_lockctl(*words.split(), dsn=dsn) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.wait(30) == code
            assert process.stderr is not None
            assert b"Broken" not in process.stderr.read()


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_gets_colour_unless_it_is_unwanted(odd: str, environment: dict[str, str | None]) -> None:
    with on_terminal("inspect", "ffdb_locks", dsn=odd, env=environment, size=(60, 250)) as terminal:
        terminal.expect_exact("00123")
        terminal.expect(r".*$")
        shown = (terminal.before or "") + terminal.read()
    assert ("\x1b[" in shown) == (not environment)
    if not environment:
        with on_terminal("--no-color", "inspect", "ffdb_locks", dsn=odd) as terminal:
            assert "\x1b[" not in terminal.read()


def test_the_locale_does_not_change_what_programs_read(odd: str) -> None:
    done = subprocess.run(
        [*LOCKCTL, "-f", "json", "inspect", "ffdb_locks"],
        env=clean_env(
            odd, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "latin-1"}
        ),
        capture_output=True,
        check=True,
    )
    assert sorted(row["key"][0] for row in json.loads(done.stdout.decode("utf-8"))) == sorted(KEYS)


def test_an_error_is_json_in_every_encoding(dsn: str) -> None:
    for encoding in ("ascii", "latin-1", "utf-8"):
        done = subprocess.run(
            [*LOCKCTL, "-f", "json", "check", "nope漢é", "k"],
            env=clean_env(dsn, {"PYTHONIOENCODING": encoding}),
            capture_output=True,
            check=False,
        )
        assert "nope漢é" in json.loads(done.stderr.decode("utf-8"))["message"], encoding


def test_a_change_whose_result_can_not_be_written_is_told(dsn: str) -> None:
    """Exit 1 alone would look as if nothing had been done."""
    run_quick("acquire", "ffdb_locks", "nightly", "--holder", "me", dsn=dsn)
    with open("/dev/full", "wb") as full:  # noqa: PTH123 (a device)
        done = subprocess.run(
            [*LOCKCTL, "-f", "json", "release", "ffdb_locks", "nightly", "--holder", "me"],
            env=clean_env(dsn),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
        told = json.loads(done.stderr)["message"]
        assert done.returncode == 1
        assert "released ffdb_locks nightly" in told
        assert "No space left" in told
        listed = subprocess.run(
            [*LOCKCTL, "tables"], env=clean_env(dsn), stdout=full, stderr=subprocess.PIPE, check=False
        )
        assert (listed.returncode, listed.stderr) == (
            1,
            b"lockctl: standard output can't be written: No space left on device\n",
        )
