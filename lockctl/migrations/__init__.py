"""Schema migrations of lockctl's own tables, on the shared connection layer and under a lock timeout.

`operations` is what commands call. `scripts` knows the revisions, `bookkeeping` what a database has, `engine` how
steps are attempted, `bridge` puts alembic on a session of ours, `environment` is what `alembic/env.py` runs, and
`tables` is what the revision files call. Alembic and SQLAlchemy cost half a second: they are imported inside
functions, so that importing this package stays cheap.
"""
