"""A shard with its log, a clock that stands still, and callers. All rules of its state are checked after each step.

Every record is kept: a replay of all of them, or the snapshot, must give the state of the shard. The assignment of a
member in a generation never changes (rule I17, as far as one coordinator can see it).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import TypeVar

from tiered.errors import Code, Refused
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.limits import ConsumerTimeouts, GroupSettings
from tiered.groups.log_state import LogState
from tiered.groups.pending_offsets import PendingOffset
from tiered.groups.records import OffsetKey
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    CommitTransactionalOffsets,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeGroup,
    DescribeGroupReply,
    Event,
    FetchOffsets,
    FetchOffsetsReply,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    LeavingMember,
    PartitionOffset,
    Reply,
    Request,
    SyncGroup,
    SyncGroupReply,
)
from tiered.groups.shard import GroupShard
from tiered.quotas.shares import GROUP_BYTES, Holdings
from tiered.record_fields import I16, I32, encode_string
from tiered.shard import CoordinatorRecord, CoordinatorResult, Now, ProducerIdAndEpoch

R = TypeVar("R", bound=Reply)
WALL = 1_700_000_000_000
G = "g"
THIS = "AAAAAAAAAAAAAAAAAAAAEA"
THAT = "AAAAAAAAAAAAAAAAAAAAEQ"
"""Ids of two topics."""


def subscription(*topics: str, user_data: bytes = b"") -> bytes:
    """A consumer's metadata, version 1."""
    return (
        I16.pack(1)
        + I32.pack(len(topics))
        + b"".join(map(encode_string, topics))
        + I32.pack(len(user_data))
        + user_data
        + I32.pack(0)
    )


RANGE = (("range", subscription("t")),)
BOTH = (("range", subscription("t")), ("roundrobin", subscription("t")))


def _pending(state: LogState) -> list[tuple[OffsetKey, list[PendingOffset]]]:
    """Returns the pending offsets of each partition, in the order in which producers wrote them."""
    groups = sorted(state.pending.groups())
    return [
        (OffsetKey(group, *at), state.pending.of_partition(group, *at))
        for group in groups
        for at in sorted(state.pending.partitions(group))
    ]


def _consumer_groups(state: LogState) -> dict[str, set[CoordinatorRecord]]:
    """Returns the records of each consumer group."""
    return {name: set(group.snapshot()) for name, group in state.consumer_groups.items()}


