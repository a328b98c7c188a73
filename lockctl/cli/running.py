"""`run`: hold a lease while a command runs."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl.cli.context import Invocation
from lockctl.cli.options import PassThrough, duration, maybe_duration, tail
from lockctl.cli.patience import AttemptsOption, DelayOption, Notices, WaitOption, patience_of
from lockctl.cli.sentences import EXIT, holder_of, sentence, until
from lockctl.cli.subject import KeyArgument, KeyOption, LeaseOption, Subject, TableName, subject
from lockctl.errors import LostError, UnreachableError, UsageError
from lockctl.records import LeaseResult

if TYPE_CHECKING:
    from lockctl.leases.events import Events
    from lockctl.leases.line import Line
    from lockctl.leases.operations import LockedTable
    from lockctl.leases.running import Ran
    from lockctl.leases.waiting import Patience

_HIGHEST = 255


def run(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    lease: LeaseOption = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DUR", help="how long the lease lasts unless renewed (default: the token's or table's)"),
    ] = None,
    holder: Annotated[
        str | None, typer.Option("--holder", metavar="H", help="who takes it (default: generated)")
    ] = None,
    wait: WaitOption = None,
    attempts: AttemptsOption = None,
    delay: DelayOption = None,
    kill_after: Annotated[str, typer.Option(metavar="DUR", help="from TERM to KILL")] = "10s",
    conflict_exit_code: Annotated[
        int, typer.Option("--conflict-exit-code", "-E", metavar="N", min=0, max=_HIGHEST, help="when another holds it")
    ] = 3,
    lost_exit_code: Annotated[
        int, typer.Option(metavar="N", min=0, max=_HIGHEST, help="when somebody took or deleted the lease meanwhile")
    ] = LostError.code,
    keep: Annotated[bool, typer.Option("--keep", help="don't release the lease when the command has ended")] = False,
    no_pass_dsn: Annotated[
        bool, typer.Option("--no-pass-dsn", help="keep the chosen database from the command's environment")
    ] = False,
    let_live: Annotated[
        bool, typer.Option("--let-live", help="let the command go on when lockctl itself is killed")
    ] = False,
) -> None:
    """Hold the lease while CMD runs: lockctl run ffdb_locks nightly -- backup --all

    CMD runs in its own process group and ends, by TERM and then KILL, before the lease could be another's. Its exit
    status is lockctl's, 128+N for signal N; 126 not executable, 127 not found. It sees LOCKCTL_LEASE, LOCKCTL_TABLE,
    LOCKCTL_KEY, LOCKCTL_HOLDER and the database, so that `lockctl check` in it needs no arguments.
    """
    from lockctl.leases import child, running

    inv = Invocation.of(ctx)
    argv = tail(ctx)
    about = subject(inv, table, key, key_words, lease=lease, by_token=True)
    patience = patience_of(wait, attempts, delay)
    owner = about.holder(holder)
    if about.lease is not None and not patience.once:
        raise UsageError("a lease that is handed over is not waited for", hint="leave --wait and --attempts out")
    ttl_ms = maybe_duration("--ttl", ttl) or (about.lease.ttl_ms if about.lease else about.table.default_ttl_ms)
    running.check_ttl(ttl_ms)
    terms = running.Terms(ttl_ms, duration("--kill-after", kill_after), keep, let_live)
    child.check(argv[0])
    _catch_quit()

    from lockctl.leases.events import Events
    from lockctl.leases.line import Line

    database = inv.database(whole=False, extra_ms=patience.longest_ms)
    session = inv.connect(database)
    locked = about.locked_table(session, inv.schema)
    line, events = Line(database, session), Events()
    inv.stack.callback(line.drop)
    inv.stack.callback(events.close)
    if about.lease is not None:
        result, confirmed = _continue(line, locked, about, ttl_ms, events)
    else:
        result, confirmed = _acquire(inv, line, locked, about, owner, ttl_ms, patience, events)
    if result.outcome not in ("acquired", "extended") or result.lock is None:
        _refuse(inv, about, result, conflict_exit_code)
    assert result.lock is not None
    if inv.shared.verbose:
        inv.say(sentence("acquire", about.text, result))
    env = environment(inv, result, ttl_ms, pass_dsn=not no_pass_dsn)
    ran = running.Runner(line, locked, argv, env, terms, events, inv.warn).run(
        about.key if about.lease else result.lock.key, result.lock.holder or "", confirmed
    )
    raise typer.Exit(_code(inv, about, ran, lost_exit_code, keep))


run.command_class = PassThrough  # type: ignore[attr-defined]


def _catch_quit() -> None:
    """Until the command runs, QUIT too ends us as TERM does: with whatever was granted given back."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL:
        signal.signal(signal.SIGQUIT, handler)


