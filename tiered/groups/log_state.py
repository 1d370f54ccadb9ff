"""Hard state: what the log holds, compacted. Only `apply` changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiered.errors import Corrupt
from tiered.groups.records import (
    CoordinatorRecord,
    GroupKey,
    OffsetKey,
    OffsetValue,
    group_key,
    offset_record,
    read_group,
    read_key,
    read_offset,
)

GroupOffsets = dict[str, dict[int, OffsetValue]]
"""Of one group: topic, partition, what was committed."""


OFFSET_BYTES = 300
"""What a committed offset takes in memory beside its metadata."""


def offset_size(offset: OffsetValue | None) -> int:
    """Bytes that a committed offset takes in memory, about; 0 for none."""
    return OFFSET_BYTES + len(offset.metadata) if offset is not None else 0


class LogState:
    """`groups` keeps each value as the log has it: it is read only when a coordinator begins. `held`: bytes that it all
    takes, about."""

    def __init__(self) -> None:
        self.groups: dict[str, bytes] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.skipped_records = 0
        self.memory_bytes = 0

    def apply(self, records: Iterable[CoordinatorRecord]) -> None:
        """Takes what it knows; what it does not know, or cannot read, is counted and passed over."""
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
        """What was committed for this partition."""
        return self.offsets.get(group, {}).get(topic, {}).get(partition)

    def iterate_offsets(self, group: str) -> Iterator[tuple[str, int, OffsetValue]]:
        """All that was committed by this group."""
        for topic, partitions in self.offsets.get(group, {}).items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def snapshot(self) -> Iterator[CoordinatorRecord]:
        """The fewest records that give this state."""
        for group, value in self.groups.items():
            yield CoordinatorRecord(group_key(group), value)
        for group in self.offsets:
            for topic, partition, offset in self.iterate_offsets(group):
                yield offset_record(group, topic, partition, offset)
