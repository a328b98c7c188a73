"""`lockctl.toml`: profiles, lock tables and run sources of a deployment, checked name by name.

Every error names the file and the line. A profile that is not used is not resolved, so that a broken one
stops nobody else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from lockctl import durations
from lockctl.catalog import BUILT_IN, Catalog, LockTable, split_relation
from lockctl.errors import UsageError

if TYPE_CHECKING:
    from lockctl.sources import Source

FILE_NAME = "lockctl.toml"
_TOP = {"default_profile": str, "profiles": dict, "tables": dict, "sources": dict}
_PROFILE = {"dsn", "dsn_env", "schema"}
_TABLE_TEXT = {"relation", "holder", "expires", "created", "updated", "note", "after_force"}
_TABLE = {
    *_TABLE_TEXT,
    "like",
    "key",
    "default_ttl",
    "renew_every",
    "renews_past_expiry",
    "created_on_takeover",
    "sweep",
}


class Config(NamedTuple):
    """What a configuration file says; `path` None is the empty configuration."""

    path: Path | None = None
    text: str = ""
    default_profile: str | None = None
    profiles: Mapping[str, Any] = MappingProxyType({})
    catalog: Catalog = Catalog.of()
    sources: Mapping[str, Source] = MappingProxyType({})

    def fail(self, message: str, *at: str, hint: str | None = None) -> NoReturn:
        """Raise a UsageError about the value at the path `at`, with its line."""
        raise UsageError(f"{self.path}:{line_of(self.text, at)}: {message}", hint=hint)


def find(explicit: str | None) -> Path | None:
    """The configuration file: the named one, `lockctl.toml` here, then the user's config folder."""
    if explicit:
        return Path(explicit)
    here = Path(FILE_NAME)
    if here.is_file():
        return here
    # platformdirs costs a tenth of a command's start: asked only when its answer can matter.
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    candidate = Path(base) / "lockctl" / FILE_NAME
    if os.name == "posix" and os.uname().sysname != "Darwin":
        return candidate if candidate.is_file() else None
    from platformdirs import user_config_path

    candidate = user_config_path("lockctl", appauthor=False) / FILE_NAME
    return candidate if candidate.is_file() else None


def load(explicit: str | None) -> Config:
    """Read and check the configuration. Raises UsageError with file and line."""
    path = find(explicit)
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no configuration file {path}", hint="check --config or LOCKCTL_CONFIG") from None
    except (OSError, UnicodeError) as error:
        raise UsageError(f"can't read the configuration file {path}: {error}") from None
    import tomllib

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}:{_syntax_line(str(error), text)}: {error}") from None
    return _check(Config(path=path, text=text), data)


def _syntax_line(message: str, text: str) -> int:
    # tomllib says "... (at line 3, column 7)" or "(at end of document)".
    found = re.search(r"at line (\d+)", message)
    return int(found[1]) if found else max(1, len(text.splitlines()))


def _check(config: Config, data: dict[str, Any]) -> Config:
    for name, value in data.items():
        if name not in _TOP:
            config.fail(f"unknown key {name!r}", name, hint=f"known: {', '.join(_TOP)}")
        if not isinstance(value, _TOP[name]):
            config.fail(f"{name} must be {'text' if _TOP[name] is str else 'a table'}", name)
    profiles = data.get("profiles", {})
    default = data.get("default_profile")
    sources = _sources(config, data["sources"]) if data.get("sources") else {}
    tables = [_table(config, name, entry) for name, entry in data.get("tables", {}).items()]
    return config._replace(default_profile=default, profiles=profiles, catalog=Catalog.of(tables), sources=sources)


def _sources(config: Config, entries: Mapping[str, Any]) -> dict[str, Source]:
    """The configured sources of runs; most configurations have none, and then their descriptions cost nothing."""
    from lockctl.sourceconfig import source

    for name, entry in entries.items():
        if not isinstance(entry, dict):
            config.fail(f"sources.{name} must be a table", "sources", name)
    return {name: source(config, name, entry) for name, entry in entries.items()}


