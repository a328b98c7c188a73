"""The lock tables that lockctl knows, as data: an irregularity is a field here, never a branch elsewhere.

Facts about the built-in tables come from their owners' sources and from measurements on the real software
(docs/systems.md). A deployment adds its own in `lockctl.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lockctl.errors import UsageError


class LockTable(NamedTuple):
    """A lock table: where it is, what its columns mean, and how its owner behaves.

    `key` names the key columns in the order of the primary key. `created_on_takeover` says that taking over a lapsed
    row is a new row to its readers. `renew_every_ms` and `renews_past_expiry` tell what a live holder does after
    its row was force-expired. `sweep` False: no sweep ever deletes a row. `note` is shown by `tables`;
    `after_force` is said after a forced change. `component` names the migrations that create it.
    """

    name: str
    relation: str
    key: tuple[str, ...]
    holder: str
    expires: str
    created: str | None = None
    updated: str | None = None
    default_ttl_ms: int = 60_000
    created_on_takeover: bool = True
    renew_every_ms: int | None = None
    renews_past_expiry: bool = False
    sweep: bool = True
    note: str | None = None
    after_force: str | None = None
    component: str | None = None

    @property
    def schema(self) -> str | None:
        """The schema that the relation names itself, or None: then the search path or `--schema` decides."""
        return split_relation(self.relation)[0]


BUILT_IN: tuple[LockTable, ...] = (
    LockTable(
        name="ffdb_locks",
        component="ffdb",
        relation="ffdb_locks",
        key=("lock_key",),
        holder="lock_id",
        expires="expires_at",
        created="created_at",
        default_ttl_ms=60_000,
        note="FireFlow VFS: named locks; every acquire by its owner deletes lapsed rows",
        after_force="nothing stops the work of the former holder: it learns nothing until its own release",
    ),
    LockTable(
        name="agent_task_run_lock",
        component="n8n",
        relation="agent_task_run_lock",
        key=("agentId", "taskId"),
        holder="holderId",
        expires="heldUntil",
        created="createdAt",
        updated="updatedAt",
        default_ttl_ms=300_000,
        created_on_takeover=False,
        renew_every_ms=60_000,
        renews_past_expiry=True,
        note="n8n: scheduled agent tasks; TTL 5m renewed every 1m; the holder is a random UUID per run",
        after_force=(
            "a live n8n holder takes the row back within a minute (it renews without looking at the expiry),"
            " and nothing stops the work itself: it only logs a warning and keeps running"
        ),
    ),
    LockTable(
        name="verrou",
        component="plan",
        relation="verrou",
        key=("key",),
        holder="owner",
        expires="expiration",
        default_ttl_ms=30_000,
        note="Verrou (PlanLock leases): expiration in epoch milliseconds, null = never expires",
        after_force="a PlanLock does not fence: a stalled holder can go on past its expiry",
    ),
    LockTable(
        name="run_leases",
        component="runs",
        relation="run_store.leases",
        key=("run_id",),
        holder="token",
        expires="expires_at",
        created="claimed_at",
        updated="renewed_at",
        default_ttl_ms=60_000,
        note="run store: the lease of a run's worker, renewed every third of its length",
        after_force="a live worker notices at its next renewal, and nothing stops the work itself before that",
    ),
)


class Catalog(NamedTuple):
    """The built-in tables and those of the configuration, by name."""

    tables: Mapping[str, LockTable]

    @classmethod
    def of(cls, configured: Iterable[LockTable] = ()) -> Catalog:
        """The catalogue with `configured` added; one with a built-in name replaces it."""
        return cls({table.name: table for table in (*BUILT_IN, *configured)})

    def get(self, name: str) -> LockTable:
        """The table called `name`. Raises UsageError that lists the known names."""
        try:
            return self.tables[name]
        except KeyError:
            known = ", ".join(self.tables)
            raise UsageError(
                f"there is no lock table called {name!r} in the catalogue",
                hint=f"known: {known}; lockctl.toml adds others ([tables.NAME])",
            ) from None


def split_relation(relation: str) -> tuple[str | None, str]:
    """Schema (or None) and table name of `relation` as SQL would read it: quotes protect dots and capitals.

    Unlike SQL, an unquoted name keeps its capitals: a configuration names the table as `\\d` shows it.
    Raises UsageError for anything else than one or two names.
    """
    parts: list[str] = []
    rest = relation
    while rest:
        if rest.startswith('"'):
            name, rest = _quoted(rest, relation)
        else:
            name, dot, tail = rest.partition(".")
            rest = dot + tail
        parts.append(name)
        if not rest:
            break
        if not rest.startswith(".") or rest == ".":
            raise UsageError(f"{relation!r} is not the name of a table", hint="write table or schema.table")
        rest = rest[1:]
    if len(parts) not in (1, 2) or not all(parts):
        raise UsageError(f"{relation!r} is not the name of a table", hint="write table or schema.table")
    return (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _quoted(rest: str, whole: str) -> tuple[str, str]:
    name, at = "", 1
    while True:
        end = rest.find('"', at)
        if end < 0:
            raise UsageError(f"{whole!r} has an unclosed quote")
        name += rest[at:end]
        if rest[end + 1 : end + 2] != '"':
            return name, rest[end + 1 :]
        name, at = name + '"', end + 2
