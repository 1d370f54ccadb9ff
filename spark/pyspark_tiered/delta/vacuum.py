"""Removes the files of a table that no kept version needs, and the part of its log that has expired.

The folder is listed before the log is read: a file that a commit names in between is needed. A clock says what is old.
That of this process may be days ahead, so a small object is written first, and the earlier of both clocks counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from pyspark_tiered.delta import delta_state, log_cleanup, orphans, table_features
from pyspark_tiered.delta.log_folder import LOG, TableFolder
from pyspark_tiered.delta.rebuild_folder import finished_folders
from pyspark_tiered.delta.table_log import TableLog, explain_access
from pyspark_tiered.delta.vacuum_plan import (
    BEGINNINGS,
    CHANGES,
    choose_changes,
    choose_unneeded,
    needed_files,
    retention_ms,
)
from tiered.errors import Code, Refused, Unavailable

PATH = "_vacuumed/last.json"
VERSION = 1
"""Version of the object."""
DELETED_AT_ONCE = 1000


class VacuumResult(NamedTuple):
    """The files that a vacuum removed, or would remove, their bytes, and the files of the log."""

    files: int
    bytes: int
    log_files: int


def vacuum(
    log: TableLog, *, dry_run: bool = False, on_files: Callable[[int, int], None] = lambda *_: None
) -> VacuumResult:
    """Removes what no version within the retention needs, or counts it.

    Raises `Refused` if there is no table, or one with features of other writers that this package does not know.
    """
    with explain_access(log.url):
        stored = [file for beginning in BEGINNINGS for file in log.folder.list_files("", beginning)]
        changes = list(log.folder.list_files(CHANGES))
        state = log.read()
        _check(state, log.url)
        kept_ms = retention_ms(state.properties())
        now_ms = time.time_ns() // 1_000_000
        if not dry_run:
            now_ms = min(now_ms, _stamp(log.folder, kept_ms))
        since_ms = now_ms - kept_ms
        chosen = choose_unneeded(stored, needed_files(state, log.url, since_ms), since_ms)
        old_changes = choose_changes(changes, since_ms)
        rebuilt = _choose_rebuilt(log, state, since_ms)
        paths = [*(file.name for file in (*chosen, *rebuilt)), *(f"{CHANGES}/{file.name}" for file in old_changes)]
        if not dry_run:
            for first in range(0, len(paths), DELETED_AT_ONCE):
                on_files(first, len(paths))
                log.folder.delete(paths[first : first + DELETED_AT_ONCE])
            on_files(len(paths), len(paths))
        expired = clean_log(log.folder, state.properties(), now_ms, dry_run=dry_run)
        return VacuumResult(len(paths), sum(file.size for file in (*chosen, *rebuilt, *old_changes)), expired)


def _choose_rebuilt(log: TableLog, state: delta_state.TableState, since_ms: int) -> list[orphans.StoredFile]:
    """Returns the files to delete that finished rebuilds made, with their paths from the table's folder.

    No commit adds a file of such a folder any more, so the folder may be listed after the log is read.
    """
    needed = needed_files(state, log.url, since_ms)
    found = []
    for place in finished_folders(state):
        stored = log.folder.list_files(place, BEGINNINGS[0])
        found += [file._replace(name=f"{place}/{file.name}") for file in choose_unneeded(stored, needed, since_ms)]
    return found


def vacuum_once_a_day(log: TableLog) -> VacuumResult | None:
    """Runs a vacuum if there is a table, and the last one was on an earlier day (UTC). Else returns None."""
    with explain_access(log.url):
        last_ms = log.folder.modified_ms(PATH)
    if last_ms is not None and not orphans.is_due(last_ms, time.time_ns() // 1_000_000):
        return None
    return vacuum(log) if log.read().version >= 0 else None


def clean_log(folder: TableFolder, properties: Mapping[str, str], now_ms: int, *, dry_run: bool = False) -> int:
    """Deletes the files of the log that its retention no longer needs, or counts them. Returns their number.

    One page of a list shows if there is one. A very long log is cleaned in several goes.
    """
    before_ms = log_cleanup.cutoff_ms(properties, now_ms)
    if before_ms is None:
        return 0
    listed = islice(folder.list_files(LOG), log_cleanup.LISTED_MAX)
    expired = log_cleanup.choose_expired(listed, before_ms)
    if expired and not dry_run:
        folder.delete([f"{LOG}/{name}" for name in expired])
    return len(expired)


def _check(state: delta_state.TableState, url: str) -> None:
    """Raises `Refused` for a table whose features may need files that this package does not know of."""
    if state.version < 0:
        raise Refused(Code.INVALID_REQUEST, f"there is no table at {url}")
    delta_state.check_reader(state, url)
    known = (*table_features.KNOWN, *table_features.READABLE)
    if unknown := [name for name in table_features.features_of(state.protocol) if name not in known]:
        raise Refused(
            Code.INVALID_REQUEST,
            f"the table at {url} has {', '.join(unknown)}, which this package does not know: use VACUUM of Spark",
        )


def _stamp(folder: TableFolder, kept_ms: int) -> int:
    """Writes the object of a vacuum. Returns its time by the clock of the store."""
    folder.replace(PATH, json.dumps({"version": VERSION, "retention_ms": kept_ms}).encode())
    found = folder.modified_ms(PATH)
    if found is None:
        raise Unavailable(f"{PATH} in {folder.url} was deleted after it was written")
    return found
