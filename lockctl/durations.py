"""Durations as an operator writes them: `250ms`, `30s`, `5m`, `2h`, `1d`, `1h30m`.

Inside lockctl a duration is a whole number of milliseconds.
"""

from __future__ import annotations

import re

from lockctl.errors import UsageError

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_SHAPE = "".join(rf"(?:(?P<{unit}>[0-9]+){unit})?" for unit in _UNITS_MS)
LONGEST_MS = 36_500 * _UNITS_MS["d"]
"""A hundred years: more is a typing error, and every expiry type can still hold it."""
_LONGEST_TEXT = 100
"""Python refuses to read numbers of thousands of digits."""


def parse(text: str, *, zero: bool = False) -> int:
    """Milliseconds of `text`; `zero` says whether nought has a meaning here.

    Raises UsageError for a bare number, an unknown or repeated unit, a sign, nought or a duration over a century.
    """
    word = text.strip()
    if len(word) > _LONGEST_TEXT:
        raise UsageError(f"duration {word[:20]!r}… is too long", hint="the longest is 36500d")
    if re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", word):
        if zero and int(float(word)) == 0 and float(word) == 0:
            return 0
        raise UsageError(
            f"duration {text!r} has no unit", hint=f"write for example {word.lstrip('+-')}s or {word.lstrip('+-')}ms"
        )
    found = re.fullmatch(_SHAPE, word)
    if not word or found is None:
        raise UsageError(f"{text!r} is not a duration", hint="write for example 250ms, 30s, 5m, 2h, 1d or 1h30m")
    total = sum(int(count) * _UNITS_MS[unit] for unit, count in found.groupdict().items() if count)
    if total == 0 and not zero:
        raise UsageError(f"duration {text!r} must be longer than nothing")
    if total > LONGEST_MS:
        raise UsageError(f"duration {text!r} is too long", hint="the longest is 36500d")
    return total


def show(milliseconds: int) -> str:
    """`milliseconds` for people: exact below a minute, two units above it (`1h30m`), `-` in front of the past."""
    sign, rest = ("-", -milliseconds) if milliseconds < 0 else ("", milliseconds)
    if rest < 1_000:
        return f"{sign}{rest}ms"
    if rest < 60_000:
        seconds, millis = divmod(rest, 1_000)
        return f"{sign}{seconds}.{millis // 100}s" if millis >= 100 else f"{sign}{seconds}s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS_MS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return sign + "".join(parts[:2])


def write(milliseconds: int) -> str:
    """The shortest exact spelling: `parse(write(n)) == n` for every positive n."""
    parts: list[str] = []
    for unit, size in _UNITS_MS.items():
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
