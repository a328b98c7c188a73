"""One run with its lease, its work, its steps, and what an operator can do next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from psycopg.sql import SQL, Literal

from lockctl.clock import utc_text
from lockctl.db import Session
from lockctl.leases.statements import micros, remaining_ms
from lockctl.records.leases import LockRow
from lockctl.runs import rows
from lockctl.runs.places import Place, Table
from lockctl.runs.reading import Look, records
from lockctl.runs.records import Detail, Run, WorkItem
from lockctl.runs.rows import Row
from lockctl.runs.steps import steps


def detail(session: Session, place: Place, run: str, look: Look) -> Detail | None:
    """The run called `run` with what belongs to it; None when the source has none of this id."""
    row = rows.by_id(session, place, [run]).get(run)
    if row is None:
        return None
    (record,) = records(session, place, look, [row])
    work = work_of(session, place, run)
    return Detail(record, _lease(place, row), work, steps(session, place, run), tuple(_next(place, record, row, work)))


def work_of(session: Session, place: Place, run: str) -> tuple[WorkItem, ...]:
    """The rows of work whose payload names the run, soonest due first."""
    table = place.work
    description = place.source.work
    if table is None or description is None or description.run_in_payload is None or not table.has("payload"):
        return ()
    payload = table.ref("w", "payload")
    if table.columns["payload"].type not in ("json", "jsonb"):
        payload = SQL("{}::jsonb").format(payload)
    statement = SQL(
        "SELECT {columns}, (SELECT clock_timestamp()) FROM {table} AS w"
        " WHERE ({payload} ->> {member}) = %(run)s ORDER BY {due}, {id}"
    ).format(
        columns=SQL(", ").join(
            [
                table.read("w", "id", "text"),
                table.read("w", "kind", "text"),
                table.read("w", "key", "text"),
                table.read("w", "due_at"),
                table.read("w", "attempts", "int8"),
                table.read("w", "claim", "text"),
                table.read("w", "claimed_until"),
                table.read("w", "buried", "text"),
                table.read("w", "buried_at"),
                table.read("w", "reason", "text"),
            ]
        ),
        table=table.sql,
        payload=payload,
        member=Literal(description.run_in_payload),
        due=table.ref("w", "due_at"),
        id=table.ref("w", "id"),
    )
    found = session.query(statement, {"run": run}, needs=table.needs("SELECT"))
    return tuple(_item(table, values) for values in found)


def _item(table: Table, values: Sequence[Any]) -> WorkItem:
    id_, kind, key, due_at, attempts, claim, claimed_until, buried, buried_at, reason, now = values
    due, until = micros(due_at, table.columns["due_at"]), micros(claimed_until, table.columns.get("claimed_until"))
    if buried not in (None, "false"):
        state = "buried"
    elif claim is not None:
        state = "claimed" if until is None or until > now else "claim_lapsed"
    else:
        state = "due" if due is None or due <= now else "waiting"
    at = utc_text(micros(buried_at, table.columns.get("buried_at")))
    return WorkItem(id_, kind, key, state, utc_text(due), attempts, utc_text(until), at, reason)


def _lease(place: Place, row: Row) -> LockRow | None:
    """The run's lease as the lock verbs show it."""
    if not place.leased or (row.token is None and row.expires_at is None):
        return None
    leases = place.need("leases")
    left = remaining_ms(row.expires_at, row.now)
    return LockRow(
        table="run_leases" if place.source.name == "run_store" else place.source.name,
        relation=leases.relation.shown,
        key=(row.id,),
        holder=row.token,
        state="held" if left is None or left >= 0 else "lapsed",
        expires_at=utc_text(row.expires_at),
        remaining_ms=left,
        created_at=None,
        updated_at=None,
    )


def _next(place: Place, run: Run, row: Row, work: Sequence[WorkItem]) -> list[str]:
    """What an operator can do, as commands with a word on what they do."""
    tail = f"--source {place.source.name} {shlex.quote(run.id)}"
    if run.id.startswith("-"):
        tail = f"--source {place.source.name} -- {shlex.quote(run.id)}"
    source = place.source.runs
    found: list[str] = []
    if run.class_ is not None:
        found.append(f"lockctl runs requeue {tail}    # another worker takes it up")
    if run.status in source.running and run.class_ is None:
        found.append(f"lockctl runs requeue --force {tail}    # only when its worker is known to be dead")
    if source.buried is not None and run.status == source.buried:
        found.append(f"lockctl work revive {tail}    # its attempts start over")
    found += [
        f"lockctl work revive --source {place.source.name} {shlex.quote(item.id)}    # brings {item.kind} back"
        for item in work
        if item.state == "buried"
    ]
    if run.status not in source.ended:
        what = "asks its worker to end it" if place.leased else "ends it"
        found.append(f"lockctl runs cancel --reason TEXT {tail}    # {what}")
        if place.leased:
            found.append(f"lockctl runs fail --reason TEXT {tail}    # settles it as failed")
    return found
