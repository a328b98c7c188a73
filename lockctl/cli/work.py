"""The work commands: what gave up, and bringing it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockctl.cli.context import Invocation
from lockctl.cli.options import Command, Group
from lockctl.cli.sourcing import (
    IdsArgument,
    LiveOption,
    NoneLiveOption,
    SourceOption,
    finish,
    looker,
    needed,
    places,
)
from lockctl.errors import UsageError
from lockctl.render.escape import escape_human

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.runs.places import Place
    from lockctl.runs.reviving import Shown

app = typer.Typer(
    cls=Group,
    help="Work that gave up, and bringing it back.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
_SHOWN = 20

KindOption = Annotated[str | None, typer.Option("--kind", metavar="K", help="only work of this kind")]


@app.command(cls=Command)
def buried(
    ctx: typer.Context,
    source: SourceOption = None,
    kind: KindOption = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="list at most N")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="counts by kind and reason instead of rows")] = False,
) -> None:
    """Work that gave up and is never claimed again, longest buried first; for dbos, runs recovered too often."""
    from lockctl.runs import buried as reading
    from lockctl.runs.records import Buried, BuriedSummary

    inv = Invocation.of(ctx)
    session = inv.connect(inv.database(), read_only=True)
    found = places(inv, session, source, reading.part)

    def rows() -> Iterator[Any]:
        for place in found:
            if summary:
                yield from reading.summary(session, place, kind=kind)
            else:
                yield from reading.buried(session, place, kind=kind, limit=limit)

    brief = () if summary else ("source", "id", "kind", "key", "reason", "attempts", "buried_at")
    inv.rows(islice(rows(), limit), BuriedSummary if summary else Buried, brief=brief)


@app.command(cls=Command)
def revive(
    ctx: typer.Context,
    ids: IdsArgument = None,
    everything: Annotated[bool, typer.Option("--all", help="all that is buried (of --kind)")] = False,
    kind: KindOption = None,
    source: SourceOption = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="onto this queue (default: its own, else DBOS's internal one)")
    ] = None,
    live: LiveOption = None,
    none_live: NoneLiveOption = False,
    force: Annotated[bool, typer.Option("--force", help="also when its executor is live (dbos)")] = False,
) -> None:
    """Bring buried work back, due now and its attempts from nought. Asks first.

    What was re-armed, claimed or deleted since it was shown is left and reported (exit 3).
    """
    from lockctl.runs import buried as reading
    from lockctl.runs import reviving

    inv = Invocation.of(ctx)
    wanted = _wanted(ids, everything, kind)
    inv.must_be_sure()
    session = inv.connect(inv.database())
    (place,) = places(inv, session, source, reading.part, one=True)
    if queue is not None and place.leased:
        raise UsageError(f"--queue has no meaning for {place.source.name}: its work has one queue")
    look = looker(session, place, live, none_live)
    shown: Iterable[Shown]
    if everything:
        shown = _ask_for_all(inv, session, place, kind)
    else:
        shown = _ask_for(inv, reviving.show(session, place, wanted, look), place.source.name)
    finish(inv, reviving.revive(session, place, shown, look, queue=queue, force=force))


def _wanted(ids: list[str] | None, everything: bool, kind: str | None) -> list[str]:
    if not everything:
        if kind is not None:
            raise UsageError("--kind goes with --all", hint="--all --kind K revives everything of a kind")
        return needed(ids)
    if ids:
        raise UsageError("--all and IDs name two sets", hint="give one of them")
    return []


def _ask_for(inv: Invocation, shown: list[Shown], source: str) -> list[Shown]:
    doable = [each for each in shown if each.record is not None and each.refused is None]
    for each in doable[:_SHOWN]:
        record = each.record
        assert record is not None
        about = f"{record.kind} {record.key or ''}".strip()
        count = record.attempts
        attempts = "" if count is None else f" after {count} attempt{'s' * (count != 1)}"
        waits = f"; {each.waits}" if each.waits else ""
        inv.say(escape_human(f"{record.id}: {about}, buried {record.buried_at}{attempts}: {record.reason}{waits}"))
    if len(doable) > _SHOWN:
        inv.say(f"… and {len(doable) - _SHOWN} more")
    if doable:
        inv.confirm(f"Revive {len(doable)} of {source}?")
    return shown


def _ask_for_all(inv: Invocation, session: Session, place: Place, kind: str | None) -> Iterable[Shown]:
    from lockctl.runs import buried as reading
    from lockctl.runs import reviving

    until = reading.moment(session, place)
    counts = reading.summary(session, place, kind=kind)
    for each in counts[:_SHOWN]:
        inv.say(escape_human(f"{each.count} of kind {each.kind}: {each.reason}"))
    total = sum(each.count for each in counts)
    if total:
        inv.confirm(f"Revive all {total} of {place.source.name}?")
    return reviving.every(session, place, kind, until)