class Rig:
    """A shard under test. `log` holds all records that were ever appended, `topic_ids` the ids by topic name."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.held_elsewhere = 0
        self.refused: list[tuple[str, str]] = []
        """The holders that a share refused, each with the reason."""
        self.topic_ids: dict[str, str] = {}
        self.topics: dict[str, SubscribedTopic] = {}
        """The topics that exist, by name, as far as consumer groups look at them."""
        self.metadata_version = 1
        self.own_timeouts: dict[str, ConsumerTimeouts] = {}
        """Settings of groups."""
        self.resolved: list[str] = []
        """The regular expressions that were matched with the topics, in order."""
        self._ids = itertools.count(1)
        self._tokens = itertools.count(1)
        self.ms = self.fast_ms = 0
        self.log: list[CoordinatorRecord] = []
        self.markers: list[tuple[int, ProducerIdAndEpoch, bool]] = []
        """Markers in the log: the number of records before each, its producer id, and if it commits."""
        self.replies: dict[int, Reply] = {}
        self.events: list[Event] = []
        self._syncs: dict[int, SyncGroup] = {}
        self._assigned: dict[tuple[str, int, str], bytes] = {}
        self.shard = self._fresh()

    @property
    def now(self) -> Now:
        return Now(self.ms, WALL + self.ms, WALL + self.ms - self.fast_ms)

    def ask(self, request: Request) -> int:
        """Sends a request. Returns the token of its reply."""
        token = next(self._tokens)
        if isinstance(request, SyncGroup):
            self._syncs[token] = request
        self._take(self.shard.decide(request, self.now, token))
        return token

    def reply_to(self, request: Request, kind: type[R]) -> R:
        """Returns the reply, which must come at once."""
        return self.reply(self.ask(request), kind)

    def reply(self, token: int, kind: type[R]) -> R:
        """Returns the reply that has come."""
        reply = self.replies[token]
        assert isinstance(reply, kind)
        return reply

    def pass_ms(self, ms: int) -> None:
        """Passes time and handles each deadline when it comes."""
        end = self.ms + ms
        while (due := self.shard.next_due_ms) is not None and due <= end:
            self.ms = max(self.ms, due)
            self._take(self.shard.due(self.now))
        self.ms = end

    def reload(self, *, through_image: bool = False) -> None:
        """Moves the coordinator: a new shard loads the log. Parked callers get no reply from it."""
        self.shard = self._fresh(self.snapshot()) if through_image else self._fresh()
        self.check()

    def snapshot(self) -> list[CoordinatorRecord]:
        """Returns the snapshot of the shard, of all groups at once."""
        return list(itertools.chain(*self.shard.snapshot()))

    def check(self) -> None:
        """Checks the rules that hold at any time."""
        assert self.shard.find_violations() == ()
        replayed, restored = LogState(), LogState()
        self._replay(replayed)
        restored.apply(self.snapshot())
        for loaded in (replayed, restored):
            assert (loaded.groups, loaded.offsets) == (self.shard.log_state.groups, self.shard.log_state.offsets)
            assert _consumer_groups(loaded) == _consumer_groups(self.shard.log_state)
            assert _pending(loaded) == _pending(self.shard.log_state)
            assert loaded.memory_bytes == self.shard.log_state.memory_bytes
            assert loaded.sizes.by_group == self.shard.log_state.sizes.by_group
        assert self.shard.state.protocol_bytes.total == sum(
            group.protocol_bytes for group in self.shard.state.groups.values()
        )

    def _fresh(self, records: Iterable[CoordinatorRecord] | None = None) -> GroupShard:
        """Returns a shard that loaded these records, or else the log."""
        shard = GroupShard(
            self.settings, lambda: f"id{next(self._ids)}", lambda topic: self.topic_ids.get(topic, ""),
            Holdings(
                GROUP_BYTES, lambda: self.settings.bytes_max, lambda: shard.state.memory_bytes + self.held_elsewhere,
                lambda: (shard.state.holders.by_holder,),
            ),
            self.topics.get, lambda: self.metadata_version, find_own_timeouts=self.own_timeouts.get,
        )  # fmt: skip
        shard.state.match_topics = self.match_topics
        shard.state.holdings.on_refused = lambda _, holder, why: self.refused.append((holder, why))
        if records is not None:
            shard.apply(records)
        else:
            self._replay(shard)
        shard.on_loaded(self.now)
        return shard

    def _replay(self, target: GroupShard | LogState) -> None:
        """Applies the log with its markers."""
        at = 0
        for position, marker, is_commit in self.markers:
            target.apply(self.log[at:position])
            target.end_transaction(marker, is_commit)
            at = position
        target.apply(self.log[at:])

    def _take(self, outcome: CoordinatorResult[Reply, Event]) -> None:
        self.log += outcome.records
        self.events += outcome.events
        for token, reply in outcome.replies:
            assert token not in self.replies, "answered twice"
            self.replies[token] = reply
            asked = self._syncs.get(token)
            if asked is not None and asked.group not in self.shard.state.groups:
                continue  # a consumer group, whose members get more partitions in the same epoch
            if isinstance(reply, SyncGroupReply) and reply.code is Code.NONE:
                assert asked is not None
                first = self._assigned.setdefault((asked.group, asked.generation, asked.member_id), reply.assignment)
                assert first == reply.assignment
        self.check()

    # -- consumer groups -----------------------------------------------------------------------------------------------

    def set_topic(self, name: str, partition_count: int, topic_id: str = "") -> None:
        """Creates a topic, adds partitions to it, or removes it with its last partition."""
        self.metadata_version += 1
        if partition_count:
            known = self.topics.get(name)
            self.topics[name] = SubscribedTopic(topic_id or (known and known.topic_id) or THIS, partition_count)
        else:
            del self.topics[name]

    def match_topics(self, regex: str) -> frozenset[str]:
        """Stands for an engine of linear time."""
        self.resolved.append(regex)
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise Refused(Code.INVALID_REGULAR_EXPRESSION, str(error)) from None
        return frozenset(filter(pattern.fullmatch, self.topics))

    def consume(
        self, member_id: str, epoch: int = 0, *, group: str = G, topics: tuple[str, ...] | None = None,
        owned: Assignment | None = None, instance_id: str | None = None, rebalance_ms: int = -1,
        assignor: str | None = None, regex: str | None = None, holder: str = "",
    ) -> ConsumerHeartbeatReply:  # fmt: skip
        """Sends ConsumerGroupHeartbeat: all that a join needs if the epoch is 0."""
        if epoch == 0:
            topics = topics or (("t",) if regex is None else None)
            owned, rebalance_ms = {}, 60_000 if rebalance_ms < 0 else rebalance_ms
        request = ConsumerHeartbeat(
            group, member_id, epoch, instance_id, None, rebalance_ms, topics, regex, assignor, owned, "c",
            "/127.0.0.1", holder,
        )  # fmt: skip
        return self.reply_to(request, ConsumerHeartbeatReply)

    # -- the usual requests --------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        group: str = G,
        instance_id: str | None = None,
        client_id: str = "c",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "consumer",
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        id_required: bool = True,
        skip_known: bool = True,
    ) -> int:
        return self.ask(
            JoinGroup(
                group,
                member_id,
                instance_id,
                client_id,
                "/127.0.0.1",
                session_ms,
                rebalance_ms,
                protocol_type,
                protocols,
                None,
                id_required,
                skip_known,
            )
        )

    def new_id(self, *, group: str = G, client_id: str = "c") -> str:
        """Requests an id for a new member."""
        reply = self.reply(self.join(group=group, client_id=client_id), JoinGroupReply)
        assert reply.code is Code.MEMBER_ID_REQUIRED
        return reply.member_id

    def sync(
        self, member_id: str, generation: int, *, group: str = G, instance_id: str | None = None, **given: bytes
    ) -> int:
        """Sends SyncGroup. `given` are the leader's assignments, by member id with _ for -."""
        assignments = tuple((name.replace("_", "-"), bytes_) for name, bytes_ in given.items())
        return self.ask(SyncGroup(group, generation, member_id, instance_id, assignments=assignments))

    def assign(self, leader: str, generation: int, assignments: dict[str, bytes], *, group: str = G) -> int:
        return self.ask(SyncGroup(group, generation, leader, assignments=tuple(assignments.items())))

    def beat(self, member_id: str, generation: int, *, group: str = G, instance_id: str | None = None) -> Code:
        return self.reply_to(Heartbeat(group, generation, member_id, instance_id), HeartbeatReply).code

    def leave(self, *members: LeavingMember | str, group: str = G) -> tuple[Code, ...]:
        leavers = tuple(LeavingMember(each) if isinstance(each, str) else each for each in members)
        return self.reply_to(LeaveGroup(group, leavers), LeaveGroupReply).codes

    def commit(
        self, member_id: str = "", generation: int = -1, offset: int = 1, *, topic: str = "t", group: str = G,
        holder: str = "",
    ) -> Code:  # fmt: skip
        request = CommitOffsets(group, (PartitionOffset(topic, 0, offset),), generation, member_id, holder=holder)
        (code,) = self.reply_to(request, CommitOffsetsReply).codes
        return code

    def committed(self, topic: str = "t", *, group: str = G) -> int:
        (row,) = self.reply_to(FetchOffsets(group, ((topic, 0),)), FetchOffsetsReply).offsets
        return row.offset

    def commit_in_transaction(
        self, producer_id: int = 1, offset: int = 1, *, epoch: int = 0, member_id: str = "", generation: int = -1,
        instance_id: str | None = None, topic: str = "t", group: str = G,
    ) -> Code:  # fmt: skip
        request = CommitTransactionalOffsets(
            group, (PartitionOffset(topic, 0, offset),), ProducerIdAndEpoch(producer_id, epoch), generation, member_id,
            instance_id,
        )  # fmt: skip
        (code,) = self.reply_to(request, CommitOffsetsReply).codes
        return code

    def end_transaction(self, producer_id: int = 1, *, epoch: int = 0, is_commit: bool = True) -> None:
        """Writes a marker."""
        marker = ProducerIdAndEpoch(producer_id, epoch)
        self.markers.append((len(self.log), marker, is_commit))
        self.shard.end_transaction(marker, is_commit)
        self.check()

    def stable_offset(self, topic: str = "t", *, group: str = G) -> int | Code:
        """Returns the committed offset, or UNSTABLE_OFFSET_COMMIT."""
        reply = self.reply_to(FetchOffsets(group, ((topic, 0),), require_stable=True), FetchOffsetsReply)
        return Code.UNSTABLE_OFFSET_COMMIT if (topic, 0) in reply.unstable else reply.offsets[0].offset

    def describe(self, group: str = G) -> DescribeGroupReply:
        return self.reply_to(DescribeGroup(group), DescribeGroupReply)

    def stable(self, count: int = 1, *, group: str = G) -> tuple[list[str], int]:
        """Returns the members of a new stable group, the leader first, and its generation."""
        ids = [self.new_id(group=group) for _ in range(count)]
        tokens = [self.join(each, group=group) for each in ids]
        self.pass_ms(2 * self.settings.initial_rebalance_delay_ms)
        answers = [self.reply(token, JoinGroupReply) for token in tokens]
        leader = answers[0].leader
        ids.sort(key=lambda each: each != leader)
        generation = answers[0].generation
        waiting = [self.sync(each, generation, group=group) for each in ids[1:]]
        waiting.append(self.assign(leader, generation, {each: each.encode() for each in ids}, group=group))
        assert {self.reply(token, SyncGroupReply).code for token in waiting} == {Code.NONE}
        return ids, generation
