"""Which lock a statement takes, as data from PostgreSQL's documentation; the lookup is in `locks`.

Sources: "Explicit Locking" (13.3) and the pages of the commands, ALTER TABLE above all ("An ACCESS EXCLUSIVE lock is
acquired unless explicitly noted"). Each rule is compared with what a server really locks, scans and rewrites, in
tests/db/test_migrations_plan.py.
"""

from __future__ import annotations

from typing import NamedTuple

MODES = (
    "ACCESS SHARE",
    "ROW SHARE",
    "ROW EXCLUSIVE",
    "SHARE UPDATE EXCLUSIVE",
    "SHARE",
    "SHARE ROW EXCLUSIVE",
    "EXCLUSIVE",
    "ACCESS EXCLUSIVE",
)
"""The modes of table locks in the order of LOCK TABLE's numbers (1 to 8): from the weakest to the strongest."""

EFFECTS = (None, "scan", "rewrite")
"""What is done to the table's contents while the lock is held, the costliest last."""


class Rule(NamedTuple):
    """A lock mode, what happens to the table's contents under it, and what a reader must know beside that."""

    mode: str
    effect: str | None = None
    note: str | None = None


class Lock(NamedTuple):
    """A lock on a relation, or with neither mode nor relation a note about the statement alone.

    `ask` is what only a catalogue can add: `dropped` and `constraint:NAME` (tables bound by foreign keys), `cascade`
    (tables that reference it), `index` (the relation is an index, whose table is locked likewise), `reindex:MODE`
    (the index's table is locked in that mode and scanned), or `function:NAME` (its volatility decides about a
    rewrite).
    """

    mode: str | None
    relation: str | None
    effect: str | None = None
    note: str | None = None
    ask: str | None = None


def lock(rule: Rule, where: str, ask: str | None = None) -> Lock:
    """The lock that `rule` means on the relation `where`."""
    return Lock(rule.mode, where, rule.effect, rule.note, ask)


_AE, _SRE, _SUE = "ACCESS EXCLUSIVE", "SHARE ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE"

ALTER_TABLE_DEFAULT = Rule(_AE)

# By pglast's AlterTableType. ADD COLUMN and ADD CONSTRAINT depend on what is added: see `locks`.
ALTER_TABLE = {
    "AT_AlterColumnType": Rule(
        _AE, "rewrite", "no rewrite where the old type can be taken as the new one unchanged, as varchar as text"
    ),
    "AT_SetNotNull": Rule(_AE, "scan", "no scan where a valid CHECK (… IS NOT NULL) proves it"),
    "AT_SetExpression": Rule(_AE, "rewrite", "of a stored generated column"),
    "AT_SetTableSpace": Rule(_AE, "rewrite", "the file is copied"),
    "AT_SetAccessMethod": Rule(_AE, "rewrite"),
    "AT_SetLogged": Rule(_AE, "rewrite"),
    "AT_SetUnLogged": Rule(_AE, "rewrite"),
    "AT_ValidateConstraint": Rule(_SUE, "scan"),
    "AT_SetStatistics": Rule(_SUE),
    "AT_SetOptions": Rule(_SUE),
    "AT_ResetOptions": Rule(_SUE),
    "AT_ClusterOn": Rule(_SUE),
    "AT_DropCluster": Rule(_SUE),
    "AT_SetRelOptions": Rule(_SUE, None, "ACCESS EXCLUSIVE for user_catalog_table"),
    "AT_ResetRelOptions": Rule(_SUE, None, "ACCESS EXCLUSIVE for user_catalog_table"),
    "AT_EnableTrig": Rule(_SRE),
    "AT_EnableAlwaysTrig": Rule(_SRE),
    "AT_EnableReplicaTrig": Rule(_SRE),
    "AT_EnableTrigAll": Rule(_SRE),
    "AT_EnableTrigUser": Rule(_SRE),
    "AT_DisableTrig": Rule(_SRE),
    "AT_DisableTrigAll": Rule(_SRE),
    "AT_DisableTrigUser": Rule(_SRE),
    "AT_AttachPartition": Rule(_SUE),
    "AT_DetachPartitionFinalize": Rule(_SUE),
}

