"""Durations read as people write them, and a number without a unit is never guessed at."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockctl import durations
from lockctl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        (" 5m ", 300_000),
        ("007s", 7_000),
        ("36500d", durations.LONGEST_MS),
    ],
)
def test_what_an_operator_writes(text: str, milliseconds: int) -> None:
    assert durations.parse(text) == milliseconds


@pytest.mark.parametrize("text", ["30", "1.5", "0", "-3", "+3", "007"])
def test_a_bare_number_asks_for_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="has no unit") as caught:
        durations.parse(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["", " ", "s", "ms", "1.5h", "-5m", "+5m", "5 m", "5M", "1m1h", "1s1s", "5m,", "٣s", "1h30"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        durations.parse(text)


@pytest.mark.parametrize("text", ["0s", "0ms", "0d0h"])
def test_nought_only_where_it_has_a_meaning(text: str) -> None:
    with pytest.raises(UsageError, match="longer than nothing"):
        durations.parse(text)
    assert durations.parse(text, zero=True) == 0
    assert durations.parse("0", zero=True) == 0


def test_more_than_a_century_is_a_typing_error() -> None:
    with pytest.raises(UsageError, match="too long"):
        durations.parse("36501d")
    with pytest.raises(UsageError, match="too long"):
        durations.parse("9" * 100 + "s")
    for zero in (False, True):
        for unit in ("s", ".0", ""):
            with pytest.raises(UsageError, match="too long"):
                durations.parse("9" * 5_000 + unit, zero=zero)


@given(st.integers(min_value=1, max_value=durations.LONGEST_MS))
def test_what_is_written_is_read_back_exactly(milliseconds: int) -> None:
    assert durations.parse(durations.write(milliseconds)) == milliseconds


@given(st.text(alphabet="0123456789dhms.+- ", max_size=12))
def test_any_text_is_a_duration_or_a_usage_error(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert 0 < durations.parse(text) <= durations.LONGEST_MS


@pytest.mark.parametrize(
    ("milliseconds", "shown"),
    [
        (0, "0ms"),
        (999, "999ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (59_950, "59.9s"),
        (60_000, "1m"),
        (5_400_000, "1h30m"),
        (90_061_000, "1d1h"),
        (-12_345, "-12.3s"),
    ],
)
def test_what_people_are_shown(milliseconds: int, shown: str) -> None:
    assert durations.show(milliseconds) == shown


@given(st.integers(min_value=-durations.LONGEST_MS, max_value=durations.LONGEST_MS))
def test_the_past_shows_like_the_future_with_a_sign(milliseconds: int) -> None:
    assert durations.show(-abs(milliseconds)).lstrip("-") == durations.show(abs(milliseconds))
