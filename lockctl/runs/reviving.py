"""Bringing buried work back: as `work.enqueue` of its key does, or as DBOS's resume does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from psycopg.sql import SQL

from lockctl.db import Session
from lockctl.records import to_json
from lockctl.runs import buried, leased, queued
from lockctl.runs.executors import Executors, Verdict
from lockctl.runs.places import Place
from lockctl.runs.reading import Look
from lockctl.runs.records import Buried, Change

_BATCH = 200


class Shown(NamedTuple):
    """Buried work as it was shown before the question; `record` is None where there is nothing with this id.

    `waits` is what a run waits for once it is in a queue.
    """

    id: str
    record: Buried | None
    mark: str = ""
    run: tuple[str | None, str | None] = (None, None)
    refused: str | None = None
    waits: str | None = None


def show(session: Session, place: Place, ids: Iterable[str], look: Look) -> list[Shown]:
    """The work with these ids, once each and in this order."""
    wanted = list(dict.fromkeys(ids))
    found = buried.by_id(session, place, wanted)
    workers = look() if buried.part(place) == "runs" else None
    return [_shown(each, found.get(each), workers) for each in wanted]


def _shown(id_: str, found: tuple[bool, buried.Shown] | None, workers: Executors | None) -> Shown:
    if found is None:
        return Shown(id_, None)
    is_buried, shown = found
    refused = None if is_buried else "it is not buried"
    return Shown(id_, shown.record, shown.mark, shown.run, refused, workers.waits(shown.run[1]) if workers else None)


def every(session: Session, place: Place, kind: str | None, until: str | None) -> Iterator[Shown]:
    """Everything that was buried by the time `until` (see `buried.moment`), of one kind or of all, in short pages."""
    for shown in buried.read(session, place, kind=kind, until=until):
        yield Shown(shown.record.id, shown.record, shown.mark, shown.run)


def revive(
    session: Session, place: Place, shown: Iterable[Shown], look: Look, *, queue: str | None = None, force: bool = False
) -> Iterator[Change]:
    """Bring back what is still buried as it was shown; what was re-armed, claimed or deleted meanwhile is left.

    A run of executors whose worker lives is refused unless `force`: resuming it may mean running it twice.
    """
    source = iter(shown)
    while batch := list(islice(source, _BATCH)):
        if buried.part(place) == "work":
            yield from _revive_work(session, place, batch)
        else:
            yield from _revive_runs(session, place, batch, look, queue, force)


def _revive_work(session: Session, place: Place, batch: Sequence[Shown]) -> Iterator[Change]:
    """A whole batch in one statement, guarded row by row, locked in the order of the ids."""
    table = place.need("work")
    due = [each for each in batch if each.record is not None and each.refused is None]
    statement = SQL(
        "WITH shown AS (SELECT * FROM unnest(%(ids)s::text[]::{cast}[], %(marks)s::text[]) AS s(id, mark)),"
        " item AS MATERIALIZED (SELECT w.{id} AS id, {mark} AS mark FROM {work} AS w"
        " WHERE w.{id} = ANY (%(ids)s::text[]::{cast}[]) ORDER BY w.{id} FOR UPDATE)"
        " UPDATE {work} AS w SET {sets} FROM item JOIN shown ON shown.id = item.id"
        " WHERE w.{id} = item.id AND item.mark = shown.mark RETURNING w.{id}::text"
    ).format(
        cast=SQL(table.columns["id"].cast),
        id=table.column("id"),
        mark=buried.mark(place, table),
        work=table.sql,
        sets=leased.rearmed(table),
    )
    params = {"ids": [each.id for each in due], "marks": [each.mark for each in due]}
    done = {row[0] for row in session.query(statement, params, needs=table.needs("SELECT", "UPDATE"))} if due else set()
    left = [each.id for each in due if each.id not in done]
    now = buried.by_id(session, place, left) if left else {}
    for each in batch:
        yield _answer(each, each.id in done, now)


def _revive_runs(
    session: Session, place: Place, batch: Sequence[Shown], look: Look, queue: str | None, force: bool
) -> Iterator[Change]:
    workers = look()
    for each in batch:
        if each.record is None or each.refused is not None:
            yield _answer(each, False, {})
            continue
        verdict = Verdict(False, None, "") if each.run[0] is None else workers.judge(*each.run, None)
        if verdict.live and not force:
            why = f"its executor is live ({verdict.evidence}): resumed, it may run twice; --force revives it"
            yield Change(each.id, "skipped", to_json(each.record), why)
            continue
        done = queued.change(
            session,
            place,
            queued.revive_sets(place),
            each.id,
            each.mark,
            session_name=None if force else workers.expected(*each.run),
            queue=queue,
        )
        yield _answer(each, done, {} if done else buried.by_id(session, place, [each.id]))


def _answer(shown: Shown, done: bool, now: dict[str, tuple[bool, buried.Shown]]) -> Change:
    if shown.record is None:
        return Change(shown.id, "not_found")
    previous = to_json(shown.record)
    if done:
        return Change(shown.id, "revived", previous)
    if shown.refused is not None:
        return Change(shown.id, "skipped", previous, shown.refused)
    if shown.id not in now:
        return Change(shown.id, "skipped", previous, "it was deleted meanwhile")
    is_buried, found = now[shown.id]
    if not is_buried:
        return Change(shown.id, "skipped", previous, "it was re-armed or claimed meanwhile")
    if found.mark != shown.mark:
        return Change(shown.id, "skipped", previous, "it was brought back and buried anew meanwhile")
    return Change(shown.id, "skipped", previous, "its executor came back meanwhile")
