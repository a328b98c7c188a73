"""`migrate exec`: somebody else's migration command, under the rules of a migration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lockctl.cli.context import Invocation
from lockctl.cli.happening import Happening
from lockctl.cli.options import tail
from lockctl.cli.policy import policy
from lockctl.errors import UsageError


def exec_(
    ctx: typer.Context,
    relation: Annotated[
        str | None, typer.Option("--relation", metavar="R", help="the command's version table, of one row")
    ] = None,
    column: Annotated[str, typer.Option("--column", metavar="C", help="the version's column in it")] = "version",
    expect_version: Annotated[
        str | None, typer.Option("--expect-version", metavar="V", help="what the version must be afterwards")
    ] = None,
    expect_column: Annotated[
        list[str] | None,
        typer.Option("--expect-column", metavar="R.C", help="a column that must be there afterwards; may be repeated"),
    ] = None,
    no_clients: Annotated[
        str | None,
        typer.Option(
            "--no-clients", metavar="PATTERN", help="refuse while a session whose application_name matches is connected"
        ),
    ] = None,
) -> None:
    """Run another migration command inside our lock: its sessions wait no longer than the lock timeout.

    It gets PGOPTIONS and PGAPPNAME, and names its database itself: the one that lockctl connects to must be the same.
    What it prints goes to standard error; its standard input is empty. When a lock was in the way it is run again as
    a whole, so it must be able to go on where it stopped (else --retries 0). Its own failure keeps its exit status.
    """
    from lockctl.migrations.execute import Expectation, execute

    inv, rules, argv = Invocation.of(ctx), policy(ctx), tail(ctx)
    if expect_version is not None and relation is None:
        raise UsageError("--expect-version needs --relation", hint="name the version table, as dbos.dbos_migrations")
    happening = Happening(inv)
    run = execute(
        inv.connect(inv.database(whole=False)),
        argv,
        expectation=Expectation(relation, column, expect_version, tuple(expect_column or ())),
        no_clients=no_clients,
        policy=rules,
        notify=happening,
        output=output_of(inv, happening),
    )
    happening.finish(run, "the version is what it was")


def output_of(inv: Invocation, happening: Happening) -> Callable[[bytes], None]:
    """What becomes of another command's output: as it came for a person, else an event a line."""
    return _lines(happening) if inv.json else happening.passed


def _lines(happening: Happening) -> Callable[[bytes], None]:
    """Each line as an event, for whoever reads events line by line."""
    from lockctl.migrations.records import Event

    rest = b""

    def output(text: bytes) -> None:
        nonlocal rest
        *lines, rest = (rest + text).split(b"\n")
        for line in lines:
            happening(Event("output", line.decode(errors="backslashreplace").rstrip("\r")))

    return output
