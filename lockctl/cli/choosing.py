"""The lock tables that a command without TABLE works on, and what happens to those that it can't use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockctl.cli.context import Invocation
from lockctl.errors import DeniedError, LockctlError

if TYPE_CHECKING:
    from lockctl.catalog import LockTable
    from lockctl.db import Session
    from lockctl.leases.operations import LockedTable


def present(
    inv: Invocation, session: Session, chosen: Sequence[LockTable], named: bool, failures: list[LockctlError]
) -> Iterator[LockedTable]:
    """The tables to work on: a named one must be there and right; of all others, those that are.

    One that is there and can't be used is told of on standard error, and does not hide the rest.
    """
    from lockctl.leases.operations import LockedTable
    from lockctl.leases.shape import describe, look

    if named:
        for table in chosen:
            yield LockedTable.of(describe(session, table, inv.schema))
        return
    all_found = look(session, chosen, inv.schema)
    if not any(found.present for found in all_found):
        inv.say("this database has none of the lock tables that lockctl knows: see `lockctl tables`, --schema")
    for found in all_found:
        if found.present:
            try:
                yield LockedTable.of(found.shape())
            except LockctlError as error:
                failures.append(error)
                inv.warn(f"left out {found.table.name}: {error.message}")


def unless_denied(
    inv: Invocation, table: LockedTable, rows: Iterator[Any], named: bool, failures: list[LockctlError]
) -> Iterator[Any]:
    """`rows`; a table that nobody named and this role may not use is told of, and does not hide the rest."""
    try:
        yield from rows
    except DeniedError as error:
        if named:
            raise
        failures.append(error)
        inv.warn(f"left out {table.shape.table.name}: {error.message}")
