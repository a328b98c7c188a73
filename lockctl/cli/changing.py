"""The commands that change one lease: acquire, extend, release, force-expire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl import durations
from lockctl.cli.context import Invocation, out, settled
from lockctl.cli.options import maybe_duration
from lockctl.cli.patience import AttemptsOption, DelayOption, Notices, Progress, WaitOption, patience_of
from lockctl.cli.sentences import EXIT, finish, holder_of, sentence, until
from lockctl.cli.subject import (
    HolderOption,
    KeyArgument,
    KeyOption,
    LeaseOption,
    Subject,
    TableName,
    locked_holder,
    subject,
)
from lockctl.errors import UsageError
from lockctl.records import LeaseResult
from lockctl.render.escape import escape_human

if TYPE_CHECKING:
    from lockctl.db import Session
    from lockctl.leases.line import Line
    from lockctl.leases.operations import LockedTable


def acquire(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DUR", help="how long the lease lasts (default: the table's)")
    ] = None,
    holder: Annotated[
        str | None, typer.Option("--holder", metavar="H", help="who takes it (default: generated)")
    ] = None,
    purge_expired: Annotated[
        bool, typer.Option("--purge-expired", help="first delete the table's other expired rows, as FireFlow does")
    ] = False,
    wait: WaitOption = None,
    attempts: AttemptsOption = None,
    delay: DelayOption = None,
) -> None:
    """Take the lease, and write its token on standard output. Exit 3 when another holds it.

    lease=$(lockctl acquire ffdb_locks nightly --ttl 5m) || exit
    """
    from lockctl.leases import grant, operations

    inv = Invocation.of(ctx)
    about = subject(inv, table, key, key_words)
    ttl_ms = maybe_duration("--ttl", ttl) or about.table.default_ttl_ms
    patience = patience_of(wait, attempts, delay)
    if purge_expired and not about.table.sweep:
        raise UsageError(f"rows of {about.table.name} are never deleted by lockctl (sweep = false)")
    database = inv.database(extra_ms=patience.longest_ms)
    session = inv.connect(database)
    locked = about.locked_table(session, inv.schema)
    request = grant.request(locked, about.key, holder, ttl_ms)
    if purge_expired:
        operations.read(session, locked, about.key)
        _purge(inv, session, locked, request.key)
    with Notices(inv, about.text) as notices:
        result = grant.acquire(
            database,
            session,
            locked,
            request,
            lambda found: _deliver(inv, about.text, found),
            notices.taking(patience),
        )
    raise typer.Exit(EXIT[result.outcome])


def _purge(inv: Invocation, session: Session, table: LockedTable, key: tuple[str, ...]) -> None:
    from lockctl.leases import sweep as sweeping

    tally = sweeping.Tally(table)
    for _ in sweeping.sweep(session, tally, sweeping.Plan(grace_ms=0, except_key=key)):
        pass
    inv.say(f"deleted {tally.swept} expired row{'s' * (tally.swept != 1)} of {table.shape.relation}")


def _deliver(inv: Invocation, text: str, result: LeaseResult) -> None:
    """Write the lease where its taker reads it; an OSError from here gives the lease back."""
    if inv.shared.format is not None:
        inv.result(result)
    elif result.lease is not None:
        stream = out()
        stream.write(result.lease + "\n")
        stream.flush()
    settled()
    inv.say(sentence("acquire", text, result))


def extend(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    holder: HolderOption = None,
    lease: LeaseOption = None,
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DUR", help="the new remaining time (default: the token's TTL, else the table's)"),
    ] = None,
    revive: Annotated[bool, typer.Option("--revive", help="also when it has lapsed, if nobody took it")] = False,
) -> None:
    """Give the lease a new remaining time. Exit 3: another holds it; 4: it has lapsed or is gone."""
    from lockctl.leases import operations

    inv = Invocation.of(ctx)
    about = subject(inv, table, key, key_words, lease=lease, by_token=True)
    owner = _owner(about, holder)
    ttl_ms = maybe_duration("--ttl", ttl) or (about.lease.ttl_ms if about.lease else about.table.default_ttl_ms)
    session = inv.connect(inv.database())
    locked = about.locked_table(session, inv.schema)
    result = operations.extend(session, locked, about.key, owner, ttl_ms, revive=revive)
    finish(inv, "extend", about.text, result, EXIT[result.outcome])


def _owner(about: Subject, holder: str | None) -> str:
    owner = about.holder(holder)
    if owner is None:
        raise UsageError("whose lease?", hint="give --holder H, or the token that `acquire` printed with --lease")
    return owner


ReasonOption = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="why, for the record")]


def release(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    holder: HolderOption = None,
    lease: LeaseOption = None,
    force: Annotated[bool, typer.Option("--force", help="whoever holds it; asks first")] = False,
    reason: ReasonOption = None,
) -> None:
    """Give the lease back. A free key is no error; another's lease is left alone (exit 3)."""
    from lockctl.leases import operations

    inv = Invocation.of(ctx)
    about = subject(inv, table, key, key_words, lease=lease, by_token=True)
    if not force:
        owner = _owner(about, holder)
        session = inv.connect(inv.database())
        locked = about.locked_table(session, inv.schema)
        result = operations.release(session, locked, about.key, owner)
    else:
        expected = about.holder(holder)
        inv.must_be_sure()
        session = inv.connect(inv.database())
        locked = about.locked_table(session, inv.schema)
        result = _forced(inv, session, locked, about, expected, reason, verb="release")
    finish(inv, "release", about.text, result, 0 if result.outcome == "free" else EXIT[result.outcome])