def _acquire(
    inv: Invocation,
    line: Line,
    locked: LockedTable,
    about: Subject,
    owner: str | None,
    ttl_ms: int,
    patience: Patience,
    events: Events,
) -> tuple[LeaseResult, float]:
    """Take the lease. From the moment at which it is ours, signals are the command's, and not our end."""
    from lockctl.leases import grant
    from lockctl.leases.keeping import confirmed_until

    def granted(result: LeaseResult) -> None:
        if result.outcome == "acquired":
            events.start()

    acquirer = grant.Acquirer(line, locked, grant.request(locked, about.key, owner, ttl_ms))
    with Notices(inv, about.text) as notices:
        result = grant.deliver_lease(acquirer, granted, notices.taking(patience))
    if acquirer.sent is None or result.lock is None:
        return result, 0.0
    return result, confirmed_until(acquirer.sent, result.lock)


def _continue(
    line: Line, locked: LockedTable, about: Subject, ttl_ms: int, events: Events
) -> tuple[LeaseResult, float]:
    """Go on with the lease of a token, which must not have lapsed: it gets the whole TTL, or keeps what it has."""
    from lockctl import clock
    from lockctl.leases import operations
    from lockctl.leases.keeping import confirmed_until

    assert about.lease is not None
    session = line.session()
    sent = clock.now()
    result = operations.renew(session, locked, about.key, about.lease.holder, ttl_ms)
    if result.outcome != "extended" or result.lock is None:
        return result, 0.0
    events.start()
    return result, confirmed_until(sent, result.lock)


def _refuse(inv: Invocation, about: Subject, result: LeaseResult, conflict: int) -> None:
    """The lease is not to be had: say so, and end with the exit code for that."""
    inv.say(sentence("acquire", about.text, result))
    if result.outcome == "not_held" and result.lock is not None and about.lease is not None:
        inv.say("  hint: `lockctl extend --revive --lease TOKEN` brings it back, as long as nobody took it")
    if inv.shared.format is not None:
        inv.result(result)
    raise typer.Exit(conflict if result.outcome == "held" else EXIT[result.outcome])


def environment(inv: Invocation, result: LeaseResult, ttl_ms: int, *, pass_dsn: bool) -> dict[str, str]:
    """The command's environment: ours, the lease's, and unless it is kept from it the database that was chosen."""
    import json

    from lockctl.leases import token

    lock = result.lock
    assert lock is not None
    holder = lock.holder or ""
    env = {
        **os.environ,
        "LOCKCTL_LEASE": token.write(token.Lease(lock.table, lock.key, holder, ttl_ms)),
        "LOCKCTL_TABLE": lock.table,
        "LOCKCTL_KEY": json.dumps(list(lock.key), ensure_ascii=False),
        "LOCKCTL_HOLDER": holder,
    }
    for name in ("LOCKCTL_DSN", "LOCKCTL_PROFILE", "LOCKCTL_SCHEMA"):
        env.pop(name, None)
    if inv.config.path is not None:
        env["LOCKCTL_CONFIG"] = str(inv.config.path.absolute())
    if pass_dsn:
        # An empty URL is "as PG* say", also where the command finds another configuration.
        env["LOCKCTL_DSN"] = inv.target.dsn or "postgresql://"
        if inv.schema is not None:
            env["LOCKCTL_SCHEMA"] = inv.schema
    return env


def _code(inv: Invocation, about: Subject, ran: Ran, lost_code: int, keep: bool) -> int:
    """The command's exit status. Raises LostError and UnreachableError when the lease was not held throughout."""
    from lockctl.leases.holding import Trouble

    if ran.trouble is Trouble.LOST:
        lost = LostError(_lost(about, ran.lost))
        lost.exit_code = lost_code
        raise lost
    if ran.trouble is Trouble.UNCONFIRMED:
        why = f" ({ran.why})" if ran.why else ""
        raise UnreachableError(f"the lease on {about.text} could not be confirmed in time{why}")
    if ran.unfinished is not None:
        verb = "kept for its whole TTL" if keep else "released"
        inv.warn(f"the lease on {about.text} could not be {verb} ({ran.unfinished.message}): it lapses by itself")
    if ran.ending.interrupted is not None and os.getpgrp() != os.getpid():
        # A script that the terminal's Ctrl-C would have reached, had the command not been in front in its place.
        os.killpg(os.getpgrp(), ran.ending.interrupted)
    return ran.ending.status


def _lost(about: Subject, found: LeaseResult | None) -> str:
    row = found.lock if found is not None else None
    if row is None:
        return f"the lease on {about.text} was lost: somebody deleted its row"
    return f"the lease on {about.text} was lost: {holder_of(row)} took it ({until(row)})"
