"""The migrate commands on another alembic environment: the same records as for lockctl's own components.

A TARGET is alembic's own: `heads`, `head`, `+1`, `-1`, a revision or its beginning, `BRANCH@head`, `base`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockctl.db import Session, failures
from lockctl.errors import AheadError, BusyError, LockctlError, UsageError
from lockctl.migrations import logs, runner
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.engine import Engine, Progress, Step
from lockctl.migrations.execute import Output, execute
from lockctl.migrations.foreign import Books, Environment
from lockctl.migrations.operations import result, still
from lockctl.migrations.policy import Limits, Policy
from lockctl.migrations.records import Event, MigrationRun, Notify, Revision, Verification, quiet

if TYPE_CHECKING:
    from alembic.runtime.migration import RevisionStep

    # Alembic takes several revisions where it is annotated for one.
    Plan = Callable[[Any], list[RevisionStep]]


def upgrade(
    session: Session,
    file: Path,
    target: str = "heads",
    *,
    schema: str | None = None,
    policy: Policy | None = None,
    notify: Notify = quiet,
    output: Output | None = None,
) -> MigrationRun:
    """Go up to `target`. `session` must have been connected with `raw_times=False`.

    Raises UsageError for a wrong target, AheadError at a revision that the environment does not know; what stops a
    step is in the run's `error`. `output` gets what alembic and env.py print.
    """
    env = Environment(file)

    def plan(found: Any) -> list[RevisionStep]:
        with _plain(env, target):
            return env.directory._upgrade_revs(target, found)

    return _migrate(session, env, ("upgrade", target), plan, schema, policy or Policy(), notify, output)


def downgrade(
    session: Session,
    file: Path,
    target: str,
    *,
    schema: str | None = None,
    policy: Policy | None = None,
    notify: Notify = quiet,
    output: Output | None = None,
) -> MigrationRun:
    """Go down to `target`. As `upgrade`."""
    env = Environment(file)

    def plan(found: Any) -> list[RevisionStep]:
        with _plain(env, target):
            return env.directory._downgrade_revs(target, found)

    return _migrate(session, env, ("downgrade", target), plan, schema, policy or Policy(), notify, output)


def history(session: Session, file: Path, *, schema: str | None = None) -> list[Revision]:
    """Every revision, oldest first, and which of them the database is at; unknown ones last. Only reads."""
    env = Environment(file)
    found = env.books(session, schema).revisions
    heads = set(env.directory.get_heads())
    known = [
        Revision(
            next(iter(sorted(script.branch_labels)), None),
            script.revision,
            script.revision in heads,
            script.revision in found,
            script.doc,
        )
        for script in reversed(list(env.directory.walk_revisions()))
    ]
    names = {row.revision for row in known}
    return known + [Revision(None, name, False, True, None) for name in found if name not in names]


def current(session: Session, file: Path, *, schema: str | None = None) -> list[Revision]:
    """The revisions that the database is at. Only reads."""
    return [row for row in history(session, file, schema=schema) if row.is_current]


def verify(session: Session, file: Path, target: str = "heads", *, schema: str | None = None) -> Verification:
    """Whether the database is at `target`. Reads only; a revision that is unknown, or elsewhere, is `ahead`."""
    env = Environment(file)
    found = env.books(session, schema).revisions
    with _plain(env, target):
        expected = tuple(sorted(script.revision for script in env.directory.get_revisions(target)))
        before = {script.revision for script in env.directory.iterate_revisions(expected, "base", implicit_base=True)}
    if found == expected:
        return Verification("current", expected, found)
    for name in found:
        if not _knows(env, name):
            return Verification("ahead", expected, found, f"the database is at {name}, which {env.file.name} lacks")
        if name not in before:
            return Verification("ahead", expected, found, f"the database is at {name}, beyond or beside the target")
    return Verification("behind", expected, found, f"not yet at {', '.join(expected)}")


def sql(file: Path, target: str = "heads", *, limits: Limits | None = None) -> str:
    """The upgrade to `target` (`FROM:TO` or `TO`) as a SQL script, from env.py's offline mode. Makes no connection."""
    env = Environment(file)
    first, colon, last = target.rpartition(":")
    with _plain(env, target):
        start: Any = (
            tuple(script.revision for script in env.directory.get_revisions(first)) if colon and first != "base" else ()
        )
        steps = env.directory._upgrade_revs(last, start)
    return env.script(lambda: steps, start, limits or Limits())


