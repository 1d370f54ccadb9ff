"""One group of the classic protocol: its states, its members, and the protocols that they support.

`TRANSITIONS` lists the permitted changes of state. The group sends no replies and sets no deadlines: `rebalance` does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from tiered.errors import Code
from tiered.groups.holders import GroupBytes
from tiered.groups.member import ClassicGroupMember, Protocols
from tiered.groups.records import GroupValue
from tiered.groups.requests import JoinedMember
from tiered.groups.subscription import CONSUMER, compute_subscribed_topics

REASON_MAX = 255
"""Characters of a client's reason that are kept (KIP-800)."""


class ClassicGroupState(Enum):
    """State of a group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: dict[ClassicGroupState, frozenset[ClassicGroupState]] = {
    ClassicGroupState.EMPTY: frozenset({ClassicGroupState.PREPARING, ClassicGroupState.DEAD}),
    ClassicGroupState.PREPARING: frozenset(
        {ClassicGroupState.COMPLETING, ClassicGroupState.EMPTY, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.COMPLETING: frozenset(
        {ClassicGroupState.STABLE, ClassicGroupState.PREPARING, ClassicGroupState.DEAD}
    ),
    ClassicGroupState.STABLE: frozenset({ClassicGroupState.PREPARING, ClassicGroupState.DEAD}),
    ClassicGroupState.DEAD: frozenset(),
}
"""Permitted changes of state: members join (Preparing), wait for the leader's assignment (Completing), work (Stable).
A group is dropped (Dead) if it is empty, or if it becomes a consumer group."""


@dataclass(slots=True)
class InitialRebalanceDelay:
    """Delay of an empty group's first rebalance: it waits for more members, and longer while new ones join."""

    delay_ms: int
    remaining_ms: int
    new_member_added: bool = False


def protocols_size(protocols: Protocols) -> int:
    """Returns the bytes of a member's protocols, names and metadata."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class ClassicGroup:
    """One group with its members.

    `state_since_ms` is the wall time of the last change of state. `subscribed_topics` are the topics of all members,
    None if they are unknown. `pending_members` are ids that were given out and not used yet. `pending_sync_members`
    have not sent SyncGroup in this generation.
    """

    def __init__(self, name: str, now_ms: int, shard_protocol_bytes: GroupBytes | None = None) -> None:
        self.name = name
        self._shard_protocol_bytes = shard_protocol_bytes or GroupBytes()
        self.state = ClassicGroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.reason = ""
        self.is_taken_over = False
        """True from the load of a coordinator to the first rebalance there."""
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: set[str] = set()
        self.pending_sync_members: set[str] = set()
        self.awaiting_join_count = 0
        self.initial_delay: InitialRebalanceDelay | None = None
        self.protocol_bytes = 0
        """Bytes of the protocols of all its members."""
        self._supported_protocols: Counter[str] = Counter()

    @classmethod
    def from_value(cls, name: str, value: GroupValue, shard_protocol_bytes: GroupBytes | None = None) -> ClassicGroup:
        """Builds the group as its last rebalance left it."""
        group = cls(name, value.state_since_ms, shard_protocol_bytes)
        group.is_taken_over = True
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for member in value.members:
            group.add(ClassicGroupMember.from_value(member, value.protocol or ""))
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
        group.state = ClassicGroupState.STABLE if group.members else ClassicGroupState.EMPTY
        group.subscribed_topics = group.compute_subscribed_topics()
        return group

    def to_value(self) -> GroupValue:
        """Returns the value of the group's record."""
        members = tuple(member.to_value(self.protocol or "") for member in self.members.values())
        return GroupValue(
            self.protocol_type or "", self.generation, self.protocol, self.leader, self.state_since_ms, members
        )

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """Changes the state."""
        assert state in TRANSITIONS[self.state], f"group {self.name} cannot go from {self.state.value} to {state.value}"
        self.state, self.state_since_ms = state, now_ms

    # -- members -------------------------------------------------------------------------------------------------------

    def add(self, member: ClassicGroupMember) -> None:
        """Adds a member. The first one becomes the leader."""
        self.members[member.member_id] = member
        self.pending_members.discard(member.member_id)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count_protocols(member.protocols, 1)
        self.awaiting_join_count += member.join_token is not None
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """Removes a member, or an id that was given out. If it was the leader, the next member becomes the leader."""
        self.pending_members.discard(member_id)
        self.pending_sync_members.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self.awaiting_join_count -= member.join_token is not None
            self._count_protocols(member.protocols, -1)
            if member.instance_id is not None:
                self.static_members.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static_member(self, member: ClassicGroupMember, member_id: str) -> None:
        """Gives a static member that came back its old place under a new id."""
        assert member.instance_id is not None
        del self.members[member.member_id]
        if member.member_id in self.pending_sync_members:
            self.pending_sync_members.remove(member.member_id)
            self.pending_sync_members.add(member_id)
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self.members[member_id] = member
        self.static_members[member.instance_id] = member_id

    def update_protocols(self, member: ClassicGroupMember, protocols: Protocols) -> None:
        """Replaces the protocols that a member supports."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)

    def _count_protocols(self, protocols: Protocols, by: int) -> None:
        size = by * protocols_size(protocols)
        self.protocol_bytes += size
        self._shard_protocol_bytes.add(self.name, size)
        for name in {name for name, _ in protocols}:
            self._supported_protocols[name] += by
            if not self._supported_protocols[name]:
                del self._supported_protocols[name]

    def set_join_token(self, member: ClassicGroupMember, token: int | None) -> None:
        """Sets the parked JoinGroup of a member; None if it waits no more."""
        self.awaiting_join_count += (token is not None) - (member.join_token is not None)
        member.join_token = token

    def validate_member(self, member_id: str, instance_id: str | None) -> Code | None:
        """Returns the error code if the ids name no member of the group, else None."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                return Code.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return Code.FENCED_INSTANCE_ID
        return None if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    # -- protocols -----------------------------------------------------------------------------------------------------

    def protocol_bytes_with(self, member_id: str, protocols: Protocols) -> int:
        """Returns the bytes of all members' protocols if this member had these."""
        others = (
            self.protocol_bytes - protocols_size(self.members[member_id].protocols)
            if member_id in self.members
            else self.protocol_bytes
        )
        return others + protocols_size(protocols)

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """True if a member with these protocols can join: at least one protocol must stay that all members support."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type and protocols)
        member_count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supported_protocols[name] == member_count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Returns the protocol with the most votes among those that all members support.

        With equal votes the choice of the earliest member wins.
        """
        member_count = len(self.members)
        candidates = {name for name, count in self._supported_protocols.items() if count == member_count}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__) or ""

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """Returns the topics that the members subscribe to; None if they are unknown."""
        protocol = self.protocol or ""
        return compute_subscribed_topics(
            self.protocol_type, (member.metadata(protocol) for member in self.members.values())
        )

    def is_subscribed_to_topic(self, topic: str) -> bool:
        """True if the group uses its offsets of this topic. Consumers with unknown subscriptions may use any topic."""
        return self.protocol_type == CONSUMER if self.subscribed_topics is None else topic in self.subscribed_topics

    def has_all_members_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending_members

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def members_for_leader(self) -> tuple[JoinedMember, ...]:
        """Returns the members as the leader gets them to make assignments."""
        protocol = self.protocol or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )
