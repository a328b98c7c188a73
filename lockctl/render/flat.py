"""One result object as the one row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from lockctl.records import LeaseResult, shown

_LOCK_FIELDS = ("key", "holder", "state", "expires_at", "remaining_ms")


def flatten(record: Any) -> tuple[Sequence[str], tuple[Any, ...]]:
    """Names and values of the row for a record or a dict.

    A LeaseResult becomes its outcome, its lock and its token. When no lock is left, the key is that of the row there
    was, so that the line says what was released.
    """
    if isinstance(record, LeaseResult):
        lock = [getattr(record.lock, name, None) for name in _LOCK_FIELDS]
        if record.lock is None and record.previous is not None:
            lock[0] = record.previous.key
        return ("outcome", *_LOCK_FIELDS, "lease"), (record.outcome, *lock, record.lease)
    if isinstance(record, dict):
        return tuple(record), tuple(record.values())
    names = tuple(field.name for field in fields(record))
    return tuple(map(shown, names)), tuple(getattr(record, name) for name in names)
