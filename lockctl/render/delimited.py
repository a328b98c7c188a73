"""`csv` and `tsv`: a header, then one row a line, streamed; exact and always UTF-8.

`csv` follows RFC 4180 with "\n" as the line end, and PostgreSQL's COPY in telling nothing (an empty field) from an
empty string (`""`). `tsv` never has more than one line a row: what would break it is escaped.

A page is encoded column by column: one look at a whole column tells that nothing in it needs quoting, which is
what keeps a million rows near the speed of COPY.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from lockctl.render.cells import machine, words
from lockctl.render.escape import escape_tsv, needs_tsv_escape
from lockctl.render.sink import Sink, pages

Column = Sequence[str]

_CSV_SPECIAL = re.compile(r'[",\r\n]')


def write_delimited(
    rows: Iterable[tuple[Any, ...]], names: Sequence[str], *, fmt: str, out: TextIO, header: bool
) -> int:
    """Rows of values under `names`. Returns how many there were."""
    separator, encode = _FORMATS[fmt]
    sink = Sink(out)
    # It goes out with the first rows: a source that fails before them leaves nothing that looks like an answer.
    head = separator.join(names) + "\n" if header else ""
    count = 0
    for page in pages(rows):
        columns = [encode(name, column) for name, column in zip(names, zip(*page, strict=True), strict=True)]
        sink.write_text(head + "\n".join(map(separator.join, zip(*columns, strict=True))) + "\n")
        head = ""
        count += len(page)
    if head:
        sink.write_text(head)
    return count


def _texts(name: str, values: Sequence[Any]) -> Column:
    """The exact texts of a column; columns of one type take a short way."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return values
    if kinds == {int}:
        return list(map(str, values))
    if kinds == {type(None)}:
        return [""] * len(values)
    if kinds == {tuple} and name == "key":
        return list(map(words, values))
    return [machine(name, value) for value in values]


def _tsv(name: str, values: Sequence[Any]) -> Column:
    texts = _texts(name, values)
    if needs_tsv_escape("".join(texts)):
        return [escape_tsv(text) for text in texts]
    return texts


def _csv(name: str, values: Sequence[Any]) -> Column:
    texts = _texts(name, values)
    together = "".join(texts)
    if any(mark in together for mark in '",\r\n'):
        texts = [_quoted(text) if _CSV_SPECIAL.search(text) else text for text in texts]
    if "" in texts:
        return ['""' if not text and value is not None else text for text, value in zip(texts, values, strict=True)]
    return texts


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


_FORMATS: dict[str, tuple[str, Callable[[str, Sequence[Any]], Column]]] = {"tsv": ("\t", _tsv), "csv": (",", _csv)}
