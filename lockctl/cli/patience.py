"""Waiting on the command line: the options of `acquire` and `run`, and what is said meanwhile."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lockctl import clock, durations
from lockctl.cli.context import Invocation
from lockctl.cli.options import maybe_duration
from lockctl.cli.sentences import holder_of, until
from lockctl.errors import UsageError
from lockctl.records import LeaseResult, LockRow

if TYPE_CHECKING:
    from lockctl.leases.grant import Acquirer, Take
    from lockctl.leases.waiting import Patience

WaitOption = Annotated[
    str | None, typer.Option("--wait", metavar="DUR", help="wait this long while another holds it (default: not)")
]
AttemptsOption = Annotated[
    int | None, typer.Option("--attempts", metavar="N", min=1, help="try N times, --delay apart (default: once)")
]
DelayOption = Annotated[
    str | None, typer.Option("--delay", metavar="DUR", help="between two tries, ± 20 % (default: 250ms)")
]


def patience_of(wait: str | None, attempts: int | None, delay: str | None) -> Patience:
    """The three options as one. Raises UsageError."""
    from lockctl.leases.waiting import DEFAULT_DELAY_MS, Patience

    if delay is not None and wait is None and attempts is None:
        raise UsageError("--delay without --wait or --attempts has no meaning", hint="one attempt is the default")
    return Patience(maybe_duration("--wait", wait), attempts, maybe_duration("--delay", delay) or DEFAULT_DELAY_MS)


class Progress:
    """A line on the terminal's standard error that is kept up to date, and gone at the end; elsewhere nothing."""

    def __init__(self, inv: Invocation) -> None:
        self._live = not inv.shared.quiet and not inv.json and sys.stderr is not None and sys.stderr.isatty()
        self._there = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        if self._live:
            self._there = True
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Make room for a message."""
        if self._there:
            self._there = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class Notices:
    """Says on standard error who holds the lease: once, and again when the holder changes; on a terminal in a line
    that is kept up to date, too. A context manager, which takes that line away."""

    def __init__(self, inv: Invocation, text: str) -> None:
        self.inv, self.text = inv, text
        self._holder: str | None = None
        self._progress = Progress(inv)

    def __enter__(self) -> Notices:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._progress.clear()

    def taking(self, patience: Patience) -> Take:
        """How `grant.acquire` is to make its attempts."""
        from lockctl.leases import waiting

        def take(acquirer: Acquirer) -> LeaseResult:
            try:
                return waiting.take(acquirer, patience, self.look)
            finally:
                self._progress.clear()

        return take

    def look(self, row: LockRow, end: clock.Deadline) -> None:
        """The lease is held, as `row` shows, and the waiting ends at `end`."""
        left = end.remaining()
        until_then = "" if left is None else f" up to {durations.show(int(round(left * 1000, -3 if left > 1 else 0)))}"
        if row.holder != self._holder:
            self._holder = row.holder
            self._progress.clear()
            self.inv.say(f"{self.text} is held by {holder_of(row)} {until(row)}; waiting{until_then}")
        held = "" if row.remaining_ms is None else f"; its lease has {durations.show(max(0, row.remaining_ms))} left"
        self._progress.show(f"waiting{until_then} for {holder_of(row)}{held}")
