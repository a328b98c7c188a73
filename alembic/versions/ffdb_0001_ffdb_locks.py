"""FireFlow's named locks: ffdb_locks

Where lockctl creates the table, its times have a time zone: FireFlow's own table may be without.
"""

from lockctl.migrations.tables import Table, create_or_adopt, drop_created

revision = "ffdb_0001"
down_revision = None
branch_labels = ("ffdb",)
depends_on = None

TABLES = (
    Table(
        name="ffdb_locks",
        lock_table="ffdb_locks",
        body="""\
    lock_key text PRIMARY KEY,
    lock_id text NOT NULL,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()""",
        indexes=("ffdb_locks_expires_at_idx ON {table} (expires_at)",),
    ),
)


def upgrade() -> None:
    create_or_adopt(TABLES, revision)


def downgrade() -> None:
    drop_created(TABLES, revision)
