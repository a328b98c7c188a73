"""What happens during a migration, on standard error: sentences, JSON lines, and on a terminal a line of progress."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from lockctl.cli.context import Invocation, tell
from lockctl.errors import Interrupted
from lockctl.render.escape import escape_human

if TYPE_CHECKING:
    from lockctl.migrations.records import Event, MigrationRun

_CLEAR = "\r\x1b[K"
_LOUD = ("warning", "cancelled", "terminated", "spared")
_IN_THE_ERROR = ("blocked", "failed", "partial")
"""Events that the error at the end repeats word for word: a person reads them once."""


class Happening:
    """Tells events as they happen; call it with each. `finish` gives the result and raises what ended the run."""

    def __init__(self, inv: Invocation) -> None:
        self.inv = inv
        self._live = not inv.shared.quiet and not inv.json and sys.stderr is not None and sys.stderr.isatty()
        self._line = False

    def __call__(self, event: Event) -> None:
        if event.event == "progress":
            self._progress(event)
            return
        self._clear()
        if self.inv.json:
            self._object(event)
        elif event.event in _LOUD:
            tell(escape_human(event.message))
        elif event.event not in _IN_THE_ERROR:
            self.inv.say(escape_human(event.message))

    def passed(self, text: bytes) -> None:
        """What somebody else's command printed, as it came: standard output is for the result."""
        self._clear()
        if sys.stderr is not None:
            sys.stderr.flush()
        while text:
            try:
                text = text[os.write(2, text) :]
            except OSError:
                return

    def finish(self, run: MigrationRun, nothing: str) -> None:
        """The result on standard output; then the error or signal that ended the run, where there was one, is raised.

        `nothing` says in a person's words why there was nothing to do.
        """
        self._clear()
        result = run.result
        if result.outcome == "nothing" and not self.inv.json:
            self.inv.say(f"nothing to do: {nothing}")
        if run.error is not None and result.steps and not self.inv.json:
            tell(escape_human(f"committed before it, and standing: {', '.join(result.steps)}"))
        self.inv.result(result)
        if isinstance(run.error, Interrupted):
            raise Interrupted(run.error.signum)
        if run.error is not None:
            raise run.error

    def _object(self, event: Event) -> None:
        from lockctl.render import write_object

        if not self.inv.shared.quiet:
            write_object(event, fmt="jsonl", out=sys.stderr)
            sys.stderr.flush()

    def _progress(self, event: Event) -> None:
        if not self._live:
            return
        text = escape_human(event.message)
        width = max(20, shutil.get_terminal_size().columns - 1)
        sys.stderr.write(_CLEAR + (text if len(text) <= width else text[: width - 1] + "…"))
        sys.stderr.flush()
        self._line = True

    def _clear(self) -> None:
        if self._line:
            self._line = False
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
