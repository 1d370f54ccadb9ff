"""ShareGroupHeartbeat: joins, share state, assignments, leaves, bounds, a replay of the log."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.groups.consumer.rig import T, U, partitions
from tiered.errors import Code
from tiered.groups import requests
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import ShareHeartbeat, ShareHeartbeatReply, SharePartitionsInitialized, ShareStateWanted
from tiered.groups.shard import GroupShard
from tiered.groups.share.state_partitions import INITIALIZE_AGAIN_MS
from tiered.shard import CoordinatorRecord, Now

SETTINGS = GroupSettings(share_size_max=3)


class Rig:
    """A shard, its log, and the share coordinator that replies when `begin_state` says so."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.settings = settings
        self.topics = {"t": SubscribedTopic(T, 2)}
        self.version = 1
        self.now_ms = 1_000
        self.log: list[CoordinatorRecord] = []
        self.wanted: list[ShareStateWanted] = []
        self.shard = self.make()

    def make(self) -> GroupShard:
        return GroupShard(
            self.settings, lambda: "id", find_topic=lambda name: self.topics.get(name),
            metadata_version=lambda: self.version,
        )  # fmt: skip

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms, self.now_ms)

    def take(self, result: Any) -> Any:
        self.log += result.records
        self.wanted += [each for each in result.events if isinstance(each, ShareStateWanted)]
        assert self.shard.find_violations() == ()
        return result.replies[0][1] if result.replies else None

    def do(self, request: requests.Request) -> Any:
        return self.take(self.shard.decide(request, self.now, 7))

    def beat(self, member_id: str, epoch: int, *topics: str) -> ShareHeartbeatReply:
        reply = self.do(ShareHeartbeat("g", member_id, epoch, topics=topics or None, client_id="c"))
        assert isinstance(reply, ShareHeartbeatReply)
        return reply

    def begin_state(self) -> Assignment:
        """Begins the share state that was requested last."""
        wanted = self.wanted[-1].partitions
        self.do(SharePartitionsInitialized("g", wanted))
        return wanted

    def join(self, member_id: str) -> ShareHeartbeatReply:
        reply = self.beat(member_id, 0, "t")
        assert reply.code is Code.NONE
        if self.wanted:
            self.begin_state()
        return self.beat(member_id, reply.member_epoch)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.take(self.shard.due(self.now))

    def reload(self) -> None:
        """Replaces the shard by one that has loaded a snapshot, and compares it with one that has read the log."""
        records = [each for part in self.shard.snapshot() for each in part]
        replayed = self.make()
        replayed.apply(self.log)
        assert sorted(records) == sorted(each for part in replayed.snapshot() for each in part)
        assert replayed.log_state.memory_bytes == self.shard.log_state.memory_bytes
        self.shard = self.make()
        self.shard.apply(records)
        self.shard.on_loaded(self.now)
        assert self.shard.find_violations() == ()


def test_member_reads_a_partition_once_its_share_state_has_begun() -> None:
    rig = Rig()
    reply = rig.beat("a", 0, "t")
    assert (reply.code, reply.member_epoch, reply.assignment) == (Code.NONE, 1, {})
    assert rig.wanted == [ShareStateWanted("g", 1, partitions(t={0, 1}))]
    assert rig.beat("a", 1) == ShareHeartbeatReply(Code.NONE, None, "a", 1, 5_000, None)
    assert len(rig.wanted) == 1, "it was requested a moment ago"
    assert rig.begin_state() == partitions(t={0, 1})
    reply = rig.beat("a", 1)
    assert (reply.member_epoch, reply.assignment) == (2, partitions(t={0, 1}))
    written = len(rig.log)
    assert rig.beat("a", 2).assignment is None
    assert rig.beat("a", 1).code is Code.NONE, "the reply with the new epoch may have been lost"
    assert len(rig.log) == written, "a heartbeat without news writes nothing"


def test_state_is_requested_again_if_no_reply_came() -> None:
    rig = Rig()
    rig.beat("a", 0, "t")
    rig.pass_time(INITIALIZE_AGAIN_MS)
    rig.beat("a", 1)
    assert [each.partitions for each in rig.wanted] == [partitions(t={0, 1})] * 2
    rig.reload()
    rig.pass_time(INITIALIZE_AGAIN_MS)
    rig.beat("a", 1)
    assert len(rig.wanted) == 3
    rig.do(SharePartitionsInitialized("g", partitions(t={0})))
    assert rig.beat("a", 1).assignment == partitions(t={0})
    rig.do(SharePartitionsInitialized("g", partitions(t={0, 1, 5}, u={0})))
    assert rig.beat("a", 2).assignment == partitions(t={0, 1})


def test_members_divide_the_partitions_and_share_them_if_there_are_more() -> None:
    rig = Rig()
    assert rig.join("a").assignment == partitions(t={0, 1})
    assert rig.join("b").code is Code.NONE
    rig.join("c")
    owned = {}
    for member_id in "abc":
        epoch = rig.shard.log_state.share_groups["g"].members[member_id].current.epoch
        rig.beat(member_id, epoch)
        owned[member_id] = rig.shard.log_state.share_groups["g"].members[member_id].current.assigned
    assert all(len(each[T]) == 1 for each in owned.values())
    assert frozenset().union(*(each[T] for each in owned.values())) == {0, 1}
    assert rig.beat("d", 0, "t").code is Code.GROUP_MAX_SIZE_REACHED
    rig.reload()
    assert rig.beat("a", 9).code is Code.FENCED_MEMBER_EPOCH


