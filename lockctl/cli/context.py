"""What a command works with: its options, its database, and the ways to answer."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TextIO

import typer

from lockctl import clock, render
from lockctl.cli.options import Shared, terminal
from lockctl.config import Config, load
from lockctl.errors import LockctlError, UsageError
from lockctl.render.escape import escape_human
from lockctl.settings import Target, choose

if TYPE_CHECKING:
    from lockctl.catalog import Catalog
    from lockctl.db import Database, Session
    from lockctl.records import Blocker


@dataclass
class Invocation:
    """One run of one command; use it as a context manager, so that what it opened is closed."""

    command: str
    shared: Shared
    stack: ExitStack = field(default_factory=ExitStack)
    started: clock.Deadline = field(default_factory=lambda: clock.Deadline(clock.now()))

    @classmethod
    def of(cls, ctx: typer.Context) -> Invocation:
        root = ctx.find_root()
        words = ctx.command_path.removeprefix(root.command_path).split()
        invocation = cls(" ".join(words), ctx.obj)
        ctx.call_on_close(invocation.stack.close)
        return invocation

    # -- where -----------------------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> Config:
        return load(self.shared.config or os.environ.get("LOCKCTL_CONFIG") or None)

    @property
    def catalog(self) -> Catalog:
        return self.config.catalog

    @cached_property
    def target(self) -> Target:
        shared = self.shared
        return choose(self.config, dsn=shared.dsn, embedded=shared.embedded, profile_name=shared.profile)

    @property
    def schema(self) -> str | None:
        return self.shared.schema or self.target.schema

    def database(self, *, whole: bool = True, extra_ms: int = 0) -> Database:
        """The chosen database. `whole`: --timeout bounds the whole command (plus `extra_ms`), not connecting alone."""
        from lockctl.db import Database

        target, timeout = self.target, self.shared.timeout_ms
        dsn = target.dsn
        if target.embedded:
            from lockctl import embedded

            dsn = self.stack.enter_context(embedded.start()).conninfo
        at = (self.started.at or clock.now()) + (timeout + extra_ms) / 1000
        return Database(
            dsn=dsn,
            source=target.source,
            command=self.command,
            connect_timeout_ms=timeout,
            deadline=clock.Deadline(at) if whole else clock.NEVER,
            # Where there is a deadline, it ends a wait: lockctl looks who is in the way, and then cancels.
            lock_timeout_ms=timeout + extra_ms + (2_000 if whole else 0),
            statement_timeout_ms=timeout + extra_ms + 5_000 if whole else None,
            sampler=_sample,
        )

    def connect(self, database: Database, *, read_only: bool = False) -> Session:
        """A session that is closed with this invocation."""
        session = self.stack.enter_context(database.connect(read_only=read_only))
        if self.shared.verbose:
            info = session.conn.info
            place = f"{info.dbname} on {info.host or 'a local socket'} as {info.user}"
            pooled = ", through a pooler (settings per transaction)" if session.pooled else ""
            self.say(f"connected to {place}, from {self.target.source}{pooled}")
        return session

    # -- answering -------------------------------------------------------------------------------------------------

    def say(self, message: str) -> None:
        """A sentence on standard error, unless --quiet; under --format json the result object says it all."""
        if not self.shared.quiet and not self.json:
            tell(message)

    def warn(self, message: str) -> None:
        """What must be seen even under --quiet; under --format json it is an object too."""
        if not self.json:
            tell(message)
            return
        tell_json({"warning": message})

    @property
    def json(self) -> bool:
        return self.shared.format in ("json", "jsonl")

    def list_format(self) -> str:
        """The format of a list: the given one, else a table on a terminal and tsv elsewhere."""
        return self.shared.format or ("table" if out().isatty() else "tsv")

    def rows(self, records: Iterable[Any], kind: type[Any], *, brief: Sequence[str] = ()) -> int:
        """Write a list of records of the class `kind`; returns how many there were.

        `brief` are the fields for a `table`, where all of them would not fit on a screen.
        """
        stream, fmt = out(), self.list_format()
        fields = brief if brief and fmt == "table" else list(kind.__dataclass_fields__)
        rest = iter(records)
        first = list(islice(rest, 1))  # what goes wrong before the first row leaves standard output empty
        count = render.write_rows(
            chain(first, rest),
            fields,
            fmt=fmt,
            out=stream,
            header=not self.shared.no_header,
            **self._terminal(stream),
        )
        stream.flush()
        return count

    def result(self, record: Any) -> None:
        """Write one result object, in the format that was asked for."""
        stream = out()
        render.write_object(
            record,
            fmt=self.shared.format or "json",
            out=stream,
            header=not self.shared.no_header,
            **self._terminal(stream),
        )
        stream.flush()

    def _terminal(self, stream: TextIO) -> dict[str, Any]:
        if not stream.isatty():
            return {"color": False, "width": None}
        import shutil

        plain = self.shared.no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return {"color": not plain, "width": shutil.get_terminal_size().columns}

    def must_be_sure(self) -> None:
        """Refuse a destructive command at once where nobody can be asked. Raises UsageError."""
        if not self.shared.yes and not terminal():
            raise UsageError(
                f"{self.command} asks for a confirmation, and this is no terminal",
                hint="give --yes to go on without asking",
            )

    def confirm(self, question: str) -> None:
        """Ask, unless --yes. Raises LockctlError when the answer is no."""
        if self.shared.yes:
            return
        # Not typer.confirm: it writes a blank to standard output, and takes an interrupt for a no.
        sys.stderr.write(f"{escape_human(question)} [y/N]: ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise LockctlError("not confirmed: nothing was changed")


def _sample(session: Session, pid: int) -> list[Blocker]:
    from lockctl.activity.blockers import sample

    return sample(session, pid)


def settled() -> None:
    """The result has been handed over: a signal in the last moments changes neither it nor the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def tell(message: str) -> None:
    """`message` on standard error, whatever became of it."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(f"lockctl: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def tell_json(body: dict[str, Any]) -> None:
    """`body` as one JSON object on standard error, whatever became of it; escaped where the stream is not UTF-8."""
    import json

    from lockctl.render.sink import narrow_encoding

    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(json.dumps(body, ensure_ascii=narrow_encoding(sys.stderr) is not None), file=sys.stderr, flush=True)


def out() -> TextIO:
    """Standard output. Raises LockctlError when it was closed before the start."""
    if sys.stdout is None:
        raise LockctlError("standard output is closed")
    return sys.stdout


def words(key: Sequence[str]) -> str:
    """A key in a sentence: as one would type it, with nothing in it that a terminal could obey."""
    import shlex

    return escape_human(" ".join(shlex.quote(word) for word in key))
