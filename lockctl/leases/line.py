"""The connection of one job that goes on for long: made when it is needed, and made anew when it broke."""

from __future__ import annotations

from dataclasses import replace

from lockctl import clock
from lockctl.db import Database, Session


class Line:
    """One connection at a time to `database`; not for two threads at once."""

    def __init__(self, database: Database, session: Session | None = None) -> None:
        self.database = database
        self._session = session

    def session(self, deadline: clock.Deadline = clock.NEVER) -> Session:
        """The session, if it was not seen to be broken, else a new one made by `deadline` (and the database's own).

        Raises UnreachableError, UsageError or DeniedError.
        """
        if self._session is not None and not self._session.closed:
            return self._session
        self.drop()
        left = deadline.remaining()
        if left is None:
            self._session = self.database.connect()
        else:
            bounded = replace(
                self.database, connect_timeout_ms=min(self.database.connect_timeout_ms, max(1, int(left * 1000)))
            )
            self._session = bounded.connect()
        return self._session

    def bound(self, deadline: clock.Deadline) -> None:
        """From now on everything ends by `deadline`."""
        self.database = replace(self.database, deadline=deadline)
        if self._session is not None:
            self._session.limit(deadline)

    @property
    def connected(self) -> bool:
        """Is there a connection, as far as anybody has seen?"""
        return self._session is not None and not self._session.closed

    def drop(self) -> None:
        """Close the connection; the next use makes another."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def drop_unless(self, session: Session) -> None:
        """Close the connection unless it is `session`, which somebody else closes."""
        if self._session is not session:
            self.drop()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.drop()
