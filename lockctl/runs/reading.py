"""Runs that lost their worker, and recent runs, judged by the database's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from psycopg.sql import SQL, Composable

from lockctl import durations
from lockctl.clock import utc_text
from lockctl.db import Session
from lockctl.leases.inspect import shifted
from lockctl.runs import executors as evidence
from lockctl.runs import rows
from lockctl.runs.executors import Executors, Verdict
from lockctl.runs.places import Place
from lockctl.runs.records import Run
from lockctl.runs.rows import Row
from lockctl.runs.steps import Activity, activity

DEFAULT_STALE_MS = 300_000


@dataclass(slots=True)
class Tally:
    """What a listing met beside what it listed: runs whose worker's life is unknown, and queue slots of the listed."""

    undecided: int = 0
    executors: set[str] = field(default_factory=set)
    slots: dict[str, int] = field(default_factory=dict)


Look = Callable[[], Executors]


def lapsed(
    session: Session,
    place: Place,
    look: Look,
    *,
    stale_ms: int = DEFAULT_STALE_MS,
    limit: int | None = None,
    tally: Tally | None = None,
) -> Iterator[Run]:
    """The runs that will never move again by themselves, oldest first, started more than `stale_ms` ago.

    In a leased source: those in a running status whose lease lapsed or was never taken. Elsewhere: those whose
    executor is null or not live by what `look` finds; where nothing tells, they are counted in `tally` and not listed.
    """
    found = _lapsed(session, place, look, stale_ms, limit, tally or Tally())
    return found if limit is None else islice(found, limit)


def _lapsed(
    session: Session, place: Place, look: Look, stale_ms: int, limit: int | None, tally: Tally
) -> Iterator[Run]:
    started = place.need("runs").columns["started_at"]
    conditions = [
        rows.running(place),
        SQL("{} < {}").format(place.need("runs").ref("r", "started_at"), shifted(started, "stale", "-")),
    ]
    size = rows.PAGE
    if place.leased:
        conditions.append(rows.lease_lapsed(place))
        size = size if limit is None else min(size, limit)
    for page in rows.pages(session, place, conditions, {"stale": stale_ms}, size=size):
        workers = look() if not place.leased else None
        judged = [(row, judge(place, row, workers)) for row in page]
        for row, verdict in judged:
            if verdict.live is None:
                tally.undecided += 1
                if row.executor is not None and len(tally.executors) < 20:
                    tally.executors.add(row.executor)
        gone = [(row, verdict) for row, verdict in judged if verdict.live is False]
        steps = activity(session, place, [row.id for row, _ in gone])
        for row, verdict in gone:
            if row.queue is not None:
                tally.slots[row.queue] = tally.slots.get(row.queue, 0) + 1
            yield record(place, row, verdict, steps)


def recent(
    session: Session, place: Place, look: Look, *, status: str | None = None, limit: int | None = None
) -> Iterator[Run]:
    """Runs, most recent first; `status` asks for one status alone."""
    conditions: list[Composable] = []
    if status is not None:
        conditions.append(SQL("{}::text = %(status)s").format(place.need("runs").ref("r", "status")))
    size = rows.PAGE if limit is None else min(rows.PAGE, limit)
    found = (
        run
        for page in rows.pages(session, place, conditions, {"status": status}, newest_first=True, size=size)
        for run in records(session, place, look, page)
    )
    return found if limit is None else islice(found, limit)


def records(session: Session, place: Place, look: Look, page: Sequence[Row]) -> list[Run]:
    """Rows as records, judged."""
    workers = look() if not place.leased else None
    steps = activity(session, place, [row.id for row in page])
    return [record(place, row, judge(place, row, workers), steps) for row in page]


def looker(session: Session, place: Place, *, live: Sequence[str] = (), none_live: bool = False) -> Look:
    """A function that reads which workers live now."""
    return lambda: evidence.read(session, place, live=live, none_live=none_live)


def judge(place: Place, row: Row, workers: Executors | None) -> Verdict:
    """Does the worker of a run live? A run that needs none is taken as living, without evidence."""
    if row.status not in place.source.runs.running:
        return Verdict(True, None, "")
    if workers is not None:
        return workers.judge(row.executor, row.version, row.application)
    if row.token is None and row.expires_at is None:
        return Verdict(False, "never_leased", "its lease was never taken")
    if row.expires_at is None:
        return Verdict(True, None, "its lease never expires")
    left_ms = int(row.expires_at - row.now) // 1000
    if row.expires_at <= row.now:
        return Verdict(False, "lease_lapsed", f"its lease lapsed {durations.show(-left_ms)} ago")
    return Verdict(True, None, f"its lease is held for another {durations.show(left_ms)}")


def record(place: Place, row: Row, verdict: Verdict, steps: Mapping[str, Activity]) -> Run:
    """The record of a row."""
    step = steps.get(row.id)
    return Run(
        source=place.source.name,
        id=row.id,
        name=row.name,
        status=row.status,
        started_at=utc_text(row.started_at),
        age_ms=None if row.started_at is None else int(row.now - row.started_at) // 1000,
        holder=row.token if place.leased else row.executor,
        lease_expires_at=utc_text(row.expires_at),
        class_=verdict.class_,
        evidence=_evidence(row, verdict),
        queue=row.queue,
        queue_slots=None if row.queue is None else int(row.status in place.source.runs.running),
        attempts=row.attempts,
        last_activity_at=utc_text(step.last) if step else None,
        deadline_at=utc_text(row.deadline_at),
        sleeping_until=utc_text(step.sleeping_until) if step else None,
    )


def _evidence(row: Row, verdict: Verdict) -> str | None:
    parts = [verdict.evidence] if verdict.evidence else []
    if row.cancel_requested_at is not None:
        parts.append(f"its cancellation was asked for: {row.cancel_reason or 'no reason given'}")
    if parts and row.deadline_at is not None and row.deadline_at <= row.now:
        parts.append(f"past its deadline for {durations.show(int(row.now - row.deadline_at) // 1000)}")
    return "; ".join(parts) or None
