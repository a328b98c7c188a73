"""The runs commands: runs whose worker is gone, recent runs, one run, and what an operator does about them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockctl.cli.context import Invocation, out
from lockctl.cli.options import Command, Group, duration
from lockctl.cli.sourcing import (
    IdsArgument,
    LiveOption,
    NoneLiveOption,
    SourceOption,
    finish,
    looker,
    needed,
    of_runs,
    places,
    warn_of_shared_ids,
)
from lockctl.errors import NotHeldError, UsageError
from lockctl.render.escape import escape_human

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.runs.changing import Shown
    from lockctl.runs.places import Place
    from lockctl.runs.reading import Tally
    from lockctl.runs.records import Run

app = typer.Typer(
    cls=Group,
    help="Runs whose worker is gone, recent runs, one run; requeue, cancel, fail.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
RECENT = 50
BRIEF = ("source", "id", "name", "status", "age_ms", "holder", "class_", "evidence", "queue")
_SHOWN = 20


@app.command(cls=Command)
def lapsed(
    ctx: typer.Context,
    source: SourceOption = None,
    stale: Annotated[str, typer.Option(metavar="DUR", help="only runs started longer ago than this")] = "5m",
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="list at most N runs")] = None,
    live: LiveOption = None,
    none_live: NoneLiveOption = False,
    fail_if_any: Annotated[bool, typer.Option("--fail-if-any", help="exit 4 when there is one, for alerts")] = False,
) -> None:
    """Runs that will never move again by themselves: their worker is gone. Oldest first.

    With --fail-if-any, runs whose worker's life nothing tells count as well.
    """
    from lockctl.runs import reading
    from lockctl.runs.records import Run

    inv = Invocation.of(ctx)
    stale_ms = duration("--stale", stale, zero=True)
    session = inv.connect(inv.database(), read_only=True)
    found = places(inv, session, source, of_runs)
    tallies = [(place, reading.Tally()) for place in found]
    lists = [
        reading.lapsed(
            session,
            place,
            looker(session, place, live, none_live),
            stale_ms=stale_ms,
            limit=limit,
            tally=tally,
        )
        for place, tally in tallies
    ]
    count = inv.rows(_first(heapq.merge(*lists, key=_start), limit), Run, brief=BRIEF)
    for place, tally in tallies:
        _explain(inv, session, place, tally)
        if not place.leased:
            warn_of_shared_ids(inv, looker(session, place, live, none_live))
    if fail_if_any and (count or any(tally.undecided for _, tally in tallies)):
        raise typer.Exit(4)


def _first(runs: Iterator[Run], limit: int | None) -> Iterator[Run]:
    from itertools import islice

    return islice(runs, limit)


def _start(run: Run) -> str:
    return run.started_at or ""


def _explain(inv: Invocation, session: Session, place: Place, tally: Tally) -> None:
    """What the list does not say by itself: what could not be judged, and what the orphans hold."""
    from lockctl.runs import queues

    if tally.undecided:
        some = ", ".join(sorted(tally.executors))
        inv.warn(
            escape_human(
                f"{place.source.name}: no worker's session is visible, so there is no evidence whether the workers of"
                f" {tally.undecided} more run{'s' * (tally.undecided != 1)} live (executors: {some}); they are not"
                " listed. Say which live with --live ID, or that none does with --none-live"
            )
        )
    used = queues.slots(session, place, tally.slots)
    for queue, held in tally.slots.items():
        inv.say(
            escape_human(f"queue {queue}: these runs hold {held} of the {used.get(queue, held)} slots that are in use")
        )


@app.command("list", cls=Command)
def list_(
    ctx: typer.Context,
    source: SourceOption = None,
    status: Annotated[str | None, typer.Option(metavar="S", help="only runs in this status")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="list at most N runs")] = RECENT,
    live: LiveOption = None,
    none_live: NoneLiveOption = False,
) -> None:
    """Recent runs, most recent first."""
    from lockctl.runs import reading
    from lockctl.runs.records import Run

    inv = Invocation.of(ctx)
    session = inv.connect(inv.database(), read_only=True)
    lists = [
        reading.recent(session, place, looker(session, place, live, none_live), status=status, limit=limit)
        for place in places(inv, session, source, of_runs)
    ]
    inv.rows(_first(heapq.merge(*lists, key=_start, reverse=True), limit), Run, brief=BRIEF)


@app.command(cls=Command)
def show(
    ctx: typer.Context,
    run: Annotated[str, typer.Argument(metavar="ID")],
    source: SourceOption = None,
    live: LiveOption = None,
    none_live: NoneLiveOption = False,
) -> None:
    """One run with its lease, its work, its steps, and what can be done next. Exit 4: there is no such run."""
    from lockctl.records import to_json
    from lockctl.runs.detail import detail

    inv = Invocation.of(ctx)
    session = inv.connect(inv.database(), read_only=True)
    found = [
        each
        for place in places(inv, session, source, of_runs)
        if (each := detail(session, place, run, looker(session, place, live, none_live))) is not None
    ]
    if not found:
        raise NotHeldError(f"there is no run {run!r}", hint="see `lockctl runs list`")
    if len(found) > 1:
        names = ", ".join(each.run.source for each in found)
        raise UsageError(f"there is a run {run!r} in several sources: {names}", hint="say which with --source NAME")
    whole = to_json(found[0])
    whole = {**whole.pop("run"), **whole}
    if inv.shared.format == "table" or (inv.shared.format is None and out().isatty()):
        inv.rows(_lines(whole), Line)
    else:
        inv.result(whole)


@dataclass(frozen=True, slots=True)
class Line:
    """A field of a run as a line of its own, for people."""

    field: str
    value: Any


def _lines(whole: dict[str, Any]) -> Iterator[Line]:
    for field, value in whole.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield Line(field, ", ".join(f"{name} {it}" for name, it in each.items() if it is not None))
            elif each is not None:
                yield Line(field, each)


QueueOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="onto this queue (default: its own, else DBOS's internal one)")
]


@app.command(cls=Command)
def requeue(
    ctx: typer.Context,
    ids: IdsArgument = None,
    source: SourceOption = None,
    queue: QueueOption = None,
    live: LiveOption = None,
    none_live: NoneLiveOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="also when its worker shows signs of life: it may then run twice")
    ] = False,
) -> None:
    """Give a run whose worker is gone to another worker. Asks first.

    In a run store it is parked and its resume_timer work is due now; in DBOS it is ENQUEUED again. A run that changed
    since it was shown is left (exit 3).
    """
    _change(ctx, "requeue", ids, source, live=live, none_live=none_live, queue=queue, force=force)


@app.command(cls=Command)
def cancel(
    ctx: typer.Context,
    ids: IdsArgument = None,
    source: SourceOption = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for its worker")] = None,
) -> None:
    """Cancel runs. Asks first.

    In a run store this asks the run's worker to end it; in DBOS it ends the run, and its worker notices at the next
    step.
    """
    _change(ctx, "cancel", ids, source, reason=reason or "cancelled by an operator")


@app.command(cls=Command)
def fail(
    ctx: typer.Context,
    ids: IdsArgument = None,
    source: SourceOption = None,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="the error in its outcome")] = None,
) -> None:
    """Settle runs as failed. Asks first. Nothing stops a worker that is still at it."""
    _change(ctx, "fail", ids, source, reason=reason or "failed by an operator")


def _change(
    ctx: typer.Context,
    verb: str,
    ids: list[str] | None,
    source: str | None,
    *,
    reason: str | None = None,
    queue: str | None = None,
    live: list[str] | None = None,
    none_live: bool = False,
    force: bool = False,
) -> None:
    from lockctl.runs import changing

    inv = Invocation.of(ctx)
    wanted = needed(ids)
    inv.must_be_sure()
    session = inv.connect(inv.database())
    (place,) = places(inv, session, source, of_runs, one=True)
    changing.check(place, verb, queue)
    shown = changing.show(session, place, wanted, looker(session, place, live, none_live))
    doable = [each for each in shown if each.run is not None and not changing.refusal(place, verb, each, force)]
    if doable:
        _tell(inv, doable, queued=verb == "requeue")
        count = f"{len(doable)} run{'s' * (len(doable) != 1)}"
        inv.confirm(f"{verb.capitalize()} {count} of {place.source.name}?")
    finish(inv, changing.apply(session, place, verb, shown, reason=reason, queue=queue, force=force))


def _tell(inv: Invocation, shown: list[Shown], *, queued: bool) -> None:
    for each in shown[:_SHOWN]:
        run = each.run
        assert run is not None
        about = f"{run.status}, started {run.started_at}, held by {run.holder or 'nobody'}"
        more = [text for text in (run.evidence, each.waits if queued else None) if text]
        inv.say(escape_human("; ".join([f"{run.id}: {about}", *more])))
    if len(shown) > _SHOWN:
        inv.say(f"… and {len(shown) - _SHOWN} more")
