"""Chooses the files of Delta's log that its retention no longer needs, by the steps of Delta's protocol. Pure.

The cutoff is the start of a day (UTC). The newest commit that is not after it stays, with the newest checkpoint that
is not above that commit, and everything above this checkpoint. So each version and each time within the retention can
still be read. Times of commits are those of their files, made to grow as for time travel. Commits that give a later
one its time stay too, if that time is after the cutoff.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pyspark_tiered.delta import delta_state
from pyspark_tiered.delta.orphans import StoredFile

DAY_MS = 24 * 3600 * 1000
RETENTION = "delta.logRetentionDuration"
RETENTION_MS = 30 * DAY_MS
"""Time for which the log is kept, if the table's properties do not say otherwise."""
IS_ON = "delta.enableExpiredLogCleanup"
LISTED_MAX = 20_000
"""Files that are looked at in one go. The next checkpoint goes on."""

_UNITS_MS = {
    "week": 7 * DAY_MS,
    "day": DAY_MS,
    "hour": 3600 * 1000,
    "minute": 60 * 1000,
    "second": 1000,
    "millisecond": 1,
}
_INTERVAL = re.compile(rf"(?:interval )?(\d+ (?:{'|'.join(_UNITS_MS)})s?(?: \d+ (?:{'|'.join(_UNITS_MS)})s?)*)")
_VERSIONED = re.compile(r"(\d{20})\.(?:json|crc|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)")
_COMPACTED = re.compile(r"\d{20}\.(\d{20})\.compacted\.json")


def cutoff_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Returns the time before which commits have expired; None if the log is not to be cleaned.

    Nothing is cleaned either if the duration has a form that this package does not know.
    """
    if properties.get(IS_ON, "true").strip().lower() != "true":
        return None
    duration = RETENTION_MS if RETENTION not in properties else parse_interval(properties[RETENTION])
    return None if duration is None else (now_ms - duration) // DAY_MS * DAY_MS


def parse_interval(text: str) -> int | None:
    """Returns the milliseconds of an interval of Spark, such as `interval 1 week 2 days`; None for another form."""
    found = _INTERVAL.fullmatch(" ".join(text.lower().split()))
    if found is None:
        return None
    words = found[1].split()
    return sum(
        int(count) * _UNITS_MS[unit.removesuffix("s")] for count, unit in zip(words[::2], words[1::2], strict=True)
    )


def growing_times(commits: Iterable[StoredFile]) -> list[tuple[int, int]]:
    """Returns version and time of each commit, in order. A time that is not after the one before becomes later by 1."""
    found: list[tuple[int, int]] = []
    for file in commits:
        for version in delta_state.commit_versions([file.name]):
            found.append((version, max(file.modified_ms, found[-1][1] + 1) if found else file.modified_ms))
    return found


def choose_expired(files: Iterable[StoredFile], before_ms: int) -> list[str]:
    """Returns the names of files to delete, in order. `files` are those of the log, in order of their names.

    Reads no further than the first commit that is still needed.
    """
    names: list[str] = []
    commit = anchor = -1
    """The last commit that has expired, and the last one whose time does not depend on the one before."""
    last_ms = -1
    for file in files:
        names.append(file.name)
        for version in delta_state.commit_versions([file.name]):
            is_anchor = file.modified_ms > last_ms
            last_ms = max(file.modified_ms, last_ms + 1)
            if last_ms > before_ms:
                return _below(names, commit if is_anchor else anchor)
            commit = version
            anchor = version if is_anchor else anchor
    return _below(names, commit)


def _below(names: Sequence[str], newest: int) -> list[str]:
    """Returns the names below the newest whole checkpoint that is not above a version."""
    usable = [name for name in names if 0 <= _last_version(name) <= newest]
    oldest, _ = delta_state.newest_checkpoint(usable)
    return [name for name in names if 0 <= _last_version(name) < oldest]


def _last_version(name: str) -> int:
    """Returns the last version that a file of the log is about; -1 for any other file."""
    found = _VERSIONED.fullmatch(name) or _COMPACTED.fullmatch(name)
    return -1 if found is None else int(found[1])
