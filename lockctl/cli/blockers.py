"""The command `blockers`: who blocks whom on this server, to the root."""

from __future__ import annotations

from typing import Annotated

import typer

from lockctl.cli.context import Invocation
from lockctl.cli.options import maybe_duration
from lockctl.cli.reading import repeat
from lockctl.render.escape import escape_human


def blockers(
    ctx: typer.Context,
    watch: Annotated[str | None, typer.Option(metavar="DUR", help="show it again each DUR, until interrupted")] = None,
    no_query: Annotated[bool, typer.Option("--no-query", help="don't show what the sessions run")] = False,
) -> None:
    """Show everybody who waits for a lock, and whoever is waited for, roots first.

    A prepared transaction has pid 0 and its gid. What to know about one, or do, is on standard error and in `note`.
    """
    from lockctl.activity import blockers as activity
    from lockctl.db import describe
    from lockctl.records import Blocker

    inv = Invocation.of(ctx)
    every_ms = maybe_duration("--watch", watch)
    session = inv.connect(inv.database(whole=every_ms is None), read_only=True)

    def show() -> None:
        found = activity.tree(session, show_query=not no_query)
        inv.rows(found, Blocker)
        if not found:
            inv.say("nobody waits for a lock")
        for blocker in found:
            if blocker.root and blocker.note:
                inv.say(escape_human(f"{describe(blocker)}: {blocker.note}"))

    repeat(every_ms, show)
