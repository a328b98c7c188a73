"""The one place where a database error becomes one of ours.

SQLSTATE decides (messages are translated by the server's `lc_messages`); PostgreSQL's Appendix A is the source
of the codes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from lockctl.db.conninfo import redact
from lockctl.errors import (
    BehindError,
    BlockedError,
    DeniedError,
    LockctlError,
    UnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    import psycopg

# Values that a column can't take: nothing was changed, and the same call will fail again.
_BAD_VALUE = {"22001", "22P02", "22003", "22007", "22008", "22021", "22P05", "23514", "54000"}
_GONE = {"57P01", "57P02", "57P03", "57P04", "57P05", "53300", "25P03", "25P04"}


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without passwords."""
    text = str(error).strip()
    return redact(text.splitlines()[0].strip() if text else type(error).__name__)


def primary(error: psycopg.Error) -> str:
    """The server's primary message, else the client library's first line."""
    return redact(error.diag.message_primary or first_line(error))


def translate(error: psycopg.Error, *, closed: bool) -> LockctlError:
    """The error of ours for a statement's failure; `closed` says that the connection did not survive it."""
    state = error.sqlstate or ""
    diag = error.diag
    message = primary(error)
    if state in {"42P01", "3F000"}:
        return BehindError(message, hint="see `lockctl tables`; `lockctl migrate upgrade` creates missing tables")
    if state in {"42703", "42P10", "42883", "42804"}:
        return BehindError(f"the table's shape differs: {message}")
    if state == "23502":
        where = f'column "{diag.column_name}" of {diag.table_name}'
        return BehindError(f"the table's shape differs: {where} must have a value that lockctl does not know")
    if state == "42501":
        return DeniedError(message, hint="ask the owner of the table for a GRANT; README, “Privileges”")
    if state == "25006":
        return UnreachableError(
            "the server is read-only (a standby, or default_transaction_read_only), and this command writes",
            hint="connect to the primary: name it, or list the hosts and add target_session_attrs=read-write",
        )
    if state == "23503":
        detail = redact(diag.message_detail or "")
        return UsageError(f"the key refers to nothing: {detail or message}")
    if state in _BAD_VALUE:
        return UsageError(f"the database refuses the value: {message}")
    if state in {"55P03", "57014", "40P01"}:
        words, cause = _BLOCKED[state]
        return BlockedError(words, cause=cause)
    if closed or state in _GONE or state.startswith("08"):
        return UnreachableError(f"the connection was lost: {message}")
    return LockctlError(f"the database answered: {message}" + (f" (SQLSTATE {state})" if state else ""))


def theirs(error: LockctlError) -> LockctlError:
    """`error` of somebody else's statement: of their tables we know no more than the server, so it is in its words.

    A table that is missing, or a value that is refused, says nothing there about lockctl's own schema or arguments.
    """
    cause: Any = getattr(error.__context__, "orig", error.__context__)
    if isinstance(error, (BehindError, UsageError)) and (state := getattr(cause, "sqlstate", None)):
        return LockctlError(f"{primary(cause)} (SQLSTATE {state})", hint=cause.diag.message_hint)
    return error


_BLOCKED = {
    "55P03": ("gave up waiting for a lock (lock timeout)", "lock"),
    "57014": ("the statement was cancelled (statement timeout, or by an administrator)", "cancelled"),
    "40P01": ("the server broke a deadlock by cancelling this statement", "deadlock"),
}


def connect_failure(error: psycopg.Error, source: str) -> LockctlError:
    """The error of ours for a connection that could not be made to the database named by `source`."""
    state = error.sqlstate or ""
    if state == "42501":
        return DeniedError(primary(error))
    # psycopg resolves names itself, and knows none that comes from the environment or a service file.
    text = first_line(error).replace("resolve host None", f"resolve host {os.environ.get('PGHOST', 'of the service')}")
    hint = {
        "28P01": "check the password: ~/.pgpass, a service file or the environment",
        "3D000": "the database does not exist: check its name, or create it",
        "53300": "every connection slot is taken: `lockctl` needs one, or ask for a reserved role",
    }.get(state, f"the database comes from {source}")
    return UnreachableError(f"can't connect: {text}", hint=hint)
