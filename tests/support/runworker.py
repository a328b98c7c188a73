"""A worker of the run store as a process: claims a run's lease and renews it every third of its length, for ever.

    python -m tests.support.runworker DSN RUN TTL_MS

Prints `held` once it holds the lease, and ends with status 1 when it loses it.
"""

from __future__ import annotations

import sys
import time

from lockctl.runs import store
from tests.support.sessions import connect


def main(dsn: str, run: str, ttl_ms: int) -> int:
    with connect(dsn) as session:
        leases = store.leases(session)
        token = store.claim(session, leases, run, ttl_ms)
        if token is None:
            return 1
        print("held", flush=True)
        while store.renew(session, leases, run, token, ttl_ms):
            time.sleep(ttl_ms / 3000)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
