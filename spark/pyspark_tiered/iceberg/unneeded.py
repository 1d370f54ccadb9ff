"""Chooses the files of Iceberg's metadata that no kept version names. Pure.

The name of each file begins with the snapshot that made it. A file that a version leaves out never comes back. So of
the files before the oldest kept snapshot only those are needed that it names itself: its list, manifests and deletes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

EVERY = 100
"""Versions between two looks for such files."""

_NAME = re.compile(r"(?:v(\d+)\.metadata\.json|(?:snap|m|d)-(\d+)-[0-9a-f-]+\.(?:avro|parquet))")


def choose_unneeded(names: Iterable[str], oldest: int, needed: Collection[str]) -> list[str]:
    """Returns the names of files to delete. `oldest` is the oldest kept snapshot, `needed` what it names."""
    found = []
    for name in names:
        made = _NAME.fullmatch(name)
        if made and int(made[1] or made[2]) < oldest and name not in needed:
            found.append(name)
    return found
