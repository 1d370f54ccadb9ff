"""Chooses the files of a table's folder that no kept version needs, as VACUUM of Delta does. Pure.

The newest version needs its files and their deletion vectors. So do the versions within the retention: they need the
files that were removed since. Any other file goes once it is older than the retention. Files of changes are named by
their commits alone, so their own age decides.

Only names that Delta's writers give are chosen, right in the table's folder and in that of changes. Folders of
partition columns are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from pyspark_tiered.delta.deletion_vectors import VectorFile, locate_vector
from pyspark_tiered.delta.delta_state import RETENTION, TOMBSTONE_MS, TableState
from pyspark_tiered.delta.log_cleanup import parse_interval
from pyspark_tiered.delta.orphans import ORPHAN_MS, StoredFile
from tiered.errors import Code, Refused

CHANGES = "_change_data"
"""The folder of the change data feed."""
BEGINNINGS = ("part-", ".part-", "deletion_vector_", ".deletion_vector_")
"""Beginnings of the names that are looked at right in the table's folder."""

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DATA = re.compile(rf"part-.*\.parquet|deletion_vector_{_UUID}\.bin")
_CHANGE = re.compile(r".*\.parquet")
_UNFINISHED = re.compile(r"\..*\.tmp")


def retention_ms(properties: Mapping[str, str]) -> int:
    """Returns the time for which a table keeps removed files. Raises `Refused` for a form that nobody here knows.

    It is two days at least: a load may still commit a file of one day.
    """
    if RETENTION not in properties:
        return TOMBSTONE_MS
    found = parse_interval(properties[RETENTION])
    if found is None:
        raise Refused(
            Code.INVALID_REQUEST,
            f"{RETENTION} of the table is {properties[RETENTION]!r}, and no interval such as `interval 7 days`",
        )
    return max(found, ORPHAN_MS)


def needed_files(state: TableState, url: str, since_ms: int) -> set[str]:
    """Returns the paths of the files that the newest version needs, and those within the retention.

    Raises `Refused` for a deletion vector elsewhere, and `Corrupt`.
    """
    removed = (each for each in state.tombstones.values() if int(each.get("deletionTimestamp") or 0) >= since_ms)
    found: set[str] = set()
    for action in (*state.files.values(), *removed):
        found |= _files_of(action, url)
    return found


def _files_of(action: Mapping[str, Any], url: str) -> set[str]:
    path = unquote(str(action["path"]))
    found = {path, path.rpartition("/")[2]}  # a table may name its own file by the whole path
    vector = action.get("deletionVector")
    place = locate_vector(vector, url) if vector else b""
    return found | {place.path} if isinstance(place, VectorFile) else found


def choose_unneeded(stored: Iterable[StoredFile], needed: set[str], since_ms: int) -> list[StoredFile]:
    """Returns the files to delete of those right in the table's folder that are older than the retention."""
    found = []
    for file in stored:
        is_unneeded = _DATA.fullmatch(file.name) and file.name not in needed
        if file.modified_ms < since_ms and (is_unneeded or _UNFINISHED.fullmatch(file.name)):
            found.append(file)
    return found


def choose_changes(stored: Iterable[StoredFile], since_ms: int) -> list[StoredFile]:
    """Returns the files to delete of those in the folder of changes."""
    return [
        file
        for file in stored
        if file.modified_ms < since_ms and (_CHANGE.fullmatch(file.name) or _UNFINISHED.fullmatch(file.name))
    ]
