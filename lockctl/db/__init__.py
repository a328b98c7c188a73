"""The one shared connection layer.

`database` makes connections, `session` runs statements on one, `connection` is psycopg's as we use it, `conninfo` has
the rules of connection strings, and `failures` turns database errors into ours.
"""

from lockctl.db.database import Database
from lockctl.db.session import Needs, Session, describe

__all__ = ["Database", "Needs", "Session", "describe"]
