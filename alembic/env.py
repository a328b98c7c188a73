"""Alembic's entry: everything is in lockctl.migrations.environment, which makes or takes the connection."""

from alembic import context

from lockctl.migrations import environment

environment.run(context)  # type: ignore[arg-type]