# By pglast's ConstrType, for ALTER TABLE … ADD CONSTRAINT.
ADD_CONSTRAINT = {
    "CONSTR_CHECK": Rule(_AE, "scan"),
    "CONSTR_NOTNULL": Rule(_AE, "scan"),
    "CONSTR_FOREIGN": Rule(_SRE, "scan"),
    "CONSTR_UNIQUE": Rule(_AE, "scan", "builds the index meanwhile: CREATE UNIQUE INDEX CONCURRENTLY first"),
    "CONSTR_PRIMARY": Rule(_AE, "scan", "builds the index meanwhile: CREATE UNIQUE INDEX CONCURRENTLY first"),
    "CONSTR_EXCLUSION": Rule(_AE, "scan", "builds the index meanwhile"),
}

# Statements on one relation (the node's `relation`), by pglast's class.
ON_RELATION = {
    "CreateTrigStmt": Rule(_SRE),
    "CreatePolicyStmt": Rule(_AE),
    "AlterPolicyStmt": Rule(_AE),
    "RuleStmt": Rule(_AE),
    "AlterSeqStmt": Rule(_SRE),
    "InsertStmt": Rule("ROW EXCLUSIVE"),
    "UpdateStmt": Rule("ROW EXCLUSIVE"),
    "DeleteStmt": Rule("ROW EXCLUSIVE"),
    "MergeStmt": Rule("ROW EXCLUSIVE"),
    "ClusterStmt": Rule(_AE, "rewrite"),
    "AlterObjectSchemaStmt": Rule(_AE),
}

# DROP, by pglast's ObjectType. For a trigger, rule or policy the lock is on its table.
DROP = {
    "OBJECT_TABLE": Rule(_AE),
    "OBJECT_FOREIGN_TABLE": Rule(_AE),
    "OBJECT_VIEW": Rule(_AE),
    "OBJECT_MATVIEW": Rule(_AE),
    "OBJECT_SEQUENCE": Rule(_AE),
    "OBJECT_INDEX": Rule(_AE),
    "OBJECT_TRIGGER": Rule(_AE),
    "OBJECT_RULE": Rule(_AE),
    "OBJECT_POLICY": Rule(_AE),
}

WAITS_FOR_ALL = "waits for every transaction that holds an older snapshot in this database"
INDEX = Rule("SHARE", "scan", "no writes meanwhile")
INDEX_CONCURRENTLY = Rule(_SUE, "scan", f"two scans; {WAITS_FOR_ALL}")
DROP_INDEX_CONCURRENTLY = Rule(_SUE, None, "waits for every transaction that could use the index")
VACUUM = Rule(_SUE, "scan")
VACUUM_FULL = Rule(_AE, "rewrite")
REINDEX = Rule("SHARE", "scan", "and ACCESS EXCLUSIVE on each index")
REINDEX_CONCURRENTLY = Rule(_SUE, "scan", f"two scans; {WAITS_FOR_ALL}")
REFRESH = Rule(_AE, "rewrite")
REFRESH_CONCURRENTLY = Rule("EXCLUSIVE", "scan")
TRUNCATE = Rule(_AE, None, "the contents go, without a scan")
RENAME_INDEX = Rule(_SUE)
REFERENCED = Rule(_SRE, None, "referenced by the foreign key")
COMMENT = Rule(_SUE)
INHERITED = Rule(_SUE, None, "the parent")
PARTITIONED = Rule(_AE, None, "the partitioned table")
ATTACHED = Rule(_AE, "scan", "no scan where a valid CHECK proves the partition's bounds")
READ = Rule("ACCESS SHARE")
ROW_LOCKS = Rule("ROW SHARE")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOT_VOLATILE = _words(
    "now transaction_timestamp statement_timestamp to_timestamp timezone date_trunc make_interval lower upper md5"
    " concat array_fill json_build_object jsonb_build_object json_build_array jsonb_build_array to_json to_jsonb"
    " current_setting current_database current_schema current_user session_user string_to_array"
)
"""Functions of the core that may stand in a default without a rewrite: immutable or stable in pg_proc."""

VOLATILE = _words(
    "random clock_timestamp timeofday gen_random_uuid uuidv4 uuidv7 nextval uuid_generate_v1 uuid_generate_v1mc"
    " uuid_generate_v4 txid_current pg_current_xact_id"
)
SERIAL = _words("serial serial2 serial4 serial8 bigserial smallserial")
