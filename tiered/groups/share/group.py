"""One share group as its records give it. Only `apply` changes it.

Members revoke nothing: several may read a partition, and the share partition itself gives each record to one of them.
So a member is at its target with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import NO_HASH, ConsumerGroupState
from tiered.groups.consumer.group import RECORD_BYTES
from tiered.groups.consumer.reconciliation import CurrentAssignment
from tiered.groups.consumer.records import GroupEpoch, read_target, read_target_epoch
from tiered.groups.share.records import (
    CURRENT,
    GROUP,
    MEMBER,
    STATE,
    TARGET,
    TARGET_EPOCH,
    ShareGroupKey,
    ShareMemberMetadata,
    StatePartitions,
    encode_current,
    encode_group_epoch,
    encode_key,
    encode_member,
    encode_state,
    encode_target,
    encode_target_epoch,
    read_current,
    read_group_epoch,
    read_key,
    read_member,
    read_state,
)
from tiered.shard import CoordinatorRecord


class ShareMember(NamedTuple):
    """A member: what it joined with, and what it has."""

    metadata: ShareMemberMetadata = ShareMemberMetadata()
    current: CurrentAssignment = CurrentAssignment()


class ShareGroup:
    """One group. `targets` may lack a member that has no target yet. `memory_bytes` is what its records take."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.topics_hash = NO_HASH
        self.target_epoch = -1
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.state_partitions = StatePartitions()
        self.checked_version = -1
        """Version of the cluster's metadata with which the topics were compared last. It is not in the log."""
        self._sizes: dict[ShareGroupKey, int] = {}
        self.memory_bytes = 0

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group: Empty or Stable, as in Kafka."""
        return ConsumerGroupState.STABLE if self.members else ConsumerGroupState.EMPTY

    @property
    def is_gone(self) -> bool:
        """True if the group has no record."""
        return not self._sizes

    def find_growth(self, records: Iterable[CoordinatorRecord]) -> int:
        """Returns how many bytes of memory more the group takes with these records."""
        found = 0
        for key, value, _ in records:
            known = read_key(key)
            assert known is not None
            found += (0 if value is None else RECORD_BYTES + len(value)) - self._sizes.get(known, 0)
        return found

    def apply(self, key: ShareGroupKey, value: bytes | None) -> None:
        """Applies one record. Raises `Corrupt`, and changes nothing, if it cannot be read."""
        member_id = key.member_id
        if key.kind == GROUP:
            self.epoch, self.topics_hash = (0, NO_HASH) if value is None else read_group_epoch(value)
        elif key.kind == TARGET_EPOCH:
            self.target_epoch = -1 if value is None else read_target_epoch(value)
        elif key.kind == STATE:
            self.state_partitions = StatePartitions() if value is None else read_state(value)
        elif value is None:
            if key.kind == MEMBER:
                self.members.pop(member_id, None)
            elif key.kind == TARGET:
                self.targets.pop(member_id, None)
            elif member_id in self.members:
                self.members[member_id] = self.members[member_id]._replace(current=CurrentAssignment())
        elif key.kind == TARGET:
            self.targets[member_id] = read_target(value)
        else:
            known = self.members.get(member_id, ShareMember())
            self.members[member_id] = (
                known._replace(metadata=read_member(value))
                if key.kind == MEMBER
                else known._replace(current=read_current(value))
            )
        size = 0 if value is None else RECORD_BYTES + len(value)
        self.memory_bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size

    def snapshot(self) -> Iterator[CoordinatorRecord]:
        """Yields the fewest records that give the group."""
        for member_id, member in self.members.items():
            yield self.record(MEMBER, encode_member(member.metadata), member_id)
        yield self.record(GROUP, encode_group_epoch(GroupEpoch(self.epoch, self.topics_hash)))
        if self.state_partitions != StatePartitions():
            yield self.record(STATE, encode_state(self.state_partitions))
        for member_id, target in self.targets.items():
            yield self.record(TARGET, encode_target(target), member_id)
        if self.target_epoch >= 0:
            yield self.record(TARGET_EPOCH, encode_target_epoch(self.target_epoch))
        for member_id, member in self.members.items():
            yield self.record(CURRENT, encode_current(member.current), member_id)

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        """Yields tombstones for all records of the group, those of the group itself last."""
        order = {CURRENT: 0, TARGET: 1, TARGET_EPOCH: 2, MEMBER: 3, STATE: 4, GROUP: 5}
        for key in sorted(self._sizes, key=lambda each: order[each.kind]):
            yield CoordinatorRecord(encode_key(key), None)

    def record(self, kind: int, value: bytes | None, member_id: str = "") -> CoordinatorRecord:
        """Returns a record of the group; a tombstone without a value."""
        return CoordinatorRecord(encode_key(ShareGroupKey(kind, self.name, member_id)), value)
