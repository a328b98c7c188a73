"""Records onto standard output, in the formats of the contract. Knows records and formats, and no database.

`json`, `jsonl`, `csv` and `tsv` stream in constant memory and are exact; `table` (rich) and the formats of tabulate
hold the rows and are for people. Importing this package imports none of rich, tabulate and msgspec: each writer
imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TextIO

from lockctl.errors import UsageError
from lockctl.records import shown
from lockctl.render.escape import escape_human, escape_tsv

__all__ = ["OWN_FORMATS", "STREAMED", "check_format", "escape_human", "escape_tsv", "write_object", "write_rows"]

OWN_FORMATS = ("table", "json", "jsonl", "csv", "tsv")
"""These win over a tabulate format of the same name."""

STREAMED = frozenset({"json", "jsonl", "csv", "tsv"})
"""Formats that are written while the rows come."""


def check_format(fmt: str) -> None:
    """Raise UsageError, naming the formats there are, when `fmt` is none of them."""
    if fmt in OWN_FORMATS:
        return
    from lockctl.render.tabulated import known_formats

    others = [name for name in known_formats() if name not in OWN_FORMATS]
    if fmt not in others:
        raise UsageError(
            f"there is no format {escape_human(fmt)!r}",
            hint=f"formats: {', '.join(OWN_FORMATS)}, or {', '.join(others)}",
        )


def write_rows(
    rows: Iterable[Any],
    fields: Sequence[str],
    *,
    fmt: str,
    out: TextIO,
    header: bool = True,
    color: bool = False,
    width: int | None = None,
) -> int:
    """The `fields` of every record in `rows`, in the format `fmt`. Returns how many rows were written.

    `header` holds for all formats but `json` and `jsonl`; `color` and `width` (in cells; None: no terminal) for
    `table`. Errors of the source and of the stream go to the caller: BrokenPipeError when the reader has gone.
    """
    values = _getter(fields)
    names = [shown(field) for field in fields]
    if fmt in ("json", "jsonl"):
        from lockctl.render.structured import write_structured

        return write_structured(rows, names, values, array=fmt == "json", out=out)
    return _write_values(map(values, rows), names, fmt=fmt, out=out, header=header, color=color, width=width)


def write_object(
    record: Any, *, fmt: str, out: TextIO, header: bool = True, color: bool = False, width: int | None = None
) -> None:
    """One result: a JSON object on one line in `json` and `jsonl`, elsewhere one row under a header.

    In a row the lock of a LeaseResult is spread over columns; what else is nested is written as JSON.
    """
    if fmt in ("json", "jsonl"):
        from lockctl.render.structured import write_json_object

        write_json_object(record, out=out)
        return
    from lockctl.render.flat import flatten

    names, values = flatten(record)
    _write_values([values], names, fmt=fmt, out=out, header=header, color=color, width=width)


def _write_values(
    rows: Iterable[tuple[Any, ...]],
    names: Sequence[str],
    *,
    fmt: str,
    out: TextIO,
    header: bool,
    color: bool,
    width: int | None,
) -> int:
    if fmt in ("csv", "tsv"):
        from lockctl.render.delimited import write_delimited

        return write_delimited(rows, names, fmt=fmt, out=out, header=header)
    if fmt == "table":
        from lockctl.render.table import write_table

        return write_table(rows, names, out=out, header=header, color=color, width=width)
    from lockctl.render.tabulated import write_tabulated

    return write_tabulated(rows, names, fmt=fmt, out=out, header=header)


def _getter(fields: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from a record to the tuple of its `fields`."""
    get: Callable[[Any], Any] = attrgetter(*fields)
    return get if len(fields) > 1 else lambda record: (get(record),)
