"""inspect, tables and sweep: what they list, filter, sort, count and delete, in every format."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import tables as real
from tests.support.cli import Result, on_terminal, popen_lockctl
from tests.support.quick import run_quick

ROW = ["table", "relation", "key", "holder", "state", "expires_at", "remaining_ms", "created_at", "updated_at"]
SWEEP = ["table", "relation", "swept", "skipped", "dry_run", "oldest_expires_at"]
TABLES = ["table", "relation", "present", "key_columns", "holder_column", "expiry_column", "expiry_type"]


@pytest.fixture
def rows(conn: psycopg.Connection[Any], dsn: str) -> str:
    """ffdb_locks: a (lapsed an hour), b (two minutes), c (a minute left), d (a day left); verrou: late, never, odd."""
    conn.execute(
        "INSERT INTO ffdb_locks (lock_key, lock_id, expires_at, created_at)"
        " SELECT k, 'h-' || k, now() + e * interval '1 s', now() - n * interval '1 h'"
        " FROM (VALUES ('a', -3600, 1), ('b', -120, 4), ('c', 60, 3), ('d', 86400, 2)) AS v (k, e, n)"
    )
    conn.execute(
        "INSERT INTO verrou VALUES ('never', 'h-a', NULL), ('late', 'h-x', 1000), ('odd', 'h-x', 9223372036854775806)"
    )
    return dsn


def keys(done: Result) -> list[str]:
    assert done.returncode == 0, done.stderr
    return [row["key"][0] for row in done.jsonl()]


FILTERS = [
    ("ffdb_locks", "a b c d"),
    ("ffdb_locks --state held", "c d"),
    ("ffdb_locks --state lapsed", "a b"),
    ("ffdb_locks --holder h-c", "c"),
    ("ffdb_locks --lapsed-for 30m", "a"),
    ("ffdb_locks --lapsed-for 1m", "a b"),
    ("ffdb_locks --expires-within 1h", "c"),
    ("ffdb_locks --expires-within 2d", "c d"),
    ("ffdb_locks --sort created", "b c d a"),
    ("ffdb_locks --sort expires", "a b c d"),
    ("ffdb_locks --limit 2", "a b"),
    ("ffdb_locks --limit 2 --sort created", "b c"),
    ("ffdb_locks b", "b"),
    ("ffdb_locks nope", ""),
    ("verrou", "late never odd"),
    ("verrou --sort expires", "late odd never"),
    ("verrou --state held", "never odd"),
    ("verrou --expires-within 1d", ""),
    ("agent_task_run_lock", ""),
    ("", "a b c d late never odd"),
    ("--holder h-a", "a never"),
    ("--sort created", "b c d a late never odd"),
    ("--sort expires --limit 5", "a b c d late"),
    ("--state lapsed --limit 9", "a b late"),
]


def test_inspect_filters_and_sorts(rows: str) -> None:
    for options, expected in FILTERS:
        done = run_quick("-f", "jsonl", "inspect", *options.split(), dsn=rows)
        assert keys(done) == expected.split(), options


def test_inspect_of_a_lease_that_never_expires(rows: str) -> None:
    found = {row["key"][0]: row for row in run_quick("-f", "json", "inspect", "verrou", dsn=rows).json()}
    assert (found["never"]["expires_at"], found["never"]["remaining_ms"]) == (None, None)
    assert found["never"]["state"] == "held"
    assert found["odd"]["state"] == "held"
    assert found["late"]["expires_at"] == "1970-01-01T00:00:01.000000Z"
    done = run_quick("-f", "json", "force-expire", "verrou", "never", "-y", dsn=rows)
    assert (done.json()["outcome"], done.json()["lock"]["state"]) == ("expired", "lapsed")


def test_the_summary_counts_by_table_and_state(rows: str) -> None:
    done = run_quick("-f", "json", "inspect", "--summary", dsn=rows).json()
    counts = {(line["table"], line["state"]): line["count"] for line in done}
    assert (counts["ffdb_locks", "held"], counts["ffdb_locks", "lapsed"]) == (2, 2)
    assert (counts["verrou", "held"], counts["verrou", "lapsed"]) == (2, 1)
    assert (counts["run_leases", "held"], counts["run_leases", "lapsed"]) == (0, 0)
    only = run_quick("-f", "json", "inspect", "--summary", "--holder", "h-a", "--state", "held", dsn=rows).json()
    assert sum(line["count"] for line in only) == 1


def test_nothing_is_an_empty_list_in_every_format(dsn: str) -> None:
    """Case 19: `[]`, no line, a header alone; standard output is JSON only, standard error is silent."""
    shown = {fmt: run_quick("-f", fmt, "inspect", dsn=dsn) for fmt in ("json", "jsonl", "csv", "tsv", "table")}
    assert all((done.returncode, done.stderr) == (0, "") for done in shown.values())
    assert (shown["json"].stdout, shown["jsonl"].stdout) == ("[]\n", "")
    assert shown["csv"].stdout == ",".join(ROW) + "\n"
    assert shown["tsv"].stdout == "\t".join(ROW) + "\n"
    for verb in (("inspect", "ffdb_locks", "nightly"), ("sweep", "--rows"), ("-v", "inspect", "verrou")):
        assert run_quick("-f", "json", *verb, dsn=dsn).stdout == "[]\n"


def test_rows_have_the_same_fields_in_every_format(rows: str) -> None:
    exact = run_quick("-f", "json", "inspect", "ffdb_locks", dsn=rows).json()
    assert all(list(row) == ROW for row in exact)
    lines = list(csv.DictReader(io.StringIO(run_quick("-f", "csv", "inspect", "ffdb_locks", dsn=rows).stdout)))
    for line, row in zip(lines, exact, strict=True):
        assert list(line) == ROW
        assert (line["key"], line["holder"], line["updated_at"]) == (row["key"][0], row["holder"], "")
    for fmt in ("csv", "tsv", "plain", "github"):
        with_header, without = (
            run_quick("-f", fmt, "inspect", "ffdb_locks", *more, dsn=rows).stdout for more in ((), ("--no-header",))
        )
        assert ("relation" in with_header, "relation" in without) == (True, False)


def test_tables_tells_what_is_there_and_how_it_is_shaped(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as conn:
        real.fireflow(conn)
        real.n8n(conn, schema="n8n_app")
    found = {row["table"]: row for row in run_quick("-f", "json", "tables", dsn=empty_dsn).json()}
    assert set(found) >= {"ffdb_locks", "agent_task_run_lock", "verrou", "run_leases"}
    ffdb = found["ffdb_locks"]
    assert list(ffdb) == [*TABLES, "default_ttl_ms", "note"]
    assert (ffdb["relation"], ffdb["present"], ffdb["expiry_type"]) == (
        "public.ffdb_locks",
        True,
        "timestamp without time zone",
    )
    assert (ffdb["key_columns"], ffdb["holder_column"], ffdb["expiry_column"]) == (
        ["lock_key"],
        "lock_id",
        "expires_at",
    )
    assert (found["agent_task_run_lock"]["present"], found["verrou"]["present"]) == (False, False)
    other = run_quick("-f", "json", "--schema", "n8n_app", "tables", dsn=empty_dsn).json()
    assert [row["table"] for row in other if row["present"]] == ["agent_task_run_lock"]


def test_sweep_deletes_what_has_lapsed_for_longer_than_the_grace(rows: str) -> None:
    dry = run_quick("-f", "json", "sweep", "ffdb_locks", "--dry-run", "--grace", "30m", dsn=rows)
    (line,) = dry.json()
    assert list(line) == SWEEP
    assert (line["swept"], line["skipped"], line["dry_run"]) == (1, 0, True)
    assert len(run_quick("-f", "jsonl", "inspect", "ffdb_locks", dsn=rows).jsonl()) == 4

    (line,) = run_quick("-f", "json", "sweep", "ffdb_locks", "--grace", "30m", dsn=rows).json()
    assert (line["swept"], line["dry_run"], line["oldest_expires_at"][-1]) == (1, False, "Z")
    assert keys(run_quick("-f", "jsonl", "inspect", "ffdb_locks", dsn=rows)) == ["b", "c", "d"]
    done = run_quick("-f", "json", "sweep", dsn=rows).json()
    assert {line["table"]: line["swept"] for line in done} == {
        "ffdb_locks": 1,
        "agent_task_run_lock": 0,
        "verrou": 1,
        "run_leases": 0,
    }


def test_sweep_lists_the_rows_that_it_deletes_or_would(rows: str) -> None:
    would = run_quick("-f", "jsonl", "sweep", "--rows", "--dry-run", dsn=rows).jsonl()
    done = run_quick("-f", "jsonl", "sweep", "--rows", dsn=rows).jsonl()
    for listed in (would, done):
        assert [(row["table"], row["key"]) for row in listed] == [
            ("ffdb_locks", ["a"]),
            ("ffdb_locks", ["b"]),
            ("verrou", ["late"]),
        ]
        assert all(list(row) == ROW and row["state"] == "lapsed" for row in listed)


def test_sweep_has_a_limit_over_all_tables(rows: str) -> None:
    done = run_quick("-f", "json", "sweep", "--limit", "2", "--batch", "1", dsn=rows).json()
    assert sum(line["swept"] for line in done) == 2
    assert keys(run_quick("-f", "jsonl", "inspect", "--state", "lapsed", dsn=rows)) == ["late"]


def test_sweep_under_a_limit_counts_as_skipped_only_what_was_locked(conn: psycopg.Connection[Any], dsn: str) -> None:
    conn.execute("INSERT INTO ffdb_locks SELECT 'k' || n, 'h', now() - interval '1 h' FROM generate_series(0, 9) AS n")
    with psycopg.connect(dsn) as other:
        other.execute("SELECT 1 FROM ffdb_locks WHERE lock_key = 'k0' FOR UPDATE")
        (line,) = run_quick("-f", "json", "sweep", "ffdb_locks", "--limit", "3", "--batch", "2", dsn=dsn).json()
        assert (line["swept"], line["skipped"]) == (3, 1)
        (line,) = run_quick("-f", "json", "sweep", "ffdb_locks", dsn=dsn).json()
        assert (line["swept"], line["skipped"]) == (6, 1)


def test_the_metrics_of_a_sweep_are_a_prometheus_file(rows: str, tmp_path: Path) -> None:
    file = tmp_path / "lockctl.prom"
    assert run_quick("sweep", "--metrics", str(file), dsn=rows).returncode == 0
    samples = {
        (sample.name, sample.labels.get("table")): sample.value
        for family in text_string_to_metric_families(file.read_text())
        for sample in family.samples
    }
    assert samples["lockctl_sweep_swept_rows", "ffdb_locks"] == 2
    assert samples["lockctl_sweep_skipped_rows", "verrou"] == 0
    assert any("timestamp" in name for name, _ in samples)
    assert list(tmp_path.iterdir()) == [file]
    nowhere = run_quick("sweep", "--metrics", str(tmp_path / "no" / "x.prom"), dsn=rows)
    assert (nowhere.returncode, "Traceback" in nowhere.stderr) == (1, False)


def test_a_table_whose_rows_stay_is_never_swept(rows: str, tmp_path: Path) -> None:
    config = tmp_path / "lockctl.toml"
    config.write_text('[tables.verrou]\nlike = "verrou"\nsweep = false\n')
    done = run_quick("-f", "json", "--config", str(config), "sweep", "--grace", "0s", dsn=rows).json()
    assert "verrou" not in [line["table"] for line in done]
    for words in (("sweep", "verrou"), ("acquire", "verrou", "k", "--purge-expired")):
        refused = run_quick("--config", str(config), *words, dsn=rows)
        assert (refused.returncode, "sweep = false" in refused.stderr) == (2, True)
    assert len(run_quick("-f", "jsonl", "inspect", "verrou", dsn=rows).jsonl()) == 3


def test_a_terminal_gets_the_first_rows_and_a_note_and_a_pipe_gets_all(conn: psycopg.Connection[Any], dsn: str) -> None:
    conn.execute("INSERT INTO ffdb_locks SELECT 'k' || n, 'h', now() FROM generate_series(1000, 1249) AS n")
    assert len(run_quick("inspect", dsn=dsn).stdout.splitlines()) == 251
    with on_terminal("inspect", dsn=dsn, size=(50, 200)) as terminal:
        terminal.expect("only the first 200 rows")
        terminal.expect_exact("k1199")
        terminal.expect(r".*$")
        assert "k1200" not in terminal.read()
    with on_terminal("inspect", "--limit", "250", dsn=dsn, size=(50, 200)) as terminal:
        terminal.expect_exact("k1249")


def test_a_sweep_on_a_terminal_shows_how_far_it_is(rows: str) -> None:
    with on_terminal("sweep", "--batch", "1", dsn=rows) as terminal:
        terminal.expect_exact("public.ffdb_locks: deleted 2 lapsed rows")
        terminal.expect_exact("public.verrou: deleted 1 lapsed rows")
        assert "Traceback" not in terminal.read()
        terminal.wait()
    assert terminal.exitstatus == 0


def test_watch_shows_the_rows_again_until_it_is_interrupted(rows: str) -> None:
    with popen_lockctl("-f", "jsonl", "inspect", "ffdb_locks", "a", "--watch", "50ms", dsn=rows) as process:
        assert process.stdout is not None
        for _ in range(3):
            assert re.search(rb'"key":\["a"\]', process.stdout.readline())
        process.terminate()
        assert process.wait(20) == 143
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
