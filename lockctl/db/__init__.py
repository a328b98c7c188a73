"""The one shared connection layer. See `session` (connections), `conninfo` (DSN rules), `failures` (errors)."""

from lockctl.db.session import Database, Needs, Session, describe, watcher

__all__ = ["Database", "Needs", "Session", "describe", "watcher"]
