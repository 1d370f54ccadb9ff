"""Describing, listing and deleting groups."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import G, Rig, subscription
from tiered.errors import Code
from tiered.groups.requests import (
    NO_OFFSET,
    DeleteGroup,
    DeleteReply,
    DescribedMember,
    DescribeGroup,
    DescribeGroupReply,
    GroupProgress,
    JoinGroupReply,
    ListGroups,
    ListGroupsReply,
)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def names(rig: Rig, *, states: frozenset[str] = frozenset(), types: frozenset[str] = frozenset()) -> list[str]:
    return [each.group for each in rig.reply_to(ListGroups(states, types), ListGroupsReply).groups]


def test_unknown_group_is_dead(rig: Rig) -> None:
    assert rig.describe() == DescribeGroupReply(Code.GROUP_ID_NOT_FOUND, G, "Dead")


def test_stable_group_shows_metadata_and_assignments(rig: Rig) -> None:
    (first,), _ = rig.stable()
    member = DescribedMember(first, None, "c", "/127.0.0.1", subscription("t"), first.encode())
    assert rig.describe() == DescribeGroupReply(Code.NONE, G, "Stable", "consumer", "range", (member,))


def test_group_in_a_rebalance_has_no_protocol(rig: Rig) -> None:
    (first,), _ = rig.stable()
    rig.new_id()
    rig.join(first)
    reply = rig.describe()
    assert (reply.state, reply.protocol, reply.members[0].metadata) == ("PreparingRebalance", "", b"")
    rig.pass_ms(10_000)
    assert (rig.describe().state, rig.describe().protocol) == ("CompletingRebalance", "")


def test_progress_names_the_members_that_a_rebalance_waits_for(rig: Rig) -> None:
    (first, second), generation = rig.stable(2)

    def progress() -> GroupProgress:
        found = rig.reply_to(DescribeGroup(G, with_progress=True), DescribeGroupReply).progress
        assert found is not None
        return found

    assert progress().awaited == () and rig.describe().progress is None
    third = rig.new_id()
    assert progress().pending == 1
    rig.pass_ms(1_000)
    before_ms = progress().since_ms
    rig.join(third)
    assert progress().awaited == (first, second) and progress().since_ms > before_ms and progress().pending == 0
    assert progress().rebalance_timeout_ms == 60_000
    rig.join(first)
    assert progress().awaited == (second,)
    rig.join(second)
    assert set(progress().awaited) == {first, second, third} and rig.describe().state == "CompletingRebalance"
    rig.sync(third, generation + 1)
    assert set(progress().awaited) == {first, second}


def test_first_rebalance_after_a_load_says_that_the_coordinator_moved(rig: Rig) -> None:
    (first, second), generation = rig.stable(2)

    def reason() -> str:
        found = rig.reply_to(DescribeGroup(G, with_progress=True), DescribeGroupReply).progress
        assert found is not None
        return found.reason

    assert "moved" not in reason()
    rig.reload()
    rig.join(first)
    assert reason().startswith(f"member {first} ") and "since the coordinator of the group moved" in reason()
    rig.join(second)
    for member in (first, second):
        rig.sync(member, generation + 1)
    rig.join(first)
    assert "moved" not in reason(), "the next one has another reason"


def test_list_has_the_groups_that_pass_its_filters(rig: Rig) -> None:
    rig.stable(group="b")
    rig.commit(group="a")
    rig.new_id(group="c")
    rig.join(rig.new_id(group="d"), group="d")
    assert names(rig) == ["a", "b", "c", "d"]
    assert names(rig, states=frozenset({"stable"})) == ["b"]
    assert names(rig, states=frozenset({"Empty", "PREPARINGREBALANCE"})) == ["a", "c", "d"]
    assert names(rig, types=frozenset({"Classic"})) == ["a", "b", "c", "d"]
    assert names(rig, types=frozenset({"consumer"})) == []
    assert rig.reply_to(ListGroups(), ListGroupsReply).groups[1] == ("b", "consumer", "Stable", "classic")


def test_group_with_members_cannot_be_deleted(rig: Rig) -> None:
    (first,), _ = rig.stable()
    assert rig.reply_to(DeleteGroup(G), DeleteReply).code is Code.NON_EMPTY_GROUP
    rig.join(first)
    assert rig.reply_to(DeleteGroup(G), DeleteReply).code is Code.NON_EMPTY_GROUP
    assert rig.reply_to(DeleteGroup("nobody"), DeleteReply).code is Code.GROUP_ID_NOT_FOUND


def test_deleted_group_leaves_no_record(rig: Rig) -> None:
    (first,), generation = rig.stable()
    rig.commit(first, generation)
    rig.commit(first, generation, topic="u")
    rig.leave(first)
    assert rig.reply_to(DeleteGroup(G), DeleteReply).code is Code.NONE
    assert not rig.snapshot()
    assert (rig.committed(), rig.describe().state) == (NO_OFFSET, "Dead")
    rig.reload()
    assert rig.describe().state == "Dead"


def test_issued_member_id_ends_with_its_group(rig: Rig) -> None:
    rig.commit()
    member = rig.new_id()
    rig.reply_to(DeleteGroup(G), DeleteReply)
    assert rig.reply(rig.join(member), JoinGroupReply).code is Code.UNKNOWN_MEMBER_ID
    rig.pass_ms(100_000)
