"""The commands that only read lock rows: tables, inspect, check."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockctl.cli.choosing import present, unless_denied
from lockctl.cli.context import Invocation, out
from lockctl.cli.options import maybe_duration
from lockctl.cli.sentences import sentence
from lockctl.cli.subject import HolderOption, KeyArgument, KeyOption, LeaseOption, TableName, locked_holder, subject
from lockctl.errors import LockctlError, UsageError
from lockctl.records import LockRow, Summary, TableInfo

if TYPE_CHECKING:
    from lockctl.catalog import LockTable
    from lockctl.db import Session


def tables(ctx: typer.Context) -> None:
    """List the lock tables that lockctl knows, and whether this database has them."""
    from lockctl.leases.shape import infos

    inv = Invocation.of(ctx)
    session = inv.connect(inv.database(), read_only=True)
    inv.rows(infos(session, list(inv.catalog.tables.values()), inv.schema), TableInfo)


TERMINAL_LIMIT = 200


def inspect(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    state: Annotated[str, typer.Option(metavar="held|lapsed|all", help="only rows in this state")] = "all",
    holder: HolderOption = None,
    lapsed_for: Annotated[str | None, typer.Option(metavar="DUR", help="lapsed for at least this long")] = None,
    expires_within: Annotated[
        str | None, typer.Option(metavar="DUR", help="held, and lapsing within this time")
    ] = None,
    sort: Annotated[str, typer.Option(metavar="key|expires|created", help="the order of the rows")] = "key",
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="at most N rows (on a terminal: 200)")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="count the rows of a table by state instead")] = False,
    watch: Annotated[str | None, typer.Option(metavar="DUR", help="show it again each DUR, until interrupted")] = None,
) -> None:
    """Show the rows of one lock table, or of all that this database has.

    Reads in short pages by key: a paused pipe holds no transaction open. A key without a row is an empty list.
    """
    from lockctl.leases.inspect import SORTS, STATES, Filter
    from lockctl.leases.shape import check_text

    inv = Invocation.of(ctx)
    for option, value, known in (("--state", state, STATES), ("--sort", sort, SORTS)):
        if value not in known:
            raise UsageError(f"{option} {value!r} is not known", hint=f"known: {', '.join(known)}")
    wanted = Filter(
        state=state,
        holder=holder,
        lapsed_for_ms=maybe_duration("--lapsed-for", lapsed_for),
        expires_within_ms=maybe_duration("--expires-within", expires_within),
        key=subject(inv, table, key, key_words).key if key or key_words else (),
        lenient=table is None,
    )
    if holder is not None:
        check_text(holder, "holder")
    every_ms = maybe_duration("--watch", watch)
    chosen = [inv.catalog.get(table)] if table else list(inv.catalog.tables.values())
    session = inv.connect(inv.database(whole=False), read_only=True)
    repeat(every_ms, lambda: _inspect_once(inv, session, chosen, wanted, sort, limit, summary, named=table is not None))


def _inspect_once(
    inv: Invocation,
    session: Session,
    chosen: Sequence[LockTable],
    wanted: Any,
    sort: str,
    limit: int | None,
    summary: bool,
    *,
    named: bool,
) -> None:
    from lockctl.leases import inspect as reading

    on_terminal = limit is None and not summary and out().isatty()
    allowed = TERMINAL_LIMIT + 1 if on_terminal else limit
    failures: list[LockctlError] = []

    def found() -> Iterator[Any]:
        left = allowed
        for table in present(inv, session, chosen, named, failures):
            rows = (
                reading.summary(session, table, wanted)
                if summary
                else reading.rows(session, table, wanted, sort=sort, limit=left)
            )
            for row in unless_denied(inv, table, iter(rows), named, failures):
                left = None if left is None or summary else left - 1
                if on_terminal and left == 0:
                    inv.say(f"only the first {TERMINAL_LIMIT} rows: give --limit N, or a filter, for others")
                    return
                yield row
            if left == 0:
                return

    inv.rows(found(), Summary if summary else LockRow)
    if failures:
        raise typer.Exit(failures[0].code)


def repeat(every_ms: int | None, show: Callable[[], None]) -> None:
    """Call `show` once, or again each `every_ms` milliseconds until a signal comes, on a terminal from its top."""
    while True:
        if every_ms is not None and out().isatty():
            out().write("\x1b[H\x1b[2J")
        show()
        if every_ms is None:
            return
        time.sleep(every_ms / 1000)


def check(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    holder: Annotated[str | None, typer.Option("--holder", metavar="H", help="is it held by this holder?")] = None,
    lease: LeaseOption = None,
) -> None:
    """Is it held? The exit code answers: 0 held, 3 held by another than --holder, 4 lapsed or free."""
    from lockctl.leases import operations

    inv = Invocation.of(ctx)
    about = subject(inv, table, key, key_words, lease=lease, by_token=True)
    expected = about.holder(holder)
    session = inv.connect(inv.database(), read_only=True)
    locked = about.locked_table(session, inv.schema)
    result = operations.check(session, locked, about.key, expected)
    inv.say(sentence("check", about.text, result))
    with suppress(BrokenPipeError):  # the exit code is the answer, whoever reads the row
        if inv.json:
            inv.result(result)
        else:
            inv.rows([result.lock], LockRow)
    if result.outcome == "held":
        mine = expected is None or (result.lock is not None and result.lock.holder == locked_holder(locked, expected))
        raise typer.Exit(0 if mine else 3)
    raise typer.Exit(4)
