"""What the tests stand on, one thing a module; fixtures come from tests/conftest.py."""
