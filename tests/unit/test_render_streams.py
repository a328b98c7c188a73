"""`json`, `jsonl`, `csv` and `tsv`: exact, streamed, UTF-8 whatever the locale."""

from __future__ import annotations

import csv
import io
import json
import re
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockctl.records import Blocker, LeaseResult, LockRow, to_json
from lockctl.render import STREAMED, write_object, write_rows
from lockctl.render.sink import FIRST_PAGE, PAGE

FIELDS = tuple(LockRow.__dataclass_fields__)
ODD = ["[blue]", "[/x]", "1e5", "00123", "-n", "", " ", "a\nb", "a\r\nb\tc", "\x1b[31m", "\x9b", "漢" * 120, "\u202ex"]
ODD += ["😀", "a|b", "\\", "\\n", ":smile:", "{}", "%s", '"', "a,b", "=1+1", "'", "\u2028", "\x00", "\x7f", "null"]
KEYS = st.lists(st.text() | st.sampled_from(ODD), min_size=1, max_size=3).map(tuple)
ROWS = st.lists(
    st.builds(
        LockRow,
        table=st.just("verrou"),
        relation=st.text(),
        key=KEYS,
        holder=st.none() | st.text() | st.sampled_from(ODD),
        state=st.sampled_from(["held", "lapsed"]),
        expires_at=st.none() | st.just("2026-11-29T17:00:00.123456Z"),
        remaining_ms=st.none() | st.integers(-(2**53), 2**53),
        created_at=st.none(),
        updated_at=st.none() | st.text(),
    ),
    max_size=5,
)


def row(key: Sequence[str] = ("nightly",), holder: str | None = "worker-1") -> LockRow:
    return LockRow("ffdb_locks", "public.ffdb_locks", tuple(key), holder, "held", None, 12345, None, None)


def render(rows: Sequence[object], fmt: str, *, fields: Sequence[str] = FIELDS, header: bool = True) -> str:
    """What a stream of bytes gets; the same must reach a stream without bytes beneath it."""
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    assert write_rows(iter(rows), fields, fmt=fmt, out=out, header=header) == len(rows)
    text = raw.getvalue().decode()
    plain = io.StringIO()
    write_rows(iter(rows), fields, fmt=fmt, out=plain, header=header)
    assert plain.getvalue() == text
    return text


def key_text(key: tuple[str, ...]) -> str:
    return key[0] if len(key) == 1 else json.dumps(key, ensure_ascii=False, separators=(",", ":"))


def expected_texts(record: LockRow) -> list[str]:
    values = [getattr(record, name) for name in FIELDS]
    return ["" if v is None else key_text(v) if isinstance(v, tuple) else str(v) for v in values]


def unescape_tsv(field: str) -> str:
    """By the contract's words alone."""

    def one(found: re.Match[str]) -> str:
        return {"t": "\t", "n": "\n", "\\": "\\"}.get(found[1]) or chr(int(found[1][1:], 16))

    return re.sub(r"\\(t|n|\\|x[0-9a-f]{2})", one, field)


@settings(deadline=None)
@given(ROWS)
def test_json_is_one_array_with_every_value_exact(rows: list[LockRow]) -> None:
    assert json.loads(render(rows, "json")) == [to_json(record) for record in rows]


@settings(deadline=None)
@given(ROWS)
def test_jsonl_is_one_object_a_line_with_every_value_exact(rows: list[LockRow]) -> None:
    lines = render(rows, "jsonl").split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == [to_json(record) for record in rows]


@settings(deadline=None)
@given(ROWS)
def test_csv_is_read_back_exactly(rows: list[LockRow]) -> None:
    found = list(csv.reader(io.StringIO(render(rows, "csv"), newline=""), strict=True))
    assert found == [list(FIELDS), *map(expected_texts, rows)]


@settings(deadline=None)
@given(ROWS)
def test_tsv_is_one_line_a_row_and_is_read_back_exactly(rows: list[LockRow]) -> None:
    lines = render(rows, "tsv").split("\n")
    assert lines.pop() == ""
    found = [[unescape_tsv(field) for field in line.split("\t")] for line in lines]
    assert found == [list(FIELDS), *map(expected_texts, rows)]


@settings(deadline=None, max_examples=30)
@given(ROWS.filter(bool))
def test_pages_after_the_first_are_written_like_the_first(rows: list[LockRow]) -> None:
    many = (rows * (FIRST_PAGE + PAGE))[: FIRST_PAGE + PAGE + 1]
    for fields in (FIELDS, ("holder", "key"), ("key",)):
        lines = render(many, "jsonl", fields=fields).split("\n")[:-1]
        assert lines[FIRST_PAGE:] == (lines[: len(rows)] * len(many))[FIRST_PAGE : len(many)]
        array = render(many, "json", fields=fields)
        assert array == "[\n" + ",\n".join(lines) + "\n]\n"


@pytest.mark.parametrize(
    ("fmt", "text"),
    [("json", "[]\n"), ("jsonl", ""), ("csv", ",".join(FIELDS) + "\n"), ("tsv", "\t".join(FIELDS) + "\n")],
)
def test_nothing_is_an_empty_array_or_a_header_alone(fmt: str, text: str) -> None:
    assert render([], fmt) == text
    assert render([], fmt, header=False) == (text if fmt == "json" else "")


