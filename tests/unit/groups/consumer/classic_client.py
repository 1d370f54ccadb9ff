"""A consumer of the classic protocol, as far as a coordinator sees it: eager or cooperative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.unit.groups.rig import Rig
from tiered.errors import Code
from tiered.groups.consumer.assignment import AssignorMember
from tiered.groups.consumer.range_assignor import assign_ranges
from tiered.groups.requests import JoinGroupReply, SyncGroupReply
from tiered.groups.subscription import TopicPartitions, encode_assignment, parse_assignment, parse_subscription
from tiered.record_fields import I16, I32, encode_string

SESSION_MS = 6_000
Owned = frozenset[tuple[str, int]]


def encode_subscription(topics: Iterable[str], owned: TopicPartitions, generation: int = -1) -> bytes:
    """Encodes a subscription of version 2."""
    names = sorted(topics)
    head = I16.pack(2) + I32.pack(len(names)) + b"".join(map(encode_string, names)) + I32.pack(-1)
    return head + encode_assignment(owned)[2:-4] + I32.pack(generation)


def by_topic(owned: Iterable[tuple[str, int]]) -> TopicPartitions:
    found: dict[str, frozenset[int]] = {}
    for topic, partition in owned:
        found[topic] = found.get(topic, frozenset()) | {partition}
    return found


def flatten(partitions: TopicPartitions) -> Owned:
    return frozenset((topic, each) for topic, numbers in partitions.items() for each in numbers)


class ClassicClient:
    """A client that does one thing in each `poll`. An eager one gives up all that it has before it joins."""

    def __init__(self, rig: Rig, *, is_eager: bool, topics: tuple[str, ...] = ("t",)) -> None:
        self.rig = rig
        self.is_eager = is_eager
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.owned: Owned = frozenset()
        self.needs_join = True
        self._waits_for: int | None = None

    def poll(self) -> None:
        """Takes a reply that has come, else sends JoinGroup or Heartbeat."""
        if self._waits_for is None and not self.needs_join:
            self._on_code(self.rig.beat(self.member_id, self.generation))
            return
        if self._waits_for is None:
            if self.is_eager:
                self.owned = frozenset()
            metadata = encode_subscription(self.topics, by_topic(self.owned), self.generation)
            name = "range" if self.is_eager else "cooperative-sticky"
            self._waits_for = self.rig.join(self.member_id, session_ms=SESSION_MS, protocols=((name, metadata),))
        while self._waits_for is not None and self._waits_for in self.rig.replies:
            reply, self._waits_for = self.rig.replies[self._waits_for], None
            if isinstance(reply, JoinGroupReply):
                self._on_join(reply)
            elif isinstance(reply, SyncGroupReply):
                self._on_sync(reply)

    def disconnect(self) -> None:
        """Its coordinator has moved: a request that waited got no reply."""
        if self._waits_for is not None:
            self._waits_for, self.needs_join = None, True

    def leave(self) -> None:
        if self.member_id:
            self.rig.leave(self.member_id)

    def _on_join(self, reply: JoinGroupReply) -> None:
        if reply.code is Code.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            return
        self._on_code(reply.code)
        if reply.code is not Code.NONE:
            return
        self.member_id, self.generation, self.needs_join = reply.member_id, reply.generation, False
        given = self._assign(reply) if reply.leader == self.member_id else {}
        if given:
            self._waits_for = self.rig.assign(self.member_id, self.generation, given)
        else:
            self._waits_for = self.rig.sync(self.member_id, self.generation)

    def _assign(self, reply: JoinGroupReply) -> dict[str, bytes]:
        """Assigns as the leader. A partition that another member owns is given to nobody until it is given up."""
        subscriptions = {each.member_id: parse_subscription(each.metadata) for each in reply.members}
        members = {each: AssignorMember(subscription.topics) for each, subscription in subscriptions.items()}
        counts = {name: topic.partition_count for name, topic in self.rig.topics.items()}
        targets = {each: flatten(target) for each, target in assign_ranges(members, counts).items()}
        owners = {each: flatten(subscription.owned) for each, subscription in subscriptions.items()}
        return {each: encode_assignment(by_topic(_grant(each, targets[each], owners))) for each in members}

    def _on_sync(self, reply: SyncGroupReply) -> None:
        self._on_code(reply.code)
        if reply.code is Code.NONE:
            had, self.owned = self.owned, flatten(parse_assignment(reply.assignment))
            self.needs_join = bool(had - self.owned)

    def _on_code(self, code: Code) -> None:
        if code is Code.NONE:
            return
        self.needs_join = True
        if code in (Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION):
            self.owned, self.generation = frozenset(), -1
            if code is Code.UNKNOWN_MEMBER_ID:
                self.member_id = ""
        else:
            assert code is Code.REBALANCE_IN_PROGRESS, code


def _grant(member_id: str, target: Owned, owners: Mapping[str, Owned]) -> Owned:
    others = frozenset[tuple[str, int]]().union(*(owned for each, owned in owners.items() if each != member_id))
    return target - others
