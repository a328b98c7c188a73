"""The logging and printing of somebody else's env.py: it may do both as it likes, and ours is as it was afterwards."""

from __future__ import annotations

import io
import logging
import logging.config
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, TypeVar
from unittest import mock

T = TypeVar("T")


class Stream(io.TextIOBase):
    """Standard output and error in somebody else's eyes: what is written goes to `output`."""

    def __init__(self, output: Callable[[bytes], None]) -> None:
        super().__init__()
        self._output = output

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._output(text.encode(errors="backslashreplace"))
        return len(text)


def apart(function: Callable[[T], None]) -> Callable[[T], None]:
    """`function` as it works now, also where standard error is a Stream meanwhile."""
    real = sys.stderr

    def call(argument: T) -> None:
        with redirect_stderr(real):
            function(argument)

    return call


@contextmanager
def kept() -> Iterator[None]:
    """env.py sets up its logging; afterwards ours is as it was (alembic 1279: fileConfig silences all other loggers).

    While it runs, its loggers write what its configuration says; other loggers stay alive.
    """
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    levels = {name: (found.disabled, found.level, list(found.handlers), found.propagate) for name, found in _loggers()}
    real = logging.config.fileConfig

    def gently(*args: Any, **kwargs: Any) -> None:
        kwargs["disable_existing_loggers"] = False
        real(*args, **kwargs)

    try:
        with mock.patch.object(logging.config, "fileConfig", gently):
            yield
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]
        for name, found in _loggers():
            disabled, level, handlers, propagate = levels.get(name, (False, logging.NOTSET, [], True))
            found.disabled, found.propagate = disabled, propagate
            found.setLevel(level)
            found.handlers[:] = handlers


def _loggers() -> list[tuple[str, logging.Logger]]:
    known = logging.root.manager.loggerDict
    return [(name, found) for name, found in known.items() if isinstance(found, logging.Logger)]


@contextmanager
def no_progress() -> Iterator[None]:
    """Alembic's lines about its progress are left out: who asks where a database is has not asked for them."""
    alembic = logging.getLogger("alembic.runtime.migration")

    def grave(record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    alembic.addFilter(grave)
    try:
        yield
    finally:
        alembic.removeFilter(grave)
