"""What operations on runs and work return: the field names are the JSON of the contract, `class_` being `class`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockctl.records.leases import LockRow


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the database's clock judged it when it was read; a field that its source lacks is None.

    `class_` says why nothing moves it: `never_leased`, `lease_lapsed`, `executor_gone`, `version_gone`,
    `application_gone`, `no_executor`; None when its worker lives, when none is needed, or when that can't be told.
    `holder` is the token of its lease or its executor's id; `queue_slots` how many slots of its queue it holds.
    """

    source: str
    id: str
    name: str | None
    status: str
    started_at: str | None
    age_ms: int | None
    holder: str | None
    lease_expires_at: str | None
    class_: str | None
    evidence: str | None
    queue: str | None
    queue_slots: int | None
    attempts: int | None
    last_activity_at: str | None
    deadline_at: str | None
    sleeping_until: str | None


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A row of a queue of work. `state` is `due`, `waiting` (not due yet), `claimed`, `claim_lapsed` or `buried`."""

    id: str
    kind: str
    key: str
    state: str
    due_at: str | None
    attempts: int | None
    claimed_until: str | None
    buried_at: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Step:
    """A step that a run has recorded."""

    number: int
    name: str | None
    started_at: str | None
    completed_at: str | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Detail:
    """A run with everything that belongs to it; `next` says what an operator can do, as commands."""

    run: Run
    lease: LockRow | None
    work: tuple[WorkItem, ...]
    steps: tuple[Step, ...]
    next: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Buried:
    """Work that gave up. `payload` is the JSON value where there is one, else the text as it is stored."""

    source: str
    id: str
    kind: str | None
    key: str | None
    reason: str | None
    attempts: int | None
    buried_at: str | None
    payload: Any


@dataclass(frozen=True, slots=True)
class BuriedSummary:
    """How much work of a kind gave up for a reason."""

    source: str
    kind: str | None
    reason: str | None
    count: int
    oldest_buried_at: str | None
    newest_buried_at: str | None


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one run or work item: `previous` is the row as it was shown, `why` says why it was left alone."""

    id: str
    outcome: str
    previous: Any = None
    why: str | None = None