def test_no_header_leaves_the_rows() -> None:
    assert render([row()], "tsv", header=False, fields=("key", "holder")) == "nightly\tworker-1\n"
    assert render([row()], "csv", header=False, fields=("key", "holder")) == "nightly,worker-1\n"


def test_fields_are_those_asked_for_in_that_order() -> None:
    assert render([row()], "jsonl", fields=("remaining_ms", "key")) == '{"remaining_ms":12345,"key":["nightly"]}\n'


def test_csv_tells_an_empty_string_from_nothing() -> None:
    rows = [row([""], None), row(["x"], "")]
    assert render(rows, "csv", header=False, fields=("key", "holder", "state")) == '"",,held\nx,"",held\n'


def test_csv_leaves_a_formula_as_it_is() -> None:
    assert render([row(["=1+1"])], "csv", header=False, fields=("key", "state")) == "=1+1,held\n"


def test_nested_values_are_json_in_csv_and_tsv() -> None:
    blocker = Blocker(7, (1, 2), True, "session", *[None] * 10)
    fields = ("pid", "blocked_by", "root", "gid")
    assert render([blocker], "tsv", header=False, fields=fields) == "7\t[1,2]\ttrue\t\n"
    assert render([blocker], "csv", header=False, fields=fields) == '7,"[1,2]",true,\n'


@pytest.mark.parametrize("fmt", sorted(STREAMED))
def test_text_that_is_no_unicode_is_escaped_and_breaks_nothing(fmt: str) -> None:
    rows = [row(["ok"]), row(["\udc80"])] * FIRST_PAGE
    text = render(rows, fmt)
    assert text.count("\\udc80") == text.count("ok") == FIRST_PAGE


@pytest.mark.parametrize("fmt", sorted(STREAMED))
def test_a_long_answer_takes_no_more_memory_than_a_short_one(fmt: str) -> None:
    class Nowhere(io.StringIO):
        def write(self, text: str) -> int:
            return len(text)

    def peak(count: int) -> int:
        tracemalloc.start()
        write_rows((row([f"key-{number}"]) for number in range(count)), FIELDS, fmt=fmt, out=Nowhere())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(3 * PAGE)
    assert peak(30 * PAGE) < peak(3 * PAGE) + 500 * PAGE  # to hold the rows would take ten times as much more


@pytest.mark.parametrize("fmt", sorted(STREAMED))
def test_rows_are_out_before_the_source_is_asked_for_much_more(fmt: str) -> None:
    out = io.TextIOWrapper(raw := io.BytesIO(), encoding="utf-8")
    seen: list[int] = []

    def source() -> Iterator[LockRow]:
        for number in range(3 * PAGE):
            seen.append(raw.getvalue().count(b"held"))
            yield row([str(number)])

    write_rows(source(), FIELDS, fmt=fmt, out=out)
    assert seen[FIRST_PAGE] == FIRST_PAGE
    assert all(number - count <= PAGE for number, count in enumerate(seen))


@pytest.mark.parametrize("fmt", sorted(STREAMED))
def test_when_the_source_fails_what_had_come_is_written_and_a_json_array_stays_open(fmt: str) -> None:
    def source() -> Iterator[LockRow]:
        yield row(["first"])
        raise ConnectionError("gone")

    out = io.StringIO()
    with pytest.raises(ConnectionError):
        write_rows(source(), FIELDS, fmt=fmt, out=out)
    assert "first" in out.getvalue()
    assert not out.getvalue().endswith("]\n")


@pytest.mark.parametrize("fmt", [*sorted(STREAMED), "table", "psql"])
def test_a_reader_that_has_gone_is_the_callers_to_handle(fmt: str) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        write_rows([row()], FIELDS, fmt=fmt, out=Closed())


@pytest.mark.parametrize("fmt", ["json", "jsonl"])
def test_a_result_is_one_json_object_on_one_line(fmt: str) -> None:
    result = LeaseResult("acquired", row(["a\nb"]), lease="lk1.abc")
    out = io.StringIO()
    write_object(result, fmt=fmt, out=out)
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue()) == to_json(result)
    assert list(json.loads(out.getvalue())) == ["outcome", "lock", "previous", "lease", "renewed", "note"]


def test_a_result_is_one_row_elsewhere() -> None:
    out = io.StringIO()
    write_object(LeaseResult("acquired", row(), lease="lk1.abc"), fmt="tsv", out=out)
    write_object(LeaseResult("released", None, previous=row(["x"])), fmt="tsv", out=out, header=False)
    write_object({"outcome": "done", "steps": ({"id": 1},)}, fmt="tsv", out=out)
    assert out.getvalue() == (
        "outcome\tkey\tholder\tstate\texpires_at\tremaining_ms\tlease\n"
        "acquired\tnightly\tworker-1\theld\t\t12345\tlk1.abc\n"
        "released\tx\t\t\t\t\t\n"
        'outcome\tsteps\ndone\t[{"id":1}]\n'
    )
