"""What operations return: frozen records, whose field names are the JSON of the contract.

A record holds plain values (str, int, bool, None, tuples and other records). Times are UTC text with
microseconds and a `Z`; spans are whole milliseconds. A record's class is made when it is first asked for: each
costs most of a millisecond of a command's start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockctl.records.leases import LeaseResult, LockRow
    from lockctl.records.listings import Summary, SweepResult, TableInfo
    from lockctl.records.sessions import Blocker

__all__ = ["Blocker", "LeaseResult", "LockRow", "Summary", "SweepResult", "TableInfo", "shown", "to_json"]

_MODULES = {
    "LeaseResult": "leases",
    "LockRow": "leases",
    "Summary": "listings",
    "SweepResult": "listings",
    "TableInfo": "listings",
    "Blocker": "sessions",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"lockctl.records.{_MODULES[name]}"), name)


def shown(field: str) -> str:
    """The name of a field in every output: `class_` and the like are `class`, which Python keeps for itself."""
    return field.removesuffix("_")


def to_json(value: Any) -> Any:
    """`value` as what a JSON encoder takes: records become objects with their fields in order."""
    if hasattr(value, "__dataclass_fields__"):
        return {shown(name): to_json(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    return value
