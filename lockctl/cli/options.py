"""The options that every command takes, before or after its name: described once, here.

They are parameters of the root and of every command; whichever stands on the command line is written into one
`Shared`, a later one over an earlier one.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from lockctl import durations
from lockctl.errors import UsageError


class Shared:
    """Connection and output options as given; None or False where they were not."""

    # Not a dataclass: every command makes this one class, and a dataclass costs most of a millisecond.
    dsn: str | None = None
    profile: str | None = None
    config: str | None = None
    embedded: bool = False
    schema: str | None = None
    timeout_ms: int = 30_000
    format: str | None = None
    no_header: bool = False
    yes: bool = False
    quiet: bool = False
    verbose: int = 0
    no_color: bool = False


class _Spec(NamedTuple):
    names: tuple[str, ...]
    field: str
    help: str
    metavar: str | None = None


_SPECS = (
    _Spec(
        ("--dsn",),
        "dsn",
        "libpq URL or key=value string; embedded: for lockctl's own server [env: LOCKCTL_DSN]",
        "TEXT",
    ),
    _Spec(("--profile",), "profile", "a profile of the configuration file [env: LOCKCTL_PROFILE]", "NAME"),
    _Spec(("--config",), "config", "lockctl.toml here, else the user's config folder [env: LOCKCTL_CONFIG]", "FILE"),
    _Spec(("--embedded",), "embedded", "a private PostgreSQL of lockctl's own, kept in the user's data folder"),
    _Spec(("--schema",), "schema", "look for the tables in this schema", "NAME"),
    _Spec(("--timeout",), "timeout_ms", "deadline of the whole command, connecting included (30s)", "DUR"),
    _Spec(
        ("--format", "-f"),
        "format",
        "table, json, jsonl, csv, tsv, or a tabulate format (plain, github, psql, …)",
        "FMT",
    ),
    _Spec(("--no-header",), "no_header", "no header line in csv, tsv and tabulate formats"),
    _Spec(("--yes", "-y"), "yes", "answer the confirmation of destructive commands"),
    _Spec(("--quiet", "-q"), "quiet", "less on standard error"),
    _Spec(("--verbose", "-v"), "verbose", "more on standard error; twice: tracebacks"),
    _Spec(("--no-color",), "no_color", "no colour [env: NO_COLOR]"),
)


def _store(ctx: typer.Context, param: Any, value: Any) -> None:
    # A default says nothing: only what stands on the command line may overwrite.
    if value is None or value is False or (value == 0 and param.name == "verbose"):
        return
    shared: Shared = ctx.obj
    if param.name == "timeout_ms":
        value = duration("--timeout", value)
    elif param.name == "verbose":
        value += shared.verbose
    elif param.name == "format":
        from lockctl.render import check_format

        check_format(value)
    elif param.name == "schema" and not value:
        raise UsageError("--schema needs a name")
    setattr(shared, param.name, value)


class _SharedOption(TyperOption):
    """A shared option: the root's help describes it, that of a command only names it."""

    def get_help_record(self, ctx: Any) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.parent is None else None


@cache
def shared_options() -> tuple[TyperOption, ...]:
    """The shared options as parameters, the same for the root and every command."""
    return tuple(
        _SharedOption(
            param_decls=[spec.field, *spec.names],
            help=spec.help,
            metavar=spec.metavar,
            is_flag=None if spec.metavar else spec.field != "verbose",
            count=spec.field == "verbose",
            default=None if spec.metavar else (0 if spec.field == "verbose" else False),
            callback=_store,
            expose_value=False,
        )
        for spec in _SPECS
    )


_ALSO = "Connection and output options (described in `lockctl --help`; before or after the command):"


class Command(TyperCommand):
    """A command that takes the shared options too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *shared_options()]
        super().__init__(*args, **kwargs)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        names = " ".join("/".join(spec.names) for spec in _SPECS)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(_ALSO)
        with formatter.indentation(), formatter.indentation():
            formatter.write_text(names)


class Root(TyperGroup):
    """The root: the shared options, shown in full."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *shared_options()]
        super().__init__(*args, **kwargs)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)


class Group(TyperGroup):
    """A group of commands: the shared options may stand between its name and that of its command, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*(kwargs.get("params") or []), *shared_options()]
        super().__init__(*args, **kwargs)


class PassThrough(Command):
    """A command whose words after `--` are somebody else's command line, untouched; see `tail`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, found, tail = args, "--" in args, []
        if found:
            at = args.index("--")
            own, tail = args[:at], args[at + 1 :]
        ctx.meta["lockctl.tail"] = tail if found else None
        return super().parse_args(ctx, list(own))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- CMD [ARG]..."]


def tail(ctx: typer.Context) -> list[str]:
    """The words after `--` of a PassThrough command. Raises UsageError when there are none."""
    words: list[str] | None = ctx.meta["lockctl.tail"]
    if not words:
        raise UsageError("no command was given", hint=f"write {ctx.command_path} … -- CMD [ARG...]")
    return words


def duration(option: str, text: str, *, zero: bool = False) -> int:
    """The milliseconds of an option's value. Raises UsageError that names the option."""
    try:
        return durations.parse(text, zero=zero)
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None


def maybe_duration(option: str, text: str | None, *, zero: bool = False) -> int | None:
    return None if text is None else duration(option, text, zero=zero)


def wants_json(argv: list[str]) -> bool:
    """Does this command line ask for JSON? Asked when parsing it failed, and the error must be JSON all the same."""
    formats = [""]
    for i, word in enumerate(argv):
        if word == "--":
            break
        flags, short, value = word[1:].partition("f")
        if word.startswith("--format="):
            formats.append(word.removeprefix("--format="))
        elif word == "--format" or (word.startswith("-") and short and set(flags) <= set("qvy")):
            value = "" if word == "--format" else value
            formats.append(value or (argv[i + 1] if i + 1 < len(argv) else ""))
    return formats[-1] in ("json", "jsonl")


def terminal() -> bool:
    """Can this process ask? It reads the answer from standard input and writes the question to standard error."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr is not None and sys.stderr.isatty()
