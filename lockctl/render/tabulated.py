"""The formats of the `tabulate` library, with every value kept a value.

tabulate guesses numbers, strips blanks, and writes cells into markup as they are. Here every cell is text; columns
of integers are right-aligned because their values are integers; and what would move a cell or a row in the syntax of
a format is escaped the way that syntax asks for. Inline markup (`*bold*`) is left alone: it moves nothing, and the
text stays searchable. `unsafehtml` and `latex_raw` escape like `html` and `latex`: no value of a database is markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from lockctl.render.cells import human
from lockctl.render.sink import narrow_encoding, write_legible

_SAFE_TWIN = {"unsafehtml": "html", "latex_raw": "latex"}
_PIPE_RUN = re.compile(r"(\\*)\|")
_WIKITEXT = re.compile(r"[|&<]|\{(?=[{|])|\[(?=\[)|'(?=')")
_MOIN = re.compile(r"&|\|(?=\|)")
_TEXTILE = re.compile(r"[&|]")
_JIRA = re.compile(r"\||\{(?=[A-Za-z])")


def _markdown(text: str) -> str:
    r"""`\|` for a bar (GFM, "Tables"); backslashes just before it are doubled, or they would escape the escape."""
    return _PIPE_RUN.sub(lambda found: found[1] * 2 + r"\|", text)


def _entity(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


_CELL: dict[str, Callable[[str], str]] = {
    "github": _markdown,
    "pipe": _markdown,
    "orgtbl": lambda text: text.replace("|", r"\vert{}"),  # Org manual, "Built-in Table Editor"
    "asciidoc": lambda text: text.replace("|", r"\|"),
    "jira": lambda text: _JIRA.sub(r"\\\g<0>", text),  # {code} and the like would swallow the rest
    "youtrack": lambda text: _JIRA.sub(r"\\\g<0>", text),
    "mediawiki": lambda text: _WIKITEXT.sub(_entity, text),
    "moinmoin": lambda text: _MOIN.sub(_entity, text),
    "textile": lambda text: _TEXTILE.sub(_entity, text),
}


def known_formats() -> list[str]:
    from tabulate import tabulate_formats

    return list(tabulate_formats)


def write_tabulated(
    rows: Iterable[tuple[Any, ...]], names: Sequence[str], *, fmt: str, out: TextIO, header: bool
) -> int:
    """Rows of values under `names`, held until the last has come. Returns how many there were."""
    from tabulate import tabulate

    held = list(rows)
    encoding = narrow_encoding(out)
    cell = _CELL.get(fmt, str)
    text = tabulate(
        [[cell(human(name, value, encoding)) for name, value in zip(names, row, strict=True)] for row in held],
        headers=list(names) if header else [],
        tablefmt=_SAFE_TWIN.get(fmt, fmt),
        disable_numparse=True,
        preserve_whitespace=True,
        colalign=None if fmt == "pretty" or not held else _alignments(held),
    )
    if fmt.startswith("latex"):
        text = _guarded_latex(text, columns=0 if held else len(names))
    write_legible(text + "\n" if text else "", out)
    return len(held)


def _alignments(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    return ["right" if _all_integers(column) else "left" for column in zip(*rows, strict=True)]


def _all_integers(column: Sequence[Any]) -> bool:
    return set(map(type, column)) - {type(None)} == {int}


def _guarded_latex(text: str, columns: int) -> str:
    r"""A row that begins with `[` or `*` would be an argument of the `\\` before it: an empty group parts them.

    tabulate leaves the column specification empty when there is no row; `columns` is how many to put there then.
    """
    if columns:
        text = text.replace("{}", "{" + "l" * columns + "}", 1)
    return re.sub(r"^(\s*)([\[*])", r"\1{}\2", text, flags=re.MULTILINE)
