"""The lock verbs: each is one guarded statement, and a refusal comes with the row that was judged.

Operations take the session first, return records, and print, ask and exit nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from psycopg.sql import Composable

from lockctl import clock
from lockctl.db import Needs, Session
from lockctl.db.relations import INTEGER
from lockctl.errors import DeniedError, LockctlError, UsageError
from lockctl.leases import token
from lockctl.leases.shape import Shape, holder_value, key_values
from lockctl.leases.statements import Statements
from lockctl.records import LeaseResult, LockRow

# A statement that was refused, and whose reason was gone a moment later, is tried again this many times.
_TRIES = 10
# An expiry that is this much short of the TTL was computed before a wait, not after it.
_STALE_MS = 10


class LockedTable(NamedTuple):
    """A table's shape with its statements; what every operation works on."""

    shape: Shape
    sql: Statements

    @classmethod
    def of(cls, shape: Shape) -> LockedTable:
        return cls(shape, Statements(shape))

    def needs(self, *privileges: str) -> Needs:
        return Needs(self.shape.relation, self.shape.oid, privileges)


def new_holder(shape: Shape) -> str:
    """A holder nobody else has: a random UUID where the column is one, else host, process and a random part."""
    if shape.holder.type == "uuid":
        import uuid

        return str(uuid.uuid4())
    if shape.holder.type in INTEGER:
        raise UsageError(f'column "{shape.holder.name}" takes whole numbers', hint="give one with --holder N")
    unique = os.urandom(8).hex()
    name = f"lockctl:{socket.gethostname()}:{os.getpid()}:{unique}"
    limit = shape.holder.limit
    return name if limit is None or len(name) <= limit else unique[:limit]


def read(session: Session, table: LockedTable, key: Sequence[str]) -> LockRow | None:
    """The row of `key` as it is now, or None."""
    values = key_values(table.shape, key)
    rows = session.query(table.sql.read(), table.sql.params(values), needs=table.needs("SELECT"))
    return table.sql.decode(rows[0], rows[0][-1]) if rows else None


def acquire(session: Session, table: LockedTable, key: Sequence[str], holder: str, ttl_ms: int) -> LeaseResult:
    """Take the lease for `ttl_ms` milliseconds if nobody holds it. Outcomes: `acquired`, `held`.

    Taking over a lapsed row is the same single statement. The same holder asking again is denied: that is `extend`.
    Raises UsageError (a value the columns can't take), BlockedError, DeniedError, UnreachableError.
    """
    values, owner = key_values(table.shape, key), holder_value(table.shape, holder)
    params = table.sql.params(values, holder=owner, ttl=ttl_ms, revive=True)
    for _ in range(_TRIES):
        prior, changed = _change(session, table, table.sql.acquire(), params, "SELECT", "INSERT", "UPDATE")
        if changed is not None:
            lock = _full_length(session, table, params, changed, ttl_ms)
            if lock is None:
                continue  # it lapsed while we waited for somebody's insert, and another took it
            lease = token.write(token.Lease(table.shape.table.name, tuple(values), owner, ttl_ms))
            return LeaseResult("acquired", lock, prior, lease)
        if prior is not None:
            return LeaseResult("held", prior)
        # A row that came while we looked: now that it is there, the next round judges it.
    raise _barred(session, table)


def _full_length(
    session: Session, table: LockedTable, params: dict[str, Any], lock: LockRow, ttl_ms: int
) -> LockRow | None:
    """`lock` with its whole TTL ahead, or None when it is no longer ours.

    An INSERT that waits behind somebody's uncommitted row of the same key has computed its expiry before the wait.
    One that is shorter all the same (a trigger of the application's caps it) is taken as it is.
    """
    for _ in range(_TRIES):
        if lock.remaining_ms is None or lock.remaining_ms >= ttl_ms - _STALE_MS:
            break
        _, renewed = _change(session, table, table.sql.renew(), params, "SELECT", "UPDATE")
        if renewed is None:
            return None
        lock = renewed
    return lock


def extend(
    session: Session, table: LockedTable, key: Sequence[str], holder: str, ttl_ms: int, *, revive: bool = False
) -> LeaseResult:
    """Give the holder's lease `ttl_ms` milliseconds from now. Outcomes: `extended`, `held`, `not_held`.

    A lapsed lease is not held by anybody, unless `revive` and its holder is still in the row. Never inserts.
    """
    return _prolong(session, table, table.sql.extend(), key, holder, ttl_ms, revive)


def renew(
    session: Session, table: LockedTable, key: Sequence[str], holder: str, ttl_ms: int, *, revive: bool = False
) -> LeaseResult:
    """Like `extend`, but never shortens what is left: what the process that holds the lease does meanwhile."""
    return _prolong(session, table, table.sql.renew(), key, holder, ttl_ms, revive)


def _prolong(
    session: Session,
    table: LockedTable,
    statement: Composable,
    key: Sequence[str],
    holder: str,
    ttl_ms: int,
    revive: bool,
) -> LeaseResult:
    values, owner = key_values(table.shape, key), holder_value(table.shape, holder)
    params = table.sql.params(values, holder=owner, ttl=ttl_ms, revive=revive)
    prior, changed = _change(session, table, statement, params, "SELECT", "UPDATE")
    if changed is not None:
        return LeaseResult("extended", changed, prior)
    if prior is None:
        _not_barred(session, table, values)
    if prior is None or (not prior.live and not revive):
        return LeaseResult("not_held", prior)
    if prior.holder == owner:
        raise _barred(session, table)
    return LeaseResult("held", prior)


