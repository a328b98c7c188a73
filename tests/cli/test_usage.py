"""Bad command lines: exit 2, one sentence that says what to do, nothing done, and no connection needed to say so."""

from __future__ import annotations

import json

import pytest

from tests.support.quick import run_quick

NOWHERE = "host=/nonexistent dbname=nowhere"


@pytest.mark.parametrize("form", ["5", "0", "0s", "-5s", "1.5m", "5 m", "5x", "", "s", "5m5m", "1s1h", "999999d"])
@pytest.mark.parametrize(
    "option",
    ["acquire --ttl", "extend --holder h --ttl", "acquire --wait", "inspect --lapsed-for", "inspect --expires-within"],
)
def test_a_wrong_duration_is_refused_with_the_option_and_the_form(option: str, form: str) -> None:
    verb, *words = option.split()
    done = run_quick(verb, "ffdb_locks", "nightly", *words, form, dsn=NOWHERE)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words[-1] in done.stderr


def test_a_bare_number_is_asked_for_its_unit() -> None:
    done = run_quick("acquire", "ffdb_locks", "nightly", "--ttl", "30", dsn=NOWHERE)
    assert "30s" in done.stderr
    assert "no unit" in done.stderr


@pytest.mark.parametrize("form", ["0", "5", "-1s", "x"])
def test_the_deadline_of_a_command_is_a_duration_too(form: str) -> None:
    done = run_quick("tables", "--timeout", form, dsn=NOWHERE)
    assert (done.returncode, "--timeout" in done.stderr) == (2, True)


def test_nought_is_a_grace_and_a_bare_number_is_none(dsn: str) -> None:
    assert run_quick("sweep", "--grace", "0s", dsn=dsn).returncode == 0
    done = run_quick("sweep", "--grace", "5", dsn=dsn)
    assert (done.returncode, "--grace" in done.stderr) == (2, True)


@pytest.mark.parametrize("verb", ["check", "acquire", "extend", "release", "force-expire", "inspect"])
@pytest.mark.parametrize("words", ["agent_task_run_lock a", "agent_task_run_lock a t x", "ffdb_locks a b"])
def test_a_wrong_number_of_words_names_the_key_columns(verb: str, words: str) -> None:
    done = run_quick(verb, *words.split(), dsn=NOWHERE)
    assert (done.returncode, done.stdout) == (2, "")
    expected = ["lock_key"] if words.startswith("ffdb") else ["agentId", "taskId"]
    assert all(name in done.stderr for name in expected)


