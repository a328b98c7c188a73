"""What stands in the way of a statement, by name: the missing privilege, and who blocks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from lockctl import durations
from lockctl.errors import BlockedError, DeniedError, LockctlError

if TYPE_CHECKING:
    from lockctl.db.session import Session
    from lockctl.records import Blocker


class Needs(NamedTuple):
    """The privileges that a statement needs on a table, to name the missing one when the server refuses."""

    relation: str
    oid: int
    privileges: tuple[str, ...]


def missing(session: Session, needs: Needs) -> tuple[str, list[str], str]:
    """The role, those of the privileges that it lacks, and the GRANT that would give them."""
    rows = session.query(
        "SELECT p, current_user::text, has_table_privilege(%s::oid, p) FROM unnest(%s::text[]) AS p",
        (needs.oid, list(needs.privileges)),
    )
    role, lacks = rows[0][1], [row[0] for row in rows if not row[2]]
    quoted = role.replace('"', '""')
    return role, lacks, f'GRANT {", ".join(lacks)} ON {needs.relation} TO "{quoted}"'


def denied(session: Session, failure: DeniedError, needs: Needs) -> DeniedError:
    """`failure` with the privileges that are missing, and the GRANT that gives them."""
    with suppress(LockctlError):
        role, lacks, grant = missing(session, needs)
        if lacks:
            return DeniedError(
                f"role {role} lacks {', '.join(lacks)} on {needs.relation}", hint=f"the owner can run: {grant}"
            )
    if "schema" in failure.message:
        schema = needs.relation.rpartition(".")[0]
        return DeniedError(f"{failure.message}: USAGE on schema {schema} is missing", hint=failure.hint)
    return failure


def blocked(failure: BlockedError, blockers: Sequence[Blocker], deadline: str | None) -> BlockedError:
    """`failure` with those who block; `deadline` is the sentence for our own deadline, where that is what ended it."""
    message, cause = (deadline, "deadline") if deadline is not None else (failure.message, failure.cause)
    if blockers:
        message += "; blocked by " + ", ".join(describe(blocker) for blocker in blockers)
    return BlockedError(message, hint="see `lockctl blockers`", cause=cause, blockers=list(blockers))


def describe(blocker: Blocker) -> str:
    """A blocking session in a few words: pid, user, application, state and the age of its transaction."""
    if blocker.kind == "prepared":
        return f"prepared transaction {blocker.gid!r} (end it with ROLLBACK PREPARED)"
    words = [blocker.user or "?", blocker.application or "no application name", blocker.state or blocker.kind]
    if blocker.xact_age_ms is not None:
        words.append(f"transaction open for {durations.show(blocker.xact_age_ms)}")
    return f"pid {blocker.pid} ({', '.join(words)})"
