"""lockctl: inspect and change PostgreSQL lock rows, find lapsed runs, migrate under a lock timeout."""

__version__ = "0.1.0"
