"""Where the alembic environment is: at the top of a checkout, or inside an installed wheel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockctl.errors import LockctlError


@dataclass(frozen=True, slots=True)
class Location:
    """`ini` is alembic's configuration file, `scripts` the folder with env.py and versions/."""

    ini: Path
    scripts: Path


def find(package: Path | None = None) -> Location:
    """The alembic environment that belongs to this lockctl (`package` is its folder, for tests).

    The wheel carries it as `lockctl/_alembic` and `lockctl/_alembic.ini` (pyproject.toml, force-include). It is
    looked for first: beside an installed lockctl lies `alembic`, the library. Raises LockctlError without either.
    """
    folder = package or Path(__file__).resolve().parent.parent
    top = folder.parent
    installed = Location(folder / "_alembic.ini", folder / "_alembic")
    for place in (installed, Location(top / "alembic.ini", top / "alembic")):
        if place.ini.is_file() and (place.scripts / "env.py").is_file():
            return place
    raise LockctlError(
        f"the migrations are missing from this installation ({folder})", hint="install lockctl again from a wheel"
    )
