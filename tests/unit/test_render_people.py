"""`table` and the formats of tabulate: every value there and unharmed, aligned, and never a command to the terminal."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Callable, Sequence
from html import unescape as html_unescape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabulate import tabulate_formats
from wcwidth import wcswidth

from lockctl.errors import UsageError
from lockctl.records import Blocker, LeaseResult, LockRow, SweepResult
from lockctl.render import OWN_FORMATS, check_format, escape_human, write_object, write_rows
from lockctl.render.table import _column, _draw, _draw_plain, _measure

FIELDS = tuple(LockRow.__dataclass_fields__)
FORMATS = [name for name in tabulate_formats if name not in OWN_FORMATS]
ODD = ["[blue]", "[/x]", "[bold]x[/bold]", "1e5", "00123", "-n", "0x1F", "1_000", "nan", "inf", "True", "None", " x "]
ODD += ["a\nb", "\x1b[31mred", "\x9b31m", "\x01", "漢" * 120, "\u202ex", "😀", ":smile:", "{}", "%s", "\\", "\\n", "*"]
KEYS = st.text(min_size=1).filter(lambda text: bool(text.strip())) | st.sampled_from(ODD)
BOXED = ["psql", "outline", "simple_outline", "fancy_outline", "github", "pipe", "orgtbl", "presto", "fancy_grid"]
AT = "2026-11-29T17:00:00.123456Z"


def row(key: Sequence[str] = ("nightly",), holder: str | None = "worker-1", state: str = "held") -> LockRow:
    return LockRow("ffdb_locks", "public.ffdb_locks", tuple(key), holder, state, AT, 12345, AT, None)


def render(
    rows: Sequence[object],
    fmt: str,
    *,
    fields: Sequence[str] = FIELDS,
    header: bool = True,
    color: bool = False,
    width: int | None = None,
) -> str:
    out = io.StringIO()
    assert write_rows(rows, fields, fmt=fmt, out=out, header=header, color=color, width=width) == len(rows)
    return out.getvalue()


def latex_unescape(text: str) -> str:
    names = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\^{}": "^", r"\ensuremath{<}": "<"}
    names |= {r"\ensuremath{>}": ">"} | {rf"\{mark}": mark for mark in "&%$#_{}"}
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)


UNDO: dict[str, Callable[[str], str]] = {
    "github": lambda text: re.sub(r"(\\*)\\\|", lambda found: found[1][len(found[1]) // 2 :] + "|", text),
    "orgtbl": lambda text: text.replace(r"\vert{}", "|"),
    "asciidoc": lambda text: text.replace(r"\|", "|"),
    "jira": lambda text: re.sub(r"\\(\||\{(?=[A-Za-z]))", r"\1", text),
    "mediawiki": html_unescape,
    "moinmoin": html_unescape,
    "textile": html_unescape,
    "html": html_unescape,
}
UNDO |= {"pipe": UNDO["github"], "youtrack": UNDO["jira"], "unsafehtml": html_unescape}
LATEX = [name for name in FORMATS if name.startswith("latex")]
UNDO |= dict.fromkeys(LATEX, latex_unescape)

# What parts the cells of a row, for those formats that a program parses.
SEPARATORS = {"html": "</?td", "mediawiki": r"\|+", "moinmoin": r"\|\|", "textile": r"\|", "orgtbl": r"\|"}
SEPARATORS |= {"github": r"(?<!\\)(?:\\\\)*\|", "asciidoc": r"(?<!\\)\|", "jira": r"(?<!\\)\|", "unsafehtml": "</?td"}
SEPARATORS |= {"pipe": SEPARATORS["github"], "youtrack": SEPARATORS["jira"]} | dict.fromkeys(LATEX, r"(?<!\\)&")


@pytest.mark.parametrize("fmt", [*FORMATS, "table"])
@settings(max_examples=40, deadline=None)
@given(key=KEYS)
def test_a_key_is_on_one_line_whole_and_without_control_characters(fmt: str, key: str) -> None:
    text = render([row([key], holder="HOLDER")], fmt)
    assert "\x1b" not in text
    assert escape_human(text.replace("\n", "")) == text.replace("\n", "")
    (line,) = [line for line in text.split("\n") if "HOLDER" in line]
    shown = escape_human(key)
    assert shown in UNDO.get(fmt, str)(line)


@pytest.mark.parametrize("fmt", SEPARATORS)
@pytest.mark.parametrize(
    "key", ["a|b", "a||b", "||", "|", "\\|", "\\\\|", "a\\", "{code}", "{|", "<b>", "&amp;", "[[x]]"]
)
def test_markup_in_a_value_moves_no_cell(fmt: str, key: str) -> None:
    """A line with the value has as many separators as one with a plain word in its place."""
    for_key, plain = (
        next(line for line in render([row([text], "HOLDER")], fmt).split("\n") if "HOLDER" in line)
        for text in (key, "plain")
    )
    assert len(re.findall(SEPARATORS[fmt], for_key)) == len(re.findall(SEPARATORS[fmt], plain))


@pytest.mark.parametrize("fmt", ["html", "unsafehtml"])
def test_no_value_becomes_html(fmt: str) -> None:
    assert "<script>" not in render([row(["<script>"])], fmt)


@pytest.mark.parametrize("fmt", LATEX)
def test_a_latex_row_that_begins_with_a_bracket_is_no_argument_of_the_row_before(fmt: str) -> None:
    lines = render([row(["[blue]"]), row(["*x"]), row(["a_b"])], fmt, fields=("key", "state")).split("\n")
    assert [line.split("&")[0].strip() for line in lines if "&" in line] == ["key", "{}[blue]", "{}*x", r"a\_b"]
    assert re.search(r"\{(tabular|longtable)\}\{ll\}", render([], fmt, fields=("key", "state")))


@pytest.mark.parametrize("fmt", [*BOXED, "table"])
def test_columns_line_up_by_the_cells_of_a_terminal(fmt: str) -> None:
    text = render([row([key], "w") for key in ("漢字" * 60, "ascii", "한국어", "😀", "e\u0301", "\x1b", "")], fmt)
    if fmt in ("pipe", "github"):
        assert {wcswidth(line) for line in text.splitlines()} == {wcswidth(text.splitlines()[0])}
    starts = {wcswidth(line[: line.index(AT)]) for line in text.splitlines() if AT in line}
    assert len(starts) == 1


@pytest.mark.parametrize("fmt", [*FORMATS, "table"])
def test_nothing_becomes_a_number(fmt: str) -> None:
    for key in ("1e5", "00123", "1_000", "0x1F", "1,000", "1.50", "-0"):
        text = UNDO.get(fmt, str)(render([row([key], holder=key)], fmt))
        assert len(re.findall(rf"(?<![\w.,]){re.escape(key)}(?![\w.,])", text)) == 2


def test_integers_are_right_aligned_and_texts_of_digits_are_not() -> None:
    rows = [SweepResult("1", "r", 5, 0, False, None), SweepResult("123", "r", 12345, 0, True, None)]
    lines = render(rows, "plain", fields=("table", "swept", "dry_run"), header=False).splitlines()
    assert lines == ["1        5  false", "123  12345  true"]


@pytest.mark.parametrize("fmt", [*FORMATS, "table"])
def test_an_empty_key_is_seen_and_nothing_is_an_empty_cell(fmt: str) -> None:
    text = render([row([""], None), row(["x"], "")], fmt)
    assert "''" in UNDO.get(fmt, str)(text)
    assert "None" not in text


@pytest.mark.parametrize("fmt", ["table", "psql"])
def test_a_key_of_several_words_can_be_pasted_as_arguments(fmt: str) -> None:
    words = ["agent one", "it's", "", "-n"]
    assert shlex.join(words) in render([row(words)], fmt)


@pytest.mark.parametrize("fmt", [*FORMATS, "table"])
def test_without_rows_there_is_the_header_and_without_header_the_rows(fmt: str) -> None:
    undo = UNDO.get(fmt, str)
    assert all(name in undo(render([], fmt)) for name in ("key", "holder", "expires_at"))
    assert "holder" not in undo(render([row()], fmt, header=False))
    assert "worker-1" in undo(render([row()], fmt, header=False))
    assert "holder" not in render([], fmt, header=False)


def test_values_are_no_markup_emoji_code_or_highlight_for_rich() -> None:
    text = render([row(["[bold red]x[/] :smile: 10.0.0.1 'quoted' http://x"])], "table", width=200)
    assert "[bold red]x[/] :smile: 10.0.0.1 'quoted' http://x" in text


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"])
def test_colour_is_the_callers_choice_alone(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert "\x1b" not in render([row()], "table", width=100)
    assert "\x1b[32mheld" in render([row()], "table", width=100, color=True)
    assert "\x1b[33mlapsed" in render([row(state="lapsed")], "table", color=True)


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.none() | KEYS), max_size=3), st.booleans())
def test_the_quick_way_into_a_pipe_draws_what_rich_draws(rows: list[tuple[str, str | None]], header: bool) -> None:
    values = [(key, holder, 5) for key, holder in rows]
    columns = [_column(name, index, values, None) for index, name in enumerate(("key", "holder", "wait_ms"))]
    _measure(columns, header)
    assert _draw_plain(columns, header=header, rule="─") == _draw(columns, header=header, color=False, rule="─")


def test_into_a_pipe_a_table_is_as_wide_as_its_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    key = "k" * 300
    lines = render([row([key])], "table").splitlines()
    assert len(lines) == 3
    assert key in lines[2]


@pytest.mark.parametrize("width", [200, 120, 100, 80, 72])
def test_on_a_terminal_nothing_is_cut_off(width: int) -> None:
    key, holder = "Q" * 60, "漢" * 40
    text = render([row([key], holder)], "table", width=width)
    assert max(map(wcswidth, text.splitlines())) <= width
    assert (text.count("Q"), text.count("漢")) == (60, 40)
    assert "…" not in text
    assert "2026-11-29T17:00:00" in text
    assert "12.3s" in text


def test_on_a_narrow_terminal_a_table_leaves_out_first_what_matters_least() -> None:
    def titles(width: int) -> list[str]:
        return render([row()], "table", width=width).splitlines()[0].split()

    everything = ["table", "relation", "key", "holder", "state", "expires_at", "remaining", "created_at", "updated_at"]
    without_relation = [name for name in everything if name != "relation"]
    assert titles(140) == everything
    assert titles(125) == without_relation
    assert ".123456" in render([row()], "table", width=125)
    assert titles(110) == without_relation
    assert ".123456" not in render([row()], "table", width=110)
    assert titles(97) == without_relation[:-1]
    assert titles(80) == without_relation[:-2]


def test_where_no_table_fits_every_row_is_a_block_with_all_its_fields() -> None:
    blocks = render([row(["a"]), row(["b"])], "table", width=40).split("\n\n")
    assert len(blocks) == 2
    assert [line.split()[0] for line in blocks[0].splitlines()] == [name.removesuffix("_ms") for name in FIELDS]
    assert AT in blocks[1]


def test_spans_are_durations_in_a_table_and_numbers_elsewhere() -> None:
    blocker = Blocker(7, (1, 2), True, "session", None, None, None, None, None, 5_400_000, None, None, None, None)
    fields = ("pid", "blocked_by", "xact_age_ms", "wait_ms")
    assert render([blocker], "table", fields=fields).splitlines()[2].split() == ["7", "[1,2]", "1h30m"]
    assert render([blocker], "table", fields=fields).split()[:4] == ["pid", "blocked_by", "xact_age", "wait"]
    assert render([blocker], "plain", fields=fields).split()[:4] == list(fields)
    assert "5400000" in render([blocker], "plain", fields=fields)


@pytest.mark.parametrize("fmt", [*FORMATS, "table"])
def test_a_result_is_one_row(fmt: str) -> None:
    out = io.StringIO()
    write_object(LeaseResult("acquired", row(), lease="TOKEN"), fmt=fmt, out=out)
    (line,) = [line for line in out.getvalue().splitlines() if "TOKEN" in line]
    assert all(value in line for value in ("acquired", "nightly", "worker-1", "held", AT))


@pytest.mark.parametrize("fmt", ["table", "fancy_grid", "psql"])
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_in_another_locale_what_has_no_character_is_escaped_and_still_aligned(fmt: str, encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    write_rows([row(["漢é"]), row(["plain"])], FIELDS, fmt=fmt, out=out)
    text = raw.getvalue().decode(encoding)
    assert r"\u6f22" in text
    if fmt != "fancy_grid":
        assert len({line.index(AT) for line in text.splitlines() if AT in line}) == 1
    if fmt == "table":
        assert "\\u2500" not in text


@pytest.mark.parametrize("fmt", [*OWN_FORMATS, "plain", "github", "psql", "orgtbl"])
def test_known_formats_pass(fmt: str) -> None:
    check_format(fmt)


@pytest.mark.parametrize("fmt", ["yaml", "", "JSON", "github ", "x\x1b[31m"])
def test_an_unknown_format_is_a_usage_error_that_names_the_known_ones(fmt: str) -> None:
    with pytest.raises(UsageError) as failure:
        check_format(fmt)
    assert failure.value.hint is not None
    assert all(name in failure.value.hint for name in ("table", "jsonl", "tsv", "github", "orgtbl"))
    assert failure.value.hint.count("tsv") == 1
    assert "\x1b" not in failure.value.message
