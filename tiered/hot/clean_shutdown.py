"""The entry by which a clean shutdown describes a small log, so that the next start need not open it.

The entries are in the proof of the data directory (`proof_file`). They are valid only while the clean shutdown mark is
there. An entry is valid only if the log file still has the size that the entry states. Larger logs and logs with
producers are not listed: the next start loads them from their own directories.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from tiered.hot.index import IndexBuilder
from tiered.hot.leader_epochs import Lineage
from tiered.hot.segments import Segment
from tiered.ids import TopicPartition

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


def decode_log(row: list[Any]) -> tuple[TopicPartition, CleanLogEntry]:
    """Returns the log in a parsed row. Raises `ValueError` or `TypeError` if it has another format."""
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
