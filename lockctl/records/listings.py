"""Tables, counts and sweeps."""

from __future__ import annotations

from dataclasses import dataclass


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
