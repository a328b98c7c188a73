"""The runs and work commands as scripts see them: exit codes, JSON, and what is said where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lockctl.runs import store
from tests.support import dbos
from tests.support.cli import Result, on_terminal, run_lockctl
from tests.support.sessions import connect

Conn = psycopg.Connection[Any]
RUN = [
    "source", "id", "name", "status", "started_at", "age_ms", "holder", "lease_expires_at", "class", "evidence",
    "queue", "queue_slots", "attempts", "last_activity_at", "deadline_at", "sleeping_until",
]  # fmt: skip
HOUR = 3_600_000


def start(dsn: str, *runs: str, at: str = "2026-01-01T00:00:00Z") -> None:
    with connect(dsn) as session:
        for run in runs:
            store.start(session, run, file="f", movement="nightly", input_="{}", started_at=at)


def bury(dsn: str, key: str, kind: str = "mail", payload: Any = None) -> str:
    with connect(dsn) as session:
        store.enqueue(session, kind=kind, key=key, payload=payload or {"n": 1})
        (row,) = store.claim_due(session, limit=1, lease_ms=HOUR)
        store.bury(session, row.id, row.claim, "no such address")
        return row.id


def work(*args: str, dsn: str) -> Result:
    return run_lockctl("--format", "json", *args, dsn=dsn)


# -- lists -----------------------------------------------------------------------------------------------------------


def test_no_lapsed_run_is_an_empty_list_and_success(dsn: str) -> None:
    done = work("runs", "lapsed", dsn=dsn)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")
    assert work("runs", "lapsed", "--fail-if-any", dsn=dsn).returncode == 0


def test_lapsed_runs_are_objects_with_the_fields_of_the_contract(dsn: str) -> None:
    start(dsn, "r")
    done = work("runs", "lapsed", dsn=dsn)
    (run,) = done.json()
    assert done.returncode == 0
    assert list(run) == RUN
    assert (run["source"], run["id"], run["class"], run["status"]) == ("run_store", "r", "never_leased", "running")
    assert run["started_at"] == "2026-01-01T00:00:00.000000Z"
    assert run["age_ms"] > 0
    assert run["queue"] is run["attempts"] is run["holder"] is None


def test_a_lapsed_run_fails_a_cron_job_that_asks_for_it(dsn: str) -> None:
    start(dsn, "r")
    done = work("runs", "lapsed", "--fail-if-any", dsn=dsn)
    assert (done.returncode, [run["id"] for run in done.json()]) == (4, ["r"])


def test_lapsed_takes_stale_and_limit_and_a_bare_number_is_no_duration(dsn: str) -> None:
    start(dsn, "a", "b", at="2026-01-01T00:00:00Z")
    assert [run["id"] for run in work("runs", "lapsed", "--limit", "1", dsn=dsn).json()] == ["a"]
    assert work("runs", "lapsed", "--stale", "36500d", dsn=dsn).json() == []
    assert work("runs", "lapsed", "--stale", "5", dsn=dsn).returncode == 2


def test_the_default_list_is_one_header_and_one_line_a_run(dsn: str) -> None:
    start(dsn, "with\ttab", "plain")
    done = run_lockctl("runs", "lapsed", dsn=dsn)
    assert done.stdout.splitlines()[0].split("\t") == RUN
    assert [line.split("\t")[1] for line in done.stdout.splitlines()[1:]] == ["plain", "with\\ttab"]


def test_every_source_that_is_present_is_listed_oldest_first(dsn: str, conn: Conn) -> None:
    dbos.make(conn)
    start(dsn, "old", at="2020-01-01T00:00:00Z")
    start(dsn, "young", at="2026-10-01T00:00:00Z")
    dbos.run(conn, "flow", age="1000 days")
    done = work("runs", "lapsed", "--none-live", dsn=dsn)
    assert [(run["source"], run["id"]) for run in done.json()] == [
        ("run_store", "old"),
        ("dbos", "flow"),
        ("run_store", "young"),
    ]
    listed = work("runs", "list", "--limit", "2", dsn=dsn).json()
    assert [run["id"] for run in listed] == ["young", "flow"]
    assert [run["id"] for run in work("runs", "list", "--source", "dbos", dsn=dsn).json()] == ["flow"]
    assert work("runs", "list", "--status", "completed", dsn=dsn).json() == []


def test_without_evidence_the_output_says_so_and_calls_nothing_lapsed(dsn: str, conn: Conn) -> None:
    dbos.make(conn)
    dbos.run(conn, "flow")
    done = run_lockctl("runs", "lapsed", "--source", "dbos", "-f", "json", dsn=dsn)
    assert (done.returncode, done.json()) == (0, [])
    warning = json.loads(done.stderr)["warning"]
    assert "no evidence" in warning
    assert "--live" in warning
    assert "w1" in warning
    assert run_lockctl("runs", "lapsed", "--fail-if-any", dsn=dsn).returncode == 4
    live = run_lockctl("runs", "lapsed", "--live", "w1", "--fail-if-any", "-f", "json", dsn=dsn)
    assert (live.returncode, live.json(), live.stderr) == (0, [], "")


def test_what_orphans_hold_of_a_queue_is_said(dsn: str, conn: Conn) -> None:
    dbos.make(conn)
    dbos.run(conn, "gone", executor_id="w2", queue_name="q")
    dbos.run(conn, "held", executor_id="w1", queue_name="q")
    with dbos.worker(dsn, "w1"):
        done = run_lockctl("runs", "lapsed", "--source", "dbos", dsn=dsn)
    assert "hold 1 of the 2 slots" in done.stderr


def test_one_run_is_shown_whole(dsn: str) -> None:
    start(dsn, "r")
    bury(dsn, "mail:1", payload={"runId": "r"})
    with connect(dsn) as session:
        token = store.claim(session, store.leases(session), "r", HOUR)
    done = work("runs", "show", "r", dsn=dsn)
    run = done.json()
    assert list(run) == [*RUN, "lease", "work", "steps", "next"]
    assert (run["class"], run["holder"]) == (None, token)
    assert (run["lease"]["table"], run["lease"]["key"], run["lease"]["state"]) == ("run_leases", ["r"], "held")
    assert [(item["key"], item["state"], item["reason"]) for item in run["work"]] == [
        ("mail:1", "buried", "no such address")
    ]
    assert run["steps"] == []
    assert any(command.startswith("lockctl work revive --source run_store ") for command in run["next"])


def test_a_run_that_is_not_there_is_exit_4(dsn: str) -> None:
    done = work("runs", "show", "nope", dsn=dsn)
    assert (done.returncode, done.stdout, done.error()["error"]) == (4, "", "not_held")


def test_a_run_id_of_two_sources_needs_the_source(dsn: str, conn: Conn) -> None:
    dbos.make(conn)
    dbos.run(conn, "r")
    start(dsn, "r")
    done = work("runs", "show", "r", dsn=dsn)
    assert done.returncode == 2
    assert "--source" in done.error()["hint"]
    assert work("runs", "show", "r", "--source", "dbos", dsn=dsn).json()["source"] == "dbos"


def test_a_database_without_any_source_is_behind(empty_dsn: str) -> None:
    for command in (("runs", "lapsed"), ("runs", "list"), ("work", "buried"), ("runs", "cancel", "r", "--yes")):
        done = work(*command, dsn=empty_dsn)
        assert (done.returncode, done.error()["error"]) == (8, "behind")
    assert work("runs", "lapsed", "--source", "dbos", dsn=empty_dsn).returncode == 8


def test_an_unknown_source_is_a_usage_error_that_names_the_known(dsn: str) -> None:
    done = work("runs", "lapsed", "--source", "nope", dsn=dsn)
    assert done.returncode == 2
    assert "run_store, dbos" in done.error()["hint"]


def test_a_source_of_the_configuration_is_one_more(dsn: str, conn: Conn, tmp_path: Path) -> None:
    conn.execute("CREATE SCHEMA wf; CREATE TABLE wf.runs AS SELECT *, id AS run_id FROM run_store.runs")
    conn.execute(
        "INSERT INTO wf.runs (run_id, movement, status, started_at) VALUES ('mine', 'm', 'running', '2026-01-01')"
    )
    config = tmp_path / "lockctl.toml"
    config.write_text('[sources.mine]\nlike = "run_store"\nruns = { relation = "wf.runs", id = "run_id" }\n')
    found = run_lockctl("runs", "lapsed", "--config", str(config), "-f", "json", dsn=dsn).json()
    assert [(run["source"], run["id"]) for run in found] == [("mine", "mine")]
    config.write_text('[sources.mine]\nlike = "run_store"\nrun = { relation = "wf.runs" }\n')
    done = run_lockctl("runs", "lapsed", "--config", str(config), dsn=dsn)
    assert done.returncode == 2
    assert "lockctl.toml:3" in done.stderr


# -- work ------------------------------------------------------------------------------------------------------------


def test_buried_work_is_objects_with_the_fields_of_the_contract(dsn: str) -> None:
    assert work("work", "buried", dsn=dsn).stdout == "[]\n"
    item = bury(dsn, "mail:1", payload={"big": 12345678901234567890, "text": "é"})
    (found,) = work("work", "buried", dsn=dsn).json()
    assert list(found) == ["source", "id", "kind", "key", "reason", "attempts", "buried_at", "payload"]
    assert found["id"] == item
    assert (found["kind"], found["key"], found["reason"], found["attempts"]) == (
        "mail",
        "mail:1",
        "no such address",
        1,
    )
    assert found["payload"] == {"big": 12345678901234567890, "text": "é"}


def test_buried_work_is_counted_by_kind_and_reason(dsn: str) -> None:
    for number in range(3):
        bury(dsn, f"mail:{number}")
    bury(dsn, "call:1", kind="call")
    found = work("work", "buried", "--summary", dsn=dsn).json()
    assert [(row["kind"], row["reason"], row["count"]) for row in found] == [
        ("mail", "no such address", 3),
        ("call", "no such address", 1),
    ]
    assert [row["kind"] for row in work("work", "buried", "--kind", "call", dsn=dsn).json()] == ["call"]
    assert len(work("work", "buried", "--limit", "2", dsn=dsn).json()) == 2


def test_revived_work_is_reported_with_the_row_it_was(dsn: str, conn: Conn) -> None:
    item = bury(dsn, "mail:1")
    done = work("work", "revive", item, "--yes", dsn=dsn)
    (change,) = done.json()
    assert done.returncode == 0
    assert (change["id"], change["outcome"], change["previous"]["reason"]) == (item, "revived", "no such address")
    again = work("work", "revive", item, "nope", "--yes", dsn=dsn)
    assert again.returncode == 3
    assert [(row["outcome"], bool(row["why"])) for row in again.json()] == [("skipped", True), ("not_found", False)]
    assert work("work", "revive", "nope", "--yes", dsn=dsn).returncode == 4


def test_everything_of_a_kind_is_revived(dsn: str) -> None:
    items = {bury(dsn, f"mail:{number}") for number in range(3)}
    call = bury(dsn, "call:1", kind="call")
    done = work("work", "revive", "--all", "--kind", "mail", "--yes", dsn=dsn)
    assert done.returncode == 0
    assert {change["id"] for change in done.json()} == items
    assert [row["id"] for row in work("work", "buried", dsn=dsn).json()] == [call]
    assert work("work", "revive", "--all", "--kind", "none", "--yes", dsn=dsn).stdout == "[]\n"


@pytest.mark.parametrize(
    "words",
    [("work", "revive"), ("work", "revive", "--all", "x"), ("work", "revive", "x", "--kind", "k"), ("runs", "cancel")],
)
def test_what_to_change_must_be_said(dsn: str, words: tuple[str, ...]) -> None:
    assert work(*words, "--yes", dsn=dsn).returncode == 2


# -- changes of runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "outcome"),
    [
        (("requeue",), "requeued"),
        (("cancel", "--reason", "why"), "cancelled"),
        (("fail", "--reason", "why"), "failed"),
    ],
)
def test_a_change_lists_what_became_of_each(dsn: str, words: tuple[str, ...], outcome: str) -> None:
    start(dsn, "r", "s")
    done = work("runs", *words, "r", "s", "--yes", dsn=dsn)
    assert done.returncode == 0
    assert [(row["id"], row["outcome"]) for row in done.json()] == [("r", outcome), ("s", outcome)]
    assert list(done.json()[0]["previous"]) == RUN
    mixed = work("runs", *words, "nope", "r", "--yes", dsn=dsn)
    assert mixed.returncode == 3
    assert work("runs", *words, "nope", "--yes", dsn=dsn).returncode == 4


@pytest.mark.parametrize("words", [("runs", "requeue"), ("runs", "cancel"), ("runs", "fail"), ("work", "revive")])
def test_without_a_terminal_and_yes_nothing_is_changed(dsn: str, words: tuple[str, ...]) -> None:
    start(dsn, "r")
    done = run_lockctl(*words, "r", dsn=dsn)
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert [run["id"] for run in work("runs", "lapsed", dsn=dsn).json()] == ["r"]


def test_on_a_terminal_it_shows_the_run_and_asks(dsn: str) -> None:
    start(dsn, "r")
    with on_terminal("runs", "requeue", "r", dsn=dsn) as child:
        child.expect("never taken")
        child.expect("Requeue 1 run of run_store")
        child.sendline("n")
        child.expect("nothing was changed")
        child.wait()
    assert [run["id"] for run in work("runs", "lapsed", dsn=dsn).json()] == ["r"]
    with on_terminal("runs", "requeue", "r", dsn=dsn) as child:
        child.expect("Requeue")
        child.sendline("y")
        child.expect("r: requeued")
    assert work("runs", "lapsed", dsn=dsn).json() == []


def test_a_live_run_is_left_without_a_question_and_taken_by_force(dsn: str) -> None:
    start(dsn, "r")
    with connect(dsn) as session:
        store.claim(session, store.leases(session), "r", HOUR)
    done = work("runs", "requeue", "r", "--yes", dsn=dsn)
    assert (done.returncode, done.json()[0]["outcome"]) == (3, "skipped")
    assert "signs of life" in done.json()[0]["why"]
    assert work("runs", "requeue", "r", "--force", "--yes", dsn=dsn).json()[0]["outcome"] == "requeued"


@pytest.mark.parametrize("words", [("runs", "requeue"), ("runs", "cancel"), ("runs", "fail"), ("work", "revive")])
def test_a_change_needs_the_source_when_there_are_several(dsn: str, conn: Conn, words: tuple[str, ...]) -> None:
    dbos.make(conn)
    start(dsn, "r")
    done = work(*words, "r", "--yes", dsn=dsn)
    assert done.returncode == 2
    assert "--source" in done.error()["hint"]


def test_dbos_runs_are_requeued_cancelled_and_revived(dsn: str, conn: Conn) -> None:
    dbos.make(conn)
    dbos.run(conn, "orphan")
    dbos.run(conn, "stuck")
    dbos.run(conn, "buried", status="MAX_RECOVERY_ATTEMPTS_EXCEEDED")
    source = ("--source", "dbos", "--yes")
    assert work("runs", "requeue", "orphan", "--queue", "q", *source, dsn=dsn).json()[0]["outcome"] == "requeued"
    assert work("runs", "cancel", "stuck", *source, dsn=dsn).json()[0]["outcome"] == "cancelled"
    assert work("work", "revive", "buried", *source, dsn=dsn).json()[0]["outcome"] == "revived"
    assert work("runs", "fail", "orphan", *source, dsn=dsn).returncode == 2
    found = {run["id"]: (run["status"], run["queue"]) for run in work("runs", "list", dsn=dsn).json()}
    assert found == {
        "orphan": ("ENQUEUED", "q"),
        "stuck": ("CANCELLED", None),
        "buried": ("ENQUEUED", "_dbos_internal_queue"),
    }


def test_an_id_that_looks_like_an_option_goes_after_two_dashes(dsn: str) -> None:
    start(dsn, "-r")
    assert work("runs", "show", "--", "-r", dsn=dsn).json()["id"] == "-r"
    assert work("runs", "fail", "--yes", "--", "-r", dsn=dsn).json()[0]["outcome"] == "failed"


def test_a_role_that_may_only_read_can_list_and_is_told_what_it_lacks(dsn: str, conn: Conn) -> None:
    start(dsn, "r")
    conn.execute("CREATE ROLE reader_of_runs LOGIN")
    try:
        conn.execute("GRANT USAGE ON SCHEMA run_store TO reader_of_runs")
        conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA run_store TO reader_of_runs")
        reader = psycopg.conninfo.make_conninfo(dsn, user="reader_of_runs")
        assert [run["id"] for run in work("runs", "lapsed", dsn=reader).json()] == ["r"]
        done = work("runs", "fail", "r", "--yes", dsn=reader)
        assert (done.returncode, done.error()["error"]) == (10, "denied")
        assert "UPDATE" in done.error()["message"]
    finally:
        conn.execute("DROP OWNED BY reader_of_runs; DROP ROLE reader_of_runs")


def test_on_a_standby_runs_are_listed_and_not_changed(dsn: str, standby: Any) -> None:
    start(dsn, "r")
    standby.catch_up()
    there = standby.dsn(dsn)
    assert [run["id"] for run in work("runs", "lapsed", dsn=there).json()] == ["r"]
    assert work("runs", "fail", "r", "--yes", dsn=there).returncode == 6


def test_a_table_has_the_columns_that_fit_a_screen_and_one_run_is_a_line_a_field(dsn: str) -> None:
    start(dsn, "r")
    listed = run_lockctl("runs", "lapsed", "-f", "table", dsn=dsn).stdout
    assert "evidence" in listed
    assert "age_ms" not in listed
    shown = run_lockctl("runs", "show", "r", "-f", "table", dsn=dsn).stdout
    assert any(line.split()[:3] == ["id", "│", "r"] or "id" in line.split() for line in shown.splitlines())
    assert "lockctl runs requeue" in shown


def test_what_a_queued_run_will_wait_for_is_said(dsn: str, conn: Conn) -> None:
    dbos.make(conn)
    dbos.run(conn, "old", application_version="0.9")
    with dbos.worker(dsn, "w1"):
        done = run_lockctl("runs", "requeue", "old", "--source", "dbos", "--yes", dsn=dsn)
    assert done.returncode == 0
    assert "no worker of version 0.9 is connected" in done.stderr


def test_a_role_without_a_view_of_the_sessions_still_sees_who_lives(dsn: str, conn: Conn) -> None:
    """`pg_stat_activity` shows the name of a session to everybody; its host is hidden, and no host is made up."""
    dbos.make(conn)
    dbos.run(conn, "held")
    dbos.run(conn, "gone", executor_id="w2")
    conn.execute("CREATE ROLE reader_of_flows LOGIN")
    try:
        conn.execute("GRANT USAGE ON SCHEMA dbos TO reader_of_flows")
        conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA dbos TO reader_of_flows")
        reader = psycopg.conninfo.make_conninfo(dsn, user="reader_of_flows")
        with dbos.worker(dsn, "w1"), dbos.worker(dsn, "w1"):
            done = work("runs", "lapsed", "--source", "dbos", dsn=reader)
        assert [(run["id"], run["class"]) for run in done.json()] == [("gone", "executor_gone")]
        assert done.stderr == ""
    finally:
        conn.execute("DROP OWNED BY reader_of_flows; DROP ROLE reader_of_flows")


def test_through_a_pooler_in_transaction_mode_runs_are_listed_and_changed(dsn: str, pgbouncer_dsn: str) -> None:
    start(dsn, "r", "s")
    item = bury(dsn, "mail:1")
    assert [run["id"] for run in work("runs", "lapsed", dsn=pgbouncer_dsn).json()] == ["r", "s"]
    assert work("runs", "requeue", "r", "--yes", dsn=pgbouncer_dsn).returncode == 0
    assert work("runs", "fail", "s", "--yes", dsn=pgbouncer_dsn).returncode == 0
    assert work("work", "revive", item, "--yes", dsn=pgbouncer_dsn).returncode == 0
    assert work("runs", "lapsed", dsn=pgbouncer_dsn).json() == []
