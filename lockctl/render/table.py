"""`table`, for a person at a terminal: drawn by rich, without its markup, emoji codes or highlighting.

Into a pipe it is as wide as its values. On a terminal no value is cut off. Where the width does not suffice, step by
step: the `relation` column is left out (`table` names it), the fractions of seconds, `updated_at`, `created_at`; then
columns of free text fold, none below eight cells; then each row becomes a block of lines, one a field, with all of
them. Key, holder, state and expiry are there in every case.

Spans (`remaining_ms`, `age_ms`) are shown as durations, under their name without `_ms`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from lockctl import durations
from lockctl.render.cells import human
from lockctl.render.sink import narrow_encoding, write_legible

_GAP = 2
_NARROWEST = 8
_FRACTIONS = "fractions of seconds"
_FRACTION = re.compile(r"(:[0-9]{2})\.[0-9]+Z$")
_STYLES = {
    "held": "green",
    "lapsed": "yellow",
    "free": "dim",
    "acquired": "green",
    "extended": "green",
    "released": "green",
    "expired": "green",
    "revived": "yellow",
    "not_held": "yellow",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}
_STIFF = frozenset({"table"})
_STYLED = frozenset({"state", "outcome", "status"})


@dataclass
class _Column:
    """A column as it will be drawn; `width` is in terminal cells."""

    name: str
    title: str
    cells: list[str]
    right: bool
    width: int = 0


def write_table(
    rows: Iterable[tuple[Any, ...]],
    names: Sequence[str],
    *,
    out: TextIO,
    header: bool,
    color: bool,
    width: int | None,
) -> int:
    """Rows of values under `names`, held until the last has come. `width` None: no terminal. Returns the count."""
    held = list(rows)
    encoding = narrow_encoding(out)
    columns = [_column(name, index, held, encoding) for index, name in enumerate(names)]
    _measure(columns, header)
    fitted = columns if width is None else _fit(columns, width, header)
    rule = "─" if encoding is None else "-"
    if width is not None and held and _total(fitted) > width:
        text = _draw_blocks(columns)
    elif width is None and not color:
        text = _draw_plain(fitted, header=header, rule=rule)
    else:
        text = _draw(fitted, header=header, color=color, rule=rule)
    write_legible(text, out)
    return len(held)


def _column(name: str, index: int, rows: Sequence[tuple[Any, ...]], encoding: str | None) -> _Column:
    values = [row[index] for row in rows]
    integers = set(map(type, values)) - {type(None)} == {int}
    if name.endswith("_ms") and all(value is None or type(value) is int for value in values):
        cells = ["" if value is None else durations.show(value) for value in values]
        return _Column(name, name.removesuffix("_ms"), cells, right=True)
    return _Column(name, name, [human(name, value, encoding) for value in values], right=integers)


def _measure(columns: Iterable[_Column], header: bool) -> None:
    from rich.cells import cell_len

    for column in columns:
        texts = [column.title, *column.cells] if header else column.cells
        column.width = max(map(cell_len, texts), default=0) or 1


def _total(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + _GAP * (len(columns) - 1)


def _fit(columns: list[_Column], width: int, header: bool) -> list[_Column]:
    """The columns brought within `width` as far as the first steps of the module's description go."""
    for name in ("relation", _FRACTIONS, "updated_at", "created_at"):
        if _total(columns) <= width:
            return columns
        if name == _FRACTIONS:
            columns = [_without_fractions(column) for column in columns]
            _measure(columns, header)
        elif name != "relation" or any(column.name == "table" for column in columns):
            columns = [column for column in columns if column.name != name]
    _fold(columns, width)
    return columns


def _without_fractions(column: _Column) -> _Column:
    if not column.name.endswith("_at"):
        return replace(column)
    return replace(column, cells=[_FRACTION.sub(r"\1Z", cell) for cell in column.cells])


def _fold(columns: Sequence[_Column], width: int) -> None:
    """Narrow the columns of free text, widest first, until the table has `width` or none can give more."""
    soft = [column for column in columns if not column.right and column.name not in _STIFF | _STYLED]
    soft = [column for column in soft if not column.name.endswith("_at")]
    for cap in range(max((column.width for column in soft), default=0), _NARROWEST - 1, -1):
        if _total(columns) <= width:
            return
        for column in soft:
            column.width = min(column.width, cap)


def _draw_blocks(columns: Sequence[_Column]) -> str:
    """Every row as lines of name and value, and an empty line after it."""
    names = max(len(column.title) for column in columns) + _GAP
    blocks = [
        "".join([f"{column.title:{names}}{cell}\n" for column, cell in zip(columns, cells, strict=True)])
        for cells in zip(*[column.cells for column in columns], strict=True)
    ]
    return "\n".join(blocks)


def _draw_plain(columns: Sequence[_Column], *, header: bool, rule: str) -> str:
    """What `_draw` gives where nothing folds or is coloured; 25 times as fast, for long lists into a pipe."""
    padded = [[_pad(cell, column) for cell in column.cells] for column in columns]
    lines = [(" " * _GAP).join(cells) for cells in zip(*padded, strict=True)]
    if header:
        lines[:0] = [(" " * _GAP).join(_pad(column.title, column) for column in columns), rule * _total(columns)]
    return "".join([line + "\n" for line in lines])


def _pad(cell: str, column: _Column) -> str:
    from rich.cells import cell_len

    blanks = " " * (column.width - cell_len(cell))
    return blanks + cell if column.right else cell + blanks


def _draw(columns: Sequence[_Column], *, header: bool, color: bool, rule: str) -> str:
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    blank = "    \n"
    table = Table(
        box=Box(blank * 2 + f" {rule * 2} \n" + blank * 5),
        safe_box=False,
        show_header=header,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )
    for column in columns:
        table.add_column(
            Text(column.title), width=column.width, overflow="fold", justify="right" if column.right else "left"
        )
    names = [column.name for column in columns]
    for cells in zip(*[column.cells for column in columns], strict=True):
        table.add_row(*[Text(cell, style=_style(name, cell)) for name, cell in zip(names, cells, strict=True)])
    canvas = io.StringIO()
    console = Console(
        file=canvas,
        width=_total(columns) + _GAP,
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,
        legacy_windows=False,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(table, crop=False)
    return canvas.getvalue()


def _style(name: str, cell: str) -> str:
    return _STYLES.get(cell, "") if name in _STYLED else ""
