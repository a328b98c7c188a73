"""Sessions of lockctl's own connection layer, for tests that call operations."""

from __future__ import annotations

from lockctl.db import Database, Session


def connect(dsn: str, *, read_only: bool = False) -> Session:
    """A session as a command has it; use it as a context manager."""
    return Database(dsn=dsn, source="the test", command="test", lock_timeout_ms=10_000).connect(read_only=read_only)
