"""Text for people can neither command a terminal nor hide; text for programs comes back exactly."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockctl.render import escape_human, escape_tsv
from lockctl.render.escape import needs_tsv_escape


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("nightly", "nightly"),
        ("a\tb\nc\rd", r"a\tb\nc\rd"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x9b31m\x7f\x00", r"\x9b31m\x7f\x00"),
        ("gnp.\u202eexe", r"gnp.\u202eexe"),
        ("zero\u200bwidth\u200d\ufeff", r"zero\u200bwidth\u200d\ufeff"),
        ("\u3164\u115f\ufe0f\u2028\u00ad", r"\u3164\u115f\ufe0f\u2028\xad"),
        ("\U000e0041\udc80", r"\U000e0041\udc80"),
        (r"C:\new\x1b", r"C:\new\x1b"),
        ("漢字 é e\u0301 😀 [blue] :smile: %s {}", "漢字 é e\u0301 😀 [blue] :smile: %s {}"),
        ("", ""),
    ],
)
def test_people_see_every_control_and_invisible_character(text: str, shown: str) -> None:
    assert escape_human(text) == shown


def test_every_character_that_unicode_calls_control_format_or_separator_is_escaped() -> None:
    hidden = [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    ]
    assert [hex(ord(character)) for character in hidden if escape_human(character) == character] == []


def test_no_letter_mark_number_or_symbol_that_can_be_seen_is_escaped() -> None:
    """But fillers, joiners and selectors, which are letters and marks by category and show nothing."""
    unseen = {0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
    for code in range(0x110000):
        visible = unicodedata.category(chr(code))[0] in "LMNPS" and code not in unseen and not 0xE0000 <= code < 0xE1000
        assert not visible or escape_human(chr(code)) == chr(code)


@settings(deadline=None)
@given(st.text())
def test_what_people_see_is_printable_and_stays_so(text: str) -> None:
    shown = escape_human(text)
    assert not any(unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp"} for character in shown)
    assert escape_human(shown) == shown


def unescape_tsv(text: str) -> str:
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text


@settings(deadline=None)
@given(st.text(st.characters(max_codepoint=0xFF)))
def test_a_tsv_field_comes_back_by_the_usual_unescaping(text: str) -> None:
    field = escape_tsv(text)
    assert unescape_tsv(field) == text
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in field)


@settings(deadline=None)
@given(st.text())
def test_only_fields_that_change_are_said_to_need_it(text: str) -> None:
    assert needs_tsv_escape(text) == (escape_tsv(text) != text)


@pytest.mark.parametrize(
    ("text", "field"),
    [("a\tb", r"a\tb"), ("a\nb", r"a\nb"), ("a\\b", r"a\\b"), ("a\rb\x9b", r"a\x0db\x9b"), ("\u202e漢", "\u202e漢")],
)
def test_tsv_escapes_as_the_contract_says(text: str, field: str) -> None:
    assert escape_tsv(text) == field