def test_topic_that_grows_or_comes_anew_is_followed() -> None:
    rig = Rig()
    rig.join("a")
    rig.topics["t"], rig.version = SubscribedTopic(T, 3), 2
    reply = rig.beat("a", 2)
    assert rig.wanted[-1] == ShareStateWanted("g", 3, partitions(t={2}))
    rig.begin_state()
    assert rig.beat("a", reply.member_epoch).assignment == partitions(t={0, 1, 2})
    rig.topics["t"], rig.version = SubscribedTopic(U, 1), 3
    reply = rig.beat("a", 4)
    assert reply.assignment == {}, "the topic of that name is another one"
    rig.begin_state()
    assert rig.beat("a", reply.member_epoch).assignment == partitions(u={0})
    rig.reload()


def test_member_that_leaves_or_is_silent_gives_up_its_partitions() -> None:
    rig = Rig()
    rig.join("a")
    rig.join("b")
    assert rig.beat("b", -1) == ShareHeartbeatReply(Code.NONE, None, "b", -1)
    assert rig.beat("b", -1).code is Code.UNKNOWN_MEMBER_ID
    rig.beat("a", rig.shard.log_state.share_groups["g"].members["a"].current.epoch)
    assert rig.shard.log_state.share_groups["g"].members["a"].current.assigned == partitions(t={0, 1})
    rig.reload()
    rig.pass_time(rig.settings.share_session_timeout_ms)
    assert not rig.shard.log_state.share_groups["g"].members
    rig.reload()


def test_group_is_described_listed_and_deleted() -> None:
    rig = Rig()
    rig.join("a")
    described = rig.do(requests.DescribeShareGroup("g"))
    assert (described.state, described.epoch, described.assignor) == ("Stable", 2, "simple")
    [member] = described.members
    assert (member.metadata.client_id, member.current.assigned) == ("c", partitions(t={0, 1}))
    row = requests.ListedGroup("g", "share", "Stable", "share")
    assert rig.do(requests.ListGroups()).groups == (row,)
    assert rig.do(requests.ListGroups(types=frozenset({"Share"}))).groups == (row,)
    assert rig.do(requests.ListGroups(types=frozenset({"consumer"}))).groups == ()
    assert rig.do(requests.ListGroups(states=frozenset({"empty"}))).groups == ()
    assert rig.do(requests.DeleteGroup("g")).code is Code.NON_EMPTY_GROUP
    rig.beat("a", -1)
    assert rig.do(requests.DeleteGroup("g")).code is Code.NONE
    assert rig.shard.log_state.memory_bytes == 0
    assert rig.do(requests.DescribeShareGroup("g")).code is Code.GROUP_ID_NOT_FOUND
    rig.reload()


def test_names_of_other_types_of_groups_are_refused() -> None:
    rig = Rig()
    rig.join("a")
    join = requests.JoinGroup("g", "", None, "c", "h", 10_000, 10_000, "consumer", (("range", b""),))
    assert rig.do(join).code is Code.INCONSISTENT_GROUP_PROTOCOL
    offsets = (requests.PartitionOffset("t", 0, 1),)
    assert rig.do(requests.CommitOffsets("g", offsets)).codes == (Code.GROUP_ID_NOT_FOUND,)
    consumer = requests.ConsumerHeartbeat("g", "m", 0, rebalance_timeout_ms=1_000, topics=("t",), owned={})
    assert rig.do(consumer).code is Code.GROUP_ID_NOT_FOUND
    assert rig.do(requests.CommitOffsets("simple", offsets)).codes == (Code.NONE,)
    for name in ("simple", "never"):
        epoch = 0 if name == "simple" else 3
        assert rig.do(ShareHeartbeat(name, "a", epoch, topics=("t",))).code is Code.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    "request_", [
        ShareHeartbeat("", "a", 0, topics=("t",)), ShareHeartbeat("g", "", 0, topics=("t",)),
        ShareHeartbeat("g", "a", -2), ShareHeartbeat("g", "a", 0), ShareHeartbeat("g", "a", 0, "", ("t",)),
        ShareHeartbeat("g" * 40_000, "a", 0, topics=("t",)), ShareHeartbeat("g", "a" * 40_000, 0, topics=("t",)),
    ],
)  # fmt: skip
def test_malformed_request_is_refused_and_changes_nothing(request_: ShareHeartbeat) -> None:
    rig = Rig()
    assert rig.do(request_).code is Code.INVALID_REQUEST
    assert not rig.log


def test_group_takes_no_more_memory_than_it_may() -> None:
    rig = Rig(GroupSettings(bytes_max=1_000))
    assert rig.beat("a", 0, "t").code is Code.COORDINATOR_NOT_AVAILABLE
    assert not rig.log and not rig.shard.log_state.share_groups
    rig = Rig(GroupSettings(record_bytes_max=100))
    assert rig.beat("a", 0, *(f"topic-{each}" for each in range(50))).code is Code.UNKNOWN_SERVER_ERROR
    assert not rig.log
