"""The locks that one parsed statement takes, by the rules of `lockrules`; no database is asked.

What only a catalogue knows (which tables a foreign key binds to a dropped one, whose index it is) is left as a
question on the lock, and answered in `plan` where there is a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockctl.migrations import altertable
from lockctl.migrations import lockrules as rules
from lockctl.migrations.grammar import dotted, kind, options, relation, walk
from lockctl.migrations.lockrules import Lock, Rule, lock


def of(node: Any) -> list[Lock]:
    """The locks of a statement in the order in which they are taken, as far as its text tells."""
    name = kind(node)
    special = _SPECIAL.get(name)
    if special is not None:
        return list(special(node))
    if (rule := rules.ON_RELATION.get(name)) is not None:
        field = {"CreatePolicyStmt": "table", "AlterPolicyStmt": "table", "AlterSeqStmt": "sequence"}.get(
            name, "relation"
        )
        if (target := getattr(node, field)) is not None:
            return [lock(rule, relation(target)), *_reads(node, relation(target))]
    return []


def _create(node: Any) -> Iterator[Lock]:
    """A new table is nobody's yet; what it refers to is locked."""
    for parent in node.inhRelations or ():
        yield lock(rules.PARTITIONED if node.partbound is not None else rules.INHERITED, relation(parent))
    for element in node.tableElts or ():
        if kind(element) == "TableLikeClause":
            yield lock(rules.READ, relation(element.relation))
        for constraint in [element] if kind(element) == "Constraint" else getattr(element, "constraints", None) or ():
            if constraint.contype.name == "CONSTR_FOREIGN":
                yield lock(rules.REFERENCED, relation(constraint.pktable))


def _index(node: Any) -> Iterator[Lock]:
    yield lock(rules.INDEX_CONCURRENTLY if node.concurrent else rules.INDEX, relation(node.relation))


def _drop(node: Any) -> Iterator[Lock]:
    what = node.removeType.name
    cascade = node.behavior.name == "DROP_CASCADE"
    if (rule := rules.DROP.get(what)) is None:
        if cascade:
            yield Lock(None, None, None, "CASCADE: ACCESS EXCLUSIVE on whatever depends on it")
        return
    for item in node.objects:
        parts = tuple(item) if isinstance(item, tuple) else tuple(getattr(item, "names", (item,)))
        if what in ("OBJECT_TRIGGER", "OBJECT_RULE", "OBJECT_POLICY"):
            yield lock(rule, dotted(parts[:-1]))
        elif what == "OBJECT_INDEX":
            yield lock(rules.DROP_INDEX_CONCURRENTLY if node.concurrent else rule, dotted(parts), "index")
        else:
            yield lock(rule, dotted(parts), "dropped" if what == "OBJECT_TABLE" else None)
    if cascade:
        yield Lock(None, None, None, "CASCADE: ACCESS EXCLUSIVE on whatever depends on it")


def _rename(node: Any) -> Iterator[Lock]:
    if node.relation is None:
        return
    index = node.renameType.name == "OBJECT_INDEX"
    yield lock(rules.RENAME_INDEX if index else rules.ALTER_TABLE_DEFAULT, relation(node.relation))


def _truncate(node: Any) -> Iterator[Lock]:
    ask = "cascade" if node.behavior.name == "DROP_CASCADE" else None
    for item in node.relations:
        yield lock(rules.TRUNCATE, relation(item), ask)


def _vacuum(node: Any) -> Iterator[Lock]:
    rule = rules.VACUUM_FULL if options(node).get("full", "false") is None else rules.VACUUM
    if not node.rels:
        yield Lock(rule.mode, None, rule.effect, "every table of the database, one after the other")
    for item in node.rels or ():
        yield lock(rule, relation(item.relation))


def _reindex(node: Any) -> Iterator[Lock]:
    concurrently = "concurrently" in options(node, "params")
    rule = rules.REINDEX_CONCURRENTLY if concurrently else rules.REINDEX
    if node.relation is None:
        yield Lock(rule.mode, None, rule.effect, f"every table of {node.name or 'the database'}; {rule.note}")
    elif node.kind.name == "REINDEX_OBJECT_INDEX":
        index = relation(node.relation)
        yield Lock(rule.mode if concurrently else "ACCESS EXCLUSIVE", index, None, None, f"reindex:{rule.mode}")
    else:
        yield lock(rule, relation(node.relation))


def _refresh(node: Any) -> Iterator[Lock]:
    yield lock(rules.REFRESH_CONCURRENTLY if node.concurrent else rules.REFRESH, relation(node.relation))


def _lock_table(node: Any) -> Iterator[Lock]:
    for item in node.relations:
        yield Lock(rules.MODES[int(node.mode) - 1], relation(item))


def _comment(node: Any) -> Iterator[Lock]:
    what = node.objtype.name
    if what in ("OBJECT_TABLE", "OBJECT_VIEW", "OBJECT_MATVIEW", "OBJECT_INDEX", "OBJECT_COLUMN"):
        yield lock(rules.COMMENT, dotted(node.object[:-1] if what == "OBJECT_COLUMN" else node.object))


def _select(node: Any) -> Iterator[Lock]:
    rule = rules.ROW_LOCKS if getattr(node, "lockingClause", None) else rules.READ
    seen = {relation(item) for item in walk(node) if kind(item) == "RangeVar"}
    common = {item.ctename for item in walk(node) if kind(item) == "CommonTableExpr"}
    for name in sorted(seen - common):
        yield lock(rule, name)


def _view(node: Any) -> Iterator[Lock]:
    if node.replace:
        yield Lock("ACCESS EXCLUSIVE", relation(node.view), None, "where the view is there")
    yield from _select(node.query)


def _copy(node: Any) -> Iterator[Lock]:
    if node.relation is not None:
        yield lock(Rule("ROW EXCLUSIVE") if node.is_from else rules.READ, relation(node.relation))


def _unseen(node: Any) -> Iterator[Lock]:
    yield Lock(None, None, None, "runs code whose locks are not in this text")


def _reads(node: Any, own: str) -> list[Lock]:
    """The other tables that an INSERT, UPDATE, DELETE or MERGE reads."""
    reads = kind(node) in ("InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt")
    return [lock for lock in _select(node) if lock.relation != own] if reads else []


_SPECIAL = {
    "AlterTableStmt": altertable.locks,
    "CreateStmt": _create,
    "CreateTableAsStmt": lambda node: _select(node.query),
    "IndexStmt": _index,
    "DropStmt": _drop,
    "RenameStmt": _rename,
    "TruncateStmt": _truncate,
    "VacuumStmt": _vacuum,
    "ReindexStmt": _reindex,
    "RefreshMatViewStmt": _refresh,
    "LockStmt": _lock_table,
    "CommentStmt": _comment,
    "SelectStmt": _select,
    "ViewStmt": _view,
    "CopyStmt": _copy,
    "CallStmt": _unseen,
    "ExecuteStmt": _unseen,
}
