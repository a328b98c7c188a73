"""Waiters for one lease, as threads with a connection each: `python -m benchmarks.waiters COUNT SECONDS MODE`.

Whoever gets the lease does nothing with it, so that it lapses again and again, and waits anew. Prints for each takeover
how many milliseconds after the lapse it came, by the server's clock. MODE `poll` is the plain way to wait: an attempt
each 250 ms.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import datetime

from lockctl import clock
from lockctl.catalog import Catalog
from lockctl.db import Database
from lockctl.leases import grant, waiting
from lockctl.leases.line import Line
from lockctl.leases.operations import LockedTable
from lockctl.leases.shape import describe
from lockctl.records import LeaseResult

KEY = ("bench",)
TTL_MS = 600
_POLL_S = 0.25


def main() -> None:
    """Wait, with all threads, until the time is over."""
    count, seconds, mode = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    end = clock.Deadline.after(int(seconds * 1000))
    threads = [threading.Thread(target=_wait, args=(end, mode)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _wait(end: clock.Deadline, mode: str) -> None:
    with Line(Database(os.environ["LOCKCTL_DSN"], "the benchmark", "bench")) as line:
        table = LockedTable.of(describe(line.session(), Catalog.of().get("ffdb_locks"), None))
        while not end.passed:
            acquirer = grant.Acquirer(line, table, grant.request(table, KEY, None, TTL_MS))
            if mode == "poll":
                time.sleep(_POLL_S)
                result = acquirer.attempt()
            else:
                result = waiting.take(acquirer, waiting.Patience(wait_ms=1000))
            if result.outcome == "acquired" and result.previous is not None:
                print(f"{_late_ms(result):.3f}", flush=True)


def _late_ms(result: LeaseResult) -> float:
    assert result.lock is not None
    assert result.previous is not None
    taken, lapsed = (datetime.fromisoformat(str(text)) for text in (result.lock.created_at, result.previous.expires_at))
    return (taken - lapsed).total_seconds() * 1000


if __name__ == "__main__":
    main()
