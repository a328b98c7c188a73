"""The run store's queue of work: rows that are due, leased to a claim, retried, and buried when they give up.

`attempts` counts a row's claims, less those released as busy, since it was queued or released as rescheduled. `armed`
counts its enqueuings: where it differs from what it was at the claim, the row was re-armed since, and whatever the
claim's holder then says (complete, release, bury) only unleases it. Delays and leases are milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from lockctl.db import Session
from lockctl.errors import UsageError

FAILED = "failed"
"""The claim was an attempt: the default."""
BUSY = "busy"
"""Its run was held elsewhere: the attempt is given back."""
RESCHEDULED = "rescheduled"
"""Done, and due again: the attempts start over."""

_UNLEASED = "claim = NULL, claimed_until = NULL, claimed_armed = NULL, updated_at = clock_timestamp()"


class Claimed(NamedTuple):
    """A claimed row; `claim` is the token that complete, release and bury need, `attempts` counts this claim too."""

    id: str
    kind: str
    key: str
    payload: Any
    claim: str
    attempts: int


def enqueue(
    session: Session, *, kind: str, key: str, payload: Any, due_in_ms: int = 0, team_id: str | None = None
) -> None:
    """`work.enqueue`: a row of this key is due in `due_in_ms`, whatever it was before, its attempts from nought.

    A buried row comes back so. A claimed one stays leased to its claim, and is re-armed.
    """
    session.query(
        # A row that is there is locked first: the clock is read after that.
        "WITH prior AS MATERIALIZED (SELECT key FROM run_store.work WHERE key = %(key)s FOR UPDATE)"
        " INSERT INTO run_store.work AS w (kind, key, payload, due_at, team_id)"
        " SELECT %(kind)s, %(key)s, %(payload)s::jsonb,"
        "  clock_timestamp() + %(delay)s::float8 * interval '1 millisecond', %(team)s"
        " FROM (VALUES (1)) AS one LEFT JOIN prior ON true"
        " ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, payload = excluded.payload, due_at ="
        "  clock_timestamp() + %(delay)s::float8 * interval '1 millisecond', team_id = excluded.team_id,"
        "  attempts = 0, armed = w.armed + 1, buried_at = NULL, buried_reason = NULL, updated_at = clock_timestamp()",
        {"kind": kind, "key": key, "payload": json.dumps(payload), "delay": due_in_ms, "team": team_id},
    )


def claim_due(
    session: Session, *, limit: int, lease_ms: int, due_by: str | None = None, kinds: Sequence[str] | None = None
) -> list[Claimed]:
    """`work.claimDue`: leases up to `limit` rows that are due by `due_by` (UTC text; now), soonest due first.

    `kinds` leases only rows of those kinds. A buried row is never claimed, nor one whose claim has not lapsed.
    """
    rows = session.query(
        "WITH due AS MATERIALIZED (SELECT id FROM run_store.work"
        "  WHERE buried_at IS NULL AND due_at <= coalesce(%(by)s::timestamptz, (SELECT clock_timestamp()))"
        "  AND (claim IS NULL OR claimed_until <= clock_timestamp())"
        "  AND (%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s))"
        "  ORDER BY due_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED),"
        " claimed AS (UPDATE run_store.work AS w SET claim = gen_random_uuid()::text, claimed_armed = w.armed,"
        "  claimed_until = clock_timestamp() + %(lease)s::float8 * interval '1 millisecond',"
        "  attempts = w.attempts + 1, updated_at = clock_timestamp()"
        "  FROM due WHERE w.id = due.id"
        "  RETURNING w.id, w.kind, w.key, w.payload, w.claim, w.attempts, w.due_at)"
        " SELECT id, kind, key, payload, claim, attempts FROM claimed ORDER BY due_at, id",
        {"limit": limit, "lease": lease_ms, "by": due_by, "kinds": None if kinds is None else list(kinds)},
    )
    return [Claimed(*row) for row in rows]


def complete(session: Session, work_id: str, claim: str) -> None:
    """`work.complete`: the row is done and gone. Nothing happens when the claim is no longer the row's."""
    session.query(
        f"WITH {_CLAIMED},"
        " gone AS (DELETE FROM run_store.work AS w USING item WHERE w.id = item.id AND NOT item.rearmed)"
        f" UPDATE run_store.work AS w SET {_UNLEASED} FROM item WHERE w.id = item.id AND item.rearmed",
        {"id": work_id, "claim": claim},
    )


def release(session: Session, work_id: str, claim: str, *, due_in_ms: int = 0, why: str = FAILED) -> None:
    """`work.release`: the row is unleased and due again in `due_in_ms`; `why` says what becomes of the attempt.

    A row that was re-armed since the claim keeps the time and the attempts that it was given then.
    """
    if why not in (FAILED, BUSY, RESCHEDULED):
        raise UsageError(f"work can't be released as {why!r}", hint=f"one of {FAILED}, {BUSY}, {RESCHEDULED}")
    session.query(
        f"WITH {_CLAIMED} UPDATE run_store.work AS w SET {_UNLEASED},"
        " due_at = CASE WHEN item.rearmed THEN w.due_at"
        "  ELSE clock_timestamp() + %(delay)s::float8 * interval '1 millisecond' END,"
        " attempts = CASE WHEN item.rearmed THEN w.attempts WHEN %(why)s = 'busy' THEN greatest(w.attempts - 1, 0)"
        "  WHEN %(why)s = 'rescheduled' THEN 0 ELSE w.attempts END"
        " FROM item WHERE w.id = item.id",
        {"id": work_id, "claim": claim, "delay": due_in_ms, "why": why},
    )


def bury(session: Session, work_id: str, claim: str, reason: str) -> None:
    """`work.bury`: the row gave up. It is kept with `reason`, unleased, and never claimed again.

    A row that was re-armed since the claim is only unleased. `enqueue` of its key brings a buried row back.
    """
    session.query(
        f"WITH {_CLAIMED} UPDATE run_store.work AS w SET {_UNLEASED},"
        " buried_at = CASE WHEN NOT item.rearmed THEN clock_timestamp() END,"
        " buried_reason = CASE WHEN NOT item.rearmed THEN %(reason)s::text END"
        " FROM item WHERE w.id = item.id",
        {"id": work_id, "claim": claim, "reason": reason},
    )


# The row if it is still this claim's, locked; a claim that has lapsed and was taken by nobody still counts.
_CLAIMED = (
    "item AS MATERIALIZED (SELECT id, armed <> claimed_armed AS rearmed FROM run_store.work"
    " WHERE id = %(id)s AND claim = %(claim)s FOR UPDATE)"
)
