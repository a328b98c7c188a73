"""Which lease the words of a command line name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl.cli.context import Invocation, words
from lockctl.errors import UsageError

if TYPE_CHECKING:
    from lockctl.catalog import LockTable
    from lockctl.db import Session
    from lockctl.leases.operations import LockedTable
    from lockctl.leases.token import Lease

TableName = Annotated[
    str | None, typer.Argument(metavar="TABLE", help="a lock table: see `lockctl tables`", show_default=False)
]
KeyArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY...", help="one word per key column, in the order of the primary key", show_default=False
    ),
]
KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="WORD", help="a word of the key that looks like an option (one per key column)"),
]
HolderOption = Annotated[str | None, typer.Option("--holder", metavar="H", help="the holder")]
LeaseOption = Annotated[
    str | None,
    typer.Option("--lease", metavar="TOKEN", help="a lease token, for TABLE, KEY and holder [env: LOCKCTL_LEASE]"),
]


class Subject:
    """What a verb is about: a table's description, a key, and where a token was given its lease."""

    def __init__(self, table: LockTable, key: tuple[str, ...], lease: Lease | None = None) -> None:
        self.table, self.key, self.lease = table, key, lease

    @property
    def text(self) -> str:
        return f"{self.table.name} {words(self.key)}"

    def holder(self, given: str | None) -> str | None:
        """The holder: of the token, else the given one. Raises UsageError when both are there."""
        if self.lease is None:
            return given
        if given is not None:
            raise UsageError("--holder and a lease token name two holders", hint="the token carries its holder")
        return self.lease.holder

    def locked_table(self, session: Session, schema: str | None) -> LockedTable:
        from lockctl.leases.operations import LockedTable
        from lockctl.leases.shape import describe

        return LockedTable.of(describe(session, self.table, schema))


def subject(
    inv: Invocation,
    table: str | None,
    key: Sequence[str] | None,
    key_words: Sequence[str] | None,
    *,
    lease: str | None = None,
    by_token: bool = False,
) -> Subject:
    """The lease that the words of a command line name. Raises UsageError.

    `by_token`: the command takes a lease token too, from `lease` or from LOCKCTL_LEASE where no table is named.
    """
    from lockctl.leases.shape import key_words as as_key

    words_given = [*(key or ()), *(key_words or ())]
    if lease is not None and table is not None:
        raise UsageError("--lease and TABLE name two leases", hint="the token carries table and key: leave TABLE out")
    if key and key_words:
        raise UsageError("give the key either as words or with --key, not both")
    if lease is None and table is None:
        lease = (os.environ.get("LOCKCTL_LEASE") or None) if by_token and not words_given else None
        if lease is None:
            known = ", ".join(inv.catalog.tables)
            token = ", or a lease token" if by_token else ""
            raise UsageError("which table?", hint=f"give TABLE KEY...{token}; tables: {known}")
    if lease is not None:
        return _of_token(inv, lease, words_given)
    description = inv.catalog.get(table or "")
    return Subject(description, as_key(description, words_given))


def _of_token(inv: Invocation, lease: str, words_given: Sequence[str]) -> Subject:
    from lockctl.leases import token
    from lockctl.leases.shape import key_words as as_key

    if words_given:
        raise UsageError("--lease and a key name two leases", hint="the token carries table and key")
    found = token.read(lease)
    description = inv.catalog.get(found.table)
    return Subject(description, as_key(description, found.key), found)


def locked_holder(table: LockedTable, holder: str) -> str:
    """`holder` as the table stores it."""
    from lockctl.leases.shape import holder_value

    return holder_value(table.shape, holder)
