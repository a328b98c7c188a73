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


def denied(session: Session, failure: DeniedError, needs: Needs) -> DeniedError:
    """`failure` with the privileges that are missing, and the GRANT that gives them."""
    with suppress(LockctlError):
        asked = ", ".join(f"'{privilege}'" for privilege in needs.privileges)
        rows = session.query(
            f"SELECT p, current_user::text FROM unnest(ARRAY[{asked}]::text[]) AS p"
            " WHERE NOT has_table_privilege(%s::oid, p)",
            (needs.oid,),
        )
        if rows:
            missing, role = ", ".join(row[0] for row in rows), rows[0][1]
            quoted = role.replace('"', '""')
            return DeniedError(
                f"role {role} lacks {missing} on {needs.relation}",
                hint=f'the owner can run: GRANT {missing} ON {needs.relation} TO "{quoted}"',
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
