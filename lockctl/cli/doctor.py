"""The doctor command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from lockctl.cli.context import Invocation
from lockctl.errors import DeniedError, UnreachableError

if TYPE_CHECKING:
    from lockctl.doctor import Check


def doctor(ctx: typer.Context) -> None:
    """Check connection, clocks, privileges, tables, pooler, standby and schema version. Changes nothing.

    Exit 0 when nothing failed; otherwise the code of the first failure (6 unreachable, 8 behind, 10 denied).
    """
    from lockctl.doctor import Check, Patient, examine

    inv = Invocation.of(ctx)
    codes: list[int] = []

    def found() -> Iterator[Check]:
        try:
            session = inv.connect(inv.database(), read_only=True)
        except (UnreachableError, DeniedError) as error:
            codes.append(error.code)
            yield Check("connection", "fail", error.message, error.hint)
            return
        for check, code in examine(Patient(session, inv.catalog, inv.schema, inv.target.source)):
            codes.append(code)
            yield check

    inv.rows(found(), Check)
    if failed := [code for code in codes if code]:
        raise typer.Exit(failed[0])
