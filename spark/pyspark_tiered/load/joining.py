"""Chooses the small files of a table that are worth joining, and the actions of that commit. Pure.

Frequent loads leave many small files. Joining all of them each time would write the same rows again and again. So a
larger file is joined only if the files that are smaller than it have half of its size together, or if the small files
make one that is not small any more. A table into which nothing is loaded any more has no such reason to wait: then two
files are enough.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from pyspark_tiered.delta import delta_state, table_form
from pyspark_tiered.load.rounds import RUNS_MAX

Json = dict[str, Any]

FILES_MIN = 12
"""Small files from which on they are joined."""
IDLE_FILES_MIN = 2
"""The same after a load that found nothing new."""
FILES_MAX = 256
SMALL_BYTES = 12 << 20
TARGET_BYTES = 16 << 20
"""Bytes of small files that are worth it to be joined at once. The one file of their rows has fewer bytes than they."""
JOINED_BYTES_MAX = 32 << 20
"""Bytes of files that are joined at once."""
ROWS_BYTES_MAX = 128 << 20
"""Bytes of the rows that are joined at once, without their compression: they are in memory, and so is a copy in order.
A file with more than half of them is left alone. So two files always fit, and a file that is full is not joined again.
"""
FREE_BYTES = 256 << 10
"""A file up to this size is joined without regard to the others."""


def choose_files(files: Mapping[str, Json], left_alone: Collection[str] = (), is_idle: bool = False) -> list[str]:
    """Returns the keys of files to join, none if it is not worth it yet.

    The files have neighbouring partitions. Files with a deletion vector, or without statistics, are left alone too.
    `is_idle` says that a load found nothing new: then few files are worth it.
    """
    sizes = ((int(add["size"]), key) for key, add in files.items())
    small = sorted((size, key) for size, key in sizes if size < SMALL_BYTES and key not in left_alone)
    if not _choose(small, is_idle):  # no part of them is worth it either, and no statistics have to be parsed
        return []
    groups: dict[int, list[tuple[int, str]]] = {}
    for size, key in small:
        extents = delta_state.file_extents(files[key])
        first = min((extent.first_partition for extent in extents), default=None, key=_or_negative)
        if first is not None and not files[key].get("deletionVector"):
            groups.setdefault(first // RUNS_MAX, []).append((size, key))
    for _, group in sorted(groups.items()):
        if chosen := _choose(group, is_idle):
            return chosen
    return []


def _choose(group: Sequence[tuple[int, str]], is_idle: bool) -> list[str]:
    """Returns the keys of files to join, of files in order of their sizes."""
    return _choose_for_large_file(group) or _choose_smallest(group, is_idle)


def _choose_for_large_file(group: Sequence[tuple[int, str]]) -> list[str]:
    """Returns the keys of files that make one file that is not small any more, none if they have too few bytes."""
    sizes = list(accumulate(size for size, _ in group))
    count = min(sum(size <= JOINED_BYTES_MAX for size in sizes), FILES_MAX)
    return [key for _, key in group[:count]] if count > 1 and sizes[count - 1] >= TARGET_BYTES else []


def _choose_smallest(group: Sequence[tuple[int, str]], is_idle: bool) -> list[str]:
    """Returns the keys of the smallest files, none if there are too few."""
    chosen: list[str] = []
    total = 0
    for size, key in group[:FILES_MAX]:
        if size > FREE_BYTES and size > 2 * total:
            if not is_idle or len(chosen) >= IDLE_FILES_MIN:
                break
            chosen, total = [], 0  # the few before it stay alone
        chosen.append(key)
        total += size
    return chosen if len(chosen) >= (IDLE_FILES_MIN if is_idle else FILES_MIN) else []


def _or_negative(partition: int | None) -> int:
    return -1 if partition is None else partition


def join_actions(removed: Sequence[Json], joined: table_form.LoadedFile, now_ms: int) -> list[str]:
    """Returns the JSON lines of the commit: a change of layout only, so no reader of changes sees any row."""
    lines = [table_form.remove_action(add, now_ms, changes_data=False) for add in removed]
    (line,) = table_form.commit_actions("", [joined], [], now_ms)
    add = json.loads(line)["add"]
    return [*lines, json.dumps({"add": {**add, "dataChange": False}})]


def join_operation(removed: Sequence[Json], joined: table_form.LoadedFile) -> Json:
    """Returns the history entry: Delta's word for it."""
    metrics = {
        "numRemovedFiles": str(len(removed)),
        "numRemovedBytes": str(sum(int(add["size"]) for add in removed)),
        "numAddedFiles": "1",
        "numAddedBytes": str(joined.size),
    }
    parameters = {"predicate": "[]", "zOrderBy": "[]", "auto": "true"}
    return {
        "operation": "OPTIMIZE",
        "operationParameters": parameters,
        "isBlindAppend": False,
        "operationMetrics": metrics,
    }
