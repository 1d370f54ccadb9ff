"""SyncGroup, Heartbeat and LeaveGroup: the reply for every state of a group and a caller."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.requests import (
    Heartbeat,
    HeartbeatReply,
    JoinGroupReply,
    LeaveGroup,
    LeaveGroupReply,
    SyncGroup,
    SyncGroupReply,
)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def sync_code(rig: Rig, request: SyncGroup) -> Code:
    return rig.reply_to(request, SyncGroupReply).code


def completing(rig: Rig) -> list[str]:
    """Two members that have joined generation 1; nothing is assigned yet."""
    ids = [rig.new_id() for _ in range(2)]
    for each in ids:
        rig.join(each)
    rig.pass_ms(1_000)
    assert rig.describe().state == "CompletingRebalance"
    return ids


# -- sync -------------------------------------------------------------------------------------------------------------


def test_sync_without_a_group_or_a_member_is_refused(rig: Rig) -> None:
    assert sync_code(rig, SyncGroup("", 1, "m")) is Code.INVALID_GROUP_ID
    assert sync_code(rig, SyncGroup(G, 1, "m")) is Code.UNKNOWN_MEMBER_ID
    (first,), _ = rig.stable()
    assert sync_code(rig, SyncGroup(G, 1, "m")) is Code.UNKNOWN_MEMBER_ID
    rig.leave(first)
    assert sync_code(rig, SyncGroup(G, 2, first)) is Code.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("generation", [0, 2, -1])
def test_sync_of_another_generation_is_refused(rig: Rig, generation: int) -> None:
    ids = completing(rig)
    assert sync_code(rig, SyncGroup(G, generation, ids[0])) is Code.ILLEGAL_GENERATION


def test_sync_names_the_chosen_protocol_or_none(rig: Rig) -> None:
    ids = completing(rig)
    for kind, protocol in (("connect", "range"), ("consumer", "roundrobin")):
        request = SyncGroup(G, 1, ids[1], None, kind, protocol)
        assert sync_code(rig, request) is Code.INCONSISTENT_GROUP_PROTOCOL
    waits = rig.ask(SyncGroup(G, 1, ids[1], None, "consumer", "range"))
    rig.assign(ids[0], 1, {ids[1]: b"x"})
    assert rig.reply(waits, SyncGroupReply) == SyncGroupReply(Code.NONE, "consumer", "range", b"x")


def test_sync_during_a_rebalance_is_refused(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    rig.join(ids[0])
    assert sync_code(rig, SyncGroup(G, generation, ids[1])) is Code.REBALANCE_IN_PROGRESS


def test_only_members_named_by_the_leader_get_an_assignment(rig: Rig) -> None:
    ids = completing(rig)
    waits = rig.sync(ids[1], 1)
    rig.assign(ids[0], 1, {ids[0]: b"all", "unknown": b"x"})
    assert rig.reply(waits, SyncGroupReply) == SyncGroupReply(Code.NONE, "consumer", "range", b"")
    assert [member.assignment for member in rig.describe().members] == [b"all", b""]


def test_only_the_leader_assigns(rig: Rig) -> None:
    ids = completing(rig)
    waits = rig.assign(ids[1], 1, {ids[1]: b"all for me"})
    assert waits not in rig.replies
    rig.assign(ids[0], 1, {ids[1]: b"some"})
    assert rig.reply(waits, SyncGroupReply).assignment == b"some"


def test_late_sync_gets_its_assignment_at_once(rig: Rig) -> None:
    ids = completing(rig)
    rig.assign(ids[0], 1, {ids[1]: b"x"})
    assert rig.reply(rig.sync(ids[1], 1), SyncGroupReply).assignment == b"x"
    rig.pass_ms(60_000)
    assert rig.describe().code is Code.NONE


def test_repeated_sync_replaces_the_older_one(rig: Rig) -> None:
    ids = completing(rig)
    old, new = rig.sync(ids[1], 1), rig.sync(ids[1], 1)
    assert rig.reply(old, SyncGroupReply).code is Code.REBALANCE_IN_PROGRESS
    rig.assign(ids[0], 1, {ids[1]: b"x"})
    assert rig.reply(new, SyncGroupReply).assignment == b"x"


# -- heartbeat --------------------------------------------------------------------------------------------------------


def test_heartbeat_reply_tells_the_member_what_to_do(rig: Rig) -> None:
    assert rig.beat("m", 1) is Code.UNKNOWN_MEMBER_ID
    assert rig.reply_to(Heartbeat("", 1, "m"), HeartbeatReply).code is Code.INVALID_GROUP_ID
    ids = completing(rig)
    assert rig.beat(ids[0], 1) is Code.NONE, "members may beat before they have their assignment"
    rig.assign(ids[0], 1, {})
    assert rig.beat(ids[0], 1) is Code.NONE
    assert rig.beat(ids[0], 0) is Code.ILLEGAL_GENERATION
    assert rig.beat("unknown", 1) is Code.UNKNOWN_MEMBER_ID
    rig.join(ids[0])
    assert rig.beat(ids[1], 1) is Code.REBALANCE_IN_PROGRESS


# -- leave ------------------------------------------------------------------------------------------------------------


def test_leave_of_an_unknown_group_or_member_is_an_error(rig: Rig) -> None:
    assert rig.reply_to(LeaveGroup("", ()), LeaveGroupReply).code is Code.INVALID_GROUP_ID
    assert rig.leave("m", "n") == (Code.UNKNOWN_MEMBER_ID, Code.UNKNOWN_MEMBER_ID)


def test_unused_id_can_leave(rig: Rig) -> None:
    given = rig.new_id()
    assert rig.leave(given) == (Code.NONE,)
    assert rig.describe().state == "Dead", "nothing is left of the group"
    assert rig.reply(rig.join(given), JoinGroupReply).code is Code.UNKNOWN_MEMBER_ID


def test_member_that_leaves_while_parked_gets_a_reply(rig: Rig) -> None:
    ids = completing(rig)
    waits = rig.sync(ids[1], 1)
    rig.leave(ids[1])
    assert rig.reply(waits, SyncGroupReply).code is Code.UNKNOWN_MEMBER_ID
    token = rig.join(ids[0])
    assert rig.reply(token, JoinGroupReply).code is Code.NONE
    rig.assign(ids[0], 2, {})
    token = rig.join(rig.new_id())
    (new,) = [waiter.member.member_id for waiter in rig.shard.state.parked_requests.values()]
    rig.leave(new)
    assert rig.reply(token, JoinGroupReply).code is Code.UNKNOWN_MEMBER_ID


def test_last_member_to_leave_leaves_an_empty_group(rig: Rig) -> None:
    ids, _ = rig.stable(2)
    assert rig.leave(*ids) == (Code.NONE, Code.NONE)
    assert rig.describe().state == "Empty"
    rig.reload()
    assert rig.describe().state == "Empty"


def test_rebalance_does_not_wait_for_a_member_that_left(rig: Rig) -> None:
    ids, _ = rig.stable(2)
    token = rig.join(ids[0])
    rig.leave(ids[1])
    assert rig.reply(token, JoinGroupReply).generation == 2


@pytest.mark.parametrize("what", ["join", "sync"])
def test_member_that_repeats_a_request_starts_a_new_session(rig: Rig, what: str) -> None:
    """Its connection was broken for a while: a member that just got its reply must not expire by the old session."""
    (leader, other), generation = rig.stable(2)
    for _ in range(2):
        rig.pass_ms(8_000)
        assert rig.beat(leader, generation) is Code.NONE
        if what == "join":
            assert rig.reply(rig.join(other), JoinGroupReply).code is Code.NONE
        else:
            assert rig.reply(rig.sync(other, generation), SyncGroupReply).code is Code.NONE
    assert rig.beat(other, generation) is Code.NONE
