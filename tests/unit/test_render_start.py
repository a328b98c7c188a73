"""A command pays at its start for nothing that it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"rich", "tabulate", "wcwidth", "msgspec", "orjson", "psycopg", "sqlalchemy", "alembic", "csv", "shlex"}
ROW = 'LockRow("t", "public.t", ("k",), "h", "held", None, 1, None, None)'


def modules_after(statements: str) -> set[str]:
    """The top-level modules a fresh interpreter has after `statements`."""
    code = f"{statements}\nimport sys; print(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.splitlines()[-1].split())


def write(fmt: str, *, count: int = 3) -> str:
    return (
        "import io; from lockctl.records import LockRow; from lockctl.render import check_format, write_rows; "
        f"check_format({fmt!r}); write_rows([{ROW}] * {count}, ['key', 'holder'], fmt={fmt!r}, out=io.StringIO())"
    )


def test_importing_render_imports_no_library() -> None:
    assert not modules_after("import lockctl.render") & HEAVY


@pytest.mark.parametrize("fmt", ["json", "jsonl", "csv", "tsv"])
def test_a_short_answer_in_a_format_for_programs_imports_no_library(fmt: str) -> None:
    assert not modules_after(write(fmt)) & HEAVY


def test_a_long_answer_in_json_takes_the_fast_encoder() -> None:
    assert modules_after(write("jsonl", count=500)) & HEAVY == {"msgspec"}


def test_each_format_for_people_imports_its_own_library() -> None:
    assert modules_after(write("table")) & {"rich", "tabulate"} == {"rich"}
    assert modules_after(write("psql")) & {"rich", "tabulate"} == {"tabulate"}
