"""`python -m lockctl` and the console script."""

from __future__ import annotations

import gc
import os
import signal
import sys


def main() -> None:
    """Run the command line and end the process with the contract's exit code."""
    # Until the command line catches signals itself, an interrupt ends the process without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A one-shot command is mostly imports, which make no garbage worth looking for; one that runs for days still does.
    gc.set_threshold(200_000)
    from lockctl.cli.app import run

    code = run(sys.argv[1:])
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)  # the work is done, and its exit code stands
    # Everything is closed and written: taking the interpreter apart would be a sixth of a one-shot command's time.
    os._exit(code)


if __name__ == "__main__":
    main()
