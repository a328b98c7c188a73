"""`[sources.NAME]` of `lockctl.toml`: a built-in source with other relations and columns, checked name by name.

    [sources.my_runs]
    like = "run_store"
    runs = { relation = "wf.runs", id = "run_id", started_at = "began", running = ["RUNNING"] }
    work = false

A part that is not named stays as it is in the source it is like; `work = false` says that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockctl.catalog import split_relation
from lockctl.errors import UsageError
from lockctl.sources import BUILT_IN, Source

if TYPE_CHECKING:
    from lockctl.config import Config

_PARTS = ("runs", "leases", "work", "steps", "versions", "inputs")
_LISTS = ("running", "ended")


def source(config: Config, name: str, entry: Mapping[str, Any]) -> Source:
    """The source that the table `[sources.NAME]` describes. Raises UsageError with file and line."""
    base = _base(config, name, entry)
    has = [part for part in _PARTS if getattr(base, part) is not None]
    others = ["like", "schema", *(["internal_queue"] if base.internal_queue else [])]
    changes: dict[str, Any] = {}
    for key, value in entry.items():
        if key not in (*others, *has):
            known = ", ".join((*others, *has))
            config.fail(f"unknown key {key!r} in source {name!r}", "sources", name, key, hint=f"known: {known}")
        if key in others and (not isinstance(value, str) or not value):
            config.fail(f"{key} in source {name!r} must be text", "sources", name, key)
        if key in has:
            changes[key] = _part(config, name, key, getattr(base, key), value)
    if "schema" in entry:
        for part in has:
            table = changes.get(part, getattr(base, part))
            if table is not None and not (part in entry and "relation" in entry[part]):
                changes[part] = table._replace(relation=_in_schema(entry["schema"], table.relation))
    if "internal_queue" in entry:
        changes["internal_queue"] = entry["internal_queue"]
    elsewhere = any(part in changes for part in ("runs", "leases", "work"))
    return base._replace(name=name, component=None if elsewhere else base.component, **changes)


def _base(config: Config, name: str, entry: Mapping[str, Any]) -> Source:
    built_in = {source.name: source for source in BUILT_IN}
    like = entry.get("like", name if name in built_in else None)
    if like is None:
        config.fail(f"source {name!r} lacks like", "sources", name, hint=f"like = one of {', '.join(built_in)}")
    if not isinstance(like, str) or like not in built_in:
        config.fail(
            f"like = {like!r} is no built-in source", "sources", name, "like", hint=f"known: {', '.join(built_in)}"
        )
    return built_in[like]


def _part(config: Config, name: str, part: str, table: Any, value: Any) -> Any:
    at = ("sources", name, part)
    if part == "work" and value is False:
        return None
    if not isinstance(value, dict):
        config.fail(f"{part} in source {name!r} must be a table of columns", *at)
    for key, word in value.items():
        if key not in table._fields:
            config.fail(
                f"unknown key {key!r} in {part} of source {name!r}", *at, key, hint=f"known: {', '.join(table._fields)}"
            )
        if key in _LISTS:
            if not isinstance(word, list) or not word or not all(isinstance(each, str) and each for each in word):
                config.fail(f"{key} in {part} of source {name!r} must be a list of statuses", *at, key)
        elif word is False:
            if key not in table._field_defaults:
                config.fail(f"{key} in {part} of source {name!r} can't be left out", *at, key)
        elif not isinstance(word, str) or not word:
            config.fail(f"{key} in {part} of source {name!r} must be the name of a column, or false", *at, key)
        if key == "relation":
            try:
                split_relation(word)
            except UsageError as error:
                config.fail(error.message, *at, key, hint=error.hint)
    changes = {key: tuple(word) if key in _LISTS else word or None for key, word in value.items()}
    if part == "work" and "buried" in value and "buried_at" not in value:
        changes["buried_at"] = None
    return table._replace(**changes)


def _in_schema(schema: str, relation: str) -> str:
    quoted = schema.replace('"', '""')
    return f'"{quoted}".{split_relation(relation)[1]}'
