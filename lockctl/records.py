"""What operations return: frozen records, whose field names are the JSON of the contract.

A record holds plain values (str, int, bool, None, tuples and other records). Times are UTC text with
microseconds and a `Z`; spans are whole milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class LockRow:
    """One row of a lock table as the database's clock judged it when it was read.

    `state` is `held`, `lapsed`, or `free` for a key without a row. `remaining_ms` is negative once lapsed,
    and None when the lease never expires.
    """

    table: str
    relation: str
    key: tuple[str, ...]
    holder: str | None
    state: str
    expires_at: str | None
    remaining_ms: int | None
    created_at: str | None
    updated_at: str | None

    @property
    def live(self) -> bool:
        return self.state == "held"


@dataclass(frozen=True, slots=True)
class LeaseResult:
    """The outcome of acquire, extend, release, force-expire or check.

    `lock` is the row as it is afterwards (or as found, when nothing changed), `previous` the row that was
    changed or replaced, `lease` the token of a lease just acquired. `renewed` tells that the holder renewed
    between the row being shown and the forced change; `note` what a forced change does not do.
    """

    outcome: str
    lock: LockRow | None
    previous: LockRow | None = None
    lease: str | None = None
    renewed: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A lock table of the catalogue and whether this database has it."""

    table: str
    relation: str
    present: bool
    key_columns: tuple[str, ...]
    holder_column: str
    expiry_column: str
    expiry_type: str | None
    default_ttl_ms: int
    note: str | None


@dataclass(frozen=True, slots=True)
class Summary:
    """How many rows of a table are in a state."""

    table: str
    relation: str
    state: str
    count: int
    oldest_expires_at: str | None
    newest_expires_at: str | None


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep did to one table; `skipped` rows are lapsed and were locked by another session."""

    table: str
    relation: str
    swept: int
    skipped: int
    dry_run: bool
    oldest_expires_at: str | None


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session, prepared transaction or autovacuum that waits or is waited for (`pg_locks`, `pg_stat_activity`)."""

    pid: int
    blocked_by: tuple[int, ...]
    root: bool
    kind: str
    gid: str | None
    user: str | None
    application: str | None
    client: str | None
    state: str | None
    xact_age_ms: int | None
    wait_ms: int | None
    lock_mode: str | None
    relation: str | None
    query: str | None


def to_json(value: Any) -> Any:
    """`value` as what a JSON encoder takes: records become objects with their fields in order."""
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    return value
