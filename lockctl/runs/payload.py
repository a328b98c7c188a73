"""A JSON payload as a value that can be written as JSON again without losing anything."""

from __future__ import annotations

import json
import math
from typing import Any


def value(text: str | None) -> Any:
    """The JSON value of `text`; the text itself when it is no JSON. A number that no float can hold stays text."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_float=_number)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float | str:
    number = float(text)
    # JSON knows no infinity, and a reader must not get another number than was stored.
    return number if math.isfinite(number) and _same(text, number) else text


def _same(text: str, number: float) -> bool:
    from decimal import Decimal

    return Decimal(text) == Decimal(repr(number))
