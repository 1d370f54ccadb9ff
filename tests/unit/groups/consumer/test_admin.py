"""Description, listing and deletion of consumer groups."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.rig import T, partitions
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.consumer.reconciliation import CurrentAssignment, MemberState
from tiered.groups.consumer.records import MemberMetadata
from tiered.groups.requests import (
    NO_OFFSET,
    DeleteGroup,
    DeleteReply,
    DescribeConsumerGroup,
    DescribeConsumerGroupReply,
    DescribedConsumerMember,
    DescribedMember,
    DescribeGroup,
    DescribeGroupReply,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)

CONSUMING = ListedGroup(G, "consumer", "Stable", "consumer")
CLASSIC = ListedGroup("old", "consumer", "Stable", "classic")


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.set_topic("t", 2, T)
    made.consume("a", assignor="range")
    return made


def listed(rig: Rig, *, states: frozenset[str] = frozenset(), types: frozenset[str] = frozenset()) -> list[ListedGroup]:
    return list(rig.reply_to(ListGroups(states, types), ListGroupsReply).groups)


def test_group_is_described_with_epochs_and_members(rig: Rig) -> None:
    rig.consume("b")
    reply = rig.reply_to(DescribeConsumerGroup(G), DescribeConsumerGroupReply)
    metadata = MemberMetadata(None, None, "c", "/127.0.0.1", frozenset({"t"}), "", 60_000)
    assert reply == DescribeConsumerGroupReply(
        Code.NONE,
        G,
        "Reconciling",
        2,
        2,
        "range",
        (
            DescribedConsumerMember(
                "a", MemberMetadata(None, None, "c", "/127.0.0.1", frozenset({"t"}), "", 60_000, "range"),
                CurrentAssignment(1, 0, MemberState.STABLE, partitions(t={0, 1})), partitions(t={0}),
            ),
            DescribedConsumerMember(
                "b", metadata, CurrentAssignment(2, 0, MemberState.UNRELEASED_PARTITIONS), partitions(t={1})
            ),
        ),
    )  # fmt: skip


def test_group_of_another_type_is_not_found(rig: Rig) -> None:
    rig.stable(group="old")
    for name in ("old", "gone"):
        reply = rig.reply_to(DescribeConsumerGroup(name), DescribeConsumerGroupReply)
        assert (reply.code, reply.message) == (Code.GROUP_ID_NOT_FOUND, f"Group {name} not found.")
    assert rig.describe().code is Code.GROUP_ID_NOT_FOUND


def test_group_is_described_as_a_classic_one_if_wanted(rig: Rig) -> None:
    reply = rig.reply_to(DescribeGroup(G, with_consumer_groups=True), DescribeGroupReply)
    assert (reply.code, reply.state, reply.protocol_type, reply.protocol) == (Code.NONE, "Stable", "consumer", "range")
    ends = b"\xff\xff\xff\xff"
    subscribed, assigned = b"\0\0\0\0\0\1\0\1t", b"\0\0\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1"
    assert reply.members == (DescribedMember("a", None, "c", "/127.0.0.1", subscribed + ends, assigned + ends),)
    rig.set_topic("t", 0)
    reply = rig.reply_to(DescribeGroup(G, with_consumer_groups=True), DescribeGroupReply)
    assert reply.members[0].assignment == b"\0\0\0\0\0\0" + ends, "its topic is gone"
    rig.consume("a", -1)
    reply = rig.reply_to(DescribeGroup(G, with_consumer_groups=True), DescribeGroupReply)
    assert (reply.state, reply.protocol, reply.members) == ("Empty", "", ())


def test_groups_are_listed_by_type_and_state(rig: Rig) -> None:
    rig.stable(group="old")
    assert listed(rig) == [CONSUMING, CLASSIC]
    assert listed(rig, types=frozenset({"Consumer"})) == [CONSUMING]
    assert listed(rig, types=frozenset({"classic"})) == [CLASSIC]
    assert listed(rig, states=frozenset({"stable"})) == [CONSUMING, CLASSIC]
    assert listed(rig, states=frozenset({"Empty"})) == []


def test_only_an_empty_group_is_deleted(rig: Rig) -> None:
    rig.commit("a", 1, 5)
    assert rig.reply_to(DeleteGroup(G), DeleteReply).code is Code.NON_EMPTY_GROUP
    rig.consume("a", -1)
    assert rig.reply_to(DeleteGroup(G), DeleteReply).code is Code.NONE
    assert (listed(rig), rig.committed(), rig.shard.state.memory_bytes) == ([], NO_OFFSET, 0)
    assert rig.reply_to(DeleteGroup(G), DeleteReply).code is Code.GROUP_ID_NOT_FOUND
