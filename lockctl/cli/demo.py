"""The demo command."""

from __future__ import annotations

import typer

from lockctl.cli.context import Invocation, out


def demo(ctx: typer.Context) -> None:
    """Tell the whole story on an embedded PostgreSQL of the demo's own, which is gone afterwards."""
    from lockctl.demo import play

    Invocation.of(ctx)
    stream = out()

    def write(text: str) -> None:
        stream.write(text + "\n")
        stream.flush()

    play(write)
