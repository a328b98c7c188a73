"""Sessions that wait or are waited for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session, prepared transaction or autovacuum that waits or is waited for (`pg_locks`, `pg_stat_activity`).

    `kind` is `session`, `prepared` (pid 0, with its `gid`), `autovacuum`, or `own` for a session of lockctl's. Times
    are whole milliseconds. `lock_mode` and `relation` are of the lock that is waited for, or stood in the way.
    `note` says what a person should know or do about it, None where the rest says it all.
    """

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
    note: str | None = None
