"""The migrate commands as functions: connection first, frozen records back, nothing printed.

A component is a branch of revisions with a label (`ffdb`, `n8n`, `plan`, `runs`); a TARGET is `ffdb@head`, `heads`,
`ffdb@base`, `ffdb@-1`, a revision, or for going up the bare name of a component.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockctl.catalog import Catalog
from lockctl.db import Session
from lockctl.errors import BehindError, BusyError, Interrupted, LockctlError, UnreachableError, UsageError
from lockctl.migrations import bookkeeping, bridge, runner, tables
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.engine import Engine, Progress, Step
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event, MigrationResult, MigrationRun, Notify, Revision, Verification, quiet
from lockctl.migrations.scripts import Scripts, config

if TYPE_CHECKING:
    from alembic.runtime.migration import RevisionStep

    Plan = Callable[[Scripts, tuple[str, ...]], list[RevisionStep]]


def upgrade(
    session: Session,
    target: str | None = None,
    *,
    schema: str | None = None,
    catalog: Catalog | None = None,
    policy: Policy | None = None,
    notify: Notify = quiet,
) -> MigrationRun:
    """Go up to `target`, by default to the head of every component that this database has.

    `session` must have been connected with `raw_times=False`. Raises UsageError for a wrong target, and without one
    when no component is installed; AheadError when the database is at a revision that is unknown here. What stops
    a step, or keeps the first from beginning (BusyError), is in the run's `error`.
    """

    def plan(scripts: Scripts, found: tuple[str, ...]) -> list[RevisionStep]:
        names = [target] if target is not None else [f"{name}@head" for name in _installed(scripts, found)]
        return [step for name in names for step in scripts.upgrade(scripts.target(name), found)]

    return _migrate(session, plan, _scope(session, schema, catalog, policy, notify), policy or Policy())


def downgrade(
    session: Session,
    target: str,
    *,
    schema: str | None = None,
    catalog: Catalog | None = None,
    policy: Policy | None = None,
    notify: Notify = quiet,
) -> MigrationRun:
    """Go down to `target`, dropping what lockctl created and leaving what it adopted. Errors as for `upgrade`."""

    def plan(scripts: Scripts, found: tuple[str, ...]) -> list[RevisionStep]:
        if target in scripts.components:
            raise UsageError(f"how far down is {target!r} to go?", hint=f"write {target}@base or {target}@-1")
        return scripts.downgrade(scripts.target(target), found)

    return _migrate(session, plan, _scope(session, schema, catalog, policy, notify), policy or Policy())


def current(session: Session, *, schema: str | None = None) -> list[Revision]:
    """The revisions that this database is at, one for each installed component. Only reads."""
    return [row for row in history(session, schema=schema) if row.is_current]


def history(session: Session, *, schema: str | None = None) -> list[Revision]:
    """Every revision of every component, and which of them this database is at. Only reads."""
    found = bookkeeping.revisions(session, bookkeeping.locate(session, schema))
    return Scripts(config()).history(found)


def verify(
    session: Session, target: str | None = None, *, schema: str | None = None, catalog: Catalog | None = None
) -> Verification:
    """Whether the database is where `target` says, by default at the heads of what is installed. Only reads.

    The tables of a component that is at its revision are looked at, too: one that is missing or differs is `behind`.
    No component installed is `behind`. Raises UsageError for a wrong target.
    """
    scripts = Scripts(config())
    found = bookkeeping.revisions(session, bookkeeping.locate(session, schema))
    if target is not None:
        expected = scripts.resolve(scripts.target(target))
    elif found:
        expected = bookkeeping.ordered(
            head for name in _installed(scripts, found) for head in scripts.resolve(f"{name}@head")
        )
    else:
        return Verification("behind", (), (), f"no component is installed ({scripts.choice()})")
    outcome, detail = _judge(scripts, expected, found, everything=target is None or target == "heads")
    if outcome == "current":
        scope = tables.Scope(session, schema, catalog or Catalog.of())
        try:
            for table in (table for revision in expected for table in scripts.tables(revision)):
                tables.check(session, table, scope)
        except BehindError as error:
            outcome, detail = "behind", error.message
    return Verification(outcome, expected, found, detail)


def sql(target: str | None = None, *, schema: str | None = None, limits: Limits | None = None) -> str:
    """The upgrade to `target` (`FROM:TO` or `TO`; by default everything) as a SQL script. Makes no connection.

    The script decides at run time whether a table is created or adopted; it does not check the shape of a table that
    it adopts. Raises UsageError for a wrong target.
    """
    import io
    import re

    scripts = Scripts(config())
    first, colon, last = (target or "heads").rpartition(":")
    start = scripts.resolve(scripts.target(first)) if colon and first != "base" else ()
    steps = scripts.upgrade(scripts.target(last), start)
    buffer = io.StringIO()
    scripts.config.output_buffer = buffer
    scripts.config.attributes[tables.ATTRIBUTE] = tables.Scope(None, schema, limits=limits or Limits())
    _environment(scripts, lambda _found, _context: steps, as_sql=True, starting_rev=start or None)
    # The version table may be there with other components in it.
    made = re.compile(rf"^CREATE TABLE (?=.*{bookkeeping.VERSION_TABLE} \()", re.MULTILINE)
    return made.sub("CREATE TABLE IF NOT EXISTS ", buffer.getvalue())


def _judge(
    scripts: Scripts, expected: Sequence[str], found: Sequence[str], *, everything: bool
) -> tuple[str, str | None]:
    """`current`, `behind` or `ahead`, and what differs. `ahead` outweighs `behind`: it is not cured by an upgrade."""
    wanted = {scripts.component(revision): revision for revision in expected}
    behind: list[str] = []
    for name in found:
        component = scripts.component(name)
        if name in expected or not (everything or component in wanted or component is None):
            continue
        if not scripts.knows(name):
            return "ahead", f"the database is at revision {name}, which this lockctl does not know"
        if component in wanted and name not in scripts.ancestors(wanted[component]):
            return "ahead", f"the database is at revision {name}, beyond {wanted[component]}"
        if component in wanted:
            behind.append(f"{component} is at {name} and not yet at {wanted[component]}")
    missing = set(wanted) - {scripts.component(name) for name in found}
    behind += [f"{component} is not installed" for component in bookkeeping.ordered(str(name) for name in missing)]
    return ("behind", "; ".join(behind)) if behind else ("current", None)


def _installed(scripts: Scripts, found: Sequence[str]) -> tuple[str, ...]:
    """The components that the database has. Raises UsageError with none."""
    names = [scripts.component(revision) for revision in found]
    if not names:
        raise UsageError("no component of lockctl's migrations is installed in this database", hint=scripts.choice())
    return bookkeeping.ordered({name for name in names if name is not None})


def _scope(
    session: Session, schema: str | None, catalog: Catalog | None, policy: Policy | None, notify: Notify
) -> tables.Scope:
    return tables.Scope(session, schema, catalog or Catalog.of(), (policy or Policy()).limits, notify)


def _migrate(session: Session, plan: Plan, scope: tables.Scope, policy: Policy) -> MigrationRun:
    """Plan and run under the runner's lock: another runner may have done it all while this one waited."""
    scripts = Scripts(config())
    # A wrong target is told before anything is waited for.
    found = bookkeeping.revisions(session, bookkeeping.locate(session, scope.schema))
    plan(scripts, found)
    try:
        with runner.held(session.database, policy, scope.notify) as lock:
            found = bookkeeping.revisions(session, bookkeeping.locate(session, scope.schema))
            planned = plan(scripts, found)
            for step in planned:
                if step.is_upgrade:  # what the last one would refuse leaves nothing of the first
                    tables.refuse(session, scripts.tables(step.revision.revision), scope)
            steps = [_step(scripts, scope, step) for step in planned]
            progress = Engine(session, policy, scope.notify, lock.check).run(steps)
    except (BusyError, BehindError) as error:
        return MigrationRun(result(Progress(error=error), found, found), error)
    to = found
    if progress.done:
        try:
            with still(session) as alive:
                to = bookkeeping.revisions(alive, bookkeeping.locate(alive, scope.schema))
        except LockctlError as error:
            progress.error = progress.error or error
    return MigrationRun(result(progress, found, to), progress.error)


