"""The locks of ALTER TABLE: the strictest and costliest of its subcommands, and what they take on other tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockctl.migrations import lockrules as rules
from lockctl.migrations.grammar import dotted, kind, relation, walk
from lockctl.migrations.lockrules import Lock, Rule, lock


def locks(node: Any) -> Iterator[Lock]:
    """The lock on the table, the strictest that any subcommand asks for, and those on other relations."""
    where = relation(node.relation)
    parts: list[Rule] = []
    asks: list[str] = []
    others: list[Lock] = []
    for item in node.cmds:
        rule, ask, more = _alteration(item)
        parts.append(rule)
        asks += [ask] if ask else []
        others += more
    if node.objtype.name == "OBJECT_VIEW":
        parts = [Rule("ACCESS EXCLUSIVE")]
    if node.objtype.name == "OBJECT_INDEX":
        parts = [Rule("SHARE UPDATE EXCLUSIVE" if all(p.mode != "ACCESS EXCLUSIVE" for p in parts) else parts[0].mode)]
    notes = list(dict.fromkeys(part.note for part in parts if part.note))
    strictest = max((part.mode for part in parts), key=rules.MODES.index)
    costliest = max((part.effect for part in parts), key=rules.EFFECTS.index)
    yield Lock(strictest, where, costliest, "; ".join(notes) or None, asks[0] if asks else None)
    yield from others


def _alteration(item: Any) -> tuple[Rule, str | None, list[Lock]]:
    """One subcommand of ALTER TABLE: its rule, its question to the catalogue, and locks on other relations."""
    subtype = item.subtype.name
    if subtype == "AT_AddColumn":
        return _add_column(item.def_)
    if subtype == "AT_AddConstraint":
        return _add_constraint(item.def_)
    if subtype == "AT_AddIndexConstraint":
        return Rule("ACCESS EXCLUSIVE", None, "a column of a primary key that may be null is scanned"), None, []
    if subtype == "AT_DropConstraint":
        return rules.ALTER_TABLE_DEFAULT, f"constraint:{item.name}", []
    if subtype == "AT_AttachPartition":
        return rules.ALTER_TABLE[subtype], None, [lock(rules.ATTACHED, relation(item.def_.name))]
    if subtype == "AT_DetachPartition":
        mode = "SHARE UPDATE EXCLUSIVE" if item.def_.concurrent else "ACCESS EXCLUSIVE"
        note = "waits for every transaction that uses the partitioned table" if item.def_.concurrent else None
        return Rule(mode, None, note), None, [Lock("ACCESS EXCLUSIVE", relation(item.def_.name))]
    if subtype in ("AT_AddInherit", "AT_DropInherit"):
        return rules.ALTER_TABLE_DEFAULT, None, [lock(rules.INHERITED, relation(item.def_))]
    return rules.ALTER_TABLE.get(subtype, rules.ALTER_TABLE_DEFAULT), None, []


def _add_column(column: Any) -> tuple[Rule, str | None, list[Lock]]:
    """A constant or stable default is kept aside and costs nothing; what each row must have anew rewrites the table."""
    effect: str | None = None
    note = ask = None
    others: list[Lock] = []
    kinds = {item.contype.name: item for item in column.constraints or ()}
    if column.typeName.names[-1].sval in rules.SERIAL or "CONSTR_IDENTITY" in kinds:
        effect, note = "rewrite", "each row gets a number of its own"
    elif "CONSTR_GENERATED" in kinds:
        if kinds["CONSTR_GENERATED"].generated_kind in ("s", "\0"):
            effect, note = "rewrite", "a stored generated column"
    elif "CONSTR_DEFAULT" in kinds:
        function = _volatile(kinds["CONSTR_DEFAULT"].raw_expr)
        if function in rules.VOLATILE:
            effect, note = "rewrite", f"{function}() is volatile: each row gets a value of its own"
        elif function is not None:
            effect, note = "rewrite", f"unless {function}() is stable or immutable"
            ask = f"function:{function}"
    elif "CONSTR_NOTNULL" in kinds or "CONSTR_PRIMARY" in kinds:
        effect, note = "scan", "fails where the table has rows: there is no default"
    for name, constraint in kinds.items():
        if name in ("CONSTR_CHECK", "CONSTR_UNIQUE", "CONSTR_PRIMARY") and effect is None:
            effect = "scan"
        if name == "CONSTR_FOREIGN":
            others.append(lock(rules.REFERENCED, relation(constraint.pktable)))
    return Rule("ACCESS EXCLUSIVE", effect, note), ask, others


def _volatile(node: Any) -> str | None:
    """A function in a default that is not known to be stable or immutable; None where there is none."""
    found = [
        dotted(call.funcname)
        for call in walk(node)
        if kind(call) == "FuncCall" and call.funcname[-1].sval not in rules.NOT_VOLATILE
    ]
    known = [name for name in found if name.rpartition(".")[2] in rules.VOLATILE]
    return known[0].rpartition(".")[2] if known else (found[0] if found else None)


def _add_constraint(constraint: Any) -> tuple[Rule, str | None, list[Lock]]:
    what = constraint.contype.name
    rule = rules.ADD_CONSTRAINT.get(what, rules.ALTER_TABLE_DEFAULT)
    if constraint.indexname:
        rule = Rule(
            rule.mode, None, "a column of a primary key that may be null is scanned" if "PRIM" in what else None
        )
    elif constraint.skip_validation:
        rule = Rule(rule.mode, None, "VALIDATE CONSTRAINT scans later, under SHARE UPDATE EXCLUSIVE")
    others = [lock(rules.REFERENCED, relation(constraint.pktable))] if what == "CONSTR_FOREIGN" else []
    return rule, None, others
