"""The segments of one log: the facts of each, look-up by offset, and the roll rules.

Pure. The facts of a closed segment are one line in the partition's `segment-checkpoint`. Therefore a log of a thousand
segments opens without reading them. The line also has the length and CRC of both indexes, which verify the index files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tiered.config.settings import TopicConfig
from tiered.hot.index import RELATIVE_MAX
from tiered.ports import Buffer
from tiered.records.native import crc32c
from tiered.value import value

_BASE = attrgetter("base_offset")
UNKNOWN_BYTES = -1
_LINE_NUMBERS_BEFORE = 10
"""Numbers in a line of a version that served no transactions."""


@value
class IndexChecksums:
    """Length and CRC-32C of both indexes of a closed segment."""

    offsets_bytes: int
    offsets_crc: int
    times_bytes: int
    times_crc: int

    @classmethod
    def of(cls, offsets: Buffer, times: Buffer) -> IndexChecksums:
        return cls(len(offsets), crc32c(offsets), len(times), crc32c(times))


@dataclass(slots=True)
class Segment:
    """Offsets `[base_offset, next_offset)` in a log file of `size` bytes. Times in ms.

    `created_ms` is when the first batch came, by the broker's clock. Without `index_checksums` the indexes are rebuilt
    on first use. `txn_index_bytes` and `txn_index_crc` prove the transaction index in the same way; `UNKNOWN_BYTES` if
    its content is not known.
    """

    base_offset: int
    next_offset: int
    size: int
    created_ms: int
    max_timestamp: int = -1
    max_timestamp_offset: int = -1
    index_checksums: IndexChecksums | None = None
    txn_index_bytes: int = 0
    txn_index_crc: int = 0


def find_segment_number(segments: Sequence[Segment], offset: int) -> int:
    """Returns the position in `segments` of the one with the greatest base offset <= `offset`, or -1 below the
    first."""
    return bisect_right(segments, offset, key=_BASE) - 1


def is_roll_due(segment: Segment, config: TopicConfig, now_ms: int, jitter_seed: str, max_age_ms: int | None) -> bool:
    """True if a segment has to be closed because of its age.

    The broker's clock counts, not record timestamps: an old topic that is replayed today must not roll at every batch.
    A quiet topic must roll without a next batch. `max_age_ms` lowers `segment.ms`. If the clock was set back by more
    than `max_age_ms`, the age is unknown and the segment is closed.
    """
    if segment.size == 0:
        return False
    due = config.segment_ms - jitter_ms(config.segment_jitter_ms, jitter_seed, segment.base_offset)
    age = now_ms - segment.created_ms
    return age >= due or (max_age_ms is not None and abs(age) >= max_age_ms)


def jitter_ms(limit_ms: int, seed: str, base_offset: int) -> int:
    """Returns the share of `limit_ms` by which the roll of a segment comes earlier: the same segment always gets the
    same share.

    It spreads the rolls of many partitions.
    """
    return crc32c(f"{seed}:{base_offset}".encode()) % limit_ms if limit_ms > 0 else 0


def must_roll(segment: Segment, more_bytes: int, last_offset: int, config: TopicConfig) -> bool:
    """True if `more_bytes` that end with `last_offset` need a new segment."""
    return segment.size > 0 and (
        segment.size + more_bytes > config.segment_size or last_offset - segment.base_offset > RELATIVE_MAX
    )


# -- segment-checkpoint -----------------------------------------------------------------------------------------------


def encode_line(segment: Segment) -> bytes:
    """Encodes one line: six numbers of the segment, four of its index checksums (or -1), two of its transaction index,
    and a CRC over the text before it."""
    index_checksums = segment.index_checksums or IndexChecksums(-1, -1, -1, -1)
    numbers = (
        segment.base_offset,
        segment.next_offset,
        segment.size,
        segment.created_ms,
        segment.max_timestamp,
        segment.max_timestamp_offset,
        index_checksums.offsets_bytes,
        index_checksums.offsets_crc,
        index_checksums.times_bytes,
        index_checksums.times_crc,
        segment.txn_index_bytes,
        segment.txn_index_crc,
    )
    text = " ".join(map(str, numbers))
    return f"{text} {crc32c(text.encode())}\n".encode()


def parse_lines(data: bytes) -> dict[int, Segment]:
    """Parses segments by base offset. A later line replaces an earlier one, and a line with a wrong CRC is left out."""
    found: dict[int, Segment] = {}
    for row in data.split(b"\n"):
        text, _, crc = row.rpartition(b" ")
        if not text or crc != str(crc32c(text)).encode():
            continue
        numbers = list(map(int, text.split(b" ")))
        if len(numbers) == _LINE_NUMBERS_BEFORE:
            numbers += (0, 0)
        base, following, size, created, newest, newest_offset, *checksum_fields, txn_bytes, txn_crc = numbers
        checksums = IndexChecksums(*checksum_fields) if checksum_fields[0] >= 0 else None
        found[base] = Segment(base, following, size, created, newest, newest_offset, checksums, txn_bytes, txn_crc)
    return found


def encode_lines(segments: Iterable[Segment]) -> bytes:
    """Encodes the whole file."""
    return b"".join(map(encode_line, segments))
