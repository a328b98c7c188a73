"""What an operator does to runs: requeue, cancel, fail. Each change is guarded by the row that was shown.

A run that changed meanwhile, or whose worker shows signs of life, is left alone and said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lockctl.db import Session
from lockctl.errors import UsageError
from lockctl.records import to_json
from lockctl.runs import buried, leased, queued, rows
from lockctl.runs.executors import Executors, Verdict
from lockctl.runs.places import Place
from lockctl.runs.reading import DEFAULT_STALE_MS, Look, judge, record
from lockctl.runs.records import Change, Run
from lockctl.runs.rows import Row
from lockctl.runs.steps import Activity, activity

VERBS = {"requeue": "requeued", "cancel": "cancelled", "fail": "failed"}


class Shown(NamedTuple):
    """A run as it was shown before the question; `run` is None where there is no run with this id.

    `expected` is the name that a session of its worker has, `waits` what it waits for once it is in a queue.
    """

    id: str
    run: Run | None
    row: Row | None
    mark: str
    verdict: Verdict | None
    expected: str | None
    waits: str | None = None


def show(session: Session, place: Place, ids: Iterable[str], look: Look) -> list[Shown]:
    """The runs with these ids, once each and in this order."""
    wanted = list(dict.fromkeys(ids))
    workers = look() if not place.leased else None
    marks = buried.by_id(session, place, wanted) if not place.leased else {}
    found = rows.by_id(session, place, wanted)
    steps = activity(session, place, list(found))
    return [_shown(place, each, found.get(each), marks, workers, steps) for each in wanted]


def _shown(
    place: Place,
    id_: str,
    row: Row | None,
    marks: dict[str, tuple[bool, buried.Shown]],
    workers: Executors | None,
    steps: dict[str, Activity],
) -> Shown:
    if row is None or (workers is not None and id_ not in marks):
        return Shown(id_, None, None, "", None, None)
    verdict = judge(place, row, workers)
    return Shown(
        id_,
        record(place, row, verdict, steps),
        row,
        marks[id_][1].mark if workers is not None else "",
        verdict,
        workers.expected(row.executor, row.version) if workers is not None else None,
        workers.waits(row.version) if workers is not None else None,
    )


def apply(
    session: Session,
    place: Place,
    verb: str,
    shown: Sequence[Shown],
    *,
    reason: str | None = None,
    queue: str | None = None,
    force: bool = False,
) -> Iterator[Change]:
    """Do `verb` (a key of VERBS) to the runs as they were shown, one statement each.

    `reason` is what is kept with a cancelled or failed run; `queue` is for a queue's runs. `force` requeues a run whose
    worker shows signs of life. Raises UsageError for a verb that the source does not know.
    """
    check(place, verb, queue)
    for each in shown:
        if each.run is None or each.row is None:
            yield Change(each.id, "not_found")
        elif why := refusal(place, verb, each, force):
            yield Change(each.id, "skipped", to_json(each.run), why)
        elif _change(session, place, verb, each, each.row, reason or "", queue, force):
            yield Change(each.id, VERBS[verb], to_json(each.run))
        else:
            yield Change(each.id, "skipped", to_json(each.run), _what_happened(session, place, each, each.row))


def check(place: Place, verb: str, queue: str | None) -> None:
    """Raise UsageError for what the source has no meaning for."""
    if verb == "fail" and not place.leased:
        raise UsageError(
            f"a run of {place.source.name} can't be made to fail from outside", hint="`lockctl runs cancel` ends it"
        )
    if queue is not None and place.leased:
        raise UsageError(f"--queue has no meaning for {place.source.name}: its runs are taken up again by its own work")


def refusal(place: Place, verb: str, shown: Shown, force: bool) -> str | None:
    """Why a run that was found is left alone as it was shown; None when it can be changed."""
    row, verdict = shown.row, shown.verdict
    assert row is not None
    assert verdict is not None
    source = place.source.runs
    if verb != "requeue":
        return f"it is {row.status}: it has ended" if row.status in source.ended else None
    if row.status not in source.running:
        return f"it is {row.status}, not {' or '.join(source.running)}"
    if force:
        return None
    if verdict.live:
        return f"its worker shows signs of life: {verdict.evidence}"
    run = shown.run
    if verdict.live is None and run is not None and _active(row, run):
        return (
            f"its worker shows signs of life: its newest step began at {run.last_activity_at}, and {verdict.evidence}"
        )
    return None


def _active(row: Row, run: Run) -> bool:
    """Whether a run whose worker can't be seen has recorded a step of late, or sleeps."""
    if run.sleeping_until is not None:
        return True
    from lockctl.clock import utc_text

    since = utc_text(row.now - DEFAULT_STALE_MS * 1000)
    return run.last_activity_at is not None and since is not None and run.last_activity_at > since


def _change(
    session: Session, place: Place, verb: str, shown: Shown, row: Row, reason: str, queue: str | None, force: bool
) -> bool:
    if place.leased:
        if verb == "requeue":
            return leased.requeue(session, place, row, force=force)
        if verb == "cancel":
            return leased.cancel(session, place, row, reason)
        return leased.fail(session, place, row, reason)
    sets = queued.requeue_sets(place) if verb == "requeue" else queued.cancel_sets(place)
    # A session of another application may bear the very name, and recovers nothing of this run.
    other = shown.verdict is not None and shown.verdict.class_ == "application_gone"
    name = None if verb != "requeue" or force or other else shown.expected
    return queued.change(session, place, sets, shown.id, shown.mark, session_name=name, queue=queue)


def _what_happened(session: Session, place: Place, shown: Shown, row: Row) -> str:
    now = rows.by_id(session, place, [shown.id]).get(shown.id)
    if now is None:
        return "it was deleted meanwhile"
    if now.status != row.status:
        return f"it changed meanwhile: it is {now.status} now"
    if now.token != row.token:
        return "its lease was taken meanwhile"
    if now.executor != row.executor:
        return f"executor {now.executor} took it meanwhile"
    if now.updated != row.updated:
        return "it changed meanwhile"
    return "its worker came back meanwhile"