def force_expire(
    ctx: typer.Context,
    table: TableName = None,
    key: KeyArgument = None,
    key_words: KeyOption = None,
    holder: Annotated[str | None, typer.Option("--holder", metavar="H", help="only if this holder has it")] = None,
    reason: ReasonOption = None,
    watch: Annotated[
        str | None, typer.Option("--watch", metavar="DUR", help="stay, and tell whether the holder comes back")
    ] = None,
) -> None:
    """Make somebody else's lease lapse now. Keeps the row; asks first.

    It does not stop the holder's work. Exit 3: another holder than the named or shown one, or with --watch the holder
    came back; 4: no live lease.
    """
    inv = Invocation.of(ctx)
    about = subject(inv, table, key, key_words)
    watch_ms = maybe_duration("--watch", watch)
    inv.must_be_sure()
    database = inv.database(extra_ms=watch_ms or 0)
    session = inv.connect(database)
    locked = about.locked_table(session, inv.schema)
    result = _forced(inv, session, locked, about, holder, reason, verb="force-expire")
    if result.outcome == "expired" and about.table.after_force:
        if inv.shared.yes:  # otherwise the question came with it
            inv.say(f"note: {about.table.after_force}")
        result = replace(result, note=about.table.after_force)
    if result.outcome == "expired" and watch_ms is not None:
        from lockctl.leases.line import Line

        result = _watched(inv, Line(database, session), locked, about, result, watch_ms)
    verb = "force-expire" if watch_ms is None else "watch"
    finish(inv, verb, about.text, result, EXIT[result.outcome])


def _watched(
    inv: Invocation, line: Line, table: LockedTable, about: Subject, result: LeaseResult, watch_ms: int
) -> LeaseResult:
    """The result after `--watch`."""
    from lockctl.leases.watch import watch

    inv.stack.callback(line.drop)
    inv.say(sentence("force-expire", about.text, result))
    every = about.table.renew_every_ms
    if every is not None and watch_ms < every:
        inv.say(f"note: a live holder of {about.table.name} renews only every {durations.show(every)}: watch longer")
    with Progress(inv) as progress:
        return watch(
            line, table, result, watch_ms, lambda left: progress.show(f"watching for another {max(1, round(left))}s")
        )


def _forced(
    inv: Invocation,
    session: Session,
    table: LockedTable,
    about: Subject,
    expected: str | None,
    reason: str | None,
    verb: str,
) -> LeaseResult:
    """Show the row, ask, and change it only if its holder is still the one that was shown."""
    from lockctl.leases import operations

    shown = operations.read(session, table, about.key)
    if expected is not None:
        expected = locked_holder(table, expected)
    if shown is None:
        return LeaseResult("free" if verb == "release" else "not_held", None)
    if verb == "force-expire" and not shown.live:
        return LeaseResult("not_held", shown)
    if expected is not None and shown.holder != expected:
        return LeaseResult("held", shown)
    inv.say(
        f"{about.text}: held by {holder_of(shown)} {until(shown)}"
        + (f"; reason: {escape_human(reason)}" if reason else "")
    )
    if about.table.after_force and not inv.shared.yes:
        inv.say(f"note: {about.table.after_force}")
    act = "Release" if verb == "release" else "Expire"
    inv.confirm(f"{act} the lease of {shown.holder} on {about.table.name} {' '.join(about.key)}?")
    if verb == "release":
        return operations.release_shown(session, table, shown)
    return operations.force_expire(session, table, about.key, shown)
