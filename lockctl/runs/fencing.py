"""Taking a run's lapsed lease away from whoever had it, within the statement that gives the run to another worker."""

from __future__ import annotations

from typing import NamedTuple

from psycopg.sql import SQL, Composable

from lockctl.leases.statements import now
from lockctl.runs.places import Place


class Fence(NamedTuple):
    """Parts of a statement: the columns of the locked run, what gives its `id` if the lease could be taken, and what
    is to be set in the run itself. Parameters: `shown` (the token that was shown), `token` (a new one), `force`."""

    columns: Composable
    statement: Composable
    sets: tuple[Composable, ...] = ()


def fence(place: Place) -> Fence:
    """Take the lease if it has lapsed (or by `force`) and is still the one that was shown."""
    runs, leases = place.need("runs"), place.need("leases")
    return _within(place) if leases.relation.oid == runs.relation.oid else _beside(place)


def _beside(place: Place) -> Fence:
    """One upsert, which a claim of the same moment waits for, or is waited for and then decides."""
    runs, leases = place.need("runs"), place.need("leases")
    expires = leases.columns["expires_at"]
    statement = SQL(
        "INSERT INTO {leases} AS l ({run_id}, {token}, {expires})"
        " SELECT run.id::text::{run_cast}, %(token)s::{token_cast}, {now} FROM run"
        " ON CONFLICT ({run_id}) DO UPDATE SET {token} = %(token)s::{token_cast}, {expires} = {now}"
        " WHERE l.{token}::text IS NOT DISTINCT FROM %(shown)s AND (%(force)s OR l.{expires} <= {now})"
        " RETURNING l.{run_id}::text::{cast} AS id"
    ).format(
        leases=leases.sql,
        run_id=leases.column("run_id"),
        run_cast=SQL(leases.columns["run_id"].cast),
        token=leases.column("token"),
        token_cast=SQL(leases.columns["token"].cast),
        expires=leases.column("expires_at"),
        now=now(expires),
        cast=SQL(runs.columns["id"].cast),
    )
    return Fence(SQL("{} AS id").format(runs.ref("r", "id")), statement)


def _within(place: Place) -> Fence:
    """The lease is columns of the run: the locked row is judged, and one assignment of many clears them."""
    runs, leases = place.need("runs"), place.need("leases")
    columns = SQL("{} AS id, {}::text AS token, {} AS expires").format(
        runs.ref("r", "id"), leases.ref("r", "token"), leases.ref("r", "expires_at")
    )
    statement = SQL(
        "SELECT run.id FROM run WHERE run.token IS NOT DISTINCT FROM %(shown)s"
        " AND (%(force)s OR (run.token IS NULL AND run.expires IS NULL) OR run.expires <= {})"
    ).format(now(leases.columns["expires_at"]))
    sets = tuple(SQL("{} = NULL").format(leases.column(meaning)) for meaning in ("token", "expires_at"))
    return Fence(columns, statement, sets)
