"""Connection strings: read them without ever repeating them, and merge our settings into what the user gave.

Rules measured on psycopg 3.3: passing `options` replaces PGOPTIONS and the service file's options, so they are
merged here, ours last; `PG*` variables and service files stay libpq's own business otherwise.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from lockctl.errors import UsageError

_URL = r"^(?P<scheme>postgres(?:ql)?(?:\+psycopg\w*)?)://(?P<rest>.*)$"
_HOSTS = r"^(?:(?:\[[^\]]*\]|[^:@/\[\]]*)(?::[0-9]*)?)(?:,(?:\[[^\]]*\]|[^:@/\[\]]*)(?::[0-9]*)?)*$"

# `host=h;password=p`, as other drivers write it, is a host name to libpq, and errors repeat host names.
_LOST_PASSWORD = r"(?i)pass(?:word|wd)?\s*=|://[^/\s]*:[^/\s]*@"
_FREE = ("password", "sslpassword", "options", "application_name", "fallback_application_name")

_secrets: set[str] = set()


def redact(text: str) -> str:
    """`text` without any password that was read in this process, and without what looks like one in a database's
    address: words that were mistyped as something else than an address come back in errors."""
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"((?:/|postgres\w*:)[^\s/?#@:]*:)\S*@", r"\1***@", text)
    return re.sub(r"(?i)(pass(?:word|wd)?\s*=\s*)('(?:[^'\\]|\\.)*'?|[^\s;&,'\"]+)", r"\1***", text)


def remember_secret(secret: str | None) -> None:
    """Keep `secret` out of everything that passes through `redact`."""
    if secret:
        _secrets.add(secret)


def parse(dsn: str, source: str) -> dict[str, str]:
    """The parameters of a libpq URL or `key=value` string.

    Raises UsageError, which says where the string came from and repeats nothing of it: libpq's own message
    quotes the piece it stumbled on, and that piece is often half a password.
    """
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    text = _plain_url(dsn.strip(), source)
    try:
        found = conninfo_to_dict(text)
    except (Error, UnicodeError, ValueError):
        raise _malformed(source) from None
    params = {name: str(value) for name, value in found.items() if value is not None}
    odd = [value for name, value in params.items() if name not in _FREE and ("=" in value or "@" in value)]
    if any(re.search(_LOST_PASSWORD, value) for value in odd):
        raise _malformed(source)
    remember_secret(params.get("password"))
    remember_secret(params.get("sslpassword"))
    return params


def _malformed(source: str) -> UsageError:
    return UsageError(
        f"the connection string from {source} is malformed",
        hint="write postgresql://USER@HOST:PORT/DBNAME (special characters percent-encoded) or 'host=… dbname=…'",
    )


def _plain_url(text: str, source: str) -> str:
    """A SQLAlchemy scheme is taken as the plain one; a password with a bare `@` or `/` is refused, not misread.

    libpq would take the rest of such a password for the host name and print it.
    """
    match = re.match(_URL, text, re.DOTALL)
    if match is None:
        return text
    authority = re.split(r"[/?]", match["rest"], maxsplit=1)[0]
    hosts = authority.rpartition("@")[2]
    if authority.count("@") > 1 or not re.match(_HOSTS, _unquoted_sockets(hosts)) or "@" in _path(match["rest"]):
        raise UsageError(
            f"the connection URL from {source} is malformed",
            hint="percent-encode special characters in the user name and password: %40 for @, %2F for /, %3A for :",
        )
    return f"postgresql://{match['rest']}"


def _unquoted_sockets(hosts: str) -> str:
    return hosts.replace("%2F", "").replace("%2f", "")


def _path(rest: str) -> str:
    found = re.match(r"^[^/?]*(/[^?]*)", rest)
    return found[1] if found else ""


def startup_options(params: Mapping[str, str], settings: Mapping[str, str]) -> str:
    """The `options` for libpq: the user's (DSN, service file or PGOPTIONS), then ours, so that ours win."""
    given = params.get("options") or _service_options(params) or os.environ.get("PGOPTIONS", "")
    ours = " ".join(f"-c {name}={escape_option(value)}" for name, value in settings.items())
    return f"{given} {ours}".strip()


def escape_option(value: str) -> str:
    """`value` for the `options` string, in which a backslash protects a space or a backslash."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def _service_options(params: Mapping[str, str]) -> str | None:
    name = params.get("service") or os.environ.get("PGSERVICE")
    if not name:
        return None
    files = [os.environ.get("PGSERVICEFILE"), str(Path.home() / ".pg_service.conf")]
    if folder := os.environ.get("PGSYSCONFDIR"):
        files.append(str(Path(folder) / "pg_service.conf"))
    for file in files:
        if file and (options := _read_service(Path(file), name)):
            return options
    return None


def _read_service(file: Path, name: str) -> str | None:
    import configparser

    # libpq has no interpolation, no case folding and only `=`.
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), strict=False, allow_no_value=True)
    try:
        parser.read(file, encoding="utf-8")
    except (OSError, UnicodeError, configparser.Error):
        return None
    return parser.get(name, "options", fallback=None)
