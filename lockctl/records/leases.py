"""Lock rows, and what the verbs answer."""

from __future__ import annotations

from dataclasses import dataclass


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
