"""The sweep command: lapsed rows of many tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockctl.cli.choosing import present, unless_denied
from lockctl.cli.context import Invocation
from lockctl.cli.options import duration, terminal
from lockctl.errors import LockctlError, UsageError
from lockctl.records import LockRow, SweepResult

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.leases.operations import LockedTable


def sweep(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE...", help="default: every present table", show_default=False)
    ] = None,
    grace: Annotated[str, typer.Option(metavar="DUR", help="only rows lapsed for at least this long")] = "1m",
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="rows a statement")] = 1_000,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="delete at most N rows in all")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="count, and delete nothing")] = False,
    list_rows: Annotated[bool, typer.Option("--rows", help="list the deleted rows instead of counts")] = False,
    metrics: Annotated[str | None, typer.Option(metavar="FILE", help="also write a Prometheus text file")] = None,
) -> None:
    """Delete lapsed rows, in batches. Rows locked by others are skipped; a row renewed meanwhile stays."""
    from lockctl.leases.sweep import Plan

    inv = Invocation.of(ctx)
    chosen = [inv.catalog.get(name) for name in dict.fromkeys(names or ())]
    for table in chosen:
        if not table.sweep:
            raise UsageError(f"rows of {table.name} are never deleted by lockctl (sweep = false)")
    plan = Plan(duration("--grace", grace, zero=True), batch, limit, list_rows)
    database = inv.database(whole=False)
    # A deletion that a crash of the server undoes is a lapsed row again, which the next sweep deletes.
    database.durable = False
    session = inv.connect(database, read_only=dry_run)
    results: list[SweepResult] = []
    failures: list[LockctlError] = []
    every = chosen or [table for table in inv.catalog.tables.values() if table.sweep]
    located = present(inv, session, every, bool(names), failures)
    found = _sweep_each(inv, session, located, plan, dry_run, results, bool(names), failures)
    inv.rows(found, LockRow if list_rows else SweepResult)
    for result in results:
        left = f"; {result.skipped} left, locked by other sessions" if result.skipped else ""
        inv.say(f"{result.relation}: {'would delete' if dry_run else 'deleted'} {result.swept} lapsed rows{left}")
    if metrics is not None and not failures:  # the file tells when the last sweep succeeded
        from lockctl.leases.metrics import write

        write(metrics, results)
    if failures:
        raise typer.Exit(failures[0].code)


def _sweep_each(
    inv: Invocation,
    session: Session,
    located: Iterator[LockedTable],
    plan: Any,
    dry_run: bool,
    results: list[SweepResult],
    named: bool,
    failures: list[LockctlError],
) -> Iterator[Any]:
    from lockctl.leases import sweep as sweeping

    seen: set[int] = set()
    left = plan.limit
    for table in located:
        if left == 0:
            return
        if table.shape.oid in seen:
            continue  # two names of the catalogue for one relation
        seen.add(table.shape.oid)
        mine = replace(plan, limit=left)
        refused = len(failures)
        if dry_run:
            yield from unless_denied(inv, table, _look(session, table, mine, results), named, failures)
        else:
            tally = sweeping.Tally(table)
            with _progress(inv, session, table, mine) as advance:
                deleted = sweeping.sweep(session, tally, mine, advance)
                yield from unless_denied(inv, table, deleted, named, failures)
            if len(failures) == refused:
                results.append(tally.result())
        if len(failures) > refused:
            continue
        left = None if left is None else left - results[-1].swept
        if not plan.rows:
            yield results[-1]


def _look(session: Session, table: LockedTable, plan: Any, results: list[SweepResult]) -> Iterator[LockRow]:
    """A dry run: the count goes to `results`; yields the rows where the plan asks for them."""
    from lockctl.leases import sweep as sweeping

    results.append(sweeping.count(session, table, plan))
    if plan.rows:
        yield from sweeping.would_delete(session, table, plan)


def _progress(inv: Invocation, session: Session, table: LockedTable, plan: Any) -> Any:
    """A progress bar on a terminal, and nothing elsewhere; gives the function to advance it by."""

    @contextmanager
    def nothing() -> Iterator[None]:
        yield None

    if inv.shared.quiet or not terminal():
        return nothing()

    @contextmanager
    def bar() -> Iterator[Callable[[int], None]]:
        from rich.console import Console
        from rich.progress import Progress

        from lockctl.leases import sweep as sweeping

        total = sweeping.count(session, table, plan).swept
        with Progress(console=Console(stderr=True, no_color=inv.shared.no_color or None), transient=True) as progress:
            task = progress.add_task(table.shape.relation, total=total)
            yield lambda count: progress.advance(task, count)

    return bar()
