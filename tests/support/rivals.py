"""Rivals for one lease, each in a thread of its own, and a count of how many are inside at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

Try = Callable[[], Callable[[], object] | None]
"""One attempt: gives what releases the lease, or None when it was denied."""

Party = Callable[[], AbstractContextManager[Try]]
"""Opens what a rival works with, in its own thread."""


@dataclass
class Critical:
    """What a lease protects: counts who is inside at once."""

    inside: int = 0
    entered: dict[str, int] = field(default_factory=dict)
    worst: int = 0
    guard: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def section(self, who: str) -> Iterator[None]:
        with self.guard:
            self.inside += 1
            self.worst = max(self.worst, self.inside)
            self.entered[who] = self.entered.get(who, 0) + 1
        try:
            time.sleep(random.uniform(0, 0.004))
            yield
        finally:
            with self.guard:
                self.inside -= 1


def compete(critical: Critical, parties: dict[str, list[Party]], rounds: int) -> None:
    """Every party (it gives a `Try`) in a thread of its own, until each kind of them was in often enough."""
    failures: list[BaseException] = []
    end = time.monotonic() + 60

    def enough() -> bool:
        return all(critical.entered.get(who, 0) >= rounds for who in parties)

    def work(who: str, party: Party) -> None:
        try:
            with party() as attempt:
                while not enough() and not failures:
                    assert time.monotonic() < end, f"starved: {critical.entered}"
                    release = attempt()
                    if release is not None:
                        with critical.section(who):
                            pass
                        release()
                    # Whoever has just been in lets others in.
                    time.sleep(random.uniform(0, 0.004 if release is None else 0.02))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who, party)) for who, some in parties.items() for party in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@contextmanager
def beside(party: Party) -> Iterator[None]:
    """One attempt of `party` after another, until the body ends."""
    done = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with party() as attempt:
                while not done.is_set():
                    attempt()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert failures == []
