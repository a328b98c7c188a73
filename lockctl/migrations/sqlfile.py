"""A SQL file as steps: split with PostgreSQL's own grammar, so that a `;` in a function or a comment splits nothing.

The rules of a step: what stands between two marks is one transaction. A mark is the comment `-- lockctl: step TITLE`
between two statements, and the end of a change of a version table. What can't be in a transaction is a step of its
own, outside one; so is a statement behind the comment `-- lockctl: no-transaction`. `BEGIN; …; COMMIT;` in the file
is one step, which nothing inside divides; ROLLBACK, PREPARE TRANSACTION and transaction modes are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockctl.errors import UsageError
from lockctl.migrations import grammar

_MARK = re.compile(r"--\s*lockctl:\s*(.*?)\s*\Z", re.DOTALL)
_COPY = "COPY … FROM STDIN and TO STDOUT move rows beside the SQL: use psql for them"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its text without the semicolon, the line of its first word, and pglast's node.

    `alone` is the reason why it must be outside a transaction, None where it need not; `comment` what stands on the
    line above it.
    """

    text: str
    line: int
    node: Any
    alone: str | None = None
    comment: str | None = None

    @property
    def summary(self) -> str:
        """Its beginning, on one line."""
        words = " ".join(self.text.split())
        return words if len(words) <= 80 else words[:79] + "…"


@dataclass(frozen=True, slots=True)
class FileStep:
    """What is committed together; `number` counts from 1. `outside`: one statement, without a transaction."""

    number: int
    title: str
    statements: tuple[Statement, ...]
    outside: bool = False


@dataclass(frozen=True, slots=True)
class SqlFile:
    """A file that was parsed to its end; nothing of it has run."""

    name: str
    steps: tuple[FileStep, ...]


