"""The way out: pages of rows in, UTF-8 bytes or legible text onto a stream."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO, TextIO, cast

from lockctl.render.cells import within

FIRST_PAGE = 100
PAGE = 1_000


def pages(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """`rows` in lists: a short one first, so that the first rows are out soon; then a thousand at a time.

    When the source fails, the rows that had come are handed over before its error goes on.
    """
    source = iter(rows)
    size = FIRST_PAGE
    while True:
        page: list[Any] = []
        try:
            page.extend(islice(source, size))
        except Exception:
            if page:
                yield page
            raise
        if not page:
            return
        yield page
        size = PAGE


class Sink:
    """Exact text as UTF-8, whatever the locale says; each write is flushed, so a reader gets it at once."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._raw = cast("BinaryIO | None", getattr(out, "buffer", None))
        if self._raw is not None:
            out.flush()

    def write(self, data: bytes) -> None:
        if self._raw is None:
            self._out.write(data.decode())
        else:
            self._raw.write(data)
            self._raw.flush()

    def write_text(self, text: str) -> None:
        self.write(text.encode("utf-8", "backslashreplace"))


def narrow_encoding(out: TextIO) -> str | None:
    """The encoding of `out` when it can't hold every character; None for UTF-8 and for a stream without one."""
    encoding = getattr(out, "encoding", None)
    if not encoding or codecs.lookup(encoding).name.startswith("utf"):
        return None
    return str(encoding)


def write_legible(text: str, out: TextIO) -> None:
    """Text for people, in the encoding of the stream; what it lacks becomes a backslash escape."""
    encoding = narrow_encoding(out)
    out.write(text if encoding is None else within(text, encoding))
    out.flush()
