"""What a parsed statement is, as far as running it goes: may it be in a transaction, does it end a step.

The nodes are pglast's, which is PostgreSQL 18's own parser. What may not run inside a transaction is what calls
PreventInTransactionBlock in PostgreSQL's source, and says so in its page of the documentation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

OPEN = ("TRANS_STMT_BEGIN", "TRANS_STMT_START")
CLOSE = ("TRANS_STMT_COMMIT",)
# Inside a step they work as they stand; the step's own transaction is around them.
SAVEPOINTS = ("TRANS_STMT_SAVEPOINT", "TRANS_STMT_RELEASE", "TRANS_STMT_ROLLBACK_TO")
PREPARED = ("TRANS_STMT_COMMIT_PREPARED", "TRANS_STMT_ROLLBACK_PREPARED")

_VERSION_COLUMNS = frozenset({"version", "version_num", "version_rank", "schema_version", "migration_version"})
_MAY_CHANGE_SETTINGS = ("VariableSetStmt", "DiscardStmt", "SelectStmt", "DoStmt", "CallStmt", "ExecuteStmt")
_ALONE = {
    "CreatedbStmt": "CREATE DATABASE",
    "DropdbStmt": "DROP DATABASE",
    "CreateTableSpaceStmt": "CREATE TABLESPACE",
    "DropTableSpaceStmt": "DROP TABLESPACE",
    "AlterSystemStmt": "ALTER SYSTEM",
    "DropSubscriptionStmt": "DROP SUBSCRIPTION",
}


def kind(node: Any) -> str:
    """The name of a node's class: `AlterTableStmt`."""
    return type(node).__name__


def options(node: Any, field: str = "options") -> dict[str, str | None]:
    """The `(name value, …)` of a statement; None for a name that stands alone."""
    return {item.defname: _text(item.arg) for item in getattr(node, field, None) or ()}


def transaction(node: Any) -> str | None:
    """`TRANS_STMT_BEGIN` and the like for a statement of transaction control, None for any other."""
    return str(node.kind.name) if kind(node) == "TransactionStmt" else None


def alone(node: Any) -> str | None:
    """The name of a statement that PostgreSQL refuses inside a transaction (`VACUUM`); None for any other.

    Not seen here, since only the catalogue knows them: REINDEX and CLUSTER of a partitioned table, and procedures
    that commit. The comment `-- lockctl: no-transaction` in front of one says it.
    """
    name = kind(node)
    if name in _ALONE:
        return _ALONE[name]
    if name == "TransactionStmt":
        return "COMMIT PREPARED and ROLLBACK PREPARED" if node.kind.name in PREPARED else None
    if name in ("IndexStmt", "DropStmt"):
        verb = "CREATE" if name == "IndexStmt" else "DROP"
        return f"{verb} INDEX CONCURRENTLY" if node.concurrent else None
    if name == "VacuumStmt":
        return "VACUUM" if node.is_vacuumcmd else None
    if name == "ClusterStmt":
        return None if node.relation is not None else "CLUSTER without a table"
    if name == "ReindexStmt":
        return _reindex(node)
    if name == "AlterTableStmt":
        detached = any(item.subtype.name == "AT_DetachPartition" and item.def_.concurrent for item in node.cmds)
        return "DETACH PARTITION CONCURRENTLY" if detached else None
    if name == "AlterDatabaseStmt":
        return "ALTER DATABASE … SET TABLESPACE" if "tablespace" in options(node) else None
    if name == "DiscardStmt":
        return "DISCARD ALL" if node.target.name == "DISCARD_ALL" else None
    if name == "CreateSubscriptionStmt":
        given = options(node)
        without_slot = given.get("create_slot") == "false" or given.get("connect") == "false"
        return None if without_slot else "CREATE SUBSCRIPTION"
    if name == "AlterSubscriptionStmt":
        return _alter_subscription(node)
    return None


def _reindex(node: Any) -> str | None:
    if "concurrently" in options(node, "params"):
        return "REINDEX CONCURRENTLY"
    what = str(node.kind.name).removeprefix("REINDEX_OBJECT_")
    return f"REINDEX {what}" if what in ("SCHEMA", "SYSTEM", "DATABASE") else None


def _alter_subscription(node: Any) -> str | None:
    refreshes = ("REFRESH", "SET_PUBLICATION", "ADD_PUBLICATION", "DROP_PUBLICATION")
    found = any(node.kind.name == f"ALTER_SUBSCRIPTION_{name}" for name in refreshes)
    return "ALTER SUBSCRIPTION that refreshes" if found and options(node).get("refresh") != "false" else None


def ends_step(node: Any) -> bool:
    """Is what follows to be a step of its own?

    After a change of a version table: one constant written to one column that is called a version, as
    `UPDATE dbos.dbos_migrations SET version = 70` does and `UPDATE alembic_version …`, or the only column inserted.
    After ALTER TYPE … ADD VALUE: since PostgreSQL 12 it may be in a transaction, but the value can be used only
    when that was committed.
    """
    name = kind(node)
    if name == "AlterEnumStmt":
        return bool(node.newVal) and not node.oldVal
    if name == "UpdateStmt":
        targets = tuple(node.targetList)
        return len(targets) == 1 and targets[0].name in _VERSION_COLUMNS and _constant(targets[0].val)
    if name == "InsertStmt":
        columns = tuple(node.cols or ())
        return len(columns) == 1 and columns[0].name in _VERSION_COLUMNS
    return False


def copies(node: Any) -> bool:
    """Is it COPY … FROM STDIN or TO STDOUT, whose rows go over the wire beside the SQL?"""
    return kind(node) == "CopyStmt" and node.filename is None and not node.is_program


def setting(node: Any) -> bool:
    """Is it a SET or RESET that outlives its transaction? It changes the session alone and may be made again."""
    return kind(node) == "VariableSetStmt" and not node.is_local and node.kind.name != "VAR_SET_MULTI"


def may_change_settings(node: Any) -> bool:
    """Can it change lock_timeout under us: SET, or anything that calls functions (`set_config`)?"""
    return kind(node) in _MAY_CHANGE_SETTINGS


def relation(node: Any) -> str:
    """A RangeVar as one writes it."""
    return dotted([part for part in (node.schemaname, node.relname) if part])


def dotted(parts: Iterable[Any]) -> str:
    """Parts of a name, quoted where they need it."""
    return ".".join(_quoted(getattr(part, "sval", part)) for part in parts)


def _quoted(name: str) -> str:
    plain = name.isascii() and name.replace("_", "a").isalnum() and name == name.lower() and not name[0].isdigit()
    escaped = name.replace('"', '""')
    return name if plain else f'"{escaped}"'


def walk(node: Any) -> Iterator[Any]:
    """A node and every node under it."""
    if isinstance(node, tuple):
        for item in node:
            yield from walk(item)
    elif hasattr(node, "__slots__"):
        yield node
        for field in node:
            yield from walk(getattr(node, field))


def _constant(node: Any) -> bool:
    if kind(node) == "TypeCast":
        return _constant(node.arg)
    return kind(node) == "A_Const"


def _text(value: Any) -> str | None:
    """The text of an option's value: a String, an Integer, a Boolean; None where there is none."""
    for field in ("sval", "ival", "boolval", "fval"):
        if (found := getattr(value, field, None)) is not None:
            return str(found).lower()
    return None
