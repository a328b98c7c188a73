"""Connection strings: what libpq takes is taken as libpq takes it."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from lockctl.db import conninfo
from lockctl.errors import UsageError


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test knows only the passwords of its own: a short one would be masked in all texts after it."""
    monkeypatch.setattr(conninfo, "_secrets", set())


GOOD = [
    "postgresql://",
    "postgresql:///db?host=/tmp",
    "postgresql://u@/db",
    "postgresql://h",
    "postgresql://[::1]:5432/db",
    "postgresql://u:p%40s%2Fs%3A@h:5432/db",
    "postgresql://h1:1,h2:2,[::1]:3/db?target_session_attrs=any",
    "postgresql://%2Ftmp%2Frun:5432/db",
    "postgresql://u%40corp@h/db",
    "postgresql://u:12#34@h/db",
    "postgresql://h/db?user=a@b&application_name=x",
    "postgres://u:p@h/db?sslmode=require",
    "host=/tmp port=5432 dbname='my db' password='a b\\'c'",
    "host=/var/run/a=b dbname=x@y",
    "service=prod",
    "host=a,b port=1,2 options='-c search_path=x\\ y'",
    "passfile=/home/me/.pgpass host=h",
    "",
]


@pytest.mark.parametrize("dsn", GOOD)
def test_a_good_string_is_read_as_libpq_reads_it(dsn: str) -> None:
    assert conninfo.parse(dsn, "the tests") == {name: str(value) for name, value in conninfo_to_dict(dsn).items()}


@pytest.mark.parametrize("scheme", ["postgresql+psycopg", "postgresql+psycopg2", "postgres+psycopg"])
def test_the_scheme_of_sqlalchemy_means_psycopg_3(scheme: str) -> None:
    assert conninfo.parse(f"{scheme}://u:p%40w@h/db", "the tests") == {
        "user": "u",
        "password": "p@w",
        "host": "h",
        "dbname": "db",
    }


@pytest.mark.parametrize("dsn", ["postgresql://u:p@ss@h/db", "postgresql://u:p/w@h/db", "postgresql://u:p@h:x/db"])
def test_a_password_that_is_not_encoded_gets_a_hint_that_says_how(dsn: str) -> None:
    with pytest.raises(UsageError) as refused:
        conninfo.parse(dsn, "LOCKCTL_DSN")
    assert "LOCKCTL_DSN" in refused.value.message
    assert "%40" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host 'h;password=foo;dbname=x'", "host 'h;password=***;dbname=x'"),
        ("(postgresql://u:pw@h/db)", "(postgresql://u:***@h/db)"),
        ("(postgres:u:pw@h/db)", "(postgres:u:***@h/db)"),
        ("password = 'a b' port=1", "password = *** port=1"),
        ("passfile=/x user=y", "passfile=/x user=y"),
        ("see https://example.org:80/a and a@b", "see https://example.org:80/a and a@b"),
        ("key a:b@c", "key a:b@c"),
    ],
)
def test_what_looks_like_a_password_is_masked(text: str, expected: str) -> None:
    assert conninfo.redact(text) == expected
