"""A schema of the registry that no column can be made for. Pure."""

from __future__ import annotations

SCHEMA_BYTES_MAX = 2 << 20
"""Characters of a schema and of all that it refers to."""


class UnreadableSchema(Exception):
    """A schema cannot be read, and why."""
