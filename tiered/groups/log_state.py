"""Hard state of a shard: the content of its log, compacted. Only `apply`, `apply_offset` and `end_transaction` change
it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tiered.errors import Corrupt
from tiered.groups.consumer import records as consumer_records
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.holders import GroupBytes
from tiered.groups.pending_offsets import PendingOffsets, offset_size, size_growth
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
from tiered.groups.share import records as share_records
from tiered.groups.share.group import ShareGroup
from tiered.shard import CoordinatorRecord, ProducerIdAndEpoch

GroupOffsets = dict[str, dict[int, OffsetValue]]
"""Committed offsets of one group, by topic and partition."""


class LogState:
    """Newest value of each key in the log.

    `groups` keeps the values of classic groups in the log's bytes: their fields are needed only when a coordinator
    loads. `consumer_groups` and `share_groups` are all that there is of these. `pending` are the offsets of open
    transactions. `skipped_records` counts records that `apply` could not use.
    """

    def __init__(self) -> None:
        self.groups: dict[str, bytes] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self.share_groups: dict[str, ShareGroup] = {}
        self.offsets: dict[str, GroupOffsets] = {}
        self.sizes = GroupBytes()
        """Memory that the values of each group take."""
        self.pending = PendingOffsets(self.sizes)
        self.skipped_records = 0

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory all values take."""
        return self.sizes.total

    def apply(self, records: Iterable[CoordinatorRecord]) -> None:
        """Applies records in order. Counts and skips records of unknown kinds and records that it cannot read."""
        for record in records:
            try:
                self._apply(record)
            except Corrupt:
                self.skipped_records += 1

    def _apply(self, record: CoordinatorRecord) -> None:
        raw, value, producer = record
        match read_key(raw):
            case OffsetKey() as key:
                if value is None:
                    self._remove_offset(key)
                else:
                    self.apply_offset(key, read_offset(value), producer)
            case GroupKey(group):
                if value is not None:
                    read_group(value)
                before = self.groups.pop(group, b"")
                if value is not None:
                    self.groups[group] = value
                self.sizes.add(group, len(value or b"") - len(before))
            case None:
                self._apply_to_consumer_group(raw, value)

    def _apply_to_consumer_group(self, raw: bytes, value: bytes | None) -> None:
        key = consumer_records.read_key(raw)
        if key is None:
            self._apply_to_share_group(raw, value)
            return
        known = self.consumer_groups.get(key.group)
        if known is None and value is None:
            return  # the tombstone of a group that is gone
        group = known or ConsumerGroup(key.group)
        before = group.memory_bytes
        group.apply(key, value)
        self.sizes.add(group.name, group.memory_bytes - before)
        if group.is_gone:
            del self.consumer_groups[group.name]
        elif known is None:
            self.consumer_groups[group.name] = group

    def _apply_to_share_group(self, raw: bytes, value: bytes | None) -> None:
        key = share_records.read_key(raw)
        if key is None:
            self.skipped_records += 1
            return
        known = self.share_groups.get(key.group)
        if known is None and value is None:
            return  # the tombstone of a group that is gone
        group = known or ShareGroup(key.group)
        before = group.memory_bytes
        group.apply(key, value)
        self.sizes.add(group.name, group.memory_bytes - before)
        if group.is_gone:
            del self.share_groups[group.name]
        elif known is None:
            self.share_groups[group.name] = group

    def apply_offset(self, key: OffsetKey, value: OffsetValue, producer: ProducerIdAndEpoch | None) -> None:
        """Applies the record of an offset with the value that `read_offset` returns for it."""
        if producer is not None:
            self.pending.add(producer, key, value)
            return
        self._put_offset(key, value)
        if self.pending:
            self.pending.supersede(key)

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool) -> None:
        """Applies a marker: the pending offsets of the producer are committed or dropped.

        A pending offset that was overwritten by a later commit stays overwritten.
        """
        for key, value in self.pending.end_transaction(marker, is_commit):
            self._put_offset(key, value)

    def _put_offset(self, key: OffsetKey, offset: OffsetValue) -> None:
        group, topic, partition = key
        topics = self.offsets.get(group)
        if topics is None:
            topics = self.offsets[group] = {}
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        self.sizes.add(group, size_growth(partitions.get(partition), offset))
        partitions[partition] = offset

    def _remove_offset(self, key: OffsetKey) -> None:
        """Removes what is committed for a partition, and what open transactions would commit."""
        if self.pending:
            self.pending.remove(key)
        group, topic, partition = key
        topics = self.offsets.get(group, {})
        partitions = topics.get(topic, {})
        dropped = partitions.pop(partition, None)
        self.sizes.add(group, -offset_size(dropped))
        if dropped is not None and not partitions:
            del topics[topic]
            if not topics:
                del self.offsets[group]

    def has_offsets(self, group: str) -> bool:
        """True if the group has committed offsets, or an open transaction may commit some."""
        return group in self.offsets or self.pending.has_group(group)

    def offset_partitions(self, group: str) -> list[tuple[str, int]]:
        """Returns the partitions for which the group has a committed or a pending offset."""
        committed = [(topic, partition) for topic, partition, _ in self.iterate_offsets(group)]
        return list(dict.fromkeys((*committed, *self.pending.partitions(group))))

    def committed_offset(self, group: str, topic: str, partition: int) -> OffsetValue | None:
        """Returns the committed offset of a partition; None if there is none."""
        return self.offsets.get(group, {}).get(topic, {}).get(partition)

    def iterate_offsets(self, group: str) -> Iterator[tuple[str, int, OffsetValue]]:
        """Yields (topic, partition, offset) for each offset that the group committed."""
        for topic, partitions in self.offsets.get(group, {}).items():
            for partition, offset in partitions.items():
                yield topic, partition, offset

    def snapshot(self) -> Iterator[list[CoordinatorRecord]]:
        """Yields the fewest records that give this state, in parts. The state may change in between.

        The first part has all pending offsets, with the committed ones of their groups. Later parts have none: a
        replay of the log after the snapshot would end them with the marker of an earlier transaction.
        """
        undecided = dict.fromkeys(self.pending.groups())
        known = dict.fromkeys((*self.groups, *self.consumer_groups, *self.share_groups, *self.offsets))
        decided = [group for group in known if group not in undecided]
        if undecided:
            yield [record for group in undecided for record in self._snapshot_undecided(group)]
        for group in decided:
            yield self._snapshot_decided(group)

    def _snapshot_undecided(self, group: str) -> list[CoordinatorRecord]:
        found = self.pending.snapshot(group, is_superseded=True)
        found += (offset_record(group, *each) for each in self.iterate_offsets(group))
        found += self.pending.snapshot(group, is_superseded=False)
        return found + self._snapshot_members(group)

    def _snapshot_decided(self, group: str) -> list[CoordinatorRecord]:
        found = [offset_record(group, *each) for each in self.iterate_offsets(group)]
        return found + self._snapshot_members(group)

    def _snapshot_members(self, group: str) -> list[CoordinatorRecord]:
        value = self.groups.get(group)
        found = [] if value is None else [CoordinatorRecord(group_key(group), value)]
        consumer_group = self.consumer_groups.get(group)
        share_group = self.share_groups.get(group)
        found += consumer_group.snapshot() if consumer_group is not None else ()
        return found if share_group is None else [*found, *share_group.snapshot()]
