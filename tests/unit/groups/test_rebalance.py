"""From one generation to the next: how long members are waited for, and what they get and the log holds when."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import BOTH, RANGE, G, Rig, subscription
from tiered.errors import Code
from tiered.groups.classic import REASON_MAX
from tiered.groups.limits import GroupSettings
from tiered.groups.records import GroupValue, read_group
from tiered.groups.requests import GenerationStarted, JoinGroup, JoinGroupReply, LeavingMember, SyncGroupReply


@pytest.fixture
def rig() -> Rig:
    return Rig()


def kept(rig: Rig) -> GroupValue:
    """The group as the log has it."""
    return read_group(rig.shard.log_state.groups[G])


# -- the first rebalance ----------------------------------------------------------------------------------------------


def test_first_rebalance_waits_for_more_members(rig: Rig) -> None:
    first = rig.join(rig.new_id())
    rig.pass_ms(499)
    assert first not in rig.replies
    second = rig.join(rig.new_id())
    rig.pass_ms(500)
    assert first not in rig.replies, "somebody came: it waits once more"
    rig.pass_ms(1)
    assert len(rig.reply(first, JoinGroupReply).members) == 2
    assert rig.reply(second, JoinGroupReply).generation == 1


def test_first_rebalance_waits_at_most_its_timeout(rig: Rig) -> None:
    first = rig.join(rig.new_id(), rebalance_ms=1_200)
    for _ in range(3):
        rig.join(rig.new_id(), rebalance_ms=1_200)
        rig.pass_ms(400)
    assert len(rig.reply(first, JoinGroupReply).members) == 4


def test_first_rebalance_without_a_delay_completes_at_once() -> None:
    rig = Rig(GroupSettings(initial_rebalance_delay_ms=0))
    token = rig.join(rig.new_id())
    rig.pass_ms(0)
    assert rig.reply(token, JoinGroupReply).generation == 1


def test_group_that_lost_all_its_members_starts_like_a_new_one(rig: Rig) -> None:
    (first,), _ = rig.stable()
    rig.leave(first)
    token = rig.join(rig.new_id())
    assert token not in rig.replies
    rig.pass_ms(500)
    assert rig.reply(token, JoinGroupReply).generation == 3


# -- later rebalances -------------------------------------------------------------------------------------------------


def test_later_rebalance_is_complete_when_all_have_joined(rig: Rig) -> None:
    ids, _ = rig.stable(2)
    new = rig.join(rig.new_id())
    tokens = [rig.join(each) for each in ids]
    assert {rig.reply(token, JoinGroupReply).generation for token in (new, *tokens)} == {2}


def test_member_that_does_not_rejoin_in_time_is_removed(rig: Rig) -> None:
    ids, generation = rig.stable(3)
    tokens = [rig.join(each, protocols=BOTH) for each in ids[:2]]
    for _ in range(11):
        rig.pass_ms(5_000)
        assert rig.beat(ids[2], generation) is Code.REBALANCE_IN_PROGRESS
    assert tokens[0] not in rig.replies
    rig.pass_ms(5_000)
    assert {each.member_id for each in rig.reply(tokens[0], JoinGroupReply).members} == set(ids[:2])
    assert rig.beat(ids[2], generation) is Code.UNKNOWN_MEMBER_ID


def test_longest_timeout_of_all_members_counts(rig: Rig) -> None:
    tokens = [rig.join(rig.new_id(), rebalance_ms=ms) for ms in (30_000, 90_000)]
    rig.pass_ms(1_000)
    slow, quick = (rig.reply(token, JoinGroupReply).member_id for token in tokens)
    rig.assign(slow, 1, {})
    token = rig.join(slow, protocols=BOTH, rebalance_ms=30_000)
    for _ in range(10):
        rig.pass_ms(8_900)
        rig.beat(quick, 1)
    assert token not in rig.replies
    rig.pass_ms(1_000)
    assert rig.reply(token, JoinGroupReply).generation == 2


def test_leader_that_does_not_rejoin_is_replaced(rig: Rig) -> None:
    (leader, follower), _ = rig.stable(2)
    token = rig.join(follower, protocols=BOTH)
    rig.pass_ms(60_000)
    assert rig.reply(token, JoinGroupReply).leader == follower
    assert leader not in [each.member_id for each in rig.reply(token, JoinGroupReply).members]


def test_rebalance_without_joins_waits_for_sessions_of_static_members(rig: Rig) -> None:
    tokens = [rig.join(instance_id=each, session_ms=100_000) for each in "ab"]
    rig.pass_ms(1_000)
    a, b = (rig.reply(token, JoinGroupReply).member_id for token in tokens)
    rig.assign(a, 1, {})
    rig.sync(b, 1)
    (dynamic,) = [rig.join(rig.new_id())]
    assert rig.leave(rig.shard.state.parked_requests[dynamic].member.member_id) == (Code.NONE,)
    rig.pass_ms(60_000)
    assert rig.describe().state == "PreparingRebalance"
    rig.pass_ms(60_000)
    assert rig.describe().state == "Empty"


# -- assignments ------------------------------------------------------------------------------------------------------


def test_assignment_is_in_the_log_before_its_reply(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    value = kept(rig)
    assert (value.generation, value.protocol, value.leader, value.protocol_type) == (1, "range", ids[0], "consumer")
    assert {member.member_id: member.assignment for member in value.members} == {each: each.encode() for each in ids}
    assert {member.subscription for member in value.members} == {subscription("t")}
    rig.reload()
    assert rig.reply(rig.sync(ids[1], generation), SyncGroupReply).assignment == ids[1].encode()


def test_members_that_never_sync_are_removed(rig: Rig) -> None:
    ids = [rig.new_id() for _ in range(2)]
    for each in ids:
        rig.join(each)
    rig.pass_ms(1_000)
    rig.assign(ids[0], 1, {ids[0]: b"all"})
    for _ in range(12):
        rig.pass_ms(5_000)
        rig.beat(ids[0], 1)
        rig.beat(ids[1], 1)
    assert rig.beat(ids[0], 1) is Code.REBALANCE_IN_PROGRESS
    assert rig.beat(ids[1], 1) is Code.UNKNOWN_MEMBER_ID


def test_leader_that_dies_before_its_sync_is_replaced(rig: Rig) -> None:
    ids = [rig.new_id() for _ in range(2)]
    for each in ids:
        rig.join(each)
    rig.pass_ms(1_000)
    waiting = rig.sync(ids[1], 1)
    rig.pass_ms(10_000)
    assert rig.reply(waiting, SyncGroupReply).code is Code.REBALANCE_IN_PROGRESS
    token = rig.join(ids[1])
    assert (rig.reply(token, JoinGroupReply).leader, rig.reply(token, JoinGroupReply).generation) == (ids[1], 2)


def test_group_too_large_for_the_log_rebalances_again() -> None:
    rig = Rig(GroupSettings(record_bytes_max=1_000))
    ids = [rig.new_id() for _ in range(2)]
    for each in ids:
        rig.join(each)
    rig.pass_ms(1_000)
    waiting = rig.sync(ids[1], 1)
    leads = rig.assign(ids[0], 1, {ids[0]: bytes(900)})
    assert {rig.reply(token, SyncGroupReply).code for token in (waiting, leads)} == {Code.UNKNOWN_SERVER_ERROR}
    assert rig.describe().state == "PreparingRebalance"
    assert not rig.log


def test_cooperative_group_takes_two_rebalances(rig: Rig) -> None:
    """In the first one the leader leaves out partitions to revoke, and their members join again at once."""
    ids, generation = rig.stable(1)
    second = rig.new_id()
    tokens = [rig.join(second), rig.join(ids[0])]
    members = [rig.reply(token, JoinGroupReply) for token in tokens]
    assert {each.generation for each in members} == {generation + 1}
    waits = rig.sync(second, 2)
    rig.assign(ids[0], 2, {ids[0]: b"t-0", second: b""})
    assert rig.reply(waits, SyncGroupReply).assignment == b""
    owned = (("range", subscription("t", user_data=b"t-0")),)
    tokens = [rig.join(ids[0], protocols=owned), rig.join(second)]
    assert {rig.reply(token, JoinGroupReply).generation for token in tokens} == {3}
    waits = rig.sync(second, 3)
    rig.assign(ids[0], 3, {ids[0]: b"t-0", second: b"t-1"})
    assert rig.reply(waits, SyncGroupReply).assignment == b"t-1"


# -- life -------------------------------------------------------------------------------------------------------------


def test_member_without_a_heartbeat_expires_after_its_session(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    rig.pass_ms(9_999)
    assert rig.beat(ids[0], generation) is Code.NONE
    rig.pass_ms(1)
    assert rig.beat(ids[1], generation) is Code.UNKNOWN_MEMBER_ID
    assert rig.beat(ids[0], generation) is Code.REBALANCE_IN_PROGRESS


def test_log_records_when_the_last_member_expired(rig: Rig) -> None:
    rig.stable()
    rig.pass_ms(10_000)
    assert rig.describe().state == "Empty"
    value = kept(rig)
    assert (value.members, value.protocol, value.leader, value.generation) == ((), None, None, 2)
    assert value.state_since_ms == rig.now.wall_ms


def test_parked_member_needs_no_heartbeat(rig: Rig) -> None:
    ids, _ = rig.stable(2)
    token = rig.join(ids[0])
    for _ in range(5):
        rig.pass_ms(9_000)
        rig.beat(ids[1], 1)
    rig.join(ids[1])
    assert rig.reply(token, JoinGroupReply).code is Code.NONE


def test_leave_of_several_members_makes_one_rebalance(rig: Rig) -> None:
    ids, _ = rig.stable(3)
    assert rig.leave(LeavingMember(ids[1], None, "x" * 10_000), ids[2], "unknown") == (
        Code.NONE,
        Code.NONE,
        Code.UNKNOWN_MEMBER_ID,
    )
    token = rig.join(ids[0])
    assert rig.reply(token, JoinGroupReply).generation == 2


def test_reason_of_a_rebalance_is_shortened(rig: Rig) -> None:
    (first,), _ = rig.stable()
    news = (("range", subscription("t", "u")),)
    rig.ask(JoinGroup(G, first, None, "c", "h", 10_000, 60_000, "consumer", news, "because " * 1_000))
    assert 0 < len(rig.shard.state.groups[G].reason) <= REASON_MAX
    assert "supports other protocols" in rig.shard.state.groups[G].reason


def test_move_during_a_rebalance_restores_the_last_generation(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    token = rig.join(ids[0])
    rig.reload()
    assert token not in rig.replies
    assert rig.describe().state == "Stable"
    assert rig.beat(ids[1], generation) is Code.NONE
    assert rig.join(ids[0], protocols=RANGE) not in rig.replies
    assert rig.beat(ids[1], generation) is Code.REBALANCE_IN_PROGRESS


# -- events -----------------------------------------------------------------------------------------------------------


def test_each_generation_with_members_is_one_event(rig: Rig) -> None:
    (member,), generation = rig.stable()
    assert rig.events == [GenerationStarted(G, generation, 1, "range")]
    rig.join(member)
    assert rig.events[1:] == [GenerationStarted(G, generation + 1, 1, "range")], "its only member asks for another one"
    rig.join(member)
    rig.leave(member)
    assert len(rig.events) == 2, "a repeated join, and an empty group"
