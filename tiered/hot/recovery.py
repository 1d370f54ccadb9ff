"""What a partition's directory may be trusted for after a start.

Pure. Two cases. *Whole*: the log was closed cleanly, or its process died in this boot, so that the page cache holds all
that was written; only a write cut short by the death can be torn, at the very end. *Suspect*: anything else, where only
what was fsynced (below the recovery point) is certain and all bytes after it must prove themselves by their CRC. What
has to be cut though neither explains it is rot (`is_rot`): records are missing that were there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tiered.hot.index import OFFSET_ENTRY, IndexBuilder, time_bytes_below, valid_offset_bytes, valid_time_bytes
from tiered.hot.segments import IndexChecksums, Segment
from tiered.ports import Buffer
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES, LENGTH_FROM, MAGIC, MAGIC_AT, MIN_LENGTH
from tiered.records.native import crc32c, walk

WHOLE_LOG = 2**63 - 1
"""Recovery point of a whole log."""

SEARCHED_BYTES = 64 << 20
"""Of what looks like batches behind a write cut short, how much is checked."""
PIECE_BYTES = 1 << 20

LEFTOVERS = (".deleted", ".tmp", ".cleaned", ".swap")
_INDEXES = (".index", ".timeindex", ".txnindex")


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """A directory by meaning; offsets ascend. `leftovers` are files that no longer mean anything."""

    bases: tuple[int, ...]
    snapshots: tuple[int, ...]
    leftovers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecoveryStart:
    """Where the check of a segment begins, with its indexes as they stood there."""

    position: int
    next_offset: int
    builder: IndexBuilder


def classify_files(names: Iterable[str]) -> DirectoryListing:
    """Sorts the names of a directory: segments, snapshots, and what a crash or a deletion left behind."""
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
    return DirectoryListing(tuple(sorted(bases)), tuple(sorted(snapshots)), tuple(leftovers))


def last_indexed_batch(
    base_offset: int, interval: int, size: int, offsets: bytes, times: bytes
) -> tuple[int, IndexBuilder]:
    """(position of the last indexed batch or -1, indexes up to and with it) from the files of a whole log.

    Times are written before offsets, so that every offset entry that is there has its time entry too; what follows the
    last offset entry in the time index came with the closing of a segment that was not finished.
    """
    kept = valid_offset_bytes(offsets, size)
    if kept == 0:
        return -1, IndexBuilder(base_offset, interval)
    relative, position = OFFSET_ENTRY.unpack_from(offsets, kept - OFFSET_ENTRY.size)
    sound = times[: valid_time_bytes(times)]
    return position, IndexBuilder(base_offset, interval, offsets[:kept], sound[: time_bytes_below(sound, relative + 1)])


def start_from_checkpoint(
    checkpointed: Segment | None, interval: int, size: int, offsets: bytes, times: bytes, trusted_to: int
) -> RecoveryStart | None:
    """Where the check begins by the last line of the segment checkpoint; None when it proves nothing below
    `trusted_to`."""
    if (
        checkpointed is None
        or checkpointed.index_checksums is None
        or checkpointed.next_offset > trusted_to
        or checkpointed.size > size
    ):
        return None
    proof = checkpointed.index_checksums
    offsets, times = offsets[: proof.offsets_bytes], times[: proof.times_bytes]
    if IndexChecksums.of(offsets, times) != proof:
        return None
    builder = IndexBuilder(checkpointed.base_offset, interval, offsets, times)
    last = OFFSET_ENTRY.unpack_from(offsets, len(offsets) - OFFSET_ENTRY.size)[1] if offsets else 0
    builder.unindexed_bytes = checkpointed.size - last
    builder.max_timestamp, builder.max_timestamp_offset = checkpointed.max_timestamp, checkpointed.max_timestamp_offset
    return RecoveryStart(checkpointed.size, checkpointed.next_offset, builder)


@dataclass(frozen=True, slots=True)
class TruncationPoint:
    """Where the check of a segment had to stop: `offset` is the first that does not prove itself. `proved_to` is how
    far the segment's line in the checkpoint says that it was fsynced. `torn`: what is left is a write cut short."""

    offset: int
    proved_to: int
    torn: bool


def is_corruption(point: TruncationPoint, *, clean: bool, trusted_to: int) -> bool:
    """Whether no crash explains the cut. After a clean stop none does; the death of a process leaves at most one write
    cut short; and a power cut takes nothing that was fsynced, but above that any bytes may be other ones, with whole
    batches behind them."""
    if clean:
        return True
    if trusted_to == WHOLE_LOG:
        return not point.torn
    return point.offset < min(point.proved_to, trusted_to)


def is_torn(tail: Buffer, offset: int) -> bool:
    """Whether `tail`, the end of a log file from where the batch with `offset` is expected, is a write cut short by the
    death of its process: the beginning of one batch, right as far as it goes. It is not when all of a batch is there
    but for its length, nor when a later batch follows that proves itself."""
    if walk(tail, 0, max_batches=1).why != "short":
        return False
    if len(tail) < HEADER_BYTES:
        return True
    whole = memoryview(tail)
    if crc32c(whole[CRC_FROM:]) == int.from_bytes(whole[CRC_AT : CRC_AT + 4], "big"):
        return False
    return not _has_later_batch(whole, offset)


def _has_later_batch(tail: memoryview, offset: int) -> bool:
    """Whether a batch above `offset` proves itself at whatever byte behind the first; True too when too much looks like
    one: records may be made for that."""
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
    """Where a batch could begin, by its magic byte. Searched in pieces: the tail may be a whole segment."""
    for start in range(MAGIC_AT + 1, len(tail), PIECE_BYTES):
        piece = bytes(tail[start : start + PIECE_BYTES])
        found = piece.find(MAGIC)
        while found >= 0:
            yield start + found - MAGIC_AT
            found = piece.find(MAGIC, found + 1)


def find_gaps(segments: Sequence[Segment]) -> list[tuple[int, int]]:
    """Offset ranges `[start, end)` that no segment holds though later ones exist: damage, never served around."""
    pairs = pairwise(segments)
    return [(a.next_offset, b.base_offset) for a, b in pairs if a.next_offset < b.base_offset]


def usable_snapshots(snapshots: Sequence[int], start: int, end: int) -> list[int]:
    """Snapshots to try, newest first; those above `end` belong to a history that was cut."""
    return [offset for offset in reversed(snapshots) if start <= offset <= end]