def release(session: Session, table: LockedTable, key: Sequence[str], holder: str) -> LeaseResult:
    """Delete the holder's row, lapsed or not. Outcomes: `released`, `free` (no row), `held` (another's; untouched)."""
    values, owner = key_values(table.shape, key), holder_value(table.shape, holder)
    params = table.sql.params(values, holder=owner)
    for _ in range(_TRIES):
        rows = session.query(table.sql.release(), params, needs=table.needs("SELECT", "DELETE"))
        if rows:
            return LeaseResult("released", None, table.sql.decode(rows[0], rows[0][-1]))
        found = read(session, table, values)
        if found is None:
            return LeaseResult("free", None)
        if found.holder != owner:
            return LeaseResult("held", found)
    raise _barred(session, table)


def force_expire(session: Session, table: LockedTable, key: Sequence[str], shown: LockRow) -> LeaseResult:
    """Make the lease lapse now if its holder is still the one that was `shown`. Keeps the row.

    Outcomes: `expired`, `held` (the holder changed), `not_held` (no live lease there). A renewal by the same holder
    since the row was shown is no obstacle: the result says `renewed`.
    """
    values = key_values(table.shape, key)
    params = table.sql.params(values, holder=shown.holder)
    prior, changed = _change(session, table, table.sql.force_expire(), params, "SELECT", "UPDATE")
    if changed is not None:
        return LeaseResult("expired", changed, prior, renewed=renewed_since(shown, prior))
    if prior is None:
        _not_barred(session, table, values)
    if prior is None or not prior.live:
        return LeaseResult("not_held", prior)
    if prior.holder == shown.holder:
        raise _barred(session, table)
    return LeaseResult("held", prior)


def release_shown(session: Session, table: LockedTable, shown: LockRow) -> LeaseResult:
    """Delete the row whoever holds it, if its holder is still the one that was `shown`."""
    result = release(session, table, shown.key, shown.holder or "")
    if result.outcome != "released":
        return result
    return LeaseResult("released", None, result.previous, renewed=renewed_since(shown, result.previous))


def renewed_since(shown: LockRow, found: LockRow | None) -> bool:
    """Did the same holder renew between the row being shown and the change?"""
    return found is not None and found.expires_at != shown.expires_at


def check(session: Session, table: LockedTable, key: Sequence[str], holder: str | None) -> LeaseResult:
    """Is the key held? Outcomes: `held`, `lapsed`, `free`; whose lease it is stands in the row."""
    found = read(session, table, key)
    if holder is not None:
        holder_value(table.shape, holder)
    if found is None:
        return LeaseResult("free", table.sql.free(key_values(table.shape, key)))
    return LeaseResult("held" if found.live else "lapsed", found)


def granted_since(
    session: Session, table: LockedTable, key: Sequence[str], holder: str, ttl_ms: int, sent: float
) -> LeaseResult | None:
    """The lease that an acquire of ours got although its answer was lost, or None when it got none.

    `sent` is `clock.now()` from before the statement was sent: a lease of that statement has at most its TTL ahead of
    it, and at least that less the time since then. What the same holder had before has less, or more.
    """
    found = read(session, table, key)
    if found is None or found.holder != holder_value(table.shape, holder) or not found.live:
        return None
    elapsed_ms = (clock.now() - sent) * 1000
    precision = table.shape.expires.precision
    coarse_ms = 1000 / 10**precision if precision is not None else 1
    if found.remaining_ms is None or not ttl_ms - elapsed_ms - 2 <= found.remaining_ms <= ttl_ms + coarse_ms:
        return None
    lease = token.write(token.Lease(table.shape.table.name, found.key, found.holder or "", ttl_ms))
    return LeaseResult("acquired", found, None, lease)


def _not_barred(session: Session, table: LockedTable, key: Sequence[str]) -> None:
    """Raise DeniedError when the row that could not be locked is there: a policy lets it be read and not changed."""
    if read(session, table, key) is not None and _policed(session, table):
        raise _barred(session, table)


def _policed(session: Session, table: LockedTable) -> bool:
    return bool(session.one("SELECT row_security_active(%s::oid)", (table.shape.oid,))[0])


def _barred(session: Session, table: LockedTable) -> LockctlError:
    """Why a statement that nothing stood against changed no row, however often it was made."""
    relation = table.shape.relation
    if _policed(session, table):
        return DeniedError(
            f"a row-level security policy of {relation} keeps the row from this role",
            hint=f"its policies: SELECT * FROM pg_policies WHERE tablename = '{table.shape.name}'; all must let it in",
        )
    return LockctlError(f"the row of {relation} stays as it is: a trigger or rule of the table undoes the change")


def _change(
    session: Session, table: LockedTable, statement: Composable, params: dict[str, Any], *privileges: str
) -> tuple[LockRow | None, LockRow | None]:
    """Run a guarded statement; the locked row before it and the row after it, each as it was judged."""
    row = session.one(statement, params, needs=table.needs(*privileges))
    width, moment = table.sql.width, row[-1]
    return table.sql.decode(row, moment), table.sql.decode(row[width:], moment)
