"""`[sources.NAME]` of lockctl.toml: checked name by name, with the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockctl.config import Config, load
from lockctl.errors import UsageError


def read(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "lockctl.toml"
    file.write_text(text)
    return load(str(file))


def test_a_source_is_like_another_but_for_what_it_names(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        '[sources.mine]\nlike = "run_store"\n'
        'runs = { relation = "wf.runs", id = "run_id", started_at = "began", running = ["RUNNING", "PAUSED"] }\n'
        'leases = { relation = "wf.runs", run_id = "run_id", token = "worker", expires_at = "until" }\n'
        "work = false\n",
    ).sources["mine"]
    assert (found.name, found.runs.relation, found.runs.id, found.runs.status) == (
        "mine",
        "wf.runs",
        "run_id",
        "status",
    )
    assert found.runs.running == ("RUNNING", "PAUSED")
    assert found.leases is not None
    assert found.leases.token == "worker"
    assert found.work is None
    assert found.component is None


def test_a_column_that_a_source_lacks_is_false(tmp_path: Path) -> None:
    found = read(tmp_path, '[sources.mine]\nlike = "run_store"\nruns = { outcome = false }\n').sources["mine"]
    assert found.runs.outcome is None


def test_dbos_lies_in_another_schema(tmp_path: Path) -> None:
    found = read(tmp_path, '[sources.mine]\nlike = "dbos"\nschema = "my.dbos"\n').sources["mine"]
    assert found.runs.relation == '"my.dbos".workflow_status'
    assert found.steps is not None
    assert found.steps.relation == '"my.dbos".operation_outputs'


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("[sources.m]\nlike = 'nothing'\n", 2, "nothing"),
        ("[sources.m]\nlike = 3\n", 2, "3"),
        ("[sources.m]\nruns = {}\n", 1, "lacks like"),
        ("[sources.m]\nlike = 'run_store'\nrun = {}\n", 3, "'run'"),
        ("[sources.m]\nlike = 'run_store'\nsteps = {}\n", 3, "'steps'"),
        ("[sources.m]\nlike = 'run_store'\ninternal_queue = 'q'\n", 3, "internal_queue"),
        ("[sources.m]\nlike = 'run_store'\nruns = 'wf.runs'\n", 3, "table of columns"),
        ("[sources.m]\nlike = 'run_store'\nruns = { began = 'x' }\n", 3, "'began'"),
        ("[sources.m]\nlike = 'run_store'\n\n[sources.m.runs]\nid = 7\n", 5, "id"),
        ("[sources.m]\nlike = 'run_store'\nruns = { id = false }\n", 3, "can't be left out"),
        ("[sources.m]\nlike = 'run_store'\nruns = { running = 'RUNNING' }\n", 3, "list of statuses"),
        ("[sources.m]\nlike = 'run_store'\nruns = { relation = 'a.b.c' }\n", 3, "a.b.c"),
        ("[sources]\nm = 3\n", 2, "must be a table"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert f"lockctl.toml:{line}: " in caught.value.message
    assert word in caught.value.message
