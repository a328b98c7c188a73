"""The options that every command which migrates takes: described once, here, and read as one Policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperOption

from lockctl.cli.options import Command, PassThrough, duration, maybe_duration

if TYPE_CHECKING:
    from lockctl.migrations.policy import Policy

_META = "lockctl.policy"
_DUR = "DUR"


def _store(ctx: typer.Context, param: Any, value: Any) -> None:
    ctx.meta.setdefault(_META, {})[param.name] = value


def _option(name: str, description: str, *, metavar: str | None = None, **kwargs: Any) -> TyperOption:
    field = name.removeprefix("--").replace("-", "_")
    return TyperOption(
        param_decls=[field, name], help=description, metavar=metavar, callback=_store, expose_value=False, **kwargs
    )


def policy_options() -> list[TyperOption]:
    """The options as parameters of one command."""
    return [
        _option("--lock-timeout", "the longest that others wait because of us (5s)", metavar=_DUR, default="5s"),
        _option(
            "--index-lock-timeout", "the same for CONCURRENTLY, which makes nobody wait; 0s: none", metavar=_DUR,
            default="0s",
        ),
        _option("--statement-timeout", "give up a statement after this time (none)", metavar=_DUR, default=None),
        _option("--retries", "attempts after the first one, for each step (10)", metavar="N", type=int, default=10),
        _option("--deadline", "begin no attempt after this time (10m)", metavar=_DUR, default="10m"),
        _option("--runner-wait", "wait for another migration this long (as --deadline)", metavar=_DUR, default=None),
        _option(
            "--advisory-lock", "also take this advisory lock: a number, or N,M; may be repeated", metavar="KEY",
            multiple=True, type=str, default=None,
        ),
        _option(
            "--on-block", "report, cancel or terminate the session at the root (report)", metavar="HOW",
            default="report",
        ),
        _option("--min-blocker-age", "act only on a transaction at least this old", metavar=_DUR, default=None),
        _option("--no-query", "don't show what blocking sessions run", is_flag=True, default=False),
    ]  # fmt: skip


class PolicyCommand(Command):
    """A command that migrates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *policy_options()]
        super().__init__(*args, **kwargs)


class PolicyPassThrough(PassThrough):
    """A command that migrates with somebody else's command, which stands after `--`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *policy_options()]
        super().__init__(*args, **kwargs)


def policy(ctx: typer.Context) -> Policy:
    """What the options of a PolicyCommand say. Raises UsageError."""
    from lockctl.migrations.policy import Limits, Policy

    given = ctx.meta[_META]
    return Policy(
        limits=Limits(
            lock_timeout_ms=duration("--lock-timeout", given["lock_timeout"]),
            statement_timeout_ms=maybe_duration("--statement-timeout", given["statement_timeout"]),
            index_lock_timeout_ms=duration("--index-lock-timeout", given["index_lock_timeout"], zero=True) or None,
        ),
        retries=given["retries"],
        deadline_ms=duration("--deadline", given["deadline"]),
        runner_wait_ms=maybe_duration("--runner-wait", given["runner_wait"], zero=True),
        advisory_locks=tuple(given["advisory_lock"] or ()),
        on_block=given["on_block"],
        min_blocker_age_ms=maybe_duration("--min-blocker-age", given["min_blocker_age"]),
        show_query=not given["no_query"],
    )
