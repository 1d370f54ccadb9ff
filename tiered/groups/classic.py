"""One group of the classic protocol: its states, its members, and what can be asked of them.

Moves between states stand in `MOVES`. The group answers nobody and sets no deadline: see `rebalance`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from tiered.errors import Code
from tiered.groups.member import ClassicGroupMember, Protocols
from tiered.groups.records import GroupValue
from tiered.groups.requests import JoinedMember
from tiered.groups.subscription import CONSUMER, compute_subscribed_topics

REASON_MAX = 255
"""Characters kept of a client's reason (KIP-800)."""


class ClassicGroupState(Enum):
    """What a group is doing, by Kafka's names."""

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
"""Where a group may go: members gather (Preparing), await the leader's assignment (Completing), and work (Stable)."""


@dataclass(slots=True)
class InitialRebalanceDelay:
    """The first rebalance after Empty waits a little for more members, and longer while they come."""

    delay_ms: int
    remaining_ms: int
    new_member_added: bool = False


def protocols_size(protocols: Protocols) -> int:
    """Bytes of what a member says of its protocols."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class ProtocolBytes:
    """Bytes that the members of all groups of a shard say of their protocols."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class ClassicGroup:
    """`since_ms` is the wall time of the last move. `topics`: what its members subscribe to, None where nobody can
    tell. `pending`: ids that were given out and not used yet; `unsynced`: who has not asked for its assignment."""

    def __init__(self, name: str, now_ms: int, shard_protocol_bytes: ProtocolBytes | None = None) -> None:
        self.name = name
        self._shard_protocol_bytes = shard_protocol_bytes or ProtocolBytes()
        self.state = ClassicGroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.subscribed_topics: frozenset[str] | None = None
        self.reason = ""
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}
        self.pending_members: set[str] = set()
        self.pending_sync_members: set[str] = set()
        self.awaiting_join_count = 0
        self.initial_delay: InitialRebalanceDelay | None = None
        self.protocol_bytes = 0
        """Bytes of what its members say of their protocols."""
        self._supported_protocols: Counter[str] = Counter()

    @classmethod
    def from_value(
        cls, name: str, value: GroupValue, shard_protocol_bytes: ProtocolBytes | None = None
    ) -> ClassicGroup:
        """As its last rebalance left it."""
        group = cls(name, value.state_since_ms, shard_protocol_bytes)
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
        """What the log is to know of it."""
        members = tuple(member.to_value(self.protocol or "") for member in self.members.values())
        return GroupValue(
            self.protocol_type or "", self.generation, self.protocol, self.leader, self.state_since_ms, members
        )

    def transition_to(self, state: ClassicGroupState, now_ms: int) -> None:
        """To the next state."""
        assert state in TRANSITIONS[self.state], f"group {self.name} cannot go from {self.state.value} to {state.value}"
        self.state, self.state_since_ms = state, now_ms

    # -- members -------------------------------------------------------------------------------------------------------

    def add(self, member: ClassicGroupMember) -> None:
        """A member more; the first one says what type of group this is, and leads."""
        self.members[member.member_id] = member
        self.pending_members.discard(member.member_id)
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self._count_protocols(member.protocols, 1)
        self.awaiting_join_count += member.join_token is not None
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> ClassicGroupMember | None:
        """A member, or an id given out, less; another one leads."""
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
        """A static member came back: the same place under a new id."""
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
        """A member says anew what it supports."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)

    def _count_protocols(self, protocols: Protocols, by: int) -> None:
        size = by * protocols_size(protocols)
        self.protocol_bytes += size
        self._shard_protocol_bytes.total += size
        for name in {name for name, _ in protocols}:
            self._supported_protocols[name] += by
            if not self._supported_protocols[name]:
                del self._supported_protocols[name]

    def set_join_token(self, member: ClassicGroupMember, token: int | None) -> None:
        """`member` has joined and waits for the others (None: not any more)."""
        self.awaiting_join_count += (token is not None) - (member.join_token is not None)
        member.join_token = token

    def validate_member(self, member_id: str, instance_id: str | None) -> Code | None:
        """Why this is no member of the group, if it is none."""
        if instance_id is not None:
            current_id = self.static_members.get(instance_id)
            if current_id is None:
                return Code.UNKNOWN_MEMBER_ID
            if current_id != member_id:
                return Code.FENCED_INSTANCE_ID
        return None if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    # -- what they agree on --------------------------------------------------------------------------------------------

    def protocol_bytes_with(self, member_id: str, protocols: Protocols) -> int:
        """What the group holds of its members' words when this one says `protocols`."""
        others = (
            self.protocol_bytes - protocols_size(self.members[member_id].protocols)
            if member_id in self.members
            else self.protocol_bytes
        )
        return others + protocols_size(protocols)

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody with these can be a member: a protocol that all support must stay."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type and protocols)
        member_count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supported_protocols[name] == member_count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The one with most votes among those that all support; among equals that of the member who came first."""
        member_count = len(self.members)
        candidates = {name for name, count in self._supported_protocols.items() if count == member_count}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__) or ""

    def compute_subscribed_topics(self) -> frozenset[str] | None:
        """The topics of all its members."""
        protocol = self.protocol or ""
        return compute_subscribed_topics(
            self.protocol_type, (member.metadata(protocol) for member in self.members.values())
        )

    def is_subscribed_to_topic(self, topic: str) -> bool:
        """Whether its offsets of this topic are in use; a group of consumers that cannot tell may use any."""
        return self.protocol_type == CONSUMER if self.subscribed_topics is None else topic in self.subscribed_topics

    def has_all_members_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending_members

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def members_for_leader(self) -> tuple[JoinedMember, ...]:
        """What the leader gets to make assignments from."""
        protocol = self.protocol or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )
