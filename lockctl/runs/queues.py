"""How many slots of a queue are in use: a run in a running status holds one, whether its worker lives or not."""

from __future__ import annotations

from collections.abc import Collection

from psycopg.sql import SQL

from lockctl.db import Session
from lockctl.runs.places import Place
from lockctl.runs.rows import running


def slots(session: Session, place: Place, queues: Collection[str]) -> dict[str, int]:
    """Slots in use of each of `queues`."""
    runs = place.need("runs")
    if not queues or not runs.has("queue"):
        return {}
    statement = SQL(
        "SELECT {queue}::text, count(*) FROM {table} AS r WHERE {running} AND {queue} = ANY (%(queues)s) GROUP BY 1"
    ).format(queue=runs.ref("r", "queue"), table=runs.sql, running=running(place))
    return dict(session.query(statement, {"queues": list(queues)}, needs=runs.needs("SELECT")))