@contextmanager
def still(session: Session) -> Iterator[Session]:
    """`session`, or another one where it was lost: a signal in the middle of a statement can cost the connection."""
    if not session.closed:
        yield session
        return
    with session.database.connect(read_only=True, raw_times=False) as again:
        yield again


def result(progress: Progress, found: tuple[str, ...], to: tuple[str, ...]) -> MigrationResult:
    """What the contract tells of a migration."""
    return MigrationResult(
        outcome=progress.outcome,
        from_=found,
        to=to,
        steps=tuple(progress.done),
        attempts=progress.attempts,
        waited_ms=progress.waited_ms,
        blockers=progress.blockers,
    )


def _step(scripts: Scripts, scope: tables.Scope, step: RevisionStep) -> Step:
    revision = step.revision.revision
    up = step.is_upgrade

    def run(attempt: Attempt) -> None:
        told: list[Event] = []

        def notify(event: Event) -> None:
            told.append(event)
            scope.notify(event)

        def plan(_found: Any, _context: Any) -> list[RevisionStep]:
            attempt.body = True
            return [step]

        book = bookkeeping.locate(attempt.session, scope.schema)
        if book.oid is None:
            bookkeeping.may_create(attempt.session, book.schema)
        try:
            with bridge.connection(attempt) as connection:
                attributes = scripts.config.attributes
                here = replace(scope, notify=notify)
                attributes.update({"connection": connection, tables.ATTRIBUTE: here, "raise_ours": True})
                _environment(scripts, plan)
        except (LockctlError, Interrupted) as error:
            if told and not attempt.stands and not isinstance(error, UnreachableError):
                # What was told as done has been undone.
                scope.notify(Event("undone", f"{revision} rolled back: nothing of it stands", revision, attempt.number))
            raise

    return Step(revision, f"{'up to' if up else 'down from'} {revision}: {scripts.doc(revision)}", run)


def _environment(scripts: Scripts, plan: Any, **how: Any) -> None:
    """Run env.py with `plan` as what is to be done."""
    from alembic.runtime.environment import EnvironmentContext

    with EnvironmentContext(scripts.config, scripts.directory, fn=plan, **how):
        scripts.directory.run_env()
