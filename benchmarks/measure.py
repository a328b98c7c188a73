"""How the benchmarks measure: processes timed from outside, pairs taken in turn, medians compared."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOCKCTL = (sys.executable, "-m", "lockctl")


@dataclass(frozen=True, slots=True)
class Spent:
    """What one process took: wall-clock seconds, and its peak resident memory in MB."""

    seconds: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the results: ours and the peer's, their ratio, and what was aimed at."""

    name: str
    ours: str
    peer: str
    ratio: float | None
    aim: str
    met: bool | None

    def row(self) -> str:
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        met = {True: "yes", False: "no", None: ""}[self.met]
        return f"| {self.name} | {self.ours} | {self.peer} | {ratio} | {self.aim} | {met} |"


def spend(words: Sequence[str], environment: Mapping[str, str], *, to: Path | None = None, expect: int = 0) -> Spent:
    """Run a process and measure it; its output goes to the file `to`, or nowhere."""
    with open(to or os.devnull, "wb") as out:  # noqa: PTH123 (os.devnull is no path of ours)
        started = time.perf_counter()
        child = subprocess.Popen(words, env=dict(environment), stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != expect:
        raise RuntimeError(f"{' '.join(words)}: exit code {child.returncode}")
    return Spent(seconds, usage.ru_maxrss / 1024)


def in_turn(rounds: int, ours: Callable[[int], Spent], peer: Callable[[int], Spent]) -> tuple[list[Spent], list[Spent]]:
    """`rounds` pairs, one after the other, so that whatever else the machine does hits both alike."""
    mine, theirs = [], []
    for number in range(rounds):
        theirs.append(peer(number))
        mine.append(ours(number))
    return mine, theirs


def median(values: Sequence[Spent]) -> float:
    return statistics.median(value.seconds for value in values)


def compare(name: str, ours: Sequence[Spent], peer: Sequence[Spent], peer_name: str, aim: float) -> Figure:
    """The figure of a ratio that should not be above `aim`."""
    mine, theirs = median(ours), median(peer)
    ratio = mine / theirs
    return Figure(name, _seconds(mine), f"{_seconds(theirs)} ({peer_name})", ratio, f"≤ {aim}", ratio <= aim)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
