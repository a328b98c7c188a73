"""Schema migrations of lockctl's own tables, on the shared connection layer and under a lock timeout.

`operations` is what commands call. `scripts` knows the revisions, `bookkeeping` what a database has, `bridge` puts
alembic on a session of ours, `environment` is what `alembic/env.py` runs, and `tables` is what the revision files
call. Another alembic environment: `elsewhere` has the same operations, and `foreign` runs its env.py.

Every step goes one way: `runner` holds the lock, `policy` says how patient to be, `engine` runs the steps in order and
again after a `backoff`, `attempts` makes each attempt under the limits, `monitor` watches it from a second connection,
and `indexes` knows what CREATE INDEX CONCURRENTLY leaves.

SQL files: `grammar` tells what a parsed statement is, `sqlfile` makes steps of a file, `apply` runs them, and `plan`
tells their locks by the rules of `lockrules`, `locks` and `altertable`. Somebody else's command: `execute` runs it as
`command`, `preflight` looks before, `watchdog` and `clientports` watch its sessions, and `versions` judges what it did.

Alembic and SQLAlchemy cost half a second, and pglast is not free: they are imported inside functions, so that importing
this package stays cheap.
"""
