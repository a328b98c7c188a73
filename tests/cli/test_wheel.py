"""The wheel is the whole program: installed into an empty environment it runs, and migrates with what it carries."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lockctl import __version__
from lockctl.migrations.location import find
from tests.support.cli import Result, run_lockctl

_CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout with what is installed here."""
    folder = tmp_path_factory.mktemp("dist")
    # By the back end itself and from a folder of its own: nothing is fetched, and nothing is left in the checkout.
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory"]
    subprocess.run([*build, folder], cwd=_CHECKOUT, check=True, capture_output=True, timeout=120)
    (built,) = folder.glob("lockctl-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command `lockctl` of an environment that has the wheel and its dependencies, and not this checkout."""
    home = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", home], check=True, capture_output=True, timeout=120)
    python = home / "bin" / "python"
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([python, *pip, wheel], check=True, capture_output=True, timeout=120)
    # The dependencies are those of this environment. A folder named in a .pth brings its packages, but no .pth of its
    # own is read, so the editable install of the checkout stays out.
    here = sysconfig.get_path("purelib")
    (site,) = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{here}\n")
    return home / "bin" / "lockctl"


@pytest.fixture
def lockctl(installed: Path, tmp_path: Path) -> Callable[..., Result]:
    def run(*args: str, dsn: str | None = None) -> Result:
        return run_lockctl(*args, dsn=dsn, cwd=tmp_path, command=(str(installed),))

    return run


def test_it_carries_the_migrations_and_nothing_of_the_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = find().scripts
    revisions = {f"lockctl/_alembic/versions/{path.name}" for path in (source / "versions").glob("*.py")}
    assert revisions
    assert revisions | {"lockctl/_alembic.ini", "lockctl/_alembic/env.py", "lockctl/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"lockctl", f"lockctl-{__version__}.dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_it_is_not_the_checkout_that_runs(installed: Path) -> None:
    script = "import lockctl; print(lockctl.__file__)"
    done = subprocess.run([installed.parent / "python", "-c", script], cwd="/", capture_output=True, check=True)
    assert Path(done.stdout.decode().strip()).is_relative_to(installed.parents[1])


def test_it_runs(lockctl: Callable[..., Result]) -> None:
    done = lockctl("--version")
    assert (done.returncode, done.stdout.split()[-1]) == (0, __version__)


def test_it_migrates_an_empty_database(lockctl: Callable[..., Result], empty_dsn: str) -> None:
    assert lockctl("migrate", "verify", dsn=empty_dsn).returncode == 8
    up = lockctl("migrate", "upgrade", "heads", "--format", "json", dsn=empty_dsn)
    assert up.returncode == 0, up.stderr
    assert up.json()["outcome"] == "done"
    now = lockctl("migrate", "current", "--format", "json", dsn=empty_dsn)
    assert now.returncode == 0
    assert {row["is_head"] for row in now.json()} == {True}
    token = lockctl("acquire", "ffdb_locks", "nightly", dsn=empty_dsn)
    assert token.returncode == 0, token.stderr
    assert lockctl("check", "ffdb_locks", "nightly", dsn=empty_dsn).returncode == 0
