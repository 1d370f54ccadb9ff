"""JoinGroup: new ids, static members, members that join again, and refused requests."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import BOTH, RANGE, Rig, subscription
from tiered.errors import Code
from tiered.groups import join
from tiered.groups.join import GROUP_BYTES_MAX, NEW_MEMBER_MS
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import JoinedMember, JoinGroupReply, SyncGroupReply

ROUND_ROBIN = (("roundrobin", subscription("t")),)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def joined(rig: Rig, token: int) -> JoinGroupReply:
    return rig.reply(token, JoinGroupReply)


# -- ids (KIP-394) ----------------------------------------------------------------------------------------------------


def test_dynamic_member_gets_an_id_first_and_joins_with_it(rig: Rig) -> None:
    reply = joined(rig, rig.join(client_id="reader"))
    assert (reply.code, reply.member_id) == (Code.MEMBER_ID_REQUIRED, "reader-id1")
    token = rig.join(reply.member_id)
    assert token not in rig.replies
    rig.pass_ms(500)
    assert joined(rig, token) == JoinGroupReply(
        Code.NONE,
        "reader-id1",
        1,
        "consumer",
        "range",
        "reader-id1",
        members=(JoinedMember("reader-id1", None, subscription("t")),),
    )


def test_older_client_joins_without_an_id(rig: Rig) -> None:
    token = rig.join(id_required=False)
    rig.pass_ms(500)
    assert (joined(rig, token).code, joined(rig, token).member_id) == (Code.NONE, "c-id1")


def test_unused_member_id_expires_after_a_session(rig: Rig) -> None:
    unused = rig.new_id()
    rig.pass_ms(9_999)
    assert rig.describe().state == "Empty"
    rig.pass_ms(1)
    assert rig.describe().code is Code.GROUP_ID_NOT_FOUND
    assert joined(rig, rig.join(unused)).code is Code.UNKNOWN_MEMBER_ID


def test_rebalance_waits_for_unused_ids_until_they_expire(rig: Rig) -> None:
    (first,), _ = rig.stable()
    rig.new_id()
    token = rig.join(first, protocols=BOTH)
    rig.pass_ms(9_000)
    assert token not in rig.replies
    rig.pass_ms(1_000)
    assert joined(rig, token).generation == 2


def test_unknown_id_is_refused(rig: Rig) -> None:
    assert joined(rig, rig.join("c-unknown")).code is Code.UNKNOWN_MEMBER_ID
    assert rig.describe().state == "Dead"
    rig.stable()
    assert joined(rig, rig.join("c-unknown")).code is Code.UNKNOWN_MEMBER_ID


def test_id_of_a_dynamic_member_does_not_become_static(rig: Rig) -> None:
    assert joined(rig, rig.join(rig.new_id(), instance_id="i")).code is Code.UNKNOWN_MEMBER_ID


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"group": ""}, Code.INVALID_GROUP_ID),
        ({"group": "x" * 32_768}, Code.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, Code.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, Code.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, Code.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("\u20ac" * 20_000, b""),)}, Code.INVALID_REQUEST),
        ({"instance_id": "i" * 32_768}, Code.INVALID_REQUEST),
    ],
)
def test_refused_join_leaves_no_trace(rig: Rig, request_: dict[str, object], code: Code) -> None:
    assert joined(rig, rig.join(**request_)).code is code  # type: ignore[arg-type]
    assert not rig.shard.state.groups


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_bounds_of_the_session_timeout_are_accepted(rig: Rig, session_ms: int) -> None:
    assert joined(rig, rig.join(session_ms=session_ms)).code is Code.MEMBER_ID_REQUIRED


def test_ids_of_long_names_fit_into_a_record(rig: Rig) -> None:
    static = rig.join(client_id="\u20ac" * 10_000, instance_id="\u20ac" * 10_000)
    rig.pass_ms(500)
    assert len(joined(rig, static).member_id.encode()) < 4_000
    rig.sync(joined(rig, static).member_id, 1)
    assert rig.describe().state == "Stable"


def test_members_need_the_same_type_and_a_common_protocol(rig: Rig) -> None:
    rig.stable()
    assert joined(rig, rig.join(protocol_type="connect")).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert joined(rig, rig.join(protocols=ROUND_ROBIN)).code is Code.INCONSISTENT_GROUP_PROTOCOL
    assert joined(rig, rig.join(protocols=BOTH)).code is Code.MEMBER_ID_REQUIRED


def test_empty_group_may_change_its_type(rig: Rig) -> None:
    (first,), _ = rig.stable()
    rig.leave(first)
    member = rig.join(protocol_type="connect", protocols=ROUND_ROBIN, id_required=False)
    rig.pass_ms(500)
    assert joined(rig, member).protocol_type == "connect"


# -- how many ---------------------------------------------------------------------------------------------------------


def test_full_group_refuses_new_members() -> None:
    rig = Rig(GroupSettings(size_max=2))
    ids, generation = rig.stable(2)
    assert joined(rig, rig.join()).code is Code.GROUP_MAX_SIZE_REACHED
    assert rig.beat(ids[0], generation) is Code.NONE


def test_excess_members_are_refused_during_a_rebalance() -> None:
    rig = Rig(GroupSettings(size_max=2))
    ids = [rig.new_id() for _ in range(2)]
    tokens = [rig.join(each) for each in ids]
    late = rig.join(id_required=False)
    assert joined(rig, late).code is Code.GROUP_MAX_SIZE_REACHED
    rig.pass_ms(1_000)
    assert [joined(rig, token).code for token in tokens] == [Code.NONE, Code.NONE]


def test_issued_ids_are_bounded_by_the_group_size() -> None:
    rig = Rig(GroupSettings(size_max=3))
    assert [joined(rig, rig.join()).code for _ in range(4)] == [
        *[Code.MEMBER_ID_REQUIRED] * 3,
        Code.GROUP_MAX_SIZE_REACHED,
    ]


def test_group_over_the_limit_shrinks_when_it_is_loaded() -> None:
    rig = Rig()
    ids, generation = rig.stable(3)
    rig.settings = GroupSettings(size_max=2)
    rig.reload()
    assert rig.beat(ids[0], generation) is Code.REBALANCE_IN_PROGRESS
    tokens = [rig.join(each) for each in ids]
    assert [joined(rig, token).code for token in tokens] == [Code.NONE, Code.NONE, Code.GROUP_MAX_SIZE_REACHED]


def test_group_at_the_limit_is_unchanged_when_it_is_loaded() -> None:
    rig = Rig()
    ids, generation = rig.stable(3)
    rig.settings = GroupSettings(size_max=3)
    rig.reload()
    assert rig.beat(ids[0], generation) is Code.NONE


# -- coming again -----------------------------------------------------------------------------------------------------


def test_unchanged_follower_that_rejoins_gets_the_current_generation(rig: Rig) -> None:
    (leader, follower), generation = rig.stable(2)
    reply = joined(rig, rig.join(follower))
    assert reply == JoinGroupReply(Code.NONE, follower, generation, "consumer", "range", leader)
    assert rig.describe().state == "Stable"


def test_leader_that_rejoins_starts_a_rebalance(rig: Rig) -> None:
    (leader, follower), generation = rig.stable(2)
    token = rig.join(leader)
    assert token not in rig.replies
    assert rig.beat(follower, generation) is Code.REBALANCE_IN_PROGRESS
    rig.join(follower)
    assert joined(rig, token).generation == generation + 1


def test_changed_follower_that_rejoins_starts_a_rebalance(rig: Rig) -> None:
    (leader, follower), generation = rig.stable(2)
    token = rig.join(follower, protocols=(("range", subscription("t", "u")),))
    rig.join(leader)
    assert joined(rig, token).generation == generation + 1


def test_join_repeated_before_the_assignment_gets_the_same_reply(rig: Rig) -> None:
    ids = [rig.new_id() for _ in range(2)]
    tokens = [rig.join(each) for each in ids]
    rig.pass_ms(1_000)
    again = [rig.join(each) for each in ids]
    assert [joined(rig, token) for token in again] == [joined(rig, token) for token in tokens]
    assert [len(joined(rig, token).members) for token in again] == [2, 0]


def test_new_protocols_before_the_assignment_start_a_rebalance(rig: Rig) -> None:
    ids = [rig.new_id() for _ in range(2)]
    for each in ids:
        rig.join(each)
    rig.pass_ms(1_000)
    waiting = rig.sync(ids[1], 1)
    rig.join(ids[0], protocols=BOTH)
    assert rig.reply(waiting, SyncGroupReply) == SyncGroupReply(Code.REBALANCE_IN_PROGRESS)


def test_join_repeated_during_a_rebalance_replaces_the_older_one(rig: Rig) -> None:
    first = rig.new_id()
    old = rig.join(first)
    new = rig.join(first)
    assert joined(rig, old).code is Code.REBALANCE_IN_PROGRESS
    rig.pass_ms(1_000)
    assert joined(rig, new).code is Code.NONE


def test_new_member_that_never_returns_is_removed(rig: Rig) -> None:
    (first,), _ = rig.stable()
    waits = rig.join(id_required=False, rebalance_ms=1_000_000)
    for _ in range(NEW_MEMBER_MS // 9_000):
        rig.pass_ms(9_000)
        rig.beat(first, 1)
    assert waits not in rig.replies
    rig.pass_ms(9_000)
    assert joined(rig, waits).code is Code.UNKNOWN_MEMBER_ID


# -- the protocol -----------------------------------------------------------------------------------------------------


def test_members_vote_for_a_protocol_that_all_support(rig: Rig) -> None:
    other = tuple(reversed(BOTH))
    tokens = [rig.join(rig.new_id(), protocols=each) for each in (BOTH, other, other)]
    rig.pass_ms(1_000)
    assert {joined(rig, token).protocol for token in tokens} == {"roundrobin"}


def test_protocol_that_one_member_lacks_is_not_chosen(rig: Rig) -> None:
    tokens = [rig.join(rig.new_id(), protocols=each) for each in (ROUND_ROBIN + RANGE, ROUND_ROBIN + RANGE, RANGE)]
    rig.pass_ms(1_000)
    assert {joined(rig, token).protocol for token in tokens} == {"range"}


def test_repeated_protocol_counts_once(rig: Rig) -> None:
    tokens = [rig.join(rig.new_id(), protocols=each) for each in (RANGE + RANGE, RANGE + RANGE, RANGE)]
    rig.pass_ms(1_000)
    assert {joined(rig, token).protocol for token in tokens} == {"range"}


def test_protocols_without_a_supporter_are_removed(rig: Rig) -> None:
    (first,), _ = rig.stable()
    for number in range(50):
        rig.join(first, protocols=(*RANGE, (f"p{number}", b"")))
    assert len(rig.shard.state.groups["g"]._supported_protocols) == 2


def test_protocol_bytes_of_a_group_are_bounded(rig: Rig) -> None:
    half = (("range", bytes(GROUP_BYTES_MAX // 2 - 10)),)
    tokens = [rig.join(id_required=False, protocols=half) for _ in range(3)]
    rig.pass_ms(500)
    assert joined(rig, tokens[2]).code is Code.GROUP_MAX_SIZE_REACHED
    rig.pass_ms(500)
    first = joined(rig, tokens[0]).member_id
    assert {joined(rig, token).code for token in tokens[:2]} == {Code.NONE}
    assert joined(rig, rig.join(first, protocols=half + half)).code is Code.GROUP_MAX_SIZE_REACHED
    assert joined(rig, rig.join(first, protocols=half)).code is Code.NONE, "who says no more than before may stay"


def test_protocol_bytes_of_all_groups_are_bounded() -> None:
    """Once, 300 requests of 2 MB took half a gigabyte, which stayed after the clients were gone."""
    rig = Rig(GroupSettings(bytes_max=100_000))
    said = (("range", bytes(30_000)),)
    tokens = [rig.join(group=f"g{number}", id_required=False, protocols=said) for number in range(5)]
    rig.pass_ms(3_000)
    codes = [joined(rig, token).code for token in tokens]
    assert codes == [Code.NONE] * 3 + [Code.COORDINATOR_NOT_AVAILABLE] * 2
    assert rig.shard.state.memory_bytes <= 100_000 and set(rig.shard.state.groups) == {"g0", "g1", "g2"}
    first = joined(rig, tokens[0]).member_id
    assert rig.leave(first, group="g0") == (Code.NONE,)
    again = rig.join(group="g4", id_required=False, protocols=said)
    rig.pass_ms(3_000)
    assert joined(rig, again).code is Code.NONE, "what the others held is free again"
    rig.held_elsewhere = 90_000
    late = rig.join(group="g5", id_required=False, protocols=said)
    assert joined(rig, late).code is Code.COORDINATOR_NOT_AVAILABLE, "other partitions of the broker count"
    rig.check()


def test_assignment_without_room_in_the_broker_is_refused() -> None:
    rig = Rig(GroupSettings(bytes_max=50_000))
    token = rig.join(id_required=False)
    rig.pass_ms(500)
    member = joined(rig, token)
    answer = rig.assign(member.member_id, member.generation, {member.member_id: bytes(60_000)})
    assert rig.reply(answer, SyncGroupReply).code is Code.COORDINATOR_NOT_AVAILABLE
    assert rig.shard.state.memory_bytes < 1_000
    rig.check()


def test_oldest_unused_id_expires_when_too_many_are_issued(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join, "ISSUED_IDS_MAX", 3)
    used = joined(rig, rig.join(group="used")).member_id
    rig.join(used, group="used")
    ids = [joined(rig, rig.join(group=f"g{number}")).member_id for number in range(4)]
    rig.pass_ms(1)
    assert rig.describe("used").members, "who came with it stays"
    assert joined(rig, rig.join(ids[0], group="g0")).code is Code.UNKNOWN_MEMBER_ID
    assert sorted(rig.shard.state.groups) == ["g1", "g2", "g3", "used"]
    last = rig.join(ids[3], group="g3")
    rig.pass_ms(500)
    assert joined(rig, last).code is Code.NONE
