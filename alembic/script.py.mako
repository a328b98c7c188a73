"""${message}

TABLES declares every table of the component as it is at this revision: `lockctl migrate verify` checks them.
"""

from lockctl.migrations.tables import Table, create_or_adopt, drop_created

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}

TABLES: tuple[Table, ...] = ()


def upgrade() -> None:
    create_or_adopt(TABLES, revision)


def downgrade() -> None:
    drop_created(TABLES, revision)
