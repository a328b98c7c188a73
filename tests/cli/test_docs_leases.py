"""What docs/leases.md offers for pasting works as it stands."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import psycopg

from tests.support.cli import run_lockctl
from tests.support.runs import row

PAGE = (Path(__file__).parents[2] / "docs" / "leases.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def pasted(line: str, tmp_path: Path, dsn: str) -> tuple[list[str], dict[str, str | None]]:
    """The words of a command line with its command replaced by `true`, and the environment with its profile."""
    words = shlex.split(line)
    config = tmp_path / "lockctl.toml"
    config.write_text('[profiles.prod]\ndsn_env = "THE_DATABASE"\n')
    at = words.index("--")
    assert Path(words[at + 1]).is_absolute()
    environment: dict[str, str | None] = {"THE_DATABASE": dsn, "LOCKCTL_CONFIG": str(config)}
    return [*words[1:at], "--", "true"], environment


def test_the_cron_line(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    fields = block("cron").strip().split(None, 5)
    words, env = pasted(fields[5], tmp_path, dsn)
    first, second = (run_lockctl(*words, env=env) for _ in range(2))
    assert (first.returncode, first.stdout, first.stderr) == (0, "", "")
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    held = row(conn, "nightly-report")
    assert held is not None
    assert 500 < held[1] <= 600


def test_the_systemd_unit(dsn: str, conn: psycopg.Connection, tmp_path: Path) -> None:
    unit = configparser.RawConfigParser()
    unit.optionxform = str  # type: ignore[method-assign, assignment]
    unit.read_string(block("ini"))
    words, env = pasted(unit["Service"]["ExecStart"], tmp_path, dsn)
    name, _, value = unit["Service"]["Environment"].partition("=")
    done = run_lockctl(*words, env={**env, name: value})
    assert (done.returncode, done.stderr) == (0, "")
    assert row(conn, "importer") is None


def test_every_option_that_the_page_names_is_there() -> None:
    verbs = ("run", "acquire", "extend", "force-expire", "release")
    known = "".join(run_lockctl(verb, "--help").stdout for verb in verbs)
    for option in set(re.findall(r"--[a-z][a-z-]+", PAGE)) - {"--all"}:
        assert option in known, option
