"""Another alembic environment, named by its configuration file: run on our connection where its env.py takes one.

An env.py that takes `config.attributes["connection"]` (alembic's cookbook, "Sharing a Connection across one or more
programmatic migration commands") runs on our session under our limits. One that makes an engine of its own is found
out before it connects; its migrations run as a command of their own then (see `execute`).
"""

from __future__ import annotations

import configparser
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg

from lockctl.db import Session
from lockctl.errors import DeniedError, LockctlError, UnreachableError, UsageError
from lockctl.migrations import bridge, logs
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
    """What a database says: its revisions, sorted, and whether env.py makes its own engine (`own_engine`).

    `certain`: env.py itself said where its version table is; otherwise alembic's usual one was read.
    """

    revisions: tuple[str, ...]
    own_engine: bool = False
    certain: bool = True


class Environment:
    """The environment of a configuration file. Raises UsageError when there is none that alembic can read.

    `output` gets what env.py prints, with its logging; without it that goes to standard error.
    """

    def __init__(self, file: Path, output: Callable[[bytes], None] | None = None) -> None:
        from alembic.config import Config
        from alembic.script import ScriptDirectory
        from alembic.util import CommandError

        if not file.is_file():
            raise UsageError(f"there is no alembic configuration {file}")
        self.file = file
        self.output = output
        self.config = Config(str(file))
        try:
            self.directory: ScriptDirectory = ScriptDirectory.from_config(self.config)
        except (CommandError, configparser.Error, UnicodeDecodeError) as error:
            raise UsageError(
                f"{file}: {' '.join(str(error).split())}", hint="-c takes the alembic.ini of the environment"
            ) from None
        self._read()

    def _read(self) -> None:
        """Read the revisions' files, which are code, too. Raises LockctlError for one that can't be run, and for a
        revision that is missing."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                with _guest(self.output):
                    list(self.directory.walk_revisions())
            except Exception as error:
                # Alembic warns of a missing revision, and then stumbles over it.
                missing = [str(each.message) for each in said if "is not present" in str(each.message)]
                if missing:
                    raise LockctlError(f"{self.file}: {'; '.join(missing)}") from error
                raise

    # -- running it -------------------------------------------------------------------------------------------------

    def run(self, attempt: Attempt, step: RevisionStep) -> None:
        """Run one revision in the attempt. Raises OwnEngine before anything happened."""

        def plan(_found: Any, _context: Any) -> list[RevisionStep]:
            attempt.body = True
            return [step]

        self._online(attempt, plan)

    def books(self, session: Session, version_table_schema: str | None = None) -> Books:
        """The revisions that the database is at. Changes nothing: not even a version table is made.

        An env.py that makes an engine of its own is lent our connection in its place: it alone knows the version
        table. Where that fails, alembic's usual one is read. For such an env.py, `version_table_schema` says where
        the table is when env.py names no schema; without both, the search path does.
        """
        import sqlalchemy.exc

        try:
            found, _ = self._look(session, lend=False)
            return Books(tuple(sorted(found)))
        except OwnEngine:
            pass
        try:
            found, table = self._look(session, lend=True)
        except (DeniedError, UnreachableError):
            raise
        except (OwnEngine, LockctlError, sqlalchemy.exc.SQLAlchemyError):
            revisions = usual_books(session, version_table_schema)
            return Books(revisions, own_engine=True, certain=False)
        if version_table_schema is not None and table.schema is None:
            found = usual_books(session, version_table_schema, table.name)
        return Books(tuple(sorted(found)), own_engine=True)

    def _look(self, session: Session, *, lend: bool) -> tuple[Sequence[str], Any]:
        """The revisions, and the version table as SQLAlchemy's Table. Raises OwnEngine, unless our connection is lent
        to whatever engine env.py makes."""
        seen: list[tuple[Sequence[str], Any]] = []

        def look(heads: Sequence[str], context: Any) -> list[Any]:
            seen.append((tuple(heads), context._version))
            return []

        policy = Policy(Limits())
        with Monitor(session, policy, quiet) as monitor, logs.no_progress():
            self._online(Attempt(session, policy, monitor, quiet), look, lend=lend, dont_mutate=True)
        if not seen:
            raise LockctlError(f"{self.file}: env.py ran no migrations", hint="see context.run_migrations() there")
        return seen[-1]

    def _online(self, attempt: Attempt, plan: Callable[..., Any], *, lend: bool = False, **how: Any) -> None:
        from alembic.runtime.environment import EnvironmentContext

        with (
            bridge.connection(attempt) as connection,
            _no_engine_of_its_own(connection if lend else None),
            _guest(self.output),
        ):
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
        with bridge.plain(), logs.no_progress(), _guest(self.output):
            how: dict[str, Any] = {"as_sql": True, "starting_rev": tuple(start) or None, "destination_rev": "heads"}
            with EnvironmentContext(self.config, self.directory, fn=lambda _found, _context: steps(), **how):
                self.directory.run_env()
        timeout = f"BEGIN;\n\nSET LOCAL lock_timeout = '{limits.lock_timeout_ms}ms';"
        return re.sub(r"^BEGIN;$", timeout, self.config.output_buffer.getvalue(), flags=re.MULTILINE)


def usual_books(session: Session, schema: str | None, name: str = "alembic_version") -> tuple[str, ...]:
    """The rows of the version table `name`; empty where there is none."""
    from psycopg import sql

    from lockctl.db import Needs
    from lockctl.db.relations import look

    table = look(session, [(schema, name)])[0]
    if table is None:
        return ()
    statement = sql.SQL("SELECT version_num::text FROM {} ORDER BY 1").format(table.identifier)
    return tuple(row[0] for row in session.query(statement, needs=Needs(table.shown, table.oid, ("SELECT",))))


@contextmanager
def _no_engine_of_its_own(lent: Any) -> Iterator[None]:
    """Every engine that connects inside is stopped before it does: it would run beside us, without our limits.

    With a connection `lent`, such an engine gives that out instead of connecting (an asynchronous one, too: it asks
    a synchronous engine for its connection).
    """
    import sqlalchemy

    def stop(*_args: Any) -> None:
        raise OwnEngine

    sqlalchemy.event.listen(sqlalchemy.Engine, "do_connect", stop)
    try:
        if lent is None:
            yield
        else:
            with mock.patch.object(sqlalchemy.Engine, "connect", return_value=lent):
                yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "do_connect", stop)


@contextmanager
def _guest(output: Callable[[bytes], None] | None) -> Iterator[None]:
    """Somebody else's code runs inside: what it prints is no data of ours, its logging and its failures are its own."""
    from alembic.util import CommandError
    from sqlalchemy.exc import SQLAlchemyError

    stream: Any = sys.stderr if output is None else logs.Stream(output)
    with logs.kept(), redirect_stdout(stream), redirect_stderr(stream):
        try:
            yield
        except (OwnEngine, LockctlError, SQLAlchemyError, CommandError, psycopg.Error):
            raise
        except Exception as error:
            text = str(error).strip().splitlines()
            words = f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
            hint = None
            if isinstance(error, ImportError):
                hint = (
                    "env.py runs in lockctl's own Python: install lockctl beside the application, or run its alembic"
                    " with `lockctl migrate exec -- alembic …`"
                )
            raise LockctlError(f"the alembic environment failed by itself: {words}", hint=hint) from error
