"""Leases of plans, as Verrou keeps them: verrou"""

from lockctl.migrations.tables import Table, create_or_adopt, drop_created

revision = "plan_0001"
down_revision = None
branch_labels = ("plan",)
depends_on = None

TABLES = (
    Table(
        name="verrou",
        lock_table="verrou",
        body="""\
    key varchar(255) PRIMARY KEY,
    owner varchar(255) NOT NULL,
    expiration bigint""",
        indexes=("verrou_expiration_idx ON {table} (expiration)",),
    ),
)


def upgrade() -> None:
    create_or_adopt(TABLES, revision)


def downgrade() -> None:
    drop_created(TABLES, revision)
