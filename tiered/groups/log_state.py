"""Hard state of a shard: the content of its log, compacted. Only `apply` changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiered.errors import Corrupt
from tiered.groups.records import (
    GroupKey,
    OffsetKey,
    OffsetValue,
    group_key,
    offset_record,
    read_group,
    read_key,
    read_offset,
)
from tiered.shard import CoordinatorRecord

GroupOffsets = dict[str, dict[int, OffsetValue]]
"""Committed offsets of one group, by topic and partition."""


OFFSET_BYTES = 300
"""Memory that a committed offset takes beside its metadata, in bytes."""


def offset_size(offset: OffsetValue | None) -> int:
    """Returns about how many bytes of memory a committed offset takes; 0 for None."""
    return OFFSET_BYTES + len(offset.metadata) if offset is not None else 0


class LogState:
    """Newest value of each key in the log.

    `groups` keeps the values in the log's bytes: their fields are needed only when a coordinator loads.
    `skipped_records` counts records that `apply` could not use. `memory_bytes` is about the memory that all values
    take.
    """

    def __init__(self) -> None:
        self.groups: dict[str, bytes] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.skipped_records = 0
        self.memory_bytes = 0

    def apply(self, records: Iterable[CoordinatorRecord]) -> None:
        """Applies records in order. Counts and skips records of unknown kinds and records that it cannot read."""
        for key, value in records:
            try:
                self._apply(key, value)
            except Corrupt:
                self.skipped_records += 1

    def _apply(self, raw: bytes, value: bytes | None) -> None:
        match read_key(raw):
            case OffsetKey(group, topic, partition):
                if value is None:
                    self._remove_offset(group, topic, partition)
                else:
                    offset = read_offset(value)
                    partitions = self.offsets.setdefault(group, {}).setdefault(topic, {})
                    self.memory_bytes += offset_size(offset) - offset_size(partitions.get(partition))
                    partitions[partition] = offset
            case GroupKey(group):
                if value is not None:
                    read_group(value)
                self.memory_bytes -= len(self.groups.pop(group, b""))
                if value is not None:
                    self.groups[group] = value
                    self.memory_bytes += len(value)
            case None:
                self.skipped_records += 1

    def _remove_offset(self, group: str, topic: str, partition: int) -> None:
        topics = self.offsets.get(group, {})
        partitions = topics.get(topic, {})
        dropped = partitions.pop(partition, None)
        self.memory_bytes -= offset_size(dropped)
        if dropped is not None and not partitions:
            del topics[topic]
            if not topics:
                del self.offsets[group]

    def committed_offset(self, group: str, topic: str, partition: int) -> OffsetValue | None:
        """Returns the committed offset of a partition; None if there is none."""
        return self.offsets.get(group, {}).get(topic, {}).get(partition)

    def iterate_offsets(self, group: str) -> Iterator[tuple[str, int, OffsetValue]]:
        """Yields (topic, partition, offset) for each offset that the group committed."""
        for topic, partitions in self.offsets.get(group, {}).items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def snapshot(self) -> Iterator[list[CoordinatorRecord]]:
        """Yields the fewest records that give this state, one group at a time. The state may change in between."""
        for group in list({**self.groups, **self.offsets}):
            yield self._snapshot_group(group)

    def _snapshot_group(self, group: str) -> list[CoordinatorRecord]:
        found = [offset_record(group, *each) for each in self.iterate_offsets(group)]
        value = self.groups.get(group)
        if value is not None:
            found.append(CoordinatorRecord(group_key(group), value))
        return found
