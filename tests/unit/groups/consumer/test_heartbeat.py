"""ConsumerGroupHeartbeat: joins, steps to the target, static members, timeouts, and what is refused."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.rig import T, U, partitions
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import ConsumerGroupState
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.limits import ConsumerTimeouts, GroupSettings
from tiered.groups.requests import ConsumerHeartbeat, ConsumerHeartbeatReply, TargetComputed

SETTINGS = GroupSettings(consumer_session_timeout_ms=45_000, consumer_heartbeat_interval_ms=5_000)
NOTHING: Assignment = {}


@pytest.fixture
def rig() -> Rig:
    made = Rig(SETTINGS)
    made.set_topic("t", 4, T)
    made.set_topic("u", 2, U)
    return made


def group_of(rig: Rig, name: str = G) -> ConsumerGroup:
    return rig.shard.log_state.consumer_groups[name]


def follow(rig: Rig, owned: dict[str, Assignment]) -> None:
    """Lets members send heartbeats, with what they own, until none gets anything new."""
    epochs = {each: group_of(rig).members[each].current.epoch for each in owned}
    moved = True
    while moved:
        moved = False
        for member_id in owned:
            reply = rig.consume(member_id, epochs[member_id], owned=owned[member_id])
            assert reply.code is Code.NONE, reply
            moved = moved or reply.assignment is not None or reply.member_epoch != epochs[member_id]
            epochs[member_id] = reply.member_epoch
            if reply.assignment is not None:
                owned[member_id] = reply.assignment


# -- joining and following --------------------------------------------------------------------------------------------


def test_first_member_gets_all_partitions_with_its_join(rig: Rig) -> None:
    reply = rig.consume("a", topics=("t", "u", "gone"))
    expected = partitions(t={0, 1, 2, 3}, u={0, 1})
    assert reply == ConsumerHeartbeatReply(Code.NONE, None, "a", 1, 5_000, expected)
    assert rig.events == [TargetComputed(G, 1, 1, "uniform")]


def test_heartbeat_without_news_writes_nothing(rig: Rig) -> None:
    rig.consume("a")
    written = len(rig.log)
    assert rig.consume("a", 1) == ConsumerHeartbeatReply(Code.NONE, None, "a", 1, 5_000, None)
    assert len(rig.log) == written


def test_full_heartbeat_gets_the_assignment_again(rig: Rig) -> None:
    rig.consume("a")
    written = len(rig.log)
    reply = rig.consume("a", 1, topics=("t",), owned=NOTHING, rebalance_ms=60_000)
    assert reply.assignment == partitions(t={0, 1, 2, 3})
    assert len(rig.log) == written


def test_second_member_gets_partitions_once_the_first_gave_them_up(rig: Rig) -> None:
    whole = partitions(t={0, 1, 2, 3})
    rig.consume("a")
    assert rig.consume("b") == ConsumerHeartbeatReply(Code.NONE, None, "b", 2, 5_000, NOTHING)
    assert group_of(rig).state is ConsumerGroupState.RECONCILING
    told = rig.consume("a", 1, owned=whole)
    assert (told.member_epoch, told.assignment) == (1, partitions(t={0, 1}))
    assert rig.consume("b", 2).assignment is None, "the first member may still own them"
    assert rig.consume("a", 1, owned=partitions(t={0, 1})).member_epoch == 2
    assert rig.consume("b", 2).assignment == partitions(t={2, 3})
    assert group_of(rig).state is ConsumerGroupState.STABLE


def test_members_id_is_made_if_the_client_has_none(rig: Rig) -> None:
    assert rig.consume("").member_id == "id1"


def test_member_that_joins_again_keeps_its_assignment(rig: Rig) -> None:
    first = rig.consume("a")
    written = len(rig.log)
    assert rig.consume("a") == first
    assert len(rig.log) == written


def test_reply_that_was_lost_comes_again(rig: Rig) -> None:
    rig.consume("a")
    rig.consume("b")
    rig.consume("a", 1, owned=partitions(t={0, 1, 2, 3}))
    rig.consume("a", 1, owned=partitions(t={0, 1}))
    assert rig.consume("a", 1, owned=partitions(t={0, 1})).member_epoch == 2
    assert rig.consume("a", 1, owned=partitions(t={0, 3})).code is Code.FENCED_MEMBER_EPOCH
    assert rig.consume("a", 3).code is Code.FENCED_MEMBER_EPOCH


def test_coordinator_that_moved_goes_on_in_the_middle(rig: Rig) -> None:
    rig.consume("a")
    rig.consume("b")
    rig.consume("a", 1, owned=partitions(t={0, 1, 2, 3}))
    rig.reload()
    rig.consume("a", 1, owned=partitions(t={0, 1}))
    rig.reload(through_image=True)
    assert rig.consume("b", 2).assignment == partitions(t={2, 3})


def test_new_partitions_and_topics_are_assigned(rig: Rig) -> None:
    rig.consume("a", topics=("t", "v"))
    rig.set_topic("t", 5)
    assert rig.consume("a", 1, owned=partitions(t={0, 1, 2, 3})).assignment == partitions(t={0, 1, 2, 3, 4})
    rig.set_topic("v", 1, "AAAAAAAAAAAAAAAAAAAAEg")
    assert rig.consume("a", 2, owned=partitions(t={0, 1, 2, 3, 4})).assignment == partitions(t={0, 1, 2, 3, 4}, v={0})
    rig.set_topic("t", 0)
    reply = rig.consume("a", 3, owned=partitions(t={0, 1, 2, 3, 4}, v={0}))
    assert reply.assignment == partitions(v={0})


def test_other_change_of_the_metadata_moves_no_epoch(rig: Rig) -> None:
    rig.consume("a")
    rig.set_topic("u", 3)
    written = len(rig.log)
    assert rig.consume("a", 1).member_epoch == 1
    assert (len(rig.log), group_of(rig).epoch) == (written, 1)


def test_new_subscription_moves_the_member(rig: Rig) -> None:
    rig.consume("a")
    reply = rig.consume("a", 1, topics=("u",), owned=partitions(t={0, 1, 2, 3}))
    assert (reply.member_epoch, reply.assignment) == (1, NOTHING)
    reply = rig.consume("a", 1, owned=NOTHING)
    assert (reply.member_epoch, reply.assignment) == (2, partitions(u={0, 1}))


def test_assignor_of_most_members_assigns(rig: Rig) -> None:
    rig.consume("a", topics=("t", "u"), assignor="range")
    rig.consume("b", topics=("t", "u"), assignor="range")
    owned: dict[str, Assignment] = {"a": partitions(t={0, 1, 2, 3}, u={0, 1}), "b": NOTHING}
    follow(rig, owned)
    assert owned == {"a": partitions(t={0, 1}, u={0}), "b": partitions(t={2, 3}, u={1})}


# -- leaving ----------------------------------------------------------------------------------------------------------


def test_others_get_the_partitions_of_a_member_that_left(rig: Rig) -> None:
    rig.consume("a")
    rig.consume("b")
    assert rig.consume("a", -1) == ConsumerHeartbeatReply(Code.NONE, None, "a", -1)
    assert rig.consume("b", 2, owned=NOTHING).assignment == partitions(t={0, 1, 2, 3})
    assert rig.consume("a", 1).code is Code.UNKNOWN_MEMBER_ID
    rig.consume("b", -1)
    assert group_of(rig).state is ConsumerGroupState.EMPTY


def test_member_without_heartbeats_is_removed_after_its_session(rig: Rig) -> None:
    rig.consume("a")
    rig.pass_ms(44_999)
    rig.consume("a", 1)
    rig.pass_ms(44_999)
    assert "a" in group_of(rig).members
    rig.pass_ms(1)
    assert "a" not in group_of(rig).members
    assert rig.consume("a", 1).code is Code.UNKNOWN_MEMBER_ID


def test_member_that_does_not_revoke_in_time_is_removed(rig: Rig) -> None:
    whole = partitions(t={0, 1, 2, 3})
    rig.consume("a", rebalance_ms=30_000)
    rig.consume("b")
    rig.consume("a", 1, owned=whole)
    rig.pass_ms(20_000)
    rig.consume("a", 1, owned=whole)
    rig.reload()  # it gets its rebalance timeout anew
    rig.pass_ms(29_999)
    rig.consume("a", 1, owned=whole)
    rig.consume("b", 2)
    rig.pass_ms(1)
    assert rig.consume("a", 1, owned=whole).code is Code.UNKNOWN_MEMBER_ID
    assert rig.consume("b", 2, owned=NOTHING).assignment == whole


def test_member_that_revoked_has_no_rebalance_timeout(rig: Rig) -> None:
    rig.consume("a", rebalance_ms=30_000)
    rig.consume("b")
    rig.consume("a", 1, owned=partitions(t={0, 1, 2, 3}))
    rig.consume("a", 1, owned=partitions(t={0, 1}))
    rig.pass_ms(40_000)
    assert rig.consume("a", 2).code is Code.NONE


# -- static members ---------------------------------------------------------------------------------------------------


def test_static_member_that_comes_back_gets_its_partitions_at_once(rig: Rig) -> None:
    rig.consume("a", instance_id="i")
    rig.consume("b", instance_id="j")
    owned: dict[str, Assignment] = {"a": partitions(t={0, 1, 2, 3}), "b": NOTHING}
    for _ in range(2):
        for member_id, instance_id in (("a", "i"), ("b", "j")):
            epoch = group_of(rig).members[member_id].current.epoch
            reply = rig.consume(member_id, epoch, owned=owned[member_id], instance_id=instance_id)
            owned[member_id] = owned[member_id] if reply.assignment is None else reply.assignment
    assert rig.consume("a", -2, instance_id="i") == ConsumerHeartbeatReply(Code.NONE, None, "a", -2)
    epoch = group_of(rig).epoch
    rig.reload()
    reply = rig.consume("a2", instance_id="i")
    assert (reply.code, reply.member_epoch, reply.assignment) == (Code.NONE, epoch, partitions(t={0, 1}))
    assert group_of(rig).epoch == epoch
    assert set(group_of(rig).members) == {"a2", "b"}
    assert rig.consume("a", epoch, instance_id="i").code is Code.FENCED_INSTANCE_ID


def test_static_member_that_left_for_a_while_and_subscribes_anew_is_moved(rig: Rig) -> None:
    rig.consume("a", instance_id="i")
    rig.consume("a", -2, instance_id="i")
    reply = rig.consume("a2", instance_id="i", topics=("u",))
    assert (reply.member_epoch, reply.assignment) == (2, partitions(u={0, 1}))


def test_static_member_that_does_not_come_back_is_removed(rig: Rig) -> None:
    rig.consume("a", instance_id="i")
    rig.consume("a", -2, instance_id="i")
    rig.pass_ms(45_000)
    assert group_of(rig).members == {}


def test_instance_that_did_not_leave_is_not_replaced(rig: Rig) -> None:
    rig.consume("a", instance_id="i")
    assert rig.consume("b", instance_id="i").code is Code.UNRELEASED_INSTANCE_ID
    assert rig.consume("b", 1, instance_id="i").code is Code.FENCED_INSTANCE_ID
    assert rig.consume("b", 1, instance_id="j").code is Code.UNKNOWN_MEMBER_ID
    assert rig.consume("b", -1, instance_id="i").code is Code.FENCED_INSTANCE_ID
    assert rig.consume("b", -2, instance_id="j").code is Code.UNKNOWN_MEMBER_ID
    assert rig.consume("a", -1, instance_id="i").code is Code.NONE


# -- refused requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (ConsumerHeartbeat("", "a", 1), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "", 1), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "", -1), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a" * 40_000, 1), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", 1, instance_id=""), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", 1, rack_id=""), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", -3), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", -2), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", 0, topics=("t",), owned={}), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", 0, rebalance_timeout_ms=1, topics=("t",)), Code.INVALID_REQUEST),
        (
            ConsumerHeartbeat(G, "a", 0, rebalance_timeout_ms=1, topics=("t",), owned=partitions(t={0})),
            Code.INVALID_REQUEST,
        ),
        (ConsumerHeartbeat(G, "a", 0, rebalance_timeout_ms=1, owned={}), Code.INVALID_REQUEST),
        (ConsumerHeartbeat(G, "a", 1, assignor="gone"), Code.UNSUPPORTED_ASSIGNOR),
        (ConsumerHeartbeat(G, "a", 1, regex="t" * 40_000), Code.INVALID_REGULAR_EXPRESSION),
        (
            ConsumerHeartbeat(G, "a", 0, rebalance_timeout_ms=1, regex="(t", owned={}),
            Code.INVALID_REGULAR_EXPRESSION,
        ),
        (ConsumerHeartbeat(G, "a", 1), Code.GROUP_ID_NOT_FOUND),
        (ConsumerHeartbeat(G, "a", -1), Code.GROUP_ID_NOT_FOUND),
    ],
)
def test_request_that_cannot_be_right_is_refused(rig: Rig, request_: ConsumerHeartbeat, code: Code) -> None:
    reply = rig.reply_to(request_, ConsumerHeartbeatReply)
    assert reply.code is code
    assert reply.message
    assert (rig.log, rig.shard.log_state.consumer_groups) == ([], {})


def test_member_beyond_the_largest_size_is_refused() -> None:
    rig = Rig(GroupSettings(consumer_size_max=1))
    rig.set_topic("t", 1, T)
    rig.consume("a")
    assert rig.consume("b").code is Code.GROUP_MAX_SIZE_REACHED
    assert rig.consume("a", 1).code is Code.NONE


def test_flood_of_members_ends_at_the_bound_of_memory() -> None:
    rig = Rig(GroupSettings(bytes_max=20_000))
    rig.set_topic("t", 1, T)
    codes = [rig.consume(f"member-{number}").code for number in range(40)]
    refused = codes.index(Code.COORDINATOR_NOT_AVAILABLE)
    assert refused > 0
    assert set(codes[refused:]) == {Code.COORDINATOR_NOT_AVAILABLE}
    assert rig.shard.state.memory_bytes <= 20_000
    assert rig.consume("member-0", 1, owned=partitions(t={0})).code is Code.NONE


def test_member_with_more_topics_than_a_record_takes_is_refused() -> None:
    rig = Rig(GroupSettings(record_bytes_max=1_000))
    topics = tuple(f"topic-{number}" for number in range(200))
    assert rig.consume("a", topics=topics).code is Code.UNKNOWN_SERVER_ERROR
    assert rig.log == []


# -- both protocols ---------------------------------------------------------------------------------------------------


def test_empty_classic_group_becomes_a_consumer_group_with_its_offsets(rig: Rig) -> None:
    ids, _ = rig.stable()
    rig.commit(ids[0], 1, 7)
    assert rig.consume("a").code is Code.GROUP_ID_NOT_FOUND, "it has members"
    rig.leave(*ids)
    assert rig.consume("a").code is Code.NONE
    assert (rig.shard.state.groups, rig.committed()) == ({}, 7)
    rig.reload()
    assert rig.consume("a", 1).code is Code.NONE


def test_empty_consumer_group_becomes_a_classic_group_with_its_offsets(rig: Rig) -> None:
    rig.consume("a")
    rig.commit("a", 1, 7)
    rig.consume("a", -1)
    rig.stable()
    assert (rig.shard.log_state.consumer_groups, rig.committed()) == ({}, 7)


# -- settings of a group ----------------------------------------------------------------------------------------------


def test_timeouts_of_a_group_are_in_force_with_the_next_heartbeat(rig: Rig) -> None:
    for member_id in ("a", "b"):
        rig.consume(member_id)
    rig.own_timeouts[G] = ConsumerTimeouts(session_ms=50_000, heartbeat_ms=7_000)
    assert rig.consume("a", 1, owned=NOTHING).heartbeat_interval_ms == 7_000
    rig.pass_ms(49_999)
    assert group_of(rig).members.keys() == {"a"}, "b has sent no heartbeat since"
    rig.pass_ms(1)
    assert not group_of(rig).members
