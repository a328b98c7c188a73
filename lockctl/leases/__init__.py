"""Leases in lock tables: shapes, statements, and the operations on one row, on many, and on lapsed ones."""
