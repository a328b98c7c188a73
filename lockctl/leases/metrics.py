"""What a sweep did, as a Prometheus text file for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable

from lockctl.errors import LockctlError
from lockctl.records import SweepResult

_COUNTS = {
    "swept": "Lapsed lock rows that the last sweep deleted (or would have, in a dry run).",
    "skipped": "Lapsed lock rows that the last sweep left because another session had them locked.",
}


def write(path: str, results: Iterable[SweepResult]) -> None:
    """Write the file atomically (beside it, then renamed). Raises LockctlError when it can't be written."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    gauges = {
        name: Gauge(f"lockctl_sweep_{name}_rows", text, ["table", "relation", "dry_run"], registry=registry)
        for name, text in _COUNTS.items()
    }
    Gauge(
        "lockctl_sweep_last_success_timestamp_seconds", "When the last sweep ended without an error.", registry=registry
    ).set_to_current_time()
    for result in results:
        labels = (result.table, result.relation, str(result.dry_run).lower())
        gauges["swept"].labels(*labels).set(result.swept)
        gauges["skipped"].labels(*labels).set(result.skipped)
    try:
        write_to_textfile(path, registry)
    except OSError as error:
        raise LockctlError(f"can't write the metrics file {path}: {error.strerror or error}") from None
