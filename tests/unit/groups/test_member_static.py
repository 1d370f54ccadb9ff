"""Static members (KIP-345): they keep their place through a restart, and the previous holder of it is fenced."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import BOTH, Rig, subscription
from tiered.errors import Code
from tiered.groups.requests import JoinGroupReply, LeavingMember, SyncGroupReply

NEWS = (("range", subscription("t", "u")),)
OTHER = (("roundrobin", subscription("t")), ("range", subscription("t")))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def stable(rig: Rig) -> tuple[str, str]:
    """Two static members, a (leader) and b; their ids."""
    tokens = [rig.join(instance_id=each, protocols=BOTH) for each in "ab"]
    rig.pass_ms(1_000)
    a, b = (rig.reply(token, JoinGroupReply).member_id for token in tokens)
    waiting = rig.sync(b, 1, instance_id="b")
    rig.assign(a, 1, {a: b"for-a", b: b"for-b"})
    assert rig.reply(waiting, SyncGroupReply).assignment == b"for-b"
    return a, b


def test_static_member_needs_no_id_to_join(rig: Rig) -> None:
    a, b = stable(rig)
    assert (a, b) == ("a-id1", "b-id2")
    assert [member.instance_id for member in rig.describe().members] == ["a", "b"]


def test_static_follower_keeps_its_assignment_through_a_restart(rig: Rig) -> None:
    a, b = stable(rig)
    reply = rig.reply(rig.join(instance_id="b", protocols=BOTH), JoinGroupReply)
    assert (reply.code, reply.generation, reply.leader, reply.members) == (Code.NONE, 1, a, ())
    assert not reply.skip_assignment
    assert rig.reply(rig.sync(reply.member_id, 1, instance_id="b"), SyncGroupReply).assignment == b"for-b"
    assert rig.beat(a, 1, instance_id="a") is Code.NONE
    assert rig.beat(b, 1, instance_id="b") is Code.FENCED_INSTANCE_ID


def test_static_leader_that_restarts_skips_the_assignment(rig: Rig) -> None:
    stable(rig)
    reply = rig.reply(rig.join(instance_id="a", protocols=BOTH), JoinGroupReply)
    assert (reply.generation, reply.leader, reply.skip_assignment) == (1, reply.member_id, True)
    assert len(reply.members) == 2
    assert rig.reply(rig.sync(reply.member_id, 1, instance_id="a"), SyncGroupReply).assignment == b"for-a"


def test_static_leader_of_an_old_client_gets_the_old_leader_id(rig: Rig) -> None:
    a, _ = stable(rig)
    reply = rig.reply(rig.join(instance_id="a", protocols=BOTH, skip_known=False), JoinGroupReply)
    assert (reply.leader, reply.skip_assignment, reply.members) == (a, False, ())


def test_new_id_is_in_the_log_before_its_reply(rig: Rig) -> None:
    stable(rig)
    reply = rig.reply(rig.join(instance_id="b", protocols=BOTH), JoinGroupReply)
    rig.reload()
    assert rig.beat(reply.member_id, 1, instance_id="b") is Code.NONE
    assert rig.reply(rig.sync(reply.member_id, 1, instance_id="b"), SyncGroupReply).assignment == b"for-b"


def test_changed_metadata_waits_for_the_next_rebalance(rig: Rig) -> None:
    stable(rig)
    token = rig.join(instance_id="b", protocols=NEWS)
    assert rig.reply(token, JoinGroupReply).generation == 1
    assert rig.describe().state == "Stable"


def test_restart_that_changes_the_protocol_starts_a_rebalance(rig: Rig) -> None:
    tokens = [rig.join(instance_id=each, protocols=each_says) for each, each_says in (("a", BOTH), ("b", OTHER))]
    rig.pass_ms(1_000)
    a = rig.reply(tokens[0], JoinGroupReply)
    assert a.protocol == "range"
    rig.assign(a.member_id, 1, {})
    rig.join(instance_id="a", protocols=OTHER)
    assert rig.describe().state == "PreparingRebalance"


def test_restart_before_the_assignment_starts_a_rebalance(rig: Rig) -> None:
    tokens = [rig.join(instance_id=each) for each in "ab"]
    rig.pass_ms(1_000)
    b = rig.reply(tokens[1], JoinGroupReply).member_id
    waiting = rig.sync(b, 1, instance_id="b")
    rig.join(instance_id="b")
    assert rig.reply(waiting, SyncGroupReply).code is Code.FENCED_INSTANCE_ID
    assert rig.describe().state == "PreparingRebalance"


def test_member_restarted_before_its_sync_is_still_awaited(rig: Rig) -> None:
    tokens = [rig.join(instance_id=each) for each in "ab"]
    rig.pass_ms(1_000)
    a = rig.reply(tokens[0], JoinGroupReply).member_id
    rig.assign(a, 1, {})
    b = rig.reply(rig.join(instance_id="b"), JoinGroupReply).member_id
    for _ in range(12):
        rig.pass_ms(5_000)
        rig.beat(a, 1)
        rig.beat(b, 1)
    assert rig.beat(a, 1) is Code.REBALANCE_IN_PROGRESS
    assert rig.beat(b, 1) is Code.UNKNOWN_MEMBER_ID


def test_two_processes_with_one_instance_fence_each_other(rig: Rig) -> None:
    first = rig.join(instance_id="a")
    second = rig.join(instance_id="a")
    assert rig.reply(first, JoinGroupReply).code is Code.FENCED_INSTANCE_ID
    rig.pass_ms(1_000)
    reply = rig.reply(second, JoinGroupReply)
    assert (reply.code, len(reply.members)) == (Code.NONE, 1)


@pytest.mark.parametrize(("instance", "code"), [("a", Code.FENCED_INSTANCE_ID), ("z", Code.UNKNOWN_MEMBER_ID)])
def test_instance_with_a_wrong_id_is_refused_everywhere(rig: Rig, instance: str, code: Code) -> None:
    stable(rig)
    assert rig.beat("b-id2", 1, instance_id=instance) is code
    assert rig.reply(rig.sync("b-id2", 1, instance_id=instance), SyncGroupReply).code is code
    assert rig.reply(rig.join("b-id2", instance_id=instance, protocols=BOTH), JoinGroupReply).code is code
    assert rig.leave(LeavingMember("b-id2", instance)) == (code,)


def test_static_members_stay_while_their_session_lasts(rig: Rig) -> None:
    a, b = stable(rig)
    token = rig.join(a, instance_id="a", protocols=BOTH, rebalance_ms=4_000)
    for _ in range(10):
        rig.pass_ms(6_000)
        rig.beat(b, 1, instance_id="b")
    reply = rig.reply(token, JoinGroupReply)
    assert [member.instance_id for member in reply.members] == ["a", "b"]


def test_static_leader_that_does_not_return_is_replaced(rig: Rig) -> None:
    a, b = stable(rig)
    token = rig.join(b, instance_id="b", protocols=OTHER)
    for _ in range(10):
        rig.pass_ms(6_000)
        rig.beat(a, 1, instance_id="a")
    assert rig.reply(token, JoinGroupReply).leader == b


def test_administrator_removes_a_static_member_by_its_instance(rig: Rig) -> None:
    stable(rig)
    assert rig.leave(LeavingMember("", "b"), LeavingMember("", "z"), LeavingMember("", None)) == (
        Code.NONE,
        Code.UNKNOWN_MEMBER_ID,
        Code.UNKNOWN_MEMBER_ID,
    )
    assert [member.instance_id for member in rig.describe().members] == ["a"]


def test_static_member_restarted_during_a_rebalance_waits_for_it(rig: Rig) -> None:
    """It can come back by its instance id: its session does not end while it waits for the others."""
    ids, generation = rig.stable()
    rig.join(instance_id="a")
    token = rig.join(instance_id="a")
    for _ in range(4):
        rig.pass_ms(9_000)
        assert rig.beat(ids[0], generation) is Code.REBALANCE_IN_PROGRESS
    rig.join(ids[0])
    assert rig.reply(token, JoinGroupReply).code is Code.NONE
