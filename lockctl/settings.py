"""Which database a command works on, by the contract's precedence, and how it says so.

`--dsn`/`--embedded`, `--profile`, LOCKCTL_DSN, LOCKCTL_PROFILE, the configuration's default profile, `PG*`.
It never falls back to the embedded server by itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from lockctl.config import Config, profile
from lockctl.errors import UsageError

EMBEDDED = "embedded:"
NO_DATABASE = "no database was named"
# The variables of libpq that say *where*; PGPASSWORD or PGSSLMODE alone name no database.
_PG_WHERE = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")


class Target(NamedTuple):
    """The chosen database: a libpq string (or `embedded:`), what chose it, and a schema of the profile's."""

    dsn: str
    source: str
    schema: str | None = None

    @property
    def embedded(self) -> bool:
        return self.dsn == EMBEDDED


def choose(
    config: Config,
    *,
    dsn: str | None,
    embedded: bool,
    profile_name: str | None,
    environ: Mapping[str, str] = os.environ,
) -> Target:
    """The database to work on. Raises UsageError that says how to give one."""
    if embedded and dsn is not None and dsn.strip() != EMBEDDED:
        raise UsageError("--embedded and --dsn name two databases", hint="give one of them")
    if embedded:
        return Target(EMBEDDED, "--embedded")
    if dsn is not None:
        return _given(dsn, "--dsn")
    if profile_name is not None:
        return _of_profile(config, profile_name, environ)
    if environ.get("LOCKCTL_DSN"):
        # LOCKCTL_SCHEMA belongs to it: `run` hands both to its command.
        return _given(environ["LOCKCTL_DSN"], "LOCKCTL_DSN", environ.get("LOCKCTL_SCHEMA") or None)
    if environ.get("LOCKCTL_PROFILE"):
        return _of_profile(config, environ["LOCKCTL_PROFILE"], environ)
    if (default := config.default_profile) is not None:
        if default not in config.profiles:
            config.fail(f"default_profile names {default!r}, and there is no [profiles.{default}]", "default_profile")
        return _of_profile(config, default, environ)
    if named := [name for name in _PG_WHERE if environ.get(name)]:
        return Target("", ", ".join(named))
    raise UsageError(
        NO_DATABASE,
        hint="give --dsn, --profile or --embedded, or set LOCKCTL_DSN, LOCKCTL_PROFILE or PGHOST/PGDATABASE/PGSERVICE",
    )


def _given(dsn: str, source: str, schema: str | None = None) -> Target:
    text = dsn.strip()
    if not text:
        raise UsageError(f"the connection string from {source} is empty")
    if text.startswith(EMBEDDED) and text != EMBEDDED:
        raise UsageError("embedded: takes nothing after the colon")
    return Target(text, source, schema)


def _of_profile(config: Config, name: str, environ: Mapping[str, str]) -> Target:
    entry = profile(config, name)
    source = f"profile {name}"
    schema = entry.get("schema")
    if "dsn" in entry:
        return _given(entry["dsn"], source, schema)
    variable = entry["dsn_env"]
    if not environ.get(variable):
        config.fail(
            f"profile {name!r} takes its database from {variable}, which is not set", "profiles", name, "dsn_env"
        )
    return _given(environ[variable], f"{source} ({variable})", schema)
