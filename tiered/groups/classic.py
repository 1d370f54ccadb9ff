"""One group of the classic protocol: its states, its members, and what can be asked of them.

Moves between states stand in `MOVES`. The group answers nobody and sets no deadline: see `rebalance`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum

from tiered.errors import Code
from tiered.groups.member import Member, Protocols
from tiered.groups.records import GroupValue
from tiered.groups.requests import JoinedMember
from tiered.groups.subscription import CONSUMER, all_topics

REASON_MAX = 255
"""Characters kept of a client's reason (KIP-800)."""


class State(Enum):
    """What a group is doing, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


MOVES: dict[State, frozenset[State]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset(),
}
"""Where a group may go: members gather (Preparing), await the leader's assignment (Completing), and work (Stable)."""


@dataclass(slots=True)
class Gathering:
    """The first rebalance after Empty waits a little for more members, and longer while they come."""

    delay_ms: int
    remaining_ms: int
    joined: bool = False


def size_of(protocols: Protocols) -> int:
    """Bytes of what a member says of its protocols."""
    return sum(len(name) + len(metadata) for name, metadata in protocols)


class Said:
    """Bytes that the members of all groups of a shard say of their protocols."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class ClassicGroup:
    """`since_ms` is the wall time of the last move. `topics`: what its members subscribe to, None where nobody can
    tell. `pending`: ids that were given out and not used yet; `unsynced`: who has not asked for its assignment."""

    def __init__(self, name: str, now_ms: int, of_shard: Said | None = None) -> None:
        self.name = name
        self._of_shard = of_shard or Said()
        self.state = State.EMPTY
        self.since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.topics: frozenset[str] | None = None
        self.reason = ""
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.pending: set[str] = set()
        self.unsynced: set[str] = set()
        self.joined = 0
        self.gathering: Gathering | None = None
        self.said = 0
        """Bytes of what its members say of their protocols."""
        self._supported: Counter[str] = Counter()

    @classmethod
    def from_value(cls, name: str, value: GroupValue, of_shard: Said | None = None) -> ClassicGroup:
        """As its last rebalance left it."""
        group = cls(name, value.since_ms, of_shard)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for member in value.members:
            group.add(Member.from_value(member, value.protocol or ""))
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
        group.state = State.STABLE if group.members else State.EMPTY
        group.topics = group.subscribed()
        return group

    def value(self) -> GroupValue:
        """What the log is to know of it."""
        members = tuple(member.value(self.protocol or "") for member in self.members.values())
        return GroupValue(self.protocol_type or "", self.generation, self.protocol, self.leader, self.since_ms, members)

    def move(self, state: State, now_ms: int) -> None:
        """To the next state."""
        assert state in MOVES[self.state], f"group {self.name} cannot go from {self.state.value} to {state.value}"
        self.state, self.since_ms = state, now_ms

    # -- members -------------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """A member more; the first one says what type of group this is, and leads."""
        self.members[member.member_id] = member
        self.pending.discard(member.member_id)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        self._count(member.protocols, 1)
        self.joined += member.join_token is not None
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """A member, or an id given out, less; another one leads."""
        self.pending.discard(member_id)
        self.unsynced.discard(member_id)
        member = self.members.pop(member_id, None)
        if member is not None:
            self.joined -= member.join_token is not None
            self._count(member.protocols, -1)
            if member.instance_id is not None:
                self.static.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def rename(self, member: Member, member_id: str) -> None:
        """A static member came back: the same place under a new id."""
        assert member.instance_id is not None
        del self.members[member.member_id]
        if member.member_id in self.unsynced:
            self.unsynced.remove(member.member_id)
            self.unsynced.add(member_id)
        if self.leader == member.member_id:
            self.leader = member_id
        member.member_id = member_id
        self.members[member_id] = member
        self.static[member.instance_id] = member_id

    def restate(self, member: Member, protocols: Protocols) -> None:
        """A member says anew what it supports."""
        self._count(member.protocols, -1)
        member.protocols = protocols
        self._count(protocols, 1)

    def _count(self, protocols: Protocols, by: int) -> None:
        size = by * size_of(protocols)
        self.said += size
        self._of_shard.bytes += size
        for name in {name for name, _ in protocols}:
            self._supported[name] += by
            if not self._supported[name]:
                del self._supported[name]

    def await_join(self, member: Member, token: int | None) -> None:
        """`member` has joined and waits for the others (None: not any more)."""
        self.joined += (token is not None) - (member.join_token is not None)
        member.join_token = token

    def refusal(self, member_id: str, instance_id: str | None) -> Code | None:
        """Why this is no member of the group, if it is none."""
        if instance_id is not None:
            known = self.static.get(instance_id)
            if known is None:
                return Code.UNKNOWN_MEMBER_ID
            if known != member_id:
                return Code.FENCED_INSTANCE_ID
        return None if member_id in self.members else Code.UNKNOWN_MEMBER_ID

    # -- what they agree on --------------------------------------------------------------------------------------------

    def bytes_with(self, member_id: str, protocols: Protocols) -> int:
        """What the group holds of its members' words when this one says `protocols`."""
        others = self.said - size_of(self.members[member_id].protocols) if member_id in self.members else self.said
        return others + size_of(protocols)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether somebody with these can be a member: a protocol that all support must stay."""
        if self.state is State.EMPTY:
            return bool(protocol_type and protocols)
        everyone = len(self.members)
        return protocol_type == self.protocol_type and any(self._supported[name] == everyone for name, _ in protocols)

    def choose_protocol(self) -> str:
        """The one with most votes among those that all support; among equals that of the member who came first."""
        everyone = len(self.members)
        candidates = {name for name, count in self._supported.items() if count == everyone}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return max(votes, key=votes.__getitem__) or ""

    def subscribed(self) -> frozenset[str] | None:
        """The topics of all its members."""
        protocol = self.protocol or ""
        return all_topics(self.protocol_type, (member.metadata(protocol) for member in self.members.values()))

    def uses(self, topic: str) -> bool:
        """Whether its offsets of this topic are in use; a group of consumers that cannot tell may use any."""
        return self.protocol_type == CONSUMER if self.topics is None else topic in self.topics

    def everyone_joined(self) -> bool:
        return self.joined == len(self.members) and not self.pending

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def roster(self) -> tuple[JoinedMember, ...]:
        """What the leader gets to make assignments from."""
        protocol = self.protocol or ""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.members.values()
        )
