"""Another alembic environment, named by its configuration file: run on our connection where its env.py takes one.

An env.py that takes `config.attributes["connection"]` (alembic's cookbook, "Sharing a Connection across one or more
programmatic migration commands") runs on our session under our limits. One that makes an engine of its own is found
out before it connects; its migrations run as a command of their own then (see `execute`).
"""

from __future__ import annotations

import logging
import logging.config
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg

from lockctl.db import Session
from lockctl.errors import LockctlError, UsageError
from lockctl.migrations import bridge
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.monitor import Monitor
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import quiet

if TYPE_CHECKING:
    from alembic.runtime.migration import RevisionStep
    from alembic.script import ScriptDirectory


class OwnEngine(Exception):
    """The environment connects by itself instead of taking our connection."""


@dataclass(frozen=True, slots=True)
class Books:
    """What a database says: its revisions, sorted, and whether env.py makes its own engine (`own_engine`)."""

    revisions: tuple[str, ...]
    own_engine: bool = False


class Environment:
    """The environment of a configuration file. Raises UsageError when there is none that alembic can read."""

    def __init__(self, file: Path) -> None:
        from alembic.config import Config
        from alembic.script import ScriptDirectory
        from alembic.util import CommandError

        if not file.is_file():
            raise UsageError(f"there is no alembic configuration {file}")
        self.file = file
        self.config = Config(str(file))
        try:
            self.directory: ScriptDirectory = ScriptDirectory.from_config(self.config)
        except CommandError as error:
            raise UsageError(f"{file}: {' '.join(str(error).split())}") from None

    # -- running it -------------------------------------------------------------------------------------------------

    def run(self, attempt: Attempt, step: RevisionStep) -> None:
        """Run one revision in the attempt. Raises OwnEngine before anything happened."""

        def plan(_found: Any, _context: Any) -> list[RevisionStep]:
            attempt.body = True
            return [step]

        self._online(attempt, plan)

    def books(self, session: Session, version_table_schema: str | None = None) -> Books:
        """The revisions that the database is at. Changes nothing: not even a version table is made.

        Where env.py makes an engine of its own, alembic's usual version table is read, in `version_table_schema` or
        along the search path.
        """
        found: set[str] = set()

        def look(heads: Sequence[str], _context: Any) -> list[Any]:
            found.update(heads)
            return []

        policy = Policy(Limits())
        try:
            with Monitor(session, policy, quiet) as monitor:
                self._online(Attempt(session, policy, monitor, quiet), look, dont_mutate=True)
        except OwnEngine:
            return Books(usual_books(session, version_table_schema), own_engine=True)
        return Books(tuple(sorted(found)))

    def _online(self, attempt: Attempt, plan: Callable[..., Any], **how: Any) -> None:
        from alembic.runtime.environment import EnvironmentContext

        with bridge.connection(attempt) as connection, _no_engine_of_its_own(), _guest():
            self.config.attributes["connection"] = connection
            try:
                with EnvironmentContext(self.config, self.directory, fn=plan, **how):
                    self.directory.run_env()
            finally:
                del self.config.attributes["connection"]

    def script(self, steps: Callable[[], list[RevisionStep]], start: Sequence[str], limits: Limits) -> str:
        """The steps as SQL, printed by the environment's offline mode, with our lock timeout in each transaction."""
        import io
        import re

        from alembic.runtime.environment import EnvironmentContext

        self.config.output_buffer = io.StringIO()
        with bridge.plain(), _guest():
            how: dict[str, Any] = {"as_sql": True, "starting_rev": tuple(start) or None, "destination_rev": "heads"}
            with EnvironmentContext(self.config, self.directory, fn=lambda _found, _context: steps(), **how):
                self.directory.run_env()
        timeout = f"BEGIN;\n\nSET LOCAL lock_timeout = '{limits.lock_timeout_ms}ms';"
        return re.sub(r"^BEGIN;$", timeout, self.config.output_buffer.getvalue(), flags=re.MULTILINE)


def usual_books(session: Session, schema: str | None) -> tuple[str, ...]:
    """The rows of `alembic_version`; empty where there is none."""
    from psycopg import sql

    from lockctl.db import Needs
    from lockctl.db.relations import look

    table = look(session, [(schema, "alembic_version")])[0]
    if table is None:
        return ()
    statement = sql.SQL("SELECT version_num::text FROM {} ORDER BY 1").format(table.identifier)
    return tuple(row[0] for row in session.query(statement, needs=Needs(table.shown, table.oid, ("SELECT",))))


@contextmanager
def _no_engine_of_its_own() -> Iterator[None]:
    """Every engine that connects inside is stopped before it does: it would run beside us, without our limits."""
    import sqlalchemy

    def stop(*_args: Any) -> None:
        raise OwnEngine

    sqlalchemy.event.listen(sqlalchemy.Engine, "do_connect", stop)
    try:
        yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "do_connect", stop)


@contextmanager
def logging_kept() -> Iterator[None]:
    """env.py sets up its logging; afterwards ours is as it was (alembic 1279: fileConfig silences all other loggers).

    While it runs, its loggers write what its configuration says; other loggers stay alive.
    """
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    levels = {name: (found.disabled, found.level, list(found.handlers), found.propagate) for name, found in _loggers()}
    real = logging.config.fileConfig

    def gently(*args: Any, **kwargs: Any) -> None:
        kwargs["disable_existing_loggers"] = False
        real(*args, **kwargs)

    try:
        with mock.patch.object(logging.config, "fileConfig", gently):
            yield
    finally:
        root.setLevel(before[0])
        root.handlers[:] = before[1]
        for name, found in _loggers():
            disabled, level, handlers, propagate = levels.get(name, (False, logging.NOTSET, [], True))
            found.disabled, found.propagate = disabled, propagate
            found.setLevel(level)
            found.handlers[:] = handlers


def _loggers() -> list[tuple[str, logging.Logger]]:
    known = logging.root.manager.loggerDict
    return [(name, found) for name, found in known.items() if isinstance(found, logging.Logger)]


@contextmanager
def _guest() -> Iterator[None]:
    """Somebody else's code runs inside: what it prints is no data of ours, its logging and its failures are its own."""
    from alembic.util import CommandError
    from sqlalchemy.exc import SQLAlchemyError

    with logging_kept(), redirect_stdout(sys.stderr):
        try:
            yield
        except (OwnEngine, LockctlError, SQLAlchemyError, CommandError, psycopg.Error):
            raise
        except Exception as error:
            text = str(error).strip().splitlines()
            words = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
            raise LockctlError(f"the alembic environment failed by itself: {words}") from error
