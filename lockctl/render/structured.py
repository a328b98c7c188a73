"""`json` and `jsonl`: one object a line, streamed; exact and always UTF-8.

The first page is encoded by the standard library, later ones by msgspec: a short answer must not pay for the
import (7 ms), a million rows must not pay for the standard library (4.5 µs a row against 0.4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields as dataclass_fields
from typing import Any, TextIO

from lockctl.records import to_json
from lockctl.render.cells import compact
from lockctl.render.sink import Sink, pages

Encode = Callable[[Sequence[Any]], bytes]

_ascii = json.JSONEncoder(separators=(",", ":"), default=to_json).encode


def write_structured(
    rows: Iterable[Any], names: Sequence[str], values: Callable[[Any], tuple[Any, ...]], *, array: bool, out: TextIO
) -> int:
    """The fields `names` of every row, which `values` gets; with `array` inside one JSON array. Returns the count.

    A source that fails leaves the array open: nobody should take half an answer for a whole one.
    """

    def objects(page: Sequence[Any]) -> list[dict[str, Any]]:
        return [dict(zip(names, values(row), strict=True)) for row in page]

    sink = Sink(out)
    count = 0
    whole = False
    encode: Encode | None = None
    for page in pages(rows):
        if not count:
            whole = _is_whole(page[0], names)
            lines = _encode_small(objects(page))
        else:
            encode = encode or _fast_encoder()
            lines = encode(page if whole else objects(page))
        if array:
            lines = (b",\n" if count else b"[\n") + lines[:-1].replace(b"\n", b",\n")
        sink.write(lines)
        count += len(page)
    if array:
        sink.write(b"\n]\n" if count else b"[]\n")
    return count


def write_json_object(record: Any, *, out: TextIO) -> None:
    """`record` as one JSON object on one line."""
    Sink(out).write(_encode_small([to_json(record)]))


def _is_whole(row: Any, names: Sequence[str]) -> bool:
    """Whether `names` are all fields of the record in their order, so that it can be encoded as it is."""
    return [field.name for field in dataclass_fields(row)] == list(names)


def _encode_small(objects: Sequence[Any]) -> bytes:
    try:
        return "".join([compact(item) + "\n" for item in objects]).encode()
    except UnicodeEncodeError:  # a lone surrogate: JSON can only spell it as an escape
        return "".join([_ascii(item) + "\n" for item in objects]).encode()


def _fast_encoder() -> Encode:
    import msgspec

    encode_lines = msgspec.json.Encoder().encode_lines

    def encode(objects: Sequence[Any]) -> bytes:
        try:
            return encode_lines(objects)
        except (UnicodeEncodeError, OverflowError):
            return _encode_small([to_json(item) for item in objects])

    return encode