def _migrate(
    session: Session,
    env: Environment,
    command: tuple[str, str],
    plan: Plan,
    schema: str | None,
    policy: Policy,
    notify: Notify,
    output: Output | None,
) -> MigrationRun:
    notify = logs.apart(notify)
    env.output = None if output is None else logs.apart(output)
    books = env.books(session, schema)
    if books.certain:
        plan(_known(env, books.revisions))
    if books.own_engine:
        return _as_a_command(session, env, command, books, schema, policy, notify, output)
    try:
        with runner.held(session.database, policy, notify) as lock:
            books = env.books(session, schema)
            planned = plan(_known(env, books.revisions))
            steps = [_step(env, step) for step in planned]
            progress = Engine(session, policy, notify, lock.check).run(steps)
    except BusyError as error:
        return MigrationRun(result(Progress(error=error), books.revisions, books.revisions), error)
    after = books.revisions
    if progress.done:
        try:
            with still(session) as alive:
                after = env.books(alive, schema).revisions
        except LockctlError as error:
            progress.error = progress.error or error
    if progress.outcome == "done" and after == books.revisions:
        progress.error = LockctlError(
            "env.py ran, and the database is where it was: nothing was committed",
            hint="env.py must run its migrations inside `with context.begin_transaction()`, and use the connection"
            " for nothing before that",
        )
    return MigrationRun(result(progress, books.revisions, after), progress.error)


def _step(env: Environment, step: RevisionStep) -> Step:
    def run(attempt: Attempt) -> None:
        try:
            env.run(attempt, step)
        except LockctlError as error:
            raise failures.theirs(error) from None

    script = step.revision
    return Step(script.revision, f"{'up to' if step.is_upgrade else 'down from'} {script.revision}: {script.doc}", run)


def _as_a_command(
    session: Session,
    env: Environment,
    command: tuple[str, str],
    books: Books,
    schema: str | None,
    policy: Policy,
    notify: Notify,
    output: Output | None,
) -> MigrationRun:
    """env.py connects by itself: run alembic as somebody else's command, watched from our connection."""
    notify(
        Event(
            "warning",
            f"{env.file.name}: env.py makes its own engine, so alembic runs as a command of its own, with PGOPTIONS and"
            " watched (see `migrate exec`); the database that it names must be the one that lockctl connects to",
        )
    )
    words = [sys.executable, "-m", "alembic", "-c", str(env.file), *command]
    run = execute(session, words, policy=policy, notify=notify, output=output or (lambda _text: None))
    after = books.revisions
    with suppress(LockctlError), still(session) as alive:
        after = env.books(alive, schema).revisions
    done = run.result
    outcome = "nothing" if done.outcome == "done" and after == books.revisions else done.outcome
    steps = _between(env, books.revisions, after)
    made = replace(done, outcome=outcome, from_=books.revisions, to=after, steps=steps)
    return MigrationRun(made, run.error)


def _between(env: Environment, before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """The revisions that were gone through from one state of the database to the other, in that order."""

    def below(found: Sequence[str]) -> set[str]:
        known = tuple(name for name in found if _knows(env, name))
        return {script.revision for script in env.directory.iterate_revisions(known, "base", implicit_base=True)}

    old, new = below(before), below(after)
    down = [script.revision for script in env.directory.walk_revisions()]
    left = [name for name in down if name in old and name not in new]
    return (*left, *(name for name in reversed(down) if name in new and name not in old))


def _knows(env: Environment, revision: str) -> bool:
    return any(script.revision == revision for script in env.directory.walk_revisions())


def _known(env: Environment, found: Sequence[str]) -> tuple[str, ...]:
    for name in found:
        if not _knows(env, name):
            raise AheadError(
                f"the database is at revision {name}, which {env.file.name} does not know",
                hint="a newer release of the application migrated it: use that one's migrations",
            )
    return tuple(found)


@contextmanager
def _plain(env: Environment, target: str) -> Iterator[None]:
    """Alembic's refusal of a target as a usage error that names the heads."""
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError

    try:
        yield
    except (CommandError, RevisionError) as error:
        words = " ".join(str(error).split()).rstrip(".")
        raise UsageError(
            f"can't migrate to {target!r}: {words}", hint=f"heads: {', '.join(sorted(env.directory.get_heads()))}"
        ) from None
    except (ValueError, AssertionError, LookupError):
        raise UsageError(f"there is no migration target {target!r}") from None
