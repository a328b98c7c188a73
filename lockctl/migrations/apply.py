"""`migrate apply`: the steps of a SQL file on the engine, each retried whole while nothing of it stands."""

from __future__ import annotations

from lockctl.db import Session, failures
from lockctl.errors import BlockedError, BusyError, LockctlError, UsageError
from lockctl.migrations import grammar, runner, sqlfile
from lockctl.migrations.attempts import Attempt, put
from lockctl.migrations.engine import Engine, Progress, Step
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import MigrationResult, MigrationRun, Notify, quiet
from lockctl.migrations.sqlfile import FileStep, SqlFile, Statement


def apply(
    session: Session,
    file: SqlFile,
    *,
    from_step: int = 1,
    policy: Policy | None = None,
    notify: Notify = quiet,
) -> MigrationRun:
    """Run the steps of `file` from number `from_step` on, and stop at the first error.

    `from_` and `to` of the result count the steps that stand before and after. Session settings (SET) of the steps
    left out are made again. Raises UsageError for a `from_step` that the file has not; what stops a step, or keeps
    the first from beginning (BusyError), is in the run's `error`.
    """
    policy = policy or Policy()
    last = len(file.steps)
    if last and not 1 <= from_step <= last:
        raise UsageError(f"{file.name} has no step {from_step}: they are 1 to {last}", hint="see `migrate plan`")
    steps = [_step(file, step) for step in file.steps if step.number >= from_step]
    before = from_step - 1
    if not steps:
        return MigrationRun(_result("nothing", before, 0, Progress()))
    try:
        with runner.held(session.database, policy, notify) as lock:
            for statement in sqlfile.settings_before(file.steps, from_step):
                session.query(statement.text)
            progress = Engine(session, policy, notify, lock.check).run(steps, before=before)
    except BusyError as error:
        return MigrationRun(_result("busy", before, 0, Progress(error=error)), error)
    done = len(progress.done)
    if isinstance(progress.error, LockctlError) and 0 < before + done < last:
        _how_to_go_on(progress.error, before + done + 1)
    return MigrationRun(_result(progress.outcome, before, done, progress), progress.error)


def _how_to_go_on(error: LockctlError, number: int) -> None:
    again = f"go on with --from-step {number}"
    error.hint = f"{error.hint}; {again}" if error.hint else again


def _result(outcome: str, before: int, done: int, progress: Progress) -> MigrationResult:
    return MigrationResult(
        outcome=outcome,
        from_=(str(before),),
        to=(str(before + done),),
        steps=tuple(progress.done),
        attempts=progress.attempts,
        waited_ms=progress.waited_ms,
        blockers=progress.blockers,
    )


def _step(file: SqlFile, step: FileStep) -> Step:
    def run(attempt: Attempt) -> None:
        if step.outside:
            (statement,) = step.statements
            _run(file, statement, attempt.alone)
            return
        with attempt.transaction():
            for statement in step.statements:
                _run(file, statement, attempt.execute)
                if grammar.may_change_settings(statement.node):
                    # A file that sets lock_timeout, as pg_dump's do, does not take our bound away.
                    put(attempt.session, attempt.limits.lock_timeout_ms, attempt.limits.statement_timeout_ms)

    return Step(f"step {step.number}", f"{step.title} (line {step.statements[0].line})", run)


def _run(file: SqlFile, statement: Statement, execute: object) -> None:
    """Run one statement; its error names the file's line, and keeps the server's own words."""
    assert callable(execute)
    try:
        execute(statement.text)
    except BlockedError:
        raise
    except LockctlError as error:
        told = failures.theirs(error)
        told.message = f"{file.name}, line {statement.line}: {told.message}"
        raise told from None
