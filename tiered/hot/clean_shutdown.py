"""The file in which a clean shutdown describes each small log, so that the next start need not open it.

One file serves the whole broker. It is valid only while the clean shutdown mark is in the same directory. An entry is
valid only if the log file still has the size that the entry states. Larger logs and logs with producers are not listed:
the next start loads them from their own directories.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from tiered.errors import Corrupt
from tiered.hot.index import IndexBuilder
from tiered.hot.leader_epochs import Lineage
from tiered.hot.segments import Segment
from tiered.ids import TopicPartition
from tiered.records.native import crc32c

FILE = "clean-logs"
INDEX_BYTES_MAX = 128
"""Limit on the index bytes of a listed log: about 40 KiB of records."""


class CleanLogEntry(NamedTuple):
    """One log as it was closed: its only segment, with the bytes of both indexes.

    `unindexed` counts the bytes of the log after the last index entry. `leader_epoch` is the epoch of the last leader.
    `has_cold_segments` is True if any part of the log is in the bucket.
    """

    topic_id: str
    leader_epoch: int
    has_cold_segments: bool
    lineage: Lineage
    segment: Segment
    offsets: bytes
    times: bytes
    unindexed: int

    @classmethod
    def of(
        cls,
        topic_id: str,
        leader_epoch: int,
        has_cold_segments: bool,
        lineage: Lineage,
        active: Segment,
        builder: IndexBuilder,
    ) -> CleanLogEntry:
        """Describes a log that consists of its active segment only."""
        offsets, times = bytes(builder.offsets), bytes(builder.times)
        return cls(topic_id, leader_epoch, has_cold_segments, lineage, active, offsets, times, builder.unindexed_bytes)

    def build_indexes(self, interval: int) -> IndexBuilder:
        """Returns the indexes, ready for more entries."""
        made = IndexBuilder(self.segment.base_offset, interval, self.offsets, self.times)
        made.unindexed_bytes = self.unindexed
        return made


def is_small(segments: int, producers: int, builder: IndexBuilder) -> bool:
    """True if a log is small enough to be listed here."""
    return segments == 1 and producers == 0 and len(builder.offsets) + len(builder.times) <= INDEX_BYTES_MAX


def encode_log(tp: TopicPartition, entry: CleanLogEntry) -> bytes:
    """Encodes one log as JSON."""
    return orjson.dumps(_encode_entry(tp, entry))


def encode(logs: Iterable[bytes]) -> bytes:
    """Encodes a CRC line, then one JSON list of all logs. Each log comes from `encode_log`."""
    body = b"[" + b",".join(logs) + b"]"
    return b"%08x\n" % crc32c(body) + body


def parse(data: bytes, *, where: str = "") -> dict[TopicPartition, CleanLogEntry]:
    """Parses the output of `encode`. Raises `Corrupt` if the CRC or the format is wrong."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise Corrupt("CRC of the list of clean logs is wrong", where=where)
    try:
        return dict(map(_decode_entry, orjson.loads(body)))
    except (ValueError, TypeError) as error:
        raise Corrupt(f"list of clean logs has another format: {error}", where=where) from None


def _decode_entry(row: list[Any]) -> tuple[TopicPartition, CleanLogEntry]:
    topic, partition, topic_id, epoch, cold, lineage, numbers, offsets, times, unindexed = row
    return TopicPartition(topic, partition), CleanLogEntry(
        topic_id, epoch, cold, tuple((each, start) for each, start in lineage),
        Segment(*numbers), bytes.fromhex(offsets), bytes.fromhex(times), unindexed,
    )  # fmt: skip


def _encode_entry(tp: TopicPartition, entry: CleanLogEntry) -> list[object]:
    segment = entry.segment
    numbers = (
        segment.base_offset,
        segment.next_offset,
        segment.size,
        segment.created_ms,
        segment.max_timestamp,
        segment.max_timestamp_offset,
    )
    indexes = (entry.offsets.hex(), entry.times.hex(), entry.unindexed)
    return [*tp, entry.topic_id, entry.leader_epoch, entry.has_cold_segments, entry.lineage, numbers, *indexes]
