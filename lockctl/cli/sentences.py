"""The result of a verb: its sentence for people, and its exit code."""

from __future__ import annotations

import typer

from lockctl import durations
from lockctl.cli.context import Invocation
from lockctl.errors import LockctlError
from lockctl.records import LeaseResult, LockRow
from lockctl.render.escape import escape_human

EXIT = {
    "acquired": 0,
    "extended": 0,
    "released": 0,
    "expired": 0,
    "held": 3,
    "revived": 3,
    "not_held": 4,
    "lapsed": 4,
}
"""Exit codes of outcomes; `free` and `held` mean something else to `release` and `check`, which say so."""


def holder_of(row: LockRow) -> str:
    return escape_human(row.holder or "") or "''"


def until(row: LockRow) -> str:
    if row.remaining_ms is None:
        return "for ever (it never expires)"
    if row.remaining_ms < 0:
        return f"lapsed {durations.show(-row.remaining_ms)} ago"
    return f"for another {durations.show(row.remaining_ms)} (until {row.expires_at})"


def had(row: LockRow) -> str:
    """What was true of a row that was changed: `held it for another 4m59s`, or `had let it lapse 3s ago`."""
    if row.remaining_ms is not None and row.remaining_ms < 0:
        return f"had let it lapse {durations.show(-row.remaining_ms)} ago"
    return f"held it {until(row)}"


def sentence(verb: str, text: str, result: LeaseResult) -> str:
    """The result of `verb` on the lease called `text`, for people."""
    lock, previous = result.lock, result.previous
    if verb == "watch" and result.outcome in ("expired", "revived") and previous is not None:
        return _watched(text, lock, previous)
    renewed = "; its holder had renewed it since it was shown" if result.renewed else ""
    if result.outcome == "acquired" and lock is not None:
        took = f", taken over from {holder_of(previous)} ({until(previous)})" if previous else ""
        return f"acquired {text} {until(lock)} as {holder_of(lock)}{took}"
    if result.outcome == "extended" and lock is not None:
        return f"extended {text}: held {until(lock)}"
    if result.outcome == "released" and previous is not None:
        return f"released {text}: {holder_of(previous)} {had(previous)}{renewed}"
    if result.outcome == "expired" and previous is not None:
        return f"{text} has lapsed now: {holder_of(previous)} {had(previous)}{renewed}"
    if result.outcome == "held" and lock is not None:
        unchanged = "" if verb in ("acquire", "check") else "; nothing was changed"
        if not lock.live:
            return f"the row of {text} belongs to {holder_of(lock)}, whose lease {until(lock)}{unchanged}"
        return f"{text} is held by {holder_of(lock)} {until(lock)}{unchanged}"
    if lock is not None and lock.state == "lapsed":
        return f"{text} is not held: the lease of {holder_of(lock)} {until(lock)}"
    return f"{text} is free" if verb in ("release", "check") else f"{text} is not held: there is no row"


def _watched(text: str, lock: LockRow | None, previous: LockRow) -> str:
    former = holder_of(previous)
    if lock is None:
        return f"{former} did not take {text} back; its row is gone"
    if lock.holder != previous.holder:
        return f"{former} did not take {text} back; {holder_of(lock)} took it ({until(lock)})"
    if lock.live:
        return f"{former} came back: it renewed {text}, held {until(lock)}"
    return f"{former} did not come back: {text} stayed lapsed"


def finish(inv: Invocation, verb: str, text: str, result: LeaseResult, code: int) -> None:
    """Say the result, write it where a format was asked for, and end with its exit code."""
    inv.say(sentence(verb, text, result))
    if inv.shared.format is not None:
        try:
            inv.result(result)
        except BrokenPipeError:
            pass  # the change was made: its exit code stands
        except OSError as error:
            done = sentence(verb, text, result)
            raise LockctlError(f"{done}; the result could not be written ({error.strerror or error})") from None
    if code:
        raise typer.Exit(code)
