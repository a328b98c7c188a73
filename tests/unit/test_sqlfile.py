"""A SQL file becomes steps by PostgreSQL's own grammar, and what can't be taken is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockctl.errors import UsageError
from lockctl.migrations import sqlfile
from lockctl.migrations.sqlfile import parse


def shape(text: str) -> list[tuple[int, bool]]:
    """How many statements each step has, and whether it is outside a transaction."""
    return [(len(step.statements), step.outside) for step in parse(text, "f.sql").steps]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("-- nothing\n;;\n", []),
        ("CREATE TABLE a (); CREATE TABLE b ()", [(2, False)]),
        ("CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN; RETURN 1; END; $$; SELECT ';'", [(2, False)]),
        ("CREATE TABLE a (); /* ; */ UPDATE v SET version = 1; CREATE TABLE b ()", [(2, False), (1, False)]),
        ('DROP TABLE a; UPDATE "s"."m" SET "version" = 70; DROP TABLE b;', [(2, False), (1, False)]),
        ("UPDATE alembic_version SET version_num='b' WHERE version_num='a'; SELECT 1", [(1, False), (1, False)]),
        ("INSERT INTO schema_migrations (version) VALUES ('1'); SELECT 1", [(1, False), (1, False)]),
        ("UPDATE t SET version = version + 1; SELECT 1", [(2, False)]),
        ("UPDATE t SET version = 1, name = 'x'; SELECT 1", [(2, False)]),
        ("SELECT 1; CREATE INDEX CONCURRENTLY i ON t (a); SELECT 2", [(1, False), (1, True), (1, False)]),
        (
            "SELECT 1;\n-- lockctl: step\nSELECT 2;\n--lockctl:step with a title\nSELECT 3; SELECT 4",
            [(1, False), (1, False), (2, False)],
        ),
        ("SELECT '-- lockctl: step'; SELECT $$\n-- lockctl: step\n$$; SELECT 1", [(3, False)]),
        ("BEGIN; SELECT 1; UPDATE v SET version = 1; SELECT 2; COMMIT; SELECT 3", [(3, False), (1, False)]),
        ("SELECT 1; BEGIN; SELECT 2; SAVEPOINT s; RELEASE s; END", [(1, False), (3, False)]),
        ("BEGIN; COMMIT", []),
        ("-- lockctl: no-transaction\nCALL p(); SELECT 1", [(1, True), (1, False)]),
        ("ALTER TYPE t ADD VALUE 'x'; INSERT INTO u VALUES ('x')", [(1, False), (1, False)]),
        ("ALTER TYPE t RENAME VALUE 'x' TO 'y'; SELECT 1", [(2, False)]),
    ],
)
def test_what_is_committed_together(text: str, expected: list[tuple[int, bool]]) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX CONCURRENTLY i ON t (a)",
        "DROP INDEX CONCURRENTLY i",
        "REINDEX INDEX CONCURRENTLY i",
        "REINDEX (CONCURRENTLY) TABLE t",
        "REINDEX DATABASE d",
        "REINDEX SCHEMA s",
        "VACUUM",
        "VACUUM FULL t",
        "CLUSTER",
        "CREATE DATABASE d",
        "DROP DATABASE d",
        "ALTER DATABASE d SET TABLESPACE x",
        "CREATE TABLESPACE x LOCATION '/x'",
        "DROP TABLESPACE x",
        "ALTER SYSTEM SET work_mem = 1",
        "ALTER TABLE t DETACH PARTITION p CONCURRENTLY",
        "DISCARD ALL",
        "CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p",
        "DROP SUBSCRIPTION s",
        "ALTER SUBSCRIPTION s REFRESH PUBLICATION",
        "ALTER SUBSCRIPTION s SET PUBLICATION p",
        "ROLLBACK PREPARED 'x'",
    ],
)
def test_what_postgresql_refuses_in_a_transaction_is_a_step_outside_one(statement: str) -> None:
    assert shape(f"SELECT 1; {statement}; SELECT 2") == [(1, False), (1, True), (1, False)]
    with pytest.raises(UsageError, match=r"line 2: .* can't run inside the BEGIN of line 1"):
        parse(f"BEGIN;\n{statement}; COMMIT", "f.sql")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX i ON t (a)",
        "REINDEX TABLE t",
        "CLUSTER t USING i",
        "ANALYZE t",
        "ALTER DATABASE d SET work_mem = 1",
        "ALTER TABLE t DETACH PARTITION p",
        "ALTER TABLE t DETACH PARTITION p FINALIZE",
        "DISCARD PLANS",
        "CREATE SUBSCRIPTION s CONNECTION 'x' PUBLICATION p WITH (create_slot = false)",
        "ALTER SUBSCRIPTION s SET PUBLICATION p WITH (refresh = false)",
    ],
)
def test_its_milder_sister_stays_in_the_transaction(statement: str) -> None:
    assert shape(f"SELECT 1; {statement}; SELECT 2") == [(3, False)]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("SELECT 1;\nSELEC 2;", 2, 'syntax error at or near "SELEC"'),
        ("SELECT 'é';\n\nSELECT 'x", 3, "unterminated quoted string"),
        ("SELECT 1;\n\\i other.sql\n", 2, r"\\i other.sql is a command of psql"),
        ("\\set ON_ERROR_STOP on\nSELECT 1", 1, r"\\set ON_ERROR_STOP on is a command of psql"),
        ("SELECT :version", 1, "variables of psql"),
        ("COPY t FROM stdin;\n1\t2\n\\.\n", 2, "COPY … FROM STDIN"),
        ("COPY t FROM STDIN;", 1, "COPY … FROM STDIN"),
        ("BEGIN;\nSELECT 1", 1, "BEGIN without a COMMIT"),
        ("SELECT 1;\nCOMMIT", 2, "COMMIT without a BEGIN"),
        ("BEGIN;\nBEGIN; COMMIT", 2, "BEGIN inside the BEGIN of line 1"),
        ("BEGIN; SELECT 1;\nROLLBACK", 2, "ROLLBACK is not taken"),
        ("BEGIN; SELECT 1;\nPREPARE TRANSACTION 'x'", 2, "PREPARE TRANSACTION 'x' is not taken"),
        ("BEGIN; SELECT 1;\nCOMMIT AND CHAIN", 2, "COMMIT AND CHAIN is not taken"),
        ("BEGIN ISOLATION LEVEL SERIALIZABLE; COMMIT", 1, "transaction modes"),
        ("BEGIN; SELECT 1;\n-- lockctl: step\nSELECT 2; COMMIT", 3, "can't divide BEGIN … COMMIT"),
        ("SELECT 1;\n-- lockctl: stop\nSELECT 2", 2, "'stop' is no mark of lockctl's"),
    ],
)
def test_what_can_t_be_taken_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse(text, "f.sql")
    assert caught.value.message.startswith(f"f.sql, line {line}: ")
    assert caught.value.hint is not None
    assert "nothing was run" in caught.value.hint


def test_a_step_is_called_by_its_mark_else_the_comment_above_else_its_beginning() -> None:
    text = "-- Migration 70: drop\nDROP TABLE a;\n-- lockctl: step the second\nSELECT 2;"
    text += "\n\nUPDATE v SET version = 1;\nSELECT 3"
    assert [step.title for step in parse(text, "f").steps] == ["Migration 70: drop", "the second", "SELECT 3"]


def test_lines_and_texts_are_those_of_the_file_beyond_ascii() -> None:
    (step,) = parse("-- ééé\nSELECT 'éé';\n  ;; /* é */\n\nSELECT 2;", "f").steps
    assert [(statement.line, statement.text) for statement in step.statements] == [(2, "SELECT 'éé'"), (5, "SELECT 2")]


def test_a_file_that_begins_later_makes_the_session_settings_of_before_again() -> None:
    text = "SET search_path TO s; SET LOCAL work_mem TO 9; UPDATE v SET version = 1; RESET role;"
    text += " SELECT 2; UPDATE v SET version = 2; SELECT 3"
    steps = parse(text, "f").steps
    assert [each.text for each in sqlfile.settings_before(steps, 3)] == ["SET search_path TO s", "RESET role"]


def test_a_file_that_is_no_utf8_or_not_there_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "f.sql"
    with pytest.raises(UsageError, match="can't read"):
        sqlfile.read(path)
    path.write_bytes(b"SELECT 1;\nSELECT '\xff'")
    with pytest.raises(UsageError, match="line 2: the file is not UTF-8"):
        sqlfile.read(path)
    path.write_bytes("\ufeffSELECT 1".encode())
    assert len(sqlfile.read(path).steps) == 1
