"""n8n's locks on scheduled agent tasks: agent_task_run_lock

In a database where n8n is, n8n's own migrations make the table, with the foreign key to `agents`. So lockctl creates
it only where `agents` is not, and then there is nothing that a foreign key could refer to.
"""

from lockctl.migrations.tables import Table, create_or_adopt, drop_created

revision = "n8n_0001"
down_revision = None
branch_labels = ("n8n",)
depends_on = None

TABLES = (
    Table(
        name="agent_task_run_lock",
        lock_table="agent_task_run_lock",
        body="""\
    "agentId" varchar(36) NOT NULL,
    "taskId" varchar(32) NOT NULL,
    "holderId" uuid NOT NULL,
    "heldUntil" timestamptz(3) NOT NULL,
    "createdAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    "updatedAt" timestamptz(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    PRIMARY KEY ("agentId", "taskId")""",
        indexes=('"agent_task_run_lock_heldUntil_idx" ON {table} ("heldUntil")',),
        owner="agents",
        owner_hint="upgrade n8n: its own migrations make the table (is it another `agents`, give --schema)",
    ),
)


def upgrade() -> None:
    create_or_adopt(TABLES, revision)


def downgrade() -> None:
    drop_created(TABLES, revision)
