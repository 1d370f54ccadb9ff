"""Chooses the files in a table's folder that loads left behind and no version names. Pure.

A load writes its files before a commit names them, so a kill in between leaves orphans. Such a file may also belong to
a load in flight. So a load commits no file that is older than a day, and only files older than two days are orphans.

A file that was committed is in the table, or among the removed files, whose names the log keeps for a week. Therefore
older files are left alone: an older version may name them. `vacuum.py` knows what to do with those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

HOUR_MS = 3600 * 1000
COMMITTED_WITHIN_MS = 24 * HOUR_MS
"""Age of a file up to which a load commits it."""
ORPHAN_MS = 48 * HOUR_MS
NAMED_FOR_MS = 144 * HOUR_MS
"""Age up to which the state of the table names every file that was ever committed. The log keeps names a day longer."""

_FILE = r"part-(?:\d{5}-\d{20}|shared-\d{5}|joined-\d{5})-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.zstd\.parquet"
_LOADED = re.compile(_FILE)
_UNFINISHED = re.compile(rf"\.{_FILE}\.tmp")


class StoredFile(NamedTuple):
    """A file in a table's folder."""

    name: str
    modified_ms: int
    size: int = 0


def choose_orphans(stored: Iterable[StoredFile], named: Collection[str], now_ms: int) -> list[str]:
    """Returns the names of files to remove. `named` are the paths of the table's files and of removed ones.

    Only files under the names that loads give are chosen.
    """
    found = []
    for name, modified_ms, _ in stored:
        age_ms = now_ms - modified_ms
        is_orphan = _LOADED.fullmatch(name) and age_ms <= NAMED_FOR_MS and name not in named
        if age_ms > ORPHAN_MS and (is_orphan or _UNFINISHED.fullmatch(name)):
            found.append(name)
    return found


def is_due(last_ms: int | None, now_ms: int) -> bool:
    """True if the last look was on an earlier day. The first load of a day that commits looks for orphans."""
    return last_ms is not None and last_ms // (24 * HOUR_MS) < now_ms // (24 * HOUR_MS)


def is_too_old(modified_ms: Iterable[int], now_ms: int) -> bool:
    """True if one of these files may not be committed any more: it could be taken for an orphan."""
    return any(each < now_ms - COMMITTED_WITHIN_MS for each in modified_ms)
