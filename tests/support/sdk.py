"""DBOS's real SDK, installed with npm, and a server on which its migrations run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import network
from tests.support.network import Network

PACKAGE = "@dbos-inc/dbos-sdk"
OLD, NEW = "4.25.14", "4.27.6"
OLD_VERSION, NEW_VERSION = 69, 108
"""The versions of the system schema that they make (measured)."""

# DBOS's early migrations want this extension, which the wheel with the embedded server's binaries has not.
_EXTENSION = "uuid-ossp.control"


@dataclass(frozen=True, slots=True)
class Sdk:
    """One version of the SDK in a folder of its own."""

    version: str
    folder: Path

    @property
    def dbos(self) -> str:
        """Its command."""
        return str(self.folder / "node_modules" / ".bin" / "dbos")

    def schema(self, url: str) -> list[str]:
        """The words of the command that migrates."""
        return [self.dbos, "schema", url]

    def printed(self, start: int) -> str:
        """The SQL of the migrations from number `start` on."""
        return self._run("schema", "--print-migrations", str(start))

    def migrate(self, url: str) -> None:
        """Run its own migrations, bare."""
        self._run("schema", url)

    def _run(self, *words: str) -> str:
        ended = subprocess.run([self.dbos, *words], capture_output=True, text=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


def install(version: str, folder: Path) -> Sdk:
    """Install the SDK with npm."""
    (folder / "package.json").write_text('{"private": true}\n')
    words = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", f"{PACKAGE}@{version}"]
    ended = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, f"npm can't install {PACKAGE} {version}:\n{ended.stdout}{ended.stderr}"
    return Sdk(version, folder)


def contrib() -> Path:
    """The folder of server binaries that have the contrib modules; the test is skipped without one."""
    chosen = os.environ.get("LOCKCTL_PG_BIN")
    candidates = [Path(chosen)] if chosen else sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"), reverse=True)
    for folder in candidates:
        config = folder / "pg_config"
        if not os.access(config, os.X_OK):
            continue
        shared = subprocess.run([config, "--sharedir"], capture_output=True, text=True, check=True).stdout.strip()
        if Path(shared, "extension", _EXTENSION).exists() and os.access(folder / "initdb", os.X_OK):
            return folder
    pytest.skip(
        "no PostgreSQL with uuid-ossp was found (Debian: apt-get install postgresql, or name its folder in"
        " LOCKCTL_PG_BIN): the tests with DBOS's real SDK need it"
    )


@contextmanager
def running() -> Iterator[Network]:
    """A server with the contrib modules, on TCP, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKCTL_PG_BIN", str(contrib()))
        with network.running() as net:
            yield net


@pytest.fixture(scope="session")
def sdk_old(tmp_path_factory: pytest.TempPathFactory) -> Sdk:
    return install(OLD, tmp_path_factory.mktemp("sdk"))


@pytest.fixture(scope="session")
def sdk_new(tmp_path_factory: pytest.TempPathFactory) -> Sdk:
    return install(NEW, tmp_path_factory.mktemp("sdk"))


@pytest.fixture(scope="session")
def dbos_server() -> Iterator[Network]:
    with running() as net:
        yield net
