"""Which database: the precedence of its sources, profiles, and a configuration that is wrong in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lockctl.embedded import Server
from tests.support import databases
from tests.support.cli import Result
from tests.support.quick import run_quick

SOURCES = ("--dsn", "--profile", "LOCKCTL_DSN", "LOCKCTL_PROFILE", "default_profile", "PG*")
"""In the order in which they win."""


@pytest.fixture(scope="module")
def answers(server: Server, admin: databases.Admin) -> Iterator[Mapping[str, str]]:
    """A database for each source, with a row that names it."""
    made: dict[str, str] = {}
    for number, source in enumerate(SOURCES):
        name = f"source_{number}"
        databases.create(admin, name)
        made[source] = make_conninfo(server.conninfo, dbname=name)
        with psycopg.connect(made[source]) as conn:
            conn.execute("CREATE TABLE verrou (key varchar(255) PRIMARY KEY, owner varchar(255), expiration int8)")
            conn.execute("INSERT INTO verrou VALUES (%s, 'x')", (source,))
    yield made
    for number in range(len(SOURCES)):
        admin.execute(f"DROP DATABASE source_{number} WITH (FORCE)".encode())


def ask(answers: Mapping[str, str], folder: Path, *sources: str, words: tuple[str, ...] = ()) -> Result:
    """`inspect` with these sources given, each naming its own database."""
    args: list[str] = ["-f", "jsonl", "inspect", "verrou"]
    env: dict[str, str | None] = {}
    config = [f'[profiles.{name}]\ndsn = "{answers[source]}"\n' for name, source in PROFILES.items()]
    if "default_profile" in sources:
        config.insert(0, 'default_profile = "third"\n')
    (folder / "lockctl.toml").write_text("".join(config))
    if "--dsn" in sources:
        args += ["--dsn", answers["--dsn"]]
    if "--profile" in sources:
        args += ["--profile", "first"]
    if "LOCKCTL_DSN" in sources:
        env["LOCKCTL_DSN"] = answers["LOCKCTL_DSN"]
    if "LOCKCTL_PROFILE" in sources:
        env["LOCKCTL_PROFILE"] = "second"
    if "PG*" in sources:
        params = conninfo_to_dict(answers["PG*"])
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
        env |= {variable: str(params[name]) for name, variable in names.items()}
    return run_quick(*args, *words, env=env, cwd=folder)


PROFILES = {"first": "--profile", "second": "LOCKCTL_PROFILE", "third": "default_profile"}


@pytest.mark.parametrize("first", range(len(SOURCES)), ids=SOURCES.__getitem__)
def test_the_first_of_the_sources_wins(answers: Mapping[str, str], tmp_path: Path, first: int) -> None:
    done = ask(answers, tmp_path, *SOURCES[first:])
    assert done.returncode == 0, done.stderr
    assert [row["key"] for row in done.jsonl()] == [[SOURCES[first]]]


def test_with_none_of_them_it_says_how_to_give_one(answers: Mapping[str, str], tmp_path: Path) -> None:
    done = ask(answers, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(word in done.stderr for word in ("--dsn", "--profile", "--embedded", "LOCKCTL_DSN"))
    with_password = run_quick("tables", env={"PGPASSWORD": "x", "PGSSLMODE": "prefer"}, cwd=tmp_path)
    assert with_password.returncode == 2


def test_a_service_names_a_database(answers: Mapping[str, str], tmp_path: Path) -> None:
    params = conninfo_to_dict(answers["--dsn"])
    service = "".join(f"{name}={value}\n" for name, value in params.items() if value)
    (tmp_path / "services").write_text(f"[prod]\n{service}options=-c search_path=nowhere\n")
    env = {"PGSERVICEFILE": str(tmp_path / "services")}
    for given, more in (("service=prod", {}), (None, {"PGSERVICE": "prod"})):
        done = run_quick("-f", "json", "tables", dsn=given, env={**env, **more}, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not any(row["present"] for row in done.json()), "the options of the service were dropped"


def test_several_hosts_are_tried_in_turn(dsn: str, tmp_path: Path) -> None:
    params = conninfo_to_dict(dsn)
    hosts = make_conninfo(dsn, host=f"{tmp_path},{params['host']}", hostaddr="", port=f"5432,{params['port']}")
    assert run_quick("tables", "--dsn", hosts).returncode == 0


def test_the_configuration_is_looked_for_here_then_in_the_user_s_folder(
    answers: Mapping[str, str], tmp_path: Path
) -> None:
    user, here, other = tmp_path / "user" / "lockctl", tmp_path / "here", tmp_path / "other.toml"
    for place, source in ((user / "lockctl.toml", 0), (here / "lockctl.toml", 1), (other, 2)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f'default_profile = "it"\n[profiles.it]\ndsn = "{answers[SOURCES[source]]}"\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / "user")}

    def key(*words: str, cwd: Path, **more: str) -> str:
        done = run_quick(*words, "-f", "jsonl", "inspect", "verrou", env={**env, **more}, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return str(done.jsonl()[0]["key"][0])

    assert key(cwd=tmp_path) == SOURCES[0]
    assert key(cwd=here) == SOURCES[1]
    assert key(cwd=here, LOCKCTL_CONFIG=str(other)) == SOURCES[2]
    assert key("--config", str(other), cwd=here, LOCKCTL_CONFIG="/nonexistent") == SOURCES[2]
    gone = run_quick("tables", "--config", "/nonexistent/lockctl.toml", cwd=here)
    assert (gone.returncode, "/nonexistent/lockctl.toml" in gone.stderr) == (2, True)


BROKEN = """\
[profiles.good]
dsn = "GOOD"
[profiles.unset]
dsn_env = "NOBODY_SETS_THIS"
[profiles.both]
dsn = "x"
dsn_env = "Y"
[profiles.typo]
dns = "x"
[profiles.number]
dsn = 5
[profiles.malformed]
dsn = "postgresql://u:hunter2@[h/db"
[profiles]
flat = "dbname=x"
"""


def test_a_broken_other_profile_stops_nobody(dsn: str, tmp_path: Path) -> None:
    """Case 23: a profile that is not used is not resolved; one that is used says file, line and name."""
    config = tmp_path / "lockctl.toml"
    config.write_text(BROKEN.replace("[profiles]\nflat", "[profiles.dummy]\nflat").replace("GOOD", dsn))
    assert run_quick("--profile", "good", "tables", cwd=tmp_path).returncode == 0
    assert run_quick("tables", dsn=dsn, cwd=tmp_path).returncode == 0
    expected = {"unset": (4, "NOBODY_SETS_THIS"), "both": (5, "both"), "typo": (9, "dns"), "number": (11, "dsn")}
    for profile, (line, word) in expected.items():
        done = run_quick("--profile", profile, "tables", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"lockctl.toml:{line}: " in done.stderr, (profile, done.stderr)
        assert word in done.stderr
    malformed = run_quick("--profile", "malformed", "tables", cwd=tmp_path)
    assert (malformed.returncode, "hunter2" in malformed.stderr) == (2, False)
    missing = run_quick("--profile", "nobody", "tables", cwd=tmp_path)
    assert (missing.returncode, "nobody" in missing.stderr, "good" in missing.stderr) == (2, True, True)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = ", 1),
        ("[profiles.a]\ndsn = 'x'\n[profiles.a]\n", 3),
        ("# one\nnope = 1\n", 2),
        ("profiles = 5", 1),
        ("[tables.x]\nlike = 'verrou'\nkeys = ['a']\n", 3),
        ("[tables.x]\nlike = 'nope'\n", 2),
        ("[tables.x]\nrelation = 'x'\n", 1),
        ("[tables.x]\nlike = 'verrou'\n\ndefault_ttl = '5'\n", 4),
        ("[tables.x]\nlike = 'verrou'\nsweep = 'no'\n", 3),
        ("[tables.x]\nlike = 'verrou'\nkey = 'k'\n", 3),
        ("[tables.x]\nlike = 'verrou'\nrelation = 'a.b.c'\n", 3),
        ("[tables.x]\nlike = 'verrou'\nrelation = '\"open'\n", 3),
        ("[tables]\nx = 1\n", 2),
        ("[tables.x]\nlike = 'verrou'\nkey = ['k', 'k']\n", 1),
        ("\n[tables.x]\nlike = 'verrou'\nholder = 'expiration'\n", 2),
        ("\ufeff[tables]\nx = 1\n", 2),
    ],
)
def test_a_wrong_configuration_is_a_usage_error_with_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "lockctl.toml").write_text(text, encoding="utf-8")
    done = run_quick("tables", dsn="host=/nonexistent", cwd=tmp_path)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False)
    assert f"lockctl.toml:{line}: " in done.stderr, done.stderr
    as_json = run_quick("-f", "json", "tables", dsn="host=/nonexistent", cwd=tmp_path)
    assert f"lockctl.toml:{line}: " in as_json.error()["message"]


def test_a_default_profile_that_is_not_there_is_told_of_when_it_is_needed(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "lockctl.toml").write_text("\ndefault_profile = 'gone'\n")
    done = run_quick("tables", cwd=tmp_path)
    assert (done.returncode, "lockctl.toml:2: " in done.stderr, "gone" in done.stderr) == (2, True, True)
    assert run_quick("tables", dsn=dsn, cwd=tmp_path).returncode == 0


def test_a_schema_comes_from_the_profile_or_the_option(empty_dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(empty_dsn) as conn:
        for schema in ("one", "two"):
            conn.execute(f"CREATE SCHEMA {schema}".encode())
            conn.execute(f"CREATE TABLE {schema}.verrou (key text PRIMARY KEY, owner text, expiration int8)".encode())
    (tmp_path / "lockctl.toml").write_text(f'[profiles.p]\ndsn = "{empty_dsn}"\nschema = "one"\n')

    def relation(*words: str) -> str:
        done = run_quick("--profile", "p", *words, "-f", "json", "acquire", "verrou", "k", cwd=tmp_path)
        return str(done.json()["lock"]["relation"])

    assert relation() == "one.verrou"
    assert relation("--schema", "two") == "two.verrou"
    gone = run_quick("check", "verrou", "k", dsn=empty_dsn)
    assert (gone.returncode, "one, two" in gone.stderr, "--schema" in gone.stderr) == (8, True, True)


def test_what_the_server_must_be_is_asked_of_the_server(dsn: str, server: Server) -> None:
    """Commands that only read make their own sessions read-only, and libpq must not take that for a standby."""
    hosts = f"/nonexistent,{server.socket_dir}"
    for attribute in ("read-write", "primary", "any", "prefer-standby"):
        several = make_conninfo(
            dsn, host=hosts, hostaddr="", port=f"5432,{server.port}", target_session_attrs=attribute
        )
        for line in (
            "tables",
            "inspect",
            "acquire ffdb_locks nightly --holder me",
            "release ffdb_locks nightly --holder me",
        ):
            done = run_quick(*line.split(), dsn=several)
            assert done.returncode == 0, (attribute, line, done.stderr)
    for attribute in ("read-only", "standby"):
        several = make_conninfo(dsn, target_session_attrs=attribute)
        assert run_quick("tables", dsn=several).returncode == 6, attribute
