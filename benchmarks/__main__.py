"""`python -m benchmarks [PART...]`: run the benchmarks on a server of their own and write `results.md`."""

from __future__ import annotations

import compileall
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import LOCKCTL, Figure
from lockctl import embedded

PARTS = ("verbs", "holding", "migrating")
RESULTS = Path(__file__).parent / "results.md"


def main(chosen: list[str]) -> int:
    """Run the chosen parts (all that there are by default); 0 whether or not an aim was met: results.md says so."""
    parts = chosen or [part for part in PARTS if find_spec(f"benchmarks.{part}")]
    sections: dict[str, list[Figure]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="lockctl-bench-") as folder,
        embedded.start(Path(folder) / "postgres", settings={"max_wal_size": "4GB"}) as server,
    ):
        # An installed lockctl is compiled; a checkout is after its first run, unless Python may not write.
        compileall.compile_dir(str(RESULTS.parent.parent / "lockctl"), quiet=2)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LOCKCTL_"))}
        environment = {**clean, "LOCKCTL_DSN": server.conninfo, "XDG_CONFIG_HOME": folder}
        upgrade = (*LOCKCTL, "migrate", "upgrade", "heads", "-q")
        subprocess.run(upgrade, env=environment, check=True, capture_output=True)
        psql = str(server.bin_dir / "psql")
        for part in parts:
            print(f"{part}: running", file=sys.stderr)
            sections[part] = import_module(f"benchmarks.{part}").figures(server.conninfo, psql, environment)
    text = _markdown(sections)
    print(text)
    if not chosen:
        RESULTS.write_text(text, encoding="utf-8")
    return 0


def _markdown(sections: dict[str, list[Figure]]) -> str:
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [
        "# Benchmarks",
        "",
        "Made by `make bench`: each figure beside a peer in the same run, pairs in turn, medians. Compare the ratios;",
        f"the seconds are those of one machine ({where}, {datetime.now(UTC):%Y-%m-%d}).",
    ]
    for part, figures in sections.items():
        lines += ["", f"## {part}", "", "| what | lockctl | peer | ratio | aim | met |", "|---|---|---|---|---|---|"]
        lines += [figure.row() for figure in figures]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
