"""Which of DBOS's workers live: what `pg_stat_activity` shows, and what the operator says.

A connected TypeScript worker names its sessions `dbos_transact_<executor id>_<application version>`, cut at 63 bytes
(measured on @dbos-inc/dbos-sdk 4.25.14, 4.27.6, 5.3.0); not through a pool of its own, and not in the Python SDK. Its
CLI and its clients use the same name with an empty version (`dbos_transact_local_`): they run nothing, and are no
evidence. A worker recovers at launch what is stamped with its own id and version; since 4.26 only of its application.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from psycopg.sql import SQL

from lockctl.db import Session
from lockctl.runs.places import Place

PREFIX = "dbos_transact_"
_LONGEST = 63  # NAMEDATALEN - 1

_SESSIONS = r"""
SELECT application_name::text,
       array_agg(DISTINCT coalesce(host(client_addr), CASE WHEN client_port = -1 THEN 'a local socket' END))
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name LIKE 'dbos\_transact\_%'
 GROUP BY 1
"""


class Verdict(NamedTuple):
    """Whether a run's worker lives: True, False, or None when it can't be told; with the class of a lapsed run."""

    live: bool | None
    class_: str | None
    evidence: str


class Executors(NamedTuple):
    """The workers as they were when this was read.

    `sessions` maps names to the hosts they came from; `versions` application versions to the application that owns
    each (None: anyone's), and is None where there is no such table; `said` are ids that the operator says are live,
    and `none_live` that no other is.
    """

    sessions: Mapping[str, tuple[str, ...]]
    versions: Mapping[str, str | None] | None
    said: frozenset[str]
    none_live: bool
    server_version: int

    @property
    def evidence(self) -> bool:
        """Whether anything is known about any worker's life."""
        return bool(self.sessions or self.said or self.none_live)

    def expected(self, executor: str | None, version: str | None) -> str | None:
        """The name that a session of the run's worker would have, as the server shows it."""
        return None if executor is None or version is None else self._shown(executor, version)

    def names(self, executor: str | None, version: str | None) -> list[str]:
        """The names of sessions that speak for a run of this executor and version being worked on."""
        if executor is None:
            return []
        if version is not None:
            return [name for name in (self._shown(executor, version),) if name in self.sessions]
        return [name for name, _ in self._of(executor)]

    def judge(self, executor: str | None, version: str | None, application: str | None) -> Verdict:
        """Does the worker of a run live that this executor claimed, at this version and for this application?"""
        if executor is None:
            return Verdict(False, "no_executor", "no executor is stamped on it, so none recovers it")
        if executor in self.said:
            return Verdict(True, None, f"the operator says that executor {executor} is live")
        if names := self.names(executor, version):
            return self._connected(names[0], version, application)
        others = sorted({found for _, found in self._of(executor)})
        if others:
            return Verdict(
                False,
                "version_gone",
                f"executor {executor} is connected at version {', '.join(others)} only, and recovers nothing of"
                f" version {version}",
            )
        if not self.evidence:
            return Verdict(
                None, None, f"no worker's session is visible, so whether executor {executor} lives is unknown"
            )
        wanted = self._shown(executor, version or "")
        return Verdict(
            False, "executor_gone", f"no session is called {wanted}{'…' * (version is None)}; {self._rest()}"
        )

    def shared_ids(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Executor ids (or whole names, where no version is known) connected from several hosts, with the hosts."""
        hosts: dict[str, set[str]] = {}
        for name, clients in self.sessions.items():
            hosts.setdefault(self._executor(name), set()).update(clients)
        yield from ((name, tuple(sorted(found))) for name, found in sorted(hosts.items()) if len(found) > 1)

    def waits(self, version: str | None) -> str | None:
        """What a queued run of this version waits for when no worker that would claim it is connected."""
        if not self.sessions or version is None:
            return None
        if any(len(name) == _LONGEST or name.endswith(f"_{version}") for name in self.sessions):
            return None
        return f"no worker of version {version} is connected: in a queue it waits for one"

    def _connected(self, name: str, version: str | None, application: str | None) -> Verdict:
        owner = (self.versions or {}).get(version or "")
        if owner is not None and application is not None and owner != application:
            return Verdict(
                False,
                "application_gone",
                f"session {name} is connected, but version {version} belongs to application {owner}, which recovers"
                f" nothing of {application}",
            )
        cut = " (a name cut at 63 bytes: it may be another's)" if len(name) == _LONGEST else ""
        return Verdict(True, None, f"session {name} is connected{cut}")

    def _of(self, executor: str) -> list[tuple[str, str]]:
        """Sessions of this executor, with the version in each name.

        `a_b` may be executor a at version b, or executor a_b: the versions that have launched decide, where known.
        """
        start = self._shown(executor, "")
        found: list[tuple[str, str]] = []
        for name in self.sessions:
            version = name.removeprefix(start)
            if not name.startswith(start) or not (version or len(name) == _LONGEST):
                continue
            longer = len(name) == _LONGEST or self.versions is None or version in self.versions
            if longer or not any(version.endswith(f"_{known}") for known in self.versions or ()):
                found.append((name, version or "unknown"))
        return found

    def _executor(self, name: str) -> str:
        whole = name.removeprefix(PREFIX)
        ends = [f"_{version}" for version in self.versions or () if whole.endswith(f"_{version}")]
        # The shortest known version leaves the longest id: two ids are told apart rather than taken for one.
        return whole.removesuffix(min(ends, key=len)) if ends and len(name) < _LONGEST else whole

    def _rest(self) -> str:
        if not self.sessions:
            return f"the operator says that {', '.join(sorted(self.said)) or 'none'} is live"
        count = len(self.sessions)
        shown = ", ".join(sorted(self.sessions)[:3]) + ("…" if count > 3 else "")
        return f"connected: {shown}"

    def _shown(self, executor: str, version: str) -> str:
        return shown_name(f"{PREFIX}{executor}_{version}", self.server_version)


def read(session: Session, place: Place, *, live: Iterable[str] = (), none_live: bool = False) -> Executors:
    """The workers that this database shows now; `live` and `none_live` are what the operator says."""
    sessions = {
        name: tuple(host for host in hosts if host is not None)
        for name, hosts in session.query(_SESSIONS)
        # With an empty version it is a CLI's or a client's, which runs nothing.
        if not name.endswith("_") or len(name) == _LONGEST
    }
    versions = None
    if place.versions is not None:
        table = place.versions
        rows = session.query(
            SQL("SELECT {name}, {application} FROM {table} AS v").format(
                name=table.read("v", "name", "text"),
                application=table.read("v", "application", "text"),
                table=table.sql,
            ),
            needs=table.needs("SELECT"),
        )
        versions = dict(rows)
    return Executors(sessions, versions, frozenset(live), none_live, session.server_version)


def shown_name(name: str, server_version: int) -> str:
    r"""`name` as the server shows it: from 16 on it writes what is not printable ASCII as `\xNN`, before as `?`."""
    text = "".join(
        chr(byte) if 32 <= byte < 127 else (f"\\x{byte:02x}" if server_version >= 160_000 else "?")
        for byte in name.encode("utf-8", "surrogateescape")
    )
    return text[:_LONGEST]
