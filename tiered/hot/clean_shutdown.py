"""What a clean stop says of each small log, so that the next start need not open it: one file for the whole broker.

It holds only while the clean mark beside it does, and only of a log whose file has the size that is said here. Larger
logs and those with producers are opened by what lies in their own directories.
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
"""Indexes of a log that is told of here: some 40 KiB of records."""


class CleanLogEntry(NamedTuple):
    """One log as it was closed: its only segment, with the bytes of both indexes and those of the log that they do not
    speak of yet. `leader_epoch` is the one under which it was led last, `cold` whether anything of it is in the bucket.
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
        """Of a log that consists of its active segment."""
        offsets, times = bytes(builder.offsets), bytes(builder.times)
        return cls(topic_id, leader_epoch, has_cold_segments, lineage, active, offsets, times, builder.unindexed_bytes)

    def build_indexes(self, interval: int) -> IndexBuilder:
        """The indexes, ready to grow."""
        made = IndexBuilder(self.segment.base_offset, interval, self.offsets, self.times)
        made.unindexed_bytes = self.unindexed
        return made


def is_small(segments: int, producers: int, builder: IndexBuilder) -> bool:
    """Whether a log is told of here."""
    return segments == 1 and producers == 0 and len(builder.offsets) + len(builder.times) <= INDEX_BYTES_MAX


def encode_log(tp: TopicPartition, entry: CleanLogEntry) -> bytes:
    """One log as JSON."""
    return orjson.dumps(_encode_entry(tp, entry))


def encode(logs: Iterable[bytes]) -> bytes:
    """A CRC, then one JSON list of all; each log as `encode_log` gives it."""
    body = b"[" + b",".join(logs) + b"]"
    return b"%08x\n" % crc32c(body) + body


def parse(data: bytes, *, where: str = "") -> dict[TopicPartition, CleanLogEntry]:
    """The reverse of `encode`; `Corrupt` when the bytes do not prove themselves."""
    crc, _, body = data.partition(b"\n")
    if crc != b"%08x" % crc32c(body):
        raise Corrupt("its CRC does not hold", where=where)
    try:
        return dict(map(_decode_entry, orjson.loads(body)))
    except (ValueError, TypeError) as error:
        raise Corrupt(f"it is of another version: {error}", where=where) from None


def _decode_entry(row: list[Any]) -> tuple[TopicPartition, CleanLogEntry]:
    topic, partition, topic_id, epoch, cold, lineage, numbers, offsets, times, unindexed = row
    return TopicPartition(topic, partition), CleanLogEntry(
        topic_id, epoch, cold, tuple((each, start) for each, start in lineage),
        Segment(*numbers), bytes.fromhex(offsets), bytes.fromhex(times), unindexed,
    )  # fmt: skip


def _encode_entry(tp: TopicPartition, entry: CleanLogEntry) -> list[object]:
    one = entry.segment
    numbers = (one.base_offset, one.next_offset, one.size, one.created_ms, one.max_timestamp, one.max_timestamp_offset)
    indexes = (entry.offsets.hex(), entry.times.hex(), entry.unindexed)
    return [*tp, entry.topic_id, entry.leader_epoch, entry.has_cold_segments, entry.lineage, numbers, *indexes]
