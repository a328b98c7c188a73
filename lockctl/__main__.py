"""`python -m lockctl` and the console script."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line and end the process with the contract's exit code."""
    # A one-shot command is mostly imports: they make no garbage worth looking for.
    gc.disable()
    from lockctl.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
