"""The application, and the one place where an error becomes an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lockctl import __version__
from lockctl.cli.context import tell, tell_json
from lockctl.cli.options import Command, Root, Shared, wants_json
from lockctl.errors import Interrupted, LockctlError, UsageError

HELP = """Inspect and change lock rows in PostgreSQL, find lapsed runs, and migrate under a lock timeout.

A database is named by --dsn, --profile or --embedded, by LOCKCTL_DSN or LOCKCTL_PROFILE, by the default profile of
lockctl.toml, or by libpq's PG* variables, in this order. Exit codes: 0 ok, 1 error, 2 usage, 3 held, 4 not held,
5 lost, 6 unreachable, 7 blocked, 8 behind, 9 ahead, 10 denied, 11 partial, 12 busy.
"""


COMMANDS = {
    "tables": "reading:tables",
    "inspect": "reading:inspect",
    "check": "reading:check",
    "acquire": "changing:acquire",
    "extend": "changing:extend",
    "release": "changing:release",
    "force-expire": "changing:force_expire",
    "sweep": "sweeping:sweep",
    "run": "running:run",
    "runs": "runs:app",
    "work": "work:app",
    "migrate": "migrate:app",
    "blockers": "blockers:blockers",
    "doctor": "doctor:doctor",
    "demo": "demo:demo",
}
"""Where each command is: a module of this package, and in it a function or, for a group, a Typer app."""


def build(argv: Sequence[str] | None = None) -> TyperGroup:
    """The command tree; for a command line only the commands whose names occur in it, since each costs its imports."""
    app = typer.Typer(
        name="lockctl",
        cls=Root,
        help=HELP,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
    )

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", help="show the version", is_eager=True, callback=_version),
    ) -> None:
        pass

    named = [name for name in COMMANDS if argv is not None and name in argv]
    for name in named or COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(f"lockctl.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, cls=getattr(found, "command_class", Command))(found)
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return group


def _version(value: bool) -> None:
    if value:
        print(f"lockctl {__version__}")
        raise typer.Exit


def run(argv: list[str]) -> int:
    """Run one command line and return its exit code; standard error has the reason when it is not nought."""
    _guard_streams()
    _catch_signals()
    shared = Shared()
    try:
        return _invoke(argv, shared)
    except Interrupted as interrupt:
        return interrupt.code
    except BrokenPipeError:
        # The reader of our list has seen enough (`| head -1`).
        _drop(1)
        return 0
    except LockctlError as error:
        return _report(error, argv, shared)
    except Exception as error:
        return _unforeseen(error, argv, shared)
    finally:
        _flush()


def _invoke(argv: list[str], shared: Shared) -> int:
    group = build(argv)
    try:
        with group.make_context("lockctl", list(argv), obj=shared) as ctx:
            group.invoke(ctx)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        raise LockctlError("not confirmed: nothing was changed") from None
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return UsageError.code
        raise _usage(error) from None
    return 0


def _usage(error: Any) -> UsageError:
    """Typer's own complaint about a command line, as one of ours, with what to do."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "lockctl"
    hint = f"see {path} --help"
    message = error.format_message().rstrip(".")
    option = getattr(error, "option_name", None)
    takes_key = ctx is not None and any(param.name == "key_words" for param in ctx.command.params)
    if option and takes_key:
        hint = f"a key that looks like an option goes into --key={option} or after --; {hint}"
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def _report(error: LockctlError, argv: list[str], shared: Shared) -> int:
    from lockctl.db.conninfo import redact

    _traceback(shared)
    if shared.format in ("json", "jsonl") or (shared.format is None and wants_json(argv)):
        from lockctl.records import to_json

        hint = error.hint and redact(error.hint)
        body = {"error": error.word, "message": redact(error.message), "hint": hint, **to_json(error.details)}
        tell_json(body)
        return error.exit_code
    from lockctl.render.escape import escape_human

    tell(escape_human(redact(error.message)))
    if error.hint:
        _stderr(escape_human(redact(f"  hint: {error.hint}")))
    return error.exit_code


_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def _unforeseen(error: Exception, argv: list[str], shared: Shared) -> int:
    if isinstance(error, OSError) and error.filename is None and error.errno in _UNWRITABLE:
        return _report(LockctlError(f"standard output can't be written: {error.strerror}"), argv, shared)
    text = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
    return _report(LockctlError(message, hint="run it again with -v -v for the traceback"), argv, shared)


def _traceback(shared: Shared) -> None:
    if shared.verbose >= 2:
        import traceback

        from lockctl.db.conninfo import redact

        _stderr(redact(traceback.format_exc().rstrip()))


def _stderr(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr)


def _guard_streams() -> None:
    """Keep 0, 1 and 2 occupied: a socket that got number 1 would receive what is meant for standard output.

    A closed standard output is opened for reading only, so that writing to it fails instead of vanishing.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


# A terminal that goes away ends a command as an interrupt does: a lease that was just granted is given back.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _catch_signals() -> None:
    def interrupt(signum: int, _frame: Any) -> None:
        # The first one ends the command; while it cleans up, more of them change nothing.
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(signum)

    for signum in _ENDING:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, interrupt)


def _flush() -> None:
    """Write what is held back; where nobody takes it, drop it: Python would end with 120 instead of the exit code."""
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _drop(number)


def _drop(number: int) -> None:
    """Point a standard stream at nothing, so that Python's own flush at the end says nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
