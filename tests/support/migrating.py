"""Steps of plain SQL for the engine, and what it told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lockctl.activity.blockers import sample
from lockctl.db import Database
from lockctl.migrations.attempts import Attempt
from lockctl.migrations.engine import Engine, Progress, Step
from lockctl.migrations.policy import Policy
from lockctl.migrations.records import Event


@dataclass
class Heard:
    """Every event, in order; `react` is called with each, to do something at that moment."""

    react: Callable[[Event], None] = lambda event: None
    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.react(event)

    def names(self) -> list[str]:
        """Without the progress, which comes as often as the clock has it."""
        return [event.event for event in self.events if event.event != "progress"]

    def all(self, name: str) -> list[Event]:
        return [event for event in self.events if event.event == name]


def sql_step(name: str, *statements: str) -> Step:
    """A step that is one transaction."""

    def run(attempt: Attempt) -> None:
        with attempt.transaction():
            for statement in statements:
                attempt.execute(statement)

    return Step(name, f"step {name}", run)


def alone_step(name: str, *statements: str) -> Step:
    """A step whose statements stand outside a transaction."""

    def run(attempt: Attempt) -> None:
        for statement in statements:
            attempt.alone(statement)

    return Step(name, f"step {name}", run)


def run(dsn: str, steps: Sequence[Step], policy: Policy, heard: Heard | None = None) -> Progress:
    """The engine on a session of its own."""
    database = Database(dsn, "the test", "migrate apply", lock_timeout_ms=3_000, sampler=sample)
    with database.connect(raw_times=False) as session:
        return Engine(session, policy, heard or Heard()).run(steps)
