"""psycopg's connection as lockctl uses it: exact times, and waits that can be watched."""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Callable, Generator
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import Loader

from lockctl import clock

_PG_EPOCH = 946_684_800_000_000
_TICK = 0.1
_CANCEL_WITHIN_S = 1.0

# What it has to tell comes to us as errors, and else would stand on standard error as lines without a sender.
logging.getLogger("psycopg").setLevel(logging.CRITICAL)


class Micros(Loader):
    """A binary timestamp as microseconds since 1970 UTC; a zoneless one is taken as UTC; ±infinity as floats.

    Exact, independent of the session's DateStyle and TimeZone, and without the year limits of `datetime`.
    """

    format = pq.Format.BINARY
    _unpack = struct.Struct("!q").unpack

    def load(self, data: Any) -> float:
        value: int = self._unpack(data)[0]
        if value == 0x7FFFFFFFFFFFFFFF:
            return math.inf
        if value == -0x8000000000000000:
            return -math.inf
        return value + _PG_EPOCH


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """psycopg's connection, whose waits call back ten times a second: for deadlines, and to see who blocks us."""

    connect_deadline = clock.NEVER
    on_wait: Callable[[], None] | None = None
    on_resume: Callable[[], None] = staticmethod(lambda: None)
    """Called when a wait goes on after a signal, for psycopg to see the end of the statement that it cancelled."""

    @classmethod
    def _connect_gen(cls, conninfo: str = "", **kwargs: Any) -> Generator[Any, Any, Any]:
        # psycopg rounds connect_timeout up to two seconds; the deadline of a command is exact.
        def expire() -> None:
            if cls.connect_deadline.passed:
                raise psycopg.errors.ConnectionTimeout("connection timeout expired")

        return _ticking(super()._connect_gen(conninfo, **kwargs), expire)

    def wait(self, gen: Any, interval: float = _TICK, timeout: float | None = None) -> Any:
        if self.on_wait is not None:
            gen = _ticking(gen, self.on_wait, self.on_resume)
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.Error as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # the connection broke while psycopg cancelled for the signal
            raise

    def _try_cancel(self, *, timeout: float = 5.0) -> None:
        # psycopg calls this when a signal interrupts a wait, and then waits for the statement's end. A server that does
        # not even take the cancel within a second is waited for no longer: INT and TERM end a command at once.
        try:
            self.cancel_safe(timeout=min(timeout, _CANCEL_WITHIN_S))
        except Exception:
            self.pgconn.finish()


def _ticking(
    gen: Generator[Any, Any, Any], tick: Callable[[], None], resume: Callable[[], None] = lambda: None
) -> Generator[Any, Any, Any]:
    """`gen`, calling `tick` each time that the wait under it timed out with nothing to read, and `resume` when it is
    waited for anew."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if ready is None:
                resume()
            elif not ready:
                tick()
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value
