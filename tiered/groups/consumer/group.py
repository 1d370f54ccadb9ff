"""One consumer group as its records give it. Only `apply` changes it.

Everything that members see is in the log: a coordinator that moved goes on where the one before it stopped. Compaction
removes older records of a key, so records may come in any order that keeps the newest of each key. While they are
loaded, a partition may seem to have two owners: the member counts that the later record names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import NO_HASH, ConsumerGroupState, find_state
from tiered.groups.consumer.reconciliation import CurrentAssignment
from tiered.groups.consumer.records import (
    CURRENT,
    GROUP,
    MEMBER,
    REGEX,
    TARGET,
    TARGET_EPOCH,
    ConsumerKey,
    GroupEpoch,
    MemberMetadata,
    ResolvedRegex,
    encode_current,
    encode_group_epoch,
    encode_key,
    encode_member,
    encode_regex,
    encode_target,
    encode_target_epoch,
    read_current,
    read_group_epoch,
    read_key,
    read_member,
    read_regex,
    read_target,
    read_target_epoch,
)
from tiered.shard import CoordinatorRecord

RECORD_BYTES = 400
"""Memory that a record takes beside its value, in bytes: its fields as objects."""


NO_METADATA = MemberMetadata()


class ConsumerMember(NamedTuple):
    """A member: what it joined with, and what it has."""

    metadata: MemberMetadata = NO_METADATA
    current: CurrentAssignment = CurrentAssignment()


class ConsumerGroup:
    """One group. `targets` may lack a member that has no target yet. `memory_bytes` is what its records take."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.topics_hash = NO_HASH
        self.target_epoch = -1
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.static_members: dict[str, str] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        """The names that each regular expression of a member matched when it was resolved last."""
        self._subscribers, self._regex_members = Counter[str](), Counter[str]()
        """Members that subscribe to each topic by its name, and to each regular expression."""
        self.checked_version = -1
        """Version of the cluster's metadata with which the hash of the topics was compared last. It is not in the log.
        """
        self._owners: dict[tuple[str, int], str] = {}
        self._sizes: dict[ConsumerKey, int] = {}
        self.memory_bytes = 0

    @property
    def state(self) -> ConsumerGroupState:
        """The state of the group."""
        return find_state(self.epoch, self.target_epoch, (each.current for each in self.members.values()))

    @property
    def is_gone(self) -> bool:
        """True if the group has no record."""
        return not self._sizes

    def classic_members(self) -> list[str]:
        """Returns the ids of the members of the classic protocol."""
        return [each for each, member in self.members.items() if member.metadata.classic is not None]

    def topics_of(self, metadata: MemberMetadata) -> frozenset[str]:
        """Returns the names that a member subscribes to: its own, and those of its regular expression."""
        resolved = self.regexes.get(metadata.regex)
        return metadata.topics if resolved is None else metadata.topics | resolved.topics

    def is_subscribed(self, topic: str) -> bool:
        """True if a member subscribes to the topic."""
        return topic in self._subscribers or any(topic in self.regexes[each].topics for each in self._used_regexes())

    def subscribed_topics(self, but: MemberMetadata = NO_METADATA) -> set[str]:
        """Returns the names that members subscribe to, without one member with this metadata."""
        found = {name for name, count in self._subscribers.items() if count > (name in but.topics)}
        return found.union(*(self.regexes[each].topics for each in self._used_regexes(but.regex)))

    def is_last_with_regex(self, regex: str) -> bool:
        """True if one member at most has the regular expression."""
        return self._regex_members[regex] <= 1

    def _used_regexes(self, but: str = "") -> list[str]:
        return [each for each, count in self._regex_members.items() if each in self.regexes and count > (each == but)]

    def is_free(self, topic_id: str, partition: int) -> bool:
        """True if no member owns or revokes the partition."""
        return (topic_id, partition) not in self._owners

    def waits_for_others(self, member_id: str) -> bool:
        """True if another member owns a partition of this member's target."""
        target = self.targets.get(member_id, {})
        owners = {self._owners.get((topic_id, each)) for topic_id in target for each in target[topic_id]}
        return not owners <= {None, member_id}

    def owners(self) -> Mapping[tuple[str, int], str]:
        """Returns the member that owns or revokes each partition."""
        return self._owners

    def find_growth(self, records: Iterable[CoordinatorRecord]) -> int:
        """Returns how many bytes of memory more the group takes with these records."""
        found = 0
        for key, value, _ in records:
            known = read_key(key)
            assert known is not None
            found += (0 if value is None else RECORD_BYTES + len(value)) - self._sizes.get(known, 0)
        return found

    # -- records -------------------------------------------------------------------------------------------------------

    def apply(self, key: ConsumerKey, value: bytes | None) -> None:
        """Applies one record. Raises `Corrupt`, and changes nothing, if it cannot be read."""
        if key.kind == GROUP:
            self.epoch, self.topics_hash = (0, NO_HASH) if value is None else read_group_epoch(value)
        elif key.kind == TARGET_EPOCH:
            self.target_epoch = -1 if value is None else read_target_epoch(value)
        elif key.kind == TARGET:
            self._apply_target(key.part, None if value is None else read_target(value))
        elif key.kind == MEMBER:
            self._apply_member(key.part, None if value is None else read_member(value))
        elif key.kind == CURRENT:
            self._apply_current(key.part, CurrentAssignment() if value is None else read_current(value))
        elif key.kind == REGEX:
            self._apply_regex(key.part, None if value is None else read_regex(value))
        size = 0 if value is None else RECORD_BYTES + len(value)
        self.memory_bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size

    def _apply_target(self, member_id: str, target: Assignment | None) -> None:
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target

    def _apply_regex(self, regex: str, resolved: ResolvedRegex | None) -> None:
        if resolved is None:
            self.regexes.pop(regex, None)
        else:
            self.regexes[regex] = resolved

    def _apply_member(self, member_id: str, metadata: MemberMetadata | None) -> None:
        known = self.members.get(member_id)
        if known is not None:
            self._subscribers -= Counter(known.metadata.topics)
            self._regex_members -= Counter([known.metadata.regex])
            instance_id = known.metadata.instance_id
            if instance_id is not None and self.static_members.get(instance_id) == member_id:
                del self.static_members[instance_id]
        if metadata is None:
            self._apply_current(member_id, CurrentAssignment())
            self.members.pop(member_id, None)
            return
        self._subscribers.update(metadata.topics)
        if metadata.regex:
            self._regex_members[metadata.regex] += 1
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id
        self.members[member_id] = ConsumerMember(metadata, CurrentAssignment() if known is None else known.current)

    def _apply_current(self, member_id: str, current: CurrentAssignment) -> None:
        known = self.members.get(member_id)
        if known is None and current == CurrentAssignment():
            return
        known = known or ConsumerMember()
        for partition in _partitions(known.current):
            if self._owners.get(partition) == member_id:
                del self._owners[partition]
        for partition in _partitions(current):
            self._owners[partition] = member_id
        self.members[member_id] = known._replace(current=current)

    def snapshot(self) -> Iterator[CoordinatorRecord]:
        """Yields the fewest records that give the group."""
        for member_id, member in self.members.items():
            yield self._record(MEMBER, member_id, encode_member(member.metadata))
        yield self._record(GROUP, "", encode_group_epoch(GroupEpoch(self.epoch, self.topics_hash)))
        for member_id, target in self.targets.items():
            yield self._record(TARGET, member_id, encode_target(target))
        if self.target_epoch >= 0:
            yield self._record(TARGET_EPOCH, "", encode_target_epoch(self.target_epoch))
        for regex, resolved in self.regexes.items():
            yield self._record(REGEX, regex, encode_regex(resolved))
        for member_id, member in self.members.items():
            yield self._record(CURRENT, member_id, encode_current(member.current))

    def tombstones(self) -> Iterator[CoordinatorRecord]:
        """Yields tombstones for all records of the group, those of the group itself last."""
        order = {CURRENT: 0, TARGET: 1, TARGET_EPOCH: 2, MEMBER: 3, REGEX: 4, GROUP: 6}
        for key in sorted(self._sizes, key=lambda each: order.get(each.kind, 5)):
            yield CoordinatorRecord(encode_key(key), None)

    def _record(self, kind: int, part: str, value: bytes) -> CoordinatorRecord:
        return CoordinatorRecord(encode_key(ConsumerKey(kind, self.name, part)), value)


def _partitions(current: CurrentAssignment) -> Iterator[tuple[str, int]]:
    for assignment in (current.assigned, current.revoking):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition
