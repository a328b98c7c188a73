"""`migrate apply` and `migrate plan`: SQL files, run under the rules of a migration, or looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl.cli.context import Invocation
from lockctl.cli.happening import Happening
from lockctl.cli.policy import policy
from lockctl.errors import UsageError

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.migrations.sqlfile import SqlFile


def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file of SQL in UTF-8")],
    from_step: Annotated[
        int, typer.Option("--from-step", metavar="N", help="begin at this step (see `migrate plan`)", min=1)
    ] = 1,
) -> None:
    """Run a SQL file in steps, each one transaction under the lock timeout; stop at the first error.

    A step ends behind a change of a version table and at the comment `-- lockctl: step TITLE`; BEGIN … COMMIT is one.
    CONCURRENTLY, VACUUM and their like are steps outside a transaction. The whole file is parsed before anything runs.
    Exit 7: blocked; 11: the failing step left something; what was committed is named, and --from-step goes on.
    """
    from lockctl.migrations import apply as applying
    from lockctl.migrations import sqlfile

    inv, rules = Invocation.of(ctx), policy(ctx)
    steps = sqlfile.read(file)
    database = inv.database(whole=False)
    database.lock_timeout_ms = rules.limits.lock_timeout_ms
    database.statement_timeout_ms = rules.limits.statement_timeout_ms
    happening = Happening(inv)
    session = inv.connect(database)
    run = applying.apply(session, steps, from_step=from_step, policy=rules, notify=happening)
    happening.finish(run, f"{file} holds no statement")


def plan(
    ctx: typer.Context,
    what: Annotated[str, typer.Argument(metavar="FILE|REV", help="a file of SQL, or a target as of upgrade")],
    alembic_config: Annotated[
        Path | None,
        typer.Option("--alembic-config", "-c", metavar="FILE", help="REV is of another alembic environment"),
    ] = None,
) -> None:
    """List each statement with the lock it takes, on what, and whether it scans or rewrites the table. Runs nothing.

    With a database (--dsn and so on) the catalogue is asked for tables bound by foreign keys, and for sizes.
    """
    from lockctl.migrations import plan as planning

    inv = Invocation.of(ctx)
    file = _file(inv, what) if alembic_config is None else _elsewhere(alembic_config, what)
    inv.rows(planning.plan(file.steps, _maybe(inv)), planning.PlannedLock)


def _file(inv: Invocation, what: str) -> SqlFile:
    """The SQL of a file, or else of an upgrade of ours."""
    from lockctl.migrations import sqlfile

    if Path(what).is_file() or what.endswith(".sql") or "/" in what:
        return sqlfile.read(Path(what))
    from lockctl.migrations import operations

    return sqlfile.parse(operations.sql(what, schema=inv.shared.schema), what)


def _elsewhere(alembic_config: Path, target: str) -> SqlFile:
    """The SQL of an upgrade in another alembic environment."""
    from lockctl.migrations import elsewhere, sqlfile

    return sqlfile.parse(elsewhere.sql(alembic_config, target), target)


def _maybe(inv: Invocation) -> Session | None:
    """A session that reads, where a database was named."""
    from lockctl.settings import NO_DATABASE

    try:
        database = inv.database(whole=False)
    except UsageError as error:
        if error.message != NO_DATABASE:
            raise
        inv.say("no database was named: what only its catalogue knows is left open")
        return None
    return inv.connect(database, read_only=True)
