"""Fixtures of the tests with the real software of others; `make test-real` runs these tests."""

from __future__ import annotations

from tests.support.sdk import dbos_server, sdk_new, sdk_old

__all__ = ["dbos_server", "sdk_new", "sdk_old"]
