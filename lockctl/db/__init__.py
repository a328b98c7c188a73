"""The one shared connection layer.

`database` makes connections, `session` runs statements on one, `connection` is psycopg's as we use it, `conninfo` has
the rules of connection strings, `failures` turns database errors into ours, and `refusals` names who or what
is in the way.
"""

from lockctl.db.database import Database
from lockctl.db.refusals import Needs, describe
from lockctl.db.session import Session

__all__ = ["Database", "Needs", "Session", "describe"]
