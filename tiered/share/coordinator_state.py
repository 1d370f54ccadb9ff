"""The state of a share coordinator shard, as its log has it: share partitions, their epochs and their memory (I39)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tiered.errors import Corrupt
from tiered.ids import TopicId
from tiered.shard import CoordinatorRecord
from tiered.share.limits import ShareCoordinatorSettings
from tiered.share.records import (
    SNAPSHOT_KEY,
    ShareSnapshot,
    ShareUpdate,
    read_key,
    read_snapshot,
    read_update,
)
from tiered.share.requests import SharePartitionKey
from tiered.share.state import UNINITIALIZED_OFFSET, join_batches

KEY_BYTES, BATCH_BYTES = 800, 150
"""Estimates of the memory of a share partition without the name of its group, and of a batch."""


@dataclass(slots=True)
class ShardState:
    """The share partitions of a shard. `updates` counts the records since the snapshot of each."""

    settings: ShareCoordinatorSettings
    partitions: dict[SharePartitionKey, ShareSnapshot] = field(default_factory=dict)
    updates: dict[SharePartitionKey, int] = field(default_factory=dict)
    skipped_records: int = 0
    """Records that `apply` could not read."""
    memory_bytes: int = 0
    """Estimate of the memory that the share partitions take."""
    other_shards_bytes: Callable[[], int] = lambda: 0
    """Memory that the share partitions of the broker's other shards take."""
    has_partition: Callable[[TopicId, int], bool] = lambda topic_id, partition: True
    """True if the cluster has a partition."""

    def apply(self, records: Iterable[CoordinatorRecord]) -> None:
        """Applies records in order. Counts and skips records of unknown kinds and records that it cannot read."""
        for raw_key, value, _ in records:
            try:
                found = read_key(raw_key)
                if found is None:
                    self.skipped_records += 1
                elif found.kind == SNAPSHOT_KEY:
                    self._put(found.key, None if value is None else read_snapshot(value), 0)
                elif value is not None:
                    self._update(found.key, read_update(value))
            except Corrupt:
                self.skipped_records += 1

    def _update(self, key: SharePartitionKey, update: ShareUpdate) -> None:
        before = self.partitions.get(key)
        if before is None:
            self.skipped_records += 1
        else:
            self._put(key, merge_update(before, update), self.updates.get(key, 0) + 1)

    def _put(self, key: SharePartitionKey, value: ShareSnapshot | None, updates: int) -> None:
        self.memory_bytes += size_of(key, value) - size_of(key, self.partitions.get(key))
        if value is not None:
            self.partitions[key] = value
            self.updates[key] = updates
        else:
            self.partitions.pop(key, None)
            self.updates.pop(key, None)

    @property
    def held_bytes(self) -> int:
        """Estimate of the memory of all share partitions of the broker."""
        return self.memory_bytes + self.other_shards_bytes()


def merge_update(before: ShareSnapshot, update: ShareUpdate) -> ShareSnapshot:
    """Returns the state with an update, in whichever order updates come (I39).

    The start offset only grows. An update with a lower one is a late one, and its count of done records is too old.
    """
    start = max(before.start_offset, update.start_offset)
    is_late = UNINITIALIZED_OFFSET < update.start_offset < before.start_offset
    return replace(
        before,
        leader_epoch=max(before.leader_epoch, update.leader_epoch),
        start_offset=start,
        batches=join_batches((*before.batches, *update.batches), start),
        delivery_complete_count=before.delivery_complete_count if is_late else update.delivery_complete_count,
    )


def size_of(key: SharePartitionKey, value: ShareSnapshot | None) -> int:
    """Returns an estimate of the memory of a share partition."""
    return 0 if value is None else KEY_BYTES + 2 * len(key.group) + BATCH_BYTES * len(value.batches)
