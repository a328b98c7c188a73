"""Where runs and work are kept, as data: a source is a set of tables and what their columns mean.

`run_store` has the meaning of the store slot's methods on runs, leases and work; `dbos` is DBOS's system schema. How
a run is known to have lost its worker is told by what a source has: a lease of its own, or sessions named after the
executors. A deployment adds sources in `lockctl.toml`. A column that is None is one that the source does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from lockctl.errors import UsageError


class RunTable(NamedTuple):
    """The table of runs. `running`: the statuses in which a worker must be there; `ended`: those that are final.

    `queued`, `parked`, `failed`, `cancelled` and `buried` are statuses too; `resume_kind` is the kind of work that has
    a run taken up again, whose key is that kind, a colon and the run's id. `dequeued_at`, `deduplication` and `owner`
    are what a queue's claim sets and a return to it clears; `owner` only where there is a `creator` beside it.
    """

    relation: str
    id: str
    status: str
    started_at: str
    running: tuple[str, ...]
    ended: tuple[str, ...]
    queued: str | None = None
    parked: str | None = None
    failed: str | None = None
    cancelled: str | None = None
    buried: str | None = None
    resume_kind: str | None = None
    name: str | None = None
    updated_at: str | None = None
    ended_at: str | None = None
    outcome: str | None = None
    cancel_requested_at: str | None = None
    cancel_reason: str | None = None
    executor: str | None = None
    version: str | None = None
    application: str | None = None
    queue: str | None = None
    attempts: str | None = None
    deadline_at: str | None = None
    dequeued_at: str | None = None
    deduplication: str | None = None
    owner: str | None = None
    creator: str | None = None
    input: str | None = None


class LeaseTable(NamedTuple):
    """The leases of runs; it may be the table of runs itself. No row, or neither token nor expiry: never taken."""

    relation: str
    run_id: str
    token: str
    expires_at: str


class WorkTable(NamedTuple):
    """The queue of work. `buried` marks what gave up: a time that is set, or a boolean that is true.

    `claim`, `claimed_until` and `claimed_armed` are set together; `armed` counts how often the row was enqueued.
    `run_in_payload` is the member of the JSON payload that names the run which a row belongs to.
    """

    relation: str
    id: str
    kind: str
    key: str
    due_at: str
    buried: str
    attempts: str | None = None
    payload: str | None = None
    claim: str | None = None
    claimed_until: str | None = None
    claimed_armed: str | None = None
    armed: str | None = None
    buried_at: str | None = None
    reason: str | None = None
    updated_at: str | None = None
    run_in_payload: str | None = None


class StepTable(NamedTuple):
    """The steps that a run has recorded; a row called `sleep` has a completion in the future while the run sleeps."""

    relation: str
    run_id: str
    number: str
    name: str
    started_at: str
    completed_at: str
    error: str | None = None
    sleep: str | None = None


class VersionTable(NamedTuple):
    """The application versions that launched, and the application that each belongs to (null: anyone's)."""

    relation: str
    name: str
    application: str | None = None


class InputTable(NamedTuple):
    """Where the inputs of runs are kept when not beside the run."""

    relation: str
    run_id: str
    input: str


class Source(NamedTuple):
    """A source of runs and work. Without `leases` a worker's life is told by its sessions (see `runs.executors`).

    `internal_queue` is the queue of runs that have none; `component` names the migrations that create the tables.
    """

    name: str
    runs: RunTable
    leases: LeaseTable | None = None
    work: WorkTable | None = None
    steps: StepTable | None = None
    versions: VersionTable | None = None
    inputs: InputTable | None = None
    internal_queue: str | None = None
    component: str | None = None


RUN_STORE = Source(
    name="run_store",
    component="runs",
    runs=RunTable(
        relation="run_store.runs",
        id="id",
        name="movement",
        status="status",
        running=("running",),
        ended=("completed", "failed"),
        parked="parked",
        failed="failed",
        resume_kind="resume_timer",
        started_at="started_at",
        updated_at="updated_at",
        ended_at="ended_at",
        outcome="outcome",
        cancel_requested_at="cancel_requested_at",
        cancel_reason="cancel_reason",
        input="input",
    ),
    leases=LeaseTable(relation="run_store.leases", run_id="run_id", token="token", expires_at="expires_at"),
    work=WorkTable(
        relation="run_store.work",
        id="id",
        kind="kind",
        key="key",
        payload="payload",
        due_at="due_at",
        attempts="attempts",
        claim="claim",
        claimed_until="claimed_until",
        claimed_armed="claimed_armed",
        armed="armed",
        buried="buried_at",
        buried_at="buried_at",
        reason="buried_reason",
        updated_at="updated_at",
        run_in_payload="runId",
    ),
)

# Columns and meaning as @dbos-inc/dbos-sdk 4.25.14 (schema 69), 4.27.6 (108) and 5.3.0 (123) make them; what a schema
# lacks (application_name before 4.26, workflow_input before 5) is looked up and left out.
DBOS = Source(
    name="dbos",
    runs=RunTable(
        relation="dbos.workflow_status",
        id="workflow_uuid",
        name="name",
        status="status",
        running=("PENDING",),
        ended=("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"),
        queued="ENQUEUED",
        cancelled="CANCELLED",
        buried="MAX_RECOVERY_ATTEMPTS_EXCEEDED",
        started_at="created_at",
        updated_at="updated_at",
        ended_at="completed_at",
        executor="executor_id",
        version="application_version",
        application="application_name",
        queue="queue_name",
        attempts="recovery_attempts",
        deadline_at="workflow_deadline_epoch_ms",
        dequeued_at="started_at_epoch_ms",
        deduplication="deduplication_id",
        owner="owner_xid",
        creator="creator_xid",
        input="inputs",
    ),
    steps=StepTable(
        relation="dbos.operation_outputs",
        run_id="workflow_uuid",
        number="function_id",
        name="function_name",
        started_at="started_at_epoch_ms",
        completed_at="completed_at_epoch_ms",
        error="error",
        sleep="DBOS.sleep",
    ),
    versions=VersionTable(relation="dbos.application_versions", name="version_name", application="application_name"),
    inputs=InputTable(relation="dbos.workflow_input", run_id="workflow_uuid", input="inputs"),
    internal_queue="_dbos_internal_queue",
)

BUILT_IN: tuple[Source, ...] = (RUN_STORE, DBOS)


class Sources(NamedTuple):
    """The built-in sources and those of the configuration, by name."""

    known: Mapping[str, Source]

    @classmethod
    def of(cls, configured: Iterable[Source] = ()) -> Sources:
        """The sources with `configured` added; one with a built-in name replaces it."""
        return cls({source.name: source for source in (*BUILT_IN, *configured)})

    def get(self, name: str) -> Source:
        """The source called `name`. Raises UsageError that lists the known names."""
        try:
            return self.known[name]
        except KeyError:
            raise UsageError(
                f"there is no source of runs called {name!r}",
                hint=f"known: {', '.join(self.known)}; lockctl.toml adds others ([sources.NAME])",
            ) from None
