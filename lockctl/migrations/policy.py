"""How patient a migration is: the bounds of each attempt, how often it is made, and what is done about a blocker."""

from __future__ import annotations

from dataclasses import dataclass, field

from lockctl.errors import UsageError

ON_BLOCK = ("report", "cancel", "terminate")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of an attempt in milliseconds: of the waits for locks in one transaction, each and all together, and of
    each statement (None: no bound).

    `index_lock_timeout_ms` is for a statement outside a transaction (CREATE INDEX CONCURRENTLY), which makes nobody
    wait while it waits itself; None leaves it to the deadline of the policy.
    """

    lock_timeout_ms: int = 5_000
    statement_timeout_ms: int | None = None
    index_lock_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """The options that all migrate commands share; spans in milliseconds, defaults as in the contract.

    `retries` and `deadline_ms` bound the attempts of all steps together by time and of each step by number; both say
    when no further attempt begins. `runner_wait_ms` is the time to wait for the runner's lock and for
    `advisory_locks` (None: as long as the deadline). `on_block` `cancel` or `terminate` acts on the root of a chain
    of blockers whose transaction is at least `min_blocker_age_ms` old. `show_query`: what blockers run may be told.

    Raises UsageError for a combination without meaning.
    """

    limits: Limits = field(default_factory=Limits)
    retries: int = 10
    deadline_ms: int = 600_000
    runner_wait_ms: int | None = None
    advisory_locks: tuple[str, ...] = ()
    on_block: str = "report"
    min_blocker_age_ms: int | None = None
    show_query: bool = True

    def __post_init__(self) -> None:
        limits = self.limits
        if limits.statement_timeout_ms is not None and limits.statement_timeout_ms <= limits.lock_timeout_ms:
            raise UsageError(
                "--statement-timeout must be longer than --lock-timeout",
                hint="the other way round a wait for a lock would end as a slow statement, and nobody would be named",
            )
        if self.retries < 0:
            raise UsageError("--retries can't be negative")
        if self.on_block not in ON_BLOCK:
            raise UsageError(f"--on-block is one of {', '.join(ON_BLOCK)}")
        if self.on_block != "report" and self.min_blocker_age_ms is None:
            raise UsageError(
                f"--on-block {self.on_block} needs --min-blocker-age",
                hint="say how old a transaction must be before it may be ended, for example --min-blocker-age 10m",
            )

    @property
    def runner_wait(self) -> int:
        """How long to wait for the runner's lock, in milliseconds."""
        return self.deadline_ms if self.runner_wait_ms is None else self.runner_wait_ms
