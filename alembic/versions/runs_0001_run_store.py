"""The run store: run_store.runs, run_store.leases, run_store.work

The meaning is that of the store slot's methods on runs, leases and work. Times are the database's.

`runs.input` and `runs.outcome` are text: a store hands them back as they were given, and jsonb would not.
`leases.run_id` refers to no run: a lease is taken before its run is written, and the lock verbs take any key.
`work.armed` counts how often the row was enqueued, and `work.claimed_armed` is that count at the claim: where they
differ, the row was re-armed since, and burying or completing it only unleases it.
"""

from lockctl.migrations.tables import Table, create_or_adopt, drop_created

revision = "runs_0001"
down_revision = None
branch_labels = ("runs",)
depends_on = None

TABLES = (
    Table(
        name="runs",
        schema="run_store",
        body="""\
    id text PRIMARY KEY,
    file text NOT NULL,
    movement text NOT NULL,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'completed', 'parked', 'failed')),
    started_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    input text NOT NULL,
    outcome text,
    cancel_requested_at timestamptz,
    cancel_reason text,
    CHECK ((cancel_requested_at IS NULL) = (cancel_reason IS NULL))""",
        indexes=(
            # runs.lapsed walks this in its own order, oldest first, and looks each run's lease up by its key.
            "runs_running_idx ON {table} (started_at, id) WHERE status = 'running'",
            "runs_started_at_idx ON {table} (started_at, id)",
        ),
        columns={
            "id": "text",
            "file": "text",
            "movement": "text",
            "status": "text",
            "started_at": "timestamp with time zone",
            "ended_at": "timestamp with time zone",
            "updated_at": "timestamp with time zone",
            "input": "text",
            "outcome": "text",
            "cancel_requested_at": "timestamp with time zone",
            "cancel_reason": "text",
        },
    ),
    Table(
        name="leases",
        schema="run_store",
        lock_table="run_leases",
        body="""\
    run_id text PRIMARY KEY,
    token text NOT NULL,
    expires_at timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT now(),
    renewed_at timestamptz NOT NULL DEFAULT now()""",
        indexes=("leases_expires_at_idx ON {table} (expires_at)",),
    ),
    Table(
        name="work",
        schema="run_store",
        body="""\
    id text PRIMARY KEY DEFAULT gen_random_uuid()::text,
    kind text NOT NULL,
    key text NOT NULL UNIQUE,
    payload jsonb NOT NULL,
    team_id text,
    due_at timestamptz NOT NULL,
    attempts integer NOT NULL DEFAULT 0 CHECK (attempts >= 0),
    claim text,
    claimed_until timestamptz,
    claimed_armed bigint,
    armed bigint NOT NULL DEFAULT 1,
    buried_at timestamptz,
    buried_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK (num_nulls(claim, claimed_until, claimed_armed) IN (0, 3)),
    CHECK ((buried_at IS NULL) = (buried_reason IS NULL)),
    CHECK (buried_at IS NULL OR claim IS NULL)""",
        indexes=(
            "work_due_idx ON {table} (due_at, id) WHERE buried_at IS NULL",
            "work_kind_due_idx ON {table} (kind, due_at, id) WHERE buried_at IS NULL",
            "work_buried_idx ON {table} (buried_at, id) WHERE buried_at IS NOT NULL",
            "work_run_idx ON {table} ((payload ->> 'runId')) WHERE (payload ->> 'runId') IS NOT NULL",
        ),
        columns={
            "id": "text",
            "kind": "text",
            "key": "text",
            "payload": "jsonb",
            "team_id": "text",
            "due_at": "timestamp with time zone",
            "attempts": "integer",
            "claim": "text",
            "claimed_until": "timestamp with time zone",
            "claimed_armed": "bigint",
            "armed": "bigint",
            "buried_at": "timestamp with time zone",
            "buried_reason": "text",
            "created_at": "timestamp with time zone",
            "updated_at": "timestamp with time zone",
        },
    ),
)


def upgrade() -> None:
    create_or_adopt(TABLES, revision)


def downgrade() -> None:
    drop_created(TABLES, revision)
