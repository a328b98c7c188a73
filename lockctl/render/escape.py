"""Text that can neither command a terminal nor hide: escapes for people, and those of the `tsv` format.

Imports nothing but `re`, since messages on standard error use it too.
"""

from __future__ import annotations

import re

_NAMED = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}

# Controls, line and paragraph separators, surrogates, and everything that Unicode calls format (Cf) or default
# ignorable: bidirectional overrides, joiners, fillers, variation selectors, tags. One of them in a key makes two
# keys look alike, or a line read backwards. A test holds this list against `unicodedata`.
# Compiled when first used: most commands meet plain text only.
_INVISIBLE = (
    "["
    "\x00-\x1f\x7f-\x9f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890-\u0891\u08e2\u115f-\u1160\u17b4-\u17b5"
    "\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)
_TSV_SPECIAL = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
_TSV_NAMED = {"\t": r"\t", "\n": r"\n", "\\": r"\\"}


def escape_human(text: str) -> str:
    r"""`text` for a terminal: control, bidirectional and invisible characters as `\n`, `\x1b`, `\u202e`.

    Ordinary backslashes stay as they are: this is for reading; `json` is the format to parse.
    """
    if text.isascii() and text.isprintable():
        return text
    return re.sub(_INVISIBLE, lambda found: _NAMED.get(found[0]) or _numbered(found[0]), text)


def escape_tsv(text: str) -> str:
    r"""`text` as a field of `tsv`: tab, newline, backslash as `\t`, `\n`, `\\`; other control characters as `\xNN`."""
    return _TSV_SPECIAL.sub(lambda found: _TSV_NAMED.get(found[0]) or f"\\x{ord(found[0]):02x}", text)


def needs_tsv_escape(text: str) -> bool:
    """Whether `escape_tsv` would change `text`; quick for the plain text of a whole column."""
    if text.isascii() and text.isprintable():
        return "\\" in text
    return _TSV_SPECIAL.search(text) is not None


def _numbered(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
