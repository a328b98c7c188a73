"""What may be done to a blocker: end its statement or its session, guarded by what was seen of it."""

from __future__ import annotations

from dataclasses import dataclass

from lockctl import durations
from lockctl.activity.blockers import WRAPAROUND
from lockctl.db import Session, describe
from lockctl.errors import LockctlError
from lockctl.records import Blocker

_FUNCTIONS = {"cancel": "pg_cancel_backend", "terminate": "pg_terminate_backend"}


@dataclass(frozen=True, slots=True)
class Act:
    """What was done to whom: `done` is `cancelled`, `terminated` or `spared`."""

    done: str
    message: str


def end(watch: Session, blocker: Blocker, how: str, *, min_age_ms: int) -> Act | None:
    """Cancel the statement (`how` is `cancel`) or end the session (`terminate`) of a root blocker.

    None while its transaction is younger than `min_age_ms`: it may come of age. Spared in any case: a session of
    lockctl's own, an autovacuum that prevents wraparound or may do so for all that we can see, a prepared
    transaction (which has no session), a transaction whose age is hidden from us.
    """
    who = describe(blocker)
    if blocker.kind == "prepared":
        return Act("spared", f"not ended: {who}")
    if blocker.kind == "own":
        return Act("spared", f"not ended: {who} is another lockctl")
    if blocker.kind == "autovacuum" and (blocker.note == WRAPAROUND or blocker.query is None):
        return Act("spared", f"not ended: {who} prevents transaction id wraparound, or may do so")
    if blocker.xact_age_ms is None:
        return Act("spared", f"not ended: the age of the transaction of {who} is not visible to this role")
    if blocker.xact_age_ms < min_age_ms:
        return None
    if how == "cancel" and (blocker.state or "").startswith("idle in transaction"):
        return Act("spared", f"not cancelled: {who} runs no statement; --on-block terminate would end the session")
    try:
        rows = watch.query(
            # The same session, still in a transaction that old: a pid is used again.
            f"SELECT {_FUNCTIONS[how]}(pid) FROM pg_stat_activity WHERE pid = %s"
            " AND xact_start <= clock_timestamp() - %s::int8 * interval '1 millisecond'",
            (blocker.pid, min_age_ms),
        )
    except LockctlError as error:
        return Act("spared", f"not ended: {who}: {error.message}")
    if not rows or not rows[0][0]:
        return Act("spared", f"not ended: {who} had ended by itself")
    word = "cancelled" if how == "cancel" else "terminated"
    age = durations.show(min_age_ms)
    return Act(word, f"{word} {who}, older than --min-blocker-age {age}")
