"""The pause between two attempts: longer each time, with jitter, and over as soon as whoever blocked us has gone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from lockctl import clock

FIRST_S = 1.0
LONGEST_S = 30.0
# Those who queued behind the attempt that failed go first.
SHORTEST_S = 0.25
_LOOK_EVERY_S = 0.2


def length(attempt: int) -> float:
    """Seconds to pause after attempt number `attempt` (from 1): doubling, ± 20 %, so that runners differ."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(attempt - 1, 16)) * random.uniform(0.8, 1.2)


def pause(seconds: float, over: Callable[[], bool]) -> None:
    """Sleep `seconds`, or until `over()` says that there is nothing to wait for, and SHORTEST_S in any case."""
    started = clock.now()
    end = started + max(seconds, SHORTEST_S)
    while (now := clock.now()) < end:
        if now >= started + SHORTEST_S and over():
            return
        time.sleep(max(0.0, min(_LOOK_EVERY_S, end - now)))
