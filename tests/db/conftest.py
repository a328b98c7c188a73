"""Fixtures of the tests that call operations."""

from tests.support.fixtures import place

__all__ = ["place"]