@pytest.mark.parametrize(
    "line",
    [
        "nope",
        "acquire nope nightly",
        "inspect nope",
        "sweep nope",
        "acquire ffdb_locks nightly --nope",
        "--nope tables",
        "acquire ffdb_locks nightly --attempts 0",
        "acquire ffdb_locks nightly --attempts x",
        "inspect --state nope",
        "inspect --sort nope",
        "inspect --limit 0",
        "inspect --limit x",
        "sweep --batch 0",
        "sweep --limit -1",
        "tables --format nope",
        "tables -f",
        "tables extra",
        "--schema  tables",
    ],
)
@pytest.mark.parametrize("fmt", ["text", "json", "jsonl"])
def test_every_usage_error_is_two_lines_or_one_object(line: str, fmt: str) -> None:
    """A sentence and a hint, under json one object with the word `usage`; no traceback, nothing on standard output."""
    done = run_quick(*(() if fmt == "text" else (f"-f{fmt}",)), *line.split(" "), dsn=NOWHERE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    if fmt == "text":
        assert lines[0].startswith("lockctl: ")
        assert len(lines) <= 2
    else:
        (only,) = lines
        error = json.loads(only)
        assert (error["error"], set(error) >= {"error", "message", "hint"}) == ("usage", True)


@pytest.mark.parametrize("form", ["-f json", "-fjson", "--format json", "--format=json", "-qf json", "-vyfjson"])
def test_an_error_of_the_command_line_itself_is_json_too(form: str) -> None:
    """Parsing failed, so the format is read from the words as they stand."""
    for words in (["acquire", "ffdb_locks", "k", "--nope", *form.split()], ["acquire", *form.split(), "--nope"]):
        done = run_quick(*words, dsn=NOWHERE)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.error()["error"] == "usage"
    for words in (["acquire", "--nope", "--", *form.split()], ["acquire", "--nope", *form.split(), "-f", "csv"]):
        assert run_quick(*words, dsn=NOWHERE).stderr.startswith("lockctl: ")


def test_without_a_command_the_help_is_shown() -> None:
    done = run_quick()
    assert (done.returncode, "acquire" in done.stdout) == (2, True)
    for help_ in (run_quick("--help"), run_quick("acquire", "--help"), run_quick("--version")):
        assert (help_.returncode, help_.stderr) == (0, "")
    assert run_quick("--version").stdout.startswith("lockctl ")


@pytest.mark.parametrize(
    "line",
    [
        "-f json check ffdb_locks nightly",
        "check -f json ffdb_locks nightly",
        "check ffdb_locks nightly -f json",
        "check ffdb_locks nightly --format=json -q",
        "-f csv check ffdb_locks nightly -fjson",
        "check ffdb_locks -qf json --key nightly",
        "-q check --no-color ffdb_locks --format json nightly --timeout 9s",
        "check -f json -- ffdb_locks nightly",
    ],
)
def test_shared_options_stand_before_or_after_the_command(dsn: str, line: str) -> None:
    done = run_quick(*line.split(), dsn=dsn)
    assert (done.returncode, done.json()["outcome"]) == (4, "free")


def test_a_later_option_wins_over_an_earlier_one(dsn: str) -> None:
    done = run_quick("--dsn", NOWHERE, "-f", "json", "tables", "--dsn", dsn, "-f", "csv")
    assert (done.returncode, done.stdout.splitlines()[0].split(",")[0]) == (0, "table")


@pytest.mark.parametrize("key", ["-n", "--yes", "--", "--format=json", "-", "--key"])
def test_a_key_that_looks_like_an_option_has_two_ways_in(dsn: str, key: str) -> None:
    by_option = run_quick("-f", "json", "acquire", "ffdb_locks", f"--key={key}", "--holder", "me", dsn=dsn)
    assert by_option.json()["lock"]["key"] == [key]
    by_dashes = run_quick("-f", "json", "check", "ffdb_locks", "--", key, dsn=dsn)
    assert (by_dashes.returncode, by_dashes.json()["lock"]["key"]) == (0, [key])
    two = run_quick("-f", "json", "check", "agent_task_run_lock", f"--key={key}", f"--key={key}", dsn=dsn)
    assert two.json()["lock"]["key"] == [key, key]


def test_a_mistaken_option_says_where_such_a_key_goes(dsn: str) -> None:
    done = run_quick("check", "ffdb_locks", "--nightly", dsn=dsn)
    assert (done.returncode, "--key=--nightly" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "line",
    [
        "acquire agent_task_run_lock a t --holder host-1",
        "extend agent_task_run_lock a t --holder host-1",
        "release agent_task_run_lock a t --holder host-1",
        "release agent_task_run_lock a t --holder host-1 --force -y",
        "force-expire agent_task_run_lock a t --holder host-1 -y",
        "check agent_task_run_lock a t --holder host-1",
        "inspect agent_task_run_lock --holder host-1",
        "acquire agent_task_run_lock LONG t",
        "force-expire agent_task_run_lock a LONG -y",
        "release verrou LONG --force -y",
        "acquire verrou k --holder LONG --purge-expired",
    ],
)
def test_a_value_that_the_column_cannot_take_is_refused_before_anything_happens(dsn: str, line: str) -> None:
    """Case 8 from outside, the verbs that ask first included."""
    run_quick("acquire", "agent_task_run_lock", "a", "t", dsn=dsn)
    before = run_quick("-f", "json", "inspect", dsn=dsn).json()
    done = run_quick(*(word.replace("LONG", "漢" * 300) for word in line.split()), dsn=dsn)
    assert (done.returncode, done.stdout) == (2, "")
    assert "takes" in done.stderr
    after = run_quick("-f", "json", "inspect", dsn=dsn).json()
    assert [(row["key"], row["expires_at"]) for row in after] == [(row["key"], row["expires_at"]) for row in before]


def test_text_that_is_no_utf8_is_a_bad_argument_wherever_it_stands(dsn: str) -> None:
    for line in (
        ["tables", "--schema", "a\udcff"],
        ["inspect", "ffdb_locks", "--holder", "a\udcff"],
        ["check", "ffdb_locks", "a\udcff"],
        ["acquire", "ffdb_locks", "k", "--holder", "a\udcff"],
        ["runs", "show", "a\udcff"],
        ["work", "revive", "a\udcff", "--source", "run_store", "--yes"],
    ):
        done = run_quick(*line, dsn=dsn)
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), (line, done.stderr)
