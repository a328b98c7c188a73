"""One value as the text of one cell: nothing for None, `true`/`false`, digits, and JSON for what is nested.

`key` is the one field with words of its own: a key of one word is that word; a key of several is a JSON array
where programs read, and shell words where people do, so that it can be pasted as arguments.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Any

from lockctl.records import to_json
from lockctl.render.escape import escape_human

compact: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=to_json).encode
"""A value as JSON on one line."""


def words(key: tuple[str, ...]) -> str:
    """The exact text of a key: its one word, or a JSON array of several (three times as fast as `compact`)."""
    if len(key) == 1:
        return key[0]
    return "[" + ",".join(map(encode_basestring, key)) + "]"


def machine(name: str, value: Any) -> str:
    """The exact text of field `name` for `csv` and `tsv`, before the quoting or escaping of the format."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return words(value) if name == "key" and isinstance(value, tuple) else compact(value)


def human(name: str, value: Any, encoding: str | None = None) -> str:
    """The legible text of field `name`; `encoding` is the one to stay within, when it is not UTF-8."""
    text = escape_human(_shell_words(value) if name == "key" and isinstance(value, tuple) else machine(name, value))
    return text if encoding is None else within(text, encoding)


def within(text: str, encoding: str) -> str:
    """`text` with backslash escapes for what `encoding` has no character for."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _shell_words(key: tuple[str, ...]) -> str:
    """A lone word bare, except that a blank one would leave nothing to see."""
    if len(key) == 1 and key[0].strip():
        return key[0]
    import shlex

    return shlex.join(key)
