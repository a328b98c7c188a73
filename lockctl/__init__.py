"""lockctl: inspect and change PostgreSQL lock rows, find lapsed runs, and migrate under a lock timeout.

For scripts there is `PlanLock`: a lease as a class.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockctl.plan_lock import PlanLock, Retry

__version__ = "0.1.0"
__all__ = ["PlanLock", "Retry", "__version__"]


def __getattr__(name: str) -> Any:
    # A command starts with `import lockctl`: what imports psycopg comes only to whoever asks for it.
    if name in ("PlanLock", "Retry"):
        from lockctl import plan_lock

        return getattr(plan_lock, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
