"""The migrate commands: bring lockctl's own tables into a database, component by component."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl.cli import executing, sqlfiles
from lockctl.cli.context import Invocation, out
from lockctl.cli.happening import Happening
from lockctl.cli.options import Command, Group, duration
from lockctl.cli.policy import PolicyCommand, PolicyPassThrough, policy
from lockctl.errors import UsageError
from lockctl.render.escape import escape_human

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.migrations.policy import Policy


app = typer.Typer(
    cls=Group,
    help="Create and change lockctl's own tables, under a lock timeout; tables that are there are adopted.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

TargetUp = Annotated[
    str | None,
    typer.Argument(metavar="[TARGET]", help="ffdb@head, n8n@head, plan@head, runs@head, or heads", show_default=False),
]


AlembicConfig = Annotated[
    Path | None,
    typer.Option("--alembic-config", "-c", metavar="FILE", help="another alembic environment than lockctl's own"),
]


@app.command(cls=PolicyCommand)
def upgrade(ctx: typer.Context, target: TargetUp = None, alembic_config: AlembicConfig = None) -> None:
    """Go up to TARGET; without one, to the newest of every component that is installed in this database.

    A table that is there is checked and left as it is. Each revision is one transaction, tried again when a lock was
    in the way; what was committed before a failure stays, and is in the result. Exit 7: blocked; 8: a table's shape
    differs, or its owner has to make it; 11: a step left something; 12: another migration is in progress.
    With -c FILE the target is alembic's own (heads), and an env.py that takes config.attributes["connection"] runs on
    lockctl's connection; any other runs as `migrate exec` runs a command.
    """
    inv, rules = Invocation.of(ctx), policy(ctx)
    happening = Happening(inv)
    session = _writing(inv, rules)
    if alembic_config is not None:
        from lockctl.migrations import elsewhere

        run = elsewhere.upgrade(
            session,
            alembic_config,
            target or "heads",
            schema=inv.schema,
            policy=rules,
            notify=happening,
            output=executing.output_of(inv, happening),
        )
    else:
        from lockctl.migrations import operations

        run = operations.upgrade(
            session, target, schema=inv.schema, catalog=inv.catalog, policy=rules, notify=happening
        )
    happening.finish(run, "at the target already")


@app.command(cls=PolicyCommand)
def downgrade(
    ctx: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="ffdb@base, ffdb@-1, a revision, or base for all")],
    alembic_config: AlembicConfig = None,
) -> None:
    """Go down to TARGET: drop what lockctl created, with its rows, and leave what it adopted. Asks first."""
    inv, rules = Invocation.of(ctx), policy(ctx)
    inv.must_be_sure()
    session = _writing(inv, rules)
    happening = Happening(inv)
    if alembic_config is not None:
        from lockctl.migrations import elsewhere

        inv.confirm(f"Go down to {target}, with whatever {alembic_config} drops on the way?")
        run = elsewhere.downgrade(
            session,
            alembic_config,
            target,
            schema=inv.schema,
            policy=rules,
            notify=happening,
            output=executing.output_of(inv, happening),
        )
    else:
        from lockctl.migrations import operations

        inv.confirm(f"Go down to {target}, and drop the tables that lockctl created, with their rows?")
        run = operations.downgrade(
            session, target, schema=inv.schema, catalog=inv.catalog, policy=rules, notify=happening
        )
    happening.finish(run, "nothing is installed above the target")


@app.command(cls=Command)
def current(ctx: typer.Context, alembic_config: AlembicConfig = None) -> None:
    """The revision of each component that is installed in this database."""
    from lockctl.migrations import elsewhere, operations
    from lockctl.migrations.records import Revision

    inv = Invocation.of(ctx)
    if alembic_config is not None:
        inv.rows(elsewhere.current(_reading(inv), alembic_config, schema=inv.schema), Revision)
    else:
        inv.rows(operations.current(_reading(inv), schema=inv.schema), Revision)


@app.command(cls=Command)
def history(ctx: typer.Context, alembic_config: AlembicConfig = None) -> None:
    """Every revision of every component, and which of them this database is at."""
    from lockctl.migrations import elsewhere, operations
    from lockctl.migrations.records import Revision

    inv = Invocation.of(ctx)
    if alembic_config is not None:
        inv.rows(elsewhere.history(_reading(inv), alembic_config, schema=inv.schema), Revision)
    else:
        inv.rows(operations.history(_reading(inv), schema=inv.schema), Revision)


@app.command(cls=Command)
def verify(
    ctx: typer.Context,
    target: TargetUp = None,
    alembic_config: AlembicConfig = None,
    relation: Annotated[
        str | None, typer.Option("--relation", metavar="R", help="judge another system's version table, of one row")
    ] = None,
    column: Annotated[
        str | None, typer.Option("--column", metavar="C", help="the version's column in it (version)")
    ] = None,
    expect: Annotated[str | None, typer.Option("--expect", metavar="V", help="what the version must be")] = None,
) -> None:
    """Is the database at TARGET, by default at the newest of what is installed? Reads only.

    Exit 0: current, and the tables are there in their shape; 8: behind; 9: ahead or diverged.
    """
    inv = Invocation.of(ctx)
    if relation is not None or column is not None or expect is not None:
        if relation is None or expect is None or target is not None or alembic_config is not None:
            raise UsageError(
                "--relation and --expect belong together, without TARGET and -c",
                hint="for example --relation dbos.dbos_migrations --column version --expect 108",
            )
        from lockctl.migrations import versions

        found = versions.verify(_reading(inv), relation, column or "version", expect, schema=inv.schema)
    elif alembic_config is not None:
        from lockctl.migrations import elsewhere

        found = elsewhere.verify(_reading(inv), alembic_config, target or "heads", schema=inv.schema)
    else:
        from lockctl.migrations import operations

        found = operations.verify(_reading(inv), target, schema=inv.schema, catalog=inv.catalog)
    inv.say(escape_human(f"{found.outcome}: {found.detail}" if found.detail else found.outcome))
    inv.result(found)
    raise typer.Exit(found.code)


@app.command(cls=Command)
def sql(
    ctx: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET]", help="as for upgrade, or FROM:TO (heads)", show_default=False),
    ] = None,
    lock_timeout: Annotated[
        str, typer.Option("--lock-timeout", metavar="DUR", help="give up waiting for a lock after this time")
    ] = "5s",
    alembic_config: AlembicConfig = None,
) -> None:
    """Print the upgrade as a SQL script, without connecting.

    The script leaves a table that is there as it is, and can't check its shape: run `migrate verify` afterwards.
    """
    from lockctl.migrations import elsewhere, operations
    from lockctl.migrations.policy import Limits

    inv = Invocation.of(ctx)
    limits = Limits(lock_timeout_ms=duration("--lock-timeout", lock_timeout))
    if alembic_config is not None:
        script = elsewhere.sql(alembic_config, target or "heads", limits=limits)
    else:
        script = operations.sql(target, schema=inv.shared.schema, limits=limits)
    stream = out()
    stream.write(script)
    stream.flush()


app.command(cls=PolicyCommand)(sqlfiles.apply)
app.command("exec", cls=PolicyPassThrough)(executing.exec_)
app.command(cls=Command)(sqlfiles.plan)


def _writing(inv: Invocation, rules: Policy) -> Session:
    database = inv.database(whole=False)
    database.lock_timeout_ms = rules.limits.lock_timeout_ms
    database.statement_timeout_ms = rules.limits.statement_timeout_ms
    # Not inv.connect: under SQLAlchemy times must come as SQLAlchemy expects them.
    return inv.stack.enter_context(database.connect(raw_times=False))


def _reading(inv: Invocation) -> Session:
    return inv.connect(inv.database(whole=False), read_only=True)
