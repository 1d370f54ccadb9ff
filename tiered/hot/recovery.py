"""Rules for how much of a partition's directory is trusted after a start.

Pure. Keeps R1 and I5. There are two cases:

- *Whole*: the log was closed cleanly, or its process ended in this boot, so that the page cache has all that was
  written. Only the last write can be torn.
- *Unproved*: any other log. Only what was fsynced (below the recovery point) is certain. All bytes after it must have a
  valid CRC.

If bytes have to be truncated that neither case explains, the log is corrupt (`is_corruption`): it lacks records that it
had.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tiered.hot.index import OFFSET_ENTRY, IndexBuilder, time_bytes_below, valid_offset_bytes, valid_time_bytes
from tiered.hot.segments import IndexChecksums, Segment
from tiered.ports import Buffer
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES, LENGTH_FROM, MAGIC, MAGIC_AT, MIN_LENGTH
from tiered.records.native import crc32c, walk
from tiered.value import value

WHOLE_LOG = 2**63 - 1
"""Recovery point of a whole log."""

SEARCHED_BYTES = 64 << 20
"""Limit on the bytes after a torn write that look like batches and are checked."""
PIECE_BYTES = 1 << 20

LEFTOVERS = (".deleted", ".tmp", ".cleaned", ".swap")
_INDEXES = (".index", ".timeindex", ".txnindex")


@value
class DirectoryListing:
    """The files of a directory by kind. Offsets ascend. `leftovers` are files without a use. `txn_indexes` are the base
    offsets of segments that have a transaction index."""

    bases: tuple[int, ...]
    snapshots: tuple[int, ...]
    leftovers: tuple[str, ...]
    txn_indexes: frozenset[int] = frozenset()


@value
class RecoveryStart:
    """The position where the check of a segment begins, with its indexes up to there."""

    position: int
    next_offset: int
    builder: IndexBuilder


def classify_files(names: Iterable[str]) -> DirectoryListing:
    """Sorts the file names of a directory into segments, snapshots, and leftovers of a crash or a deletion."""
    bases: list[int] = []
    snapshots: list[int] = []
    indexes: list[tuple[str, int]] = []
    leftovers: list[str] = []
    for name in names:
        stem, dot, kind = name.partition(".")
        number = int(stem) if len(stem) == 20 and stem.isdigit() else -1
        if name.endswith(LEFTOVERS):
            leftovers.append(name)
        elif number >= 0 and kind == "log":
            bases.append(number)
        elif number >= 0 and kind == "snapshot":
            snapshots.append(number)
        elif number >= 0 and dot + kind in _INDEXES:
            indexes.append((name, number))
    leftovers += [name for name, number in indexes if number not in bases]
    txn_indexes = frozenset(number for name, number in indexes if name.endswith(".txnindex") and number in bases)
    return DirectoryListing(tuple(sorted(bases)), tuple(sorted(snapshots)), tuple(leftovers), txn_indexes)


def last_indexed_batch(
    base_offset: int, interval: int, size: int, offsets: bytes, times: bytes
) -> tuple[int, IndexBuilder]:
    """Returns (position of the last indexed batch or -1, indexes up to and including it) from the files of a whole log.

    Times are written before offsets, so every offset entry has its time entry. Time entries after the last offset entry
    come from a segment whose close was interrupted.
    """
    kept = valid_offset_bytes(offsets, size)
    if kept == 0:
        return -1, IndexBuilder(base_offset, interval)
    relative, position = OFFSET_ENTRY.unpack_from(offsets, kept - OFFSET_ENTRY.size)
    valid_times = times[: valid_time_bytes(times)]
    return position, IndexBuilder(
        base_offset, interval, offsets[:kept], valid_times[: time_bytes_below(valid_times, relative + 1)]
    )


def start_from_checkpoint(
    checkpointed: Segment | None, interval: int, size: int, offsets: bytes, times: bytes, trusted_to: int
) -> RecoveryStart | None:
    """Returns where the check begins by the last line of the segment checkpoint.

    Returns None if the line proves nothing below `trusted_to`.
    """
    if (
        checkpointed is None
        or checkpointed.index_checksums is None
        or checkpointed.next_offset > trusted_to
        or checkpointed.size > size
    ):
        return None
    index_checksums = checkpointed.index_checksums
    offsets, times = offsets[: index_checksums.offsets_bytes], times[: index_checksums.times_bytes]
    if IndexChecksums.of(offsets, times) != index_checksums:
        return None
    builder = IndexBuilder(checkpointed.base_offset, interval, offsets, times)
    last = OFFSET_ENTRY.unpack_from(offsets, len(offsets) - OFFSET_ENTRY.size)[1] if offsets else 0
    builder.unindexed_bytes = checkpointed.size - last
    builder.max_timestamp, builder.max_timestamp_offset = checkpointed.max_timestamp, checkpointed.max_timestamp_offset
    return RecoveryStart(checkpointed.size, checkpointed.next_offset, builder)


@value
class TruncationPoint:
    """The place where the check of a segment had to stop: `offset` is the first one without a valid batch. `torn`: the
    bytes after it are a torn write."""

    offset: int
    torn: bool


def is_corruption(point: TruncationPoint, *, clean: bool, start_offset: int, trusted_to: int) -> bool:
    """True if no crash explains the truncation.

    After a clean stop none does. The end of a process leaves at most one torn write. A power cut takes nothing that was
    fsynced, but above that any bytes may have changed, with whole batches after them. A truncation that a power cut
    interrupts may leave zeros there, and lowers the recovery point first. Records below the log start are no loss: a
    follower may restart its log there, below its recovery point.
    """
    if clean:
        return True
    if trusted_to == WHOLE_LOG:
        return not point.torn
    return max(point.offset, start_offset) < trusted_to


def is_torn(tail: Buffer, offset: int) -> bool:
    """True if `tail` is a write that the end of its process cut short: the valid beginning of one batch.

    `tail` is the end of a log file, from where the batch with `offset` is expected. The result is False if the batch is
    complete except for its length, or if a valid later batch follows.
    """
    if walk(tail, 0, max_batches=1).why != "short":
        return False
    if len(tail) < HEADER_BYTES:
        return True
    whole = memoryview(tail)
    if crc32c(whole[CRC_FROM:]) == int.from_bytes(whole[CRC_AT : CRC_AT + 4], "big"):
        return False
    return not _has_later_batch(whole, offset)


def _has_later_batch(tail: memoryview, offset: int) -> bool:
    """True if a valid batch above `offset` begins at any byte after the first.

    Also True if too many bytes look like batches: a client can craft records that do.
    """
    left = SEARCHED_BYTES
    for at in _find_magic(tail):
        base, length = struct.unpack_from(">qi", tail, at)
        size = LENGTH_FROM + length
        if base <= offset or length < MIN_LENGTH or size > len(tail) - at:
            continue
        left -= size
        if left < 0 or walk(tail, at, max_batches=1).batches:
            return True
    return False


def _find_magic(tail: memoryview) -> Iterator[int]:
    """Yields where a batch could begin, by its magic byte. Searches in pieces, because the tail may be a whole
    segment."""
    for start in range(MAGIC_AT + 1, len(tail), PIECE_BYTES):
        piece = bytes(tail[start : start + PIECE_BYTES])
        found = piece.find(MAGIC)
        while found >= 0:
            yield start + found - MAGIC_AT
            found = piece.find(MAGIC, found + 1)


def find_gaps(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Returns offset ranges `[start, end)` that are missing between segments: damage, which reads never skip."""
    pairs = pairwise(segments)
    return [(a.next_offset, b.base_offset) for a, b in pairs if a.next_offset < b.base_offset]


def usable_snapshots(snapshots: Sequence[int], start: int, end: int) -> list[int]:
    """Returns snapshots to try, newest first. Those above `end` belong to a truncated history."""
    return [offset for offset in reversed(snapshots) if start <= offset <= end]