def read(path: Path) -> SqlFile:
    """The steps of a file in UTF-8. Raises UsageError with the line of what can't be taken."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}, line {line}: the file is not UTF-8") from None
    return parse(text, str(path))


def parse(text: str, name: str) -> SqlFile:
    """The steps of `text`. Raises UsageError as `read` does; `name` is what the file is called in it."""
    return SqlFile(name, tuple(_numbered(_Splitter(text, name).groups())))


@dataclass(slots=True)
class _Group:
    title: str | None
    statements: list[Statement]
    outside: bool = False


def _numbered(groups: Iterator[_Group]) -> Iterator[FileStep]:
    for number, group in enumerate(groups, 1):
        first = group.statements[0]
        title = group.title or first.comment or first.summary
        yield FileStep(number, title, tuple(group.statements), group.outside)


class _Splitter:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def groups(self) -> Iterator[_Group]:
        """The statements as the rules above group them."""
        group = _Group(None, [])
        opened: Statement | None = None
        for marks, statement in self._marked():
            control = grammar.transaction(statement.node)
            if opened is not None and marks:
                raise self._error(statement.line, "a mark of lockctl's can't divide BEGIN … COMMIT, which is one step")
            titles = [title for title in marks if title is not None]
            if titles:
                if group.statements:
                    yield group
                group = _Group(titles[-1] or None, [])
            if control is not None and control not in (*grammar.SAVEPOINTS, *grammar.PREPARED):
                if group.statements:
                    yield group
                group, opened = _Group(None if group.statements else group.title, []), self._control(statement, opened)
                continue
            reason = statement.alone or ("no-transaction" if None in marks else None)
            if reason is not None:
                if opened is not None:
                    raise self._error(statement.line, f"{reason} can't run inside the BEGIN of line {opened.line}")
                if group.statements:
                    yield group
                yield _Group(None if group.statements else group.title, [statement], outside=True)
                group = _Group(None, [])
                continue
            group.statements.append(statement)
            if opened is None and grammar.ends_step(statement.node):
                yield group
                group = _Group(None, [])
        if opened is not None:
            raise self._error(opened.line, "BEGIN without a COMMIT")
        if group.statements:
            yield group

    def _control(self, statement: Statement, opened: Statement | None) -> Statement | None:
        """The BEGIN that is open after a BEGIN or COMMIT. Raises UsageError for what has no meaning here."""
        control = grammar.transaction(statement.node)
        if statement.node.options:
            raise self._error(statement.line, "transaction modes are not taken: a step is READ COMMITTED and writes")
        if control in grammar.OPEN:
            if opened is not None:
                raise self._error(statement.line, f"BEGIN inside the BEGIN of line {opened.line}")
            return statement
        if control not in grammar.CLOSE or statement.node.chain:
            raise self._error(
                statement.line,
                f"{statement.summary} is not taken: a step is committed whole, or nothing of it",
            )
        if opened is None:
            raise self._error(statement.line, "COMMIT without a BEGIN")
        return None

    def _marked(self) -> Iterator[tuple[list[str | None], Statement]]:
        """Each statement with the marks in front of it: a title (maybe empty), or None for `no-transaction`."""
        marks = self._marks()
        for statement, start in self._statements():
            before = [mark for at, mark in marks if at < start]
            marks = marks[len(before) :]
            yield before, statement

    def _statements(self) -> Iterator[tuple[Statement, int]]:
        from pglast import parse_sql
        from pglast.parser import ParseError

        try:
            nodes = parse_sql(self.text)
        except ParseError as error:
            raise self._syntax(*error.args) from None
        above = {self._line(at): text.lstrip("- ") for at, text in self._comments() if not _MARK.match(text)}
        for raw in nodes:
            node: Any = raw.stmt
            start = raw.stmt_location or 0
            end = start + raw.stmt_len if raw.stmt_len else len(self.text)
            if grammar.copies(node):
                raise self._error(self._line(start), _COPY)
            line = self._line(start)
            yield Statement(self.text[start:end].rstrip(), line, node, grammar.alone(node), above.get(line - 1)), start

    def _marks(self) -> list[tuple[int, str | None]]:
        found: list[tuple[int, str | None]] = []
        for start, text in self._comments():
            if (mark := _MARK.match(text)) is None:
                continue
            word, _, rest = mark[1].partition(" ")
            if word not in ("step", "no-transaction"):
                raise self._error(
                    self._line(start), f"{mark[1]!r} is no mark of lockctl's: `step TITLE` or `no-transaction`"
                )
            found.append((start, rest.strip() if word == "step" else None))
        return found

    def _comments(self) -> list[tuple[int, str]]:
        """Every `--` comment and where it begins."""
        from pglast import scan
        from pglast.parser import ParseError

        try:
            tokens = scan(self.text)
        except ParseError as error:
            raise self._syntax(*error.args) from None
        return [
            (token.start, self.text[token.start : token.end + 1]) for token in tokens if token.name == "SQL_COMMENT"
        ]

    def _line(self, at: int) -> int:
        return self.text.count("\n", 0, at) + 1

    def _error(self, line: int, message: str, hint: str | None = None) -> UsageError:
        return UsageError(f"{self.name}, line {line}: {message}", hint=hint or "nothing was run")

    def _syntax(self, message: str, at: int = 0, *_rest: Any) -> UsageError:
        line = self._line(at)
        here = self.text[at : at + 1]
        if here == "\\":
            command = self.text[at:].splitlines()[0]
            return self._error(
                line,
                f"{command} is a command of psql, and no SQL",
                hint="nothing was run; write the SQL into one file, or run psql with `lockctl migrate exec -- psql …`",
            )
        if here == ":":
            return self._error(line, f"{message} (variables of psql are not taken)")
        before = self.text[:at].rpartition(";")[0].rpartition(";")[2]
        if re.search(r"\bcopy\b.*\bfrom\s+stdin\b", before, re.IGNORECASE | re.DOTALL):
            return self._error(line, _COPY)
        return self._error(line, message)


def settings_before(steps: Sequence[FileStep], number: int) -> list[Statement]:
    """The SETs of the steps before `number` that outlive their step: a run that begins at `number` makes them again."""
    skipped = (statement for step in steps if step.number < number for statement in step.statements)
    return [statement for statement in skipped if grammar.setting(statement.node)]
