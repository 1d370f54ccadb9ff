"""The rows of the small files that this process wrote last, so that a joining does not read and decode them again.

Files are never changed, and each has a name of its own, so rows that are kept here are those of the file. Bounded by
bytes: the oldest go first, and their files are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow

FILE_BYTES_MAX = 4 << 20
"""Bytes of the rows of one file in memory."""
BYTES_MAX = 32 << 20


class RecentRows:
    """Rows by the name of their file."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._rows: dict[str, pyarrow.Table] = {}

    def add(self, name: str, rows: pyarrow.Table) -> None:
        """Keeps the rows of a new file. The oldest rows beyond the bound go."""
        self._rows[name] = rows
        self._bytes += rows.nbytes
        while self._bytes > self._bytes_max:
            self.take(next(iter(self._rows)))

    def take(self, name: str) -> pyarrow.Table | None:
        """Returns the rows of a file, and keeps them no longer. Returns None if they are not here."""
        rows = self._rows.pop(name, None)
        if rows is not None:
            self._bytes -= rows.nbytes
        return rows