def profile(config: Config, name: str) -> Mapping[str, str]:
    """The profile called `name`, checked now that it is used. Raises UsageError."""
    if name not in config.profiles:
        known = ", ".join(config.profiles) or "none"
        where = f" in {config.path}" if config.path else ": there is no configuration file"
        raise UsageError(f"there is no profile called {name!r}{where}", hint=f"known profiles: {known}")
    entry = config.profiles[name]
    at = ("profiles", name)
    if not isinstance(entry, dict):
        config.fail(f"profiles.{name} must be a table with dsn or dsn_env", *at)
    for key, value in entry.items():
        if key not in _PROFILE:
            config.fail(f"unknown key {key!r} in profile {name!r}", *at, key, hint="known: dsn, dsn_env, schema")
        if not isinstance(value, str):
            config.fail(f"{key} in profile {name!r} must be text", *at, key)
    if ("dsn" in entry) == ("dsn_env" in entry):
        config.fail(f"profile {name!r} needs one of dsn and dsn_env", *at)
    return entry


def _table(config: Config, name: str, entry: Any) -> LockTable:
    at = ("tables", name)
    if not isinstance(entry, dict):
        config.fail(f"tables.{name} must be a table", *at)
    for key, value in entry.items():
        _check_value(config, name, key, value)
    values = {key: value for key, value in entry.items() if key in _TABLE_TEXT}
    values |= {key: entry[key] for key in ("sweep", "renews_past_expiry", "created_on_takeover") if key in entry}
    if "key" in entry:
        values["key"] = tuple(entry["key"])
    for key, target in (("default_ttl", "default_ttl_ms"), ("renew_every", "renew_every_ms")):
        if key in entry:
            try:
                values[target] = durations.parse(entry[key])
            except UsageError as error:
                config.fail(f"{key}: {error.message}", *at, key, hint=error.hint)
    base = _base(config, name, entry)
    if base is not None:
        return _distinct(config, base._replace(name=name, **values))
    if missing := [key for key in ("relation", "key", "holder", "expires") if key not in values]:
        config.fail(
            f"table {name!r} lacks {', '.join(missing)}", *at, hint="give them, or like = NAME of a built-in table"
        )
    return _distinct(config, LockTable(name=name, **values))


def _distinct(config: Config, table: LockTable) -> LockTable:
    """`table`, whose columns must each have one meaning."""
    names = [name for name in (*table.key, table.holder, table.expires, table.created, table.updated) if name]
    for column in names:
        if names.count(column) > 1:
            config.fail(f"column {column!r} of table {table.name!r} has two meanings", "tables", table.name)
    return table


def _base(config: Config, name: str, entry: Mapping[str, Any]) -> LockTable | None:
    built_in = {table.name: table for table in BUILT_IN}
    like = entry.get("like", name if name in built_in else None)
    if like is None:
        return None
    if like not in built_in:
        config.fail(
            f"like = {like!r} is no built-in table", "tables", name, "like", hint=f"known: {', '.join(built_in)}"
        )
    return built_in[like]._replace(component=None) if "relation" in entry else built_in[like]


def _check_value(config: Config, name: str, key: str, value: Any) -> None:
    at = ("tables", name, key)
    if key not in _TABLE:
        config.fail(f"unknown key {key!r} in table {name!r}", *at, hint=f"known: {', '.join(sorted(_TABLE))}")
    if key == "key":
        if not isinstance(value, list) or not value or not all(isinstance(word, str) and word for word in value):
            config.fail(f"key in table {name!r} must be a list of column names", *at)
    elif key in ("sweep", "renews_past_expiry", "created_on_takeover"):
        if not isinstance(value, bool):
            config.fail(f"{key} in table {name!r} must be true or false", *at)
    elif not isinstance(value, str) or not value:
        config.fail(f"{key} in table {name!r} must be text", *at)
    elif key == "relation":
        try:
            split_relation(value)
        except UsageError as error:
            config.fail(error.message, *at, hint=error.hint)


def line_of(text: str, at: tuple[str, ...]) -> int:
    """The line on which the value at the path `at` stands: where the path first exists for the parser."""
    import tomllib

    lines = text.splitlines()
    for count in range(1, len(lines) + 1):
        try:
            node: Any = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        for name in at:
            node = node.get(name) if isinstance(node, dict) else None
        if node is not None:
            return count
    return 1
