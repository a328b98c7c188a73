"""Time on this machine, used only as a distance, and the UTC text of the database's times."""

from __future__ import annotations

import math
import time
from datetime import datetime, timedelta
from typing import NamedTuple

_EPOCH = datetime(1970, 1, 1)
# CLOCK_MONOTONIC stops while the machine is suspended; a lease does not.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since some fixed moment, counting suspended time where the system can."""
    return time.clock_gettime(_CLOCK)


class Deadline(NamedTuple):
    """A moment on `now()` after which waiting must end; None is no deadline."""

    at: float | None

    @classmethod
    def after(cls, milliseconds: int | None) -> Deadline:
        return cls(None if milliseconds is None else now() + milliseconds / 1000)

    def remaining(self) -> float | None:
        """Seconds left, never below nought; None without a deadline."""
        return None if self.at is None else max(0.0, self.at - now())

    @property
    def passed(self) -> bool:
        return self.at is not None and now() >= self.at


NEVER = Deadline(None)


def utc_text(micros: float | None) -> str | None:
    """UTC with microseconds and `Z` for microseconds since 1970; None for null and for `infinity` (never).

    Years that the ISO form has no room for (before 1, after 9999) come as the nearest end of that range.
    """
    if micros is None or micros == math.inf:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        moment = datetime.min if micros < 0 else datetime.max
    return moment.isoformat(timespec="microseconds") + "Z"
