"""Which sources of runs and work a command is about, and what is said about the evidence that they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl.cli.context import Invocation
from lockctl.errors import UsageError
from lockctl.render.escape import escape_human

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.runs.places import Place
    from lockctl.runs.reading import Look
    from lockctl.runs.records import Change

SourceOption = Annotated[
    str | None,
    typer.Option("--source", metavar="NAME", help="run_store, dbos, or one of lockctl.toml (default: all present)"),
]
LiveOption = Annotated[
    list[str] | None,
    typer.Option("--live", metavar="ID", help="this executor is live, whatever its sessions show (repeatable; dbos)"),
]
NoneLiveOption = Annotated[
    bool, typer.Option("--none-live", help="no executor is live but those named with --live (dbos)")
]
IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID...", show_default=False)]


def places(
    inv: Invocation, session: Session, source: str | None, part: Callable[[Place], str], *, one: bool = False
) -> list[Place]:
    """The sources to work on: the named one, else those that are present; `one`: there must be no choice.

    Raises UsageError when there is one, BehindError when a named one is missing or none is there.
    """
    from lockctl.runs.places import locate, present
    from lockctl.sources import Sources

    known = Sources.of(inv.config.sources.values())
    chosen = list(known.known.values()) if source is None else [known.get(source)]
    found = present(locate(session, chosen, inv.schema), part, named=source is not None)
    if one and len(found) > 1:
        names = ", ".join(place.source.name for place in found)
        raise UsageError(f"this database has several sources: {names}", hint="say which with --source NAME")
    return found


def of_runs(_place: Place) -> str:
    return "runs"


def looker(session: Session, place: Place, live: list[str] | None, none_live: bool) -> Look:
    """The workers of a source as they are when asked."""
    from lockctl.runs import reading

    return reading.looker(session, place, live=live or (), none_live=none_live)


def warn_of_shared_ids(inv: Invocation, look: Look) -> None:
    """One executor id connected from several hosts: each of them, restarted, runs what the others are running."""
    for executor, hosts in look().shared_ids():
        inv.warn(
            escape_human(
                f"executor {executor} is connected from {len(hosts)} hosts ({', '.join(hosts)}):"
                " replicas that share one id re-run each other's work"
            )
        )


def needed(ids: Iterable[str] | None) -> list[str]:
    """The ids of a command line. Raises UsageError when there are none."""
    found = list(ids or ())
    if not found:
        raise UsageError("which ones?", hint="give one ID or more (one that looks like an option after --)")
    return found


def exit_code(outcomes: Iterable[str]) -> int:
    """0 when all were done, 4 when none was found, else 3."""
    words = set(outcomes)
    if words == {"not_found"}:
        return 4
    return 3 if words & {"skipped", "not_found"} else 0


def finish(inv: Invocation, changes: Iterable[Change]) -> None:
    """List what became of each as it happens, and end with the exit code."""
    from lockctl.runs.records import Change

    outcomes: list[str] = []

    def told() -> Iterable[Change]:
        for change in changes:
            outcomes.append(change.outcome)
            why = f": {change.why}" if change.why else ""
            inv.say(escape_human(f"{change.id}: {change.outcome.replace('_', ' ')}{why}"))
            yield change

    inv.rows(told(), Change, brief=("id", "outcome", "why"))
    if code := exit_code(outcomes):
        raise typer.Exit(code)
