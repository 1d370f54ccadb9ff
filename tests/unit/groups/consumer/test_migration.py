"""Groups that change their protocol while members are in them: upgrades, downgrades, policies, and classic members."""

from __future__ import annotations

import pytest

from tests.unit.groups.consumer.classic_client import ClassicClient, encode_subscription
from tests.unit.groups.consumer.rig import T, partitions
from tests.unit.groups.consumer.test_heartbeat import NOTHING, group_of
from tests.unit.groups.rig import G, Rig
from tiered.errors import Code
from tiered.groups.classic import ClassicGroupState
from tiered.groups.consumer.migration import DOWNGRADED
from tiered.groups.limits import MIGRATION_POLICIES, GroupSettings
from tiered.groups.requests import JoinGroupReply, LeavingMember, SyncGroupReply
from tiered.groups.subscription import encode_assignment

SETTINGS = GroupSettings(initial_rebalance_delay_ms=0)
EAGER = (("range", encode_subscription(["t"], {})),)
ALL = frozenset({("t", 0), ("t", 1), ("t", 2), ("t", 3)})


@pytest.fixture
def rig() -> Rig:
    made = Rig(SETTINGS)
    made.set_topic("t", 4, T)
    return made


def set_policy(rig: Rig, policy: str) -> None:
    rig.shard.state.find_migration_policy = lambda: MIGRATION_POLICIES[policy]


def start(rig: Rig, *, is_eager: bool = True) -> ClassicClient:
    """Returns a classic client that has partitions of its own, if it is alone."""
    client = ClassicClient(rig, is_eager=is_eager)
    for _ in range(4):
        client.poll()
        rig.pass_ms(1)
    return client


def classic_state(rig: Rig) -> ClassicGroupState:
    return rig.shard.state.groups[G].state


# -- upgrades ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_eager", [True, False])
def test_first_consumer_upgrades_a_group_whose_member_goes_on(rig: Rig, is_eager: bool) -> None:
    client = start(rig, is_eager=is_eager)
    assert (client.owned, client.generation) == (ALL, 1)
    joined = rig.consume("a")
    assert (joined.code, joined.member_epoch, joined.assignment) == (Code.NONE, 2, NOTHING)
    group = group_of(rig)
    assert (G in rig.shard.state.groups, G in rig.shard.log_state.groups) == (False, False)
    assert group.classic_members() == [client.member_id]
    assert rig.commit(client.member_id, 1, 5) is Code.NONE, "its generation counts until it joins again"
    rig.reload()
    client.poll()  # it is told to join again
    assert client.needs_join
    for _ in range(4):
        client.poll()
    told = rig.consume("a", 2, owned=NOTHING)
    owned_by_client = {each for _, each in client.owned}
    assert told.assignment == partitions(t={0, 1, 2, 3} - owned_by_client) and len(owned_by_client) == 2
    assert client.generation == 2
    assert rig.commit(client.member_id, 1, 6) is Code.ILLEGAL_GENERATION
    assert rig.commit("a", 1, 6) is Code.STALE_MEMBER_EPOCH
    assert rig.commit(client.member_id, 2, 7) is Code.NONE


def test_upgrade_lets_members_of_a_rebalance_join_again(rig: Rig) -> None:
    client = start(rig)
    other = rig.new_id()
    waiting = rig.join(other, protocols=EAGER)
    assert classic_state(rig) is ClassicGroupState.PREPARING and waiting not in rig.replies
    joined = rig.consume("a")
    assert joined.code is Code.NONE
    assert rig.reply(waiting, JoinGroupReply).code is Code.REBALANCE_IN_PROGRESS
    assert set(group_of(rig).classic_members()) == {client.member_id, other}
    assert group_of(rig).members[client.member_id].current.assigned == partitions(t={0, 1, 2, 3})


def test_partition_to_be_given_up_is_not_given_to_another(rig: Rig) -> None:
    """The leader left a partition out for a new member. Its owner has not heard of that yet."""
    leader = start(rig, is_eager=False)
    second = ClassicClient(rig, is_eager=False)
    second.poll()
    second.poll()
    for _ in range(2):
        leader.poll()
    assert leader.owned == {("t", 0), ("t", 1)}, "it has the others left out, and is to join again"
    leader.owned = ALL  # as before it took the reply
    joined = rig.consume("a")
    assert joined.assignment == NOTHING
    assert group_of(rig).members[leader.member_id].current.assigned == partitions(t={0, 1, 2, 3})


@pytest.mark.parametrize("policy", ["downgrade", "disabled"])
def test_policy_without_upgrades_refuses_the_first_consumer(rig: Rig, policy: str) -> None:
    set_policy(rig, policy)
    client = start(rig)
    written = len(rig.log)
    refused = rig.consume("a")
    assert (refused.code, refused.message) == (Code.GROUP_ID_NOT_FOUND, f"Group {G} is not a consumer group.")
    client.poll()
    assert (len(rig.log), client.needs_join) == (written, False)


def test_group_of_another_type_is_not_upgraded(rig: Rig) -> None:
    rig.join(rig.new_id(), protocol_type="connect", protocols=(("default", b"any"),))
    assert rig.consume("a").code is Code.GROUP_ID_NOT_FOUND


def test_group_with_malformed_subscriptions_is_not_upgraded(rig: Rig) -> None:
    rig.join(rig.new_id(), protocols=(("range", b"\0"),))
    written = len(rig.log)
    refused = rig.consume("a")
    assert refused.code is Code.GROUP_ID_NOT_FOUND and "malformed" in (refused.message or "")
    assert (len(rig.log), classic_state(rig)) == (written, ClassicGroupState.PREPARING)


def test_partition_that_the_leader_gave_twice_has_one_owner(rig: Rig) -> None:
    ids = [rig.new_id(), rig.new_id()]
    tokens = [rig.join(each, protocols=EAGER) for each in ids]
    rig.pass_ms(1)
    if tokens[1] not in rig.replies:
        tokens[0] = rig.join(ids[0], protocols=EAGER)
    leader = rig.reply(tokens[0], JoinGroupReply).leader
    generation = rig.reply(tokens[0], JoinGroupReply).generation
    rig.assign(
        leader, generation, {each: encode_assignment({"t": frozenset({0, 9}), "u": frozenset({0})}) for each in ids}
    )
    rig.consume("a")
    assigned = [group_of(rig).members[each].current.assigned for each in ids]
    assert assigned == [partitions(t={0}), NOTHING]


# -- members of the classic protocol ----------------------------------------------------------------------------------


def test_classic_member_joins_a_consumer_group(rig: Rig) -> None:
    rig.consume("a")
    joined = rig.reply(rig.join(rig.new_id(), protocols=EAGER), JoinGroupReply)
    assert (joined.code, joined.generation, joined.protocol_type, joined.protocol) == (
        Code.NONE,
        2,
        "consumer",
        "range",
    )
    assert (joined.leader, joined.members) == ("", ()), "nobody leads: the coordinator assigns"
    synced = rig.reply(rig.sync(joined.member_id, 2), SyncGroupReply)
    assert (synced.code, synced.assignment) == (Code.NONE, encode_assignment({}, 2))
    assert rig.beat(joined.member_id, 2) is Code.NONE, "all that it waits for have an owner"
    rig.consume("a", 1, owned=partitions(t={0, 1}))
    assert rig.beat(joined.member_id, 2) is Code.REBALANCE_IN_PROGRESS
    again = rig.reply(rig.join(joined.member_id, protocols=EAGER), JoinGroupReply)
    synced = rig.reply(rig.sync(joined.member_id, again.generation), SyncGroupReply)
    assert synced.assignment == encode_assignment({"t": frozenset({2, 3})}, 2)


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [("a", 1, Code.UNKNOWN_MEMBER_ID), ("gone", 1, Code.UNKNOWN_MEMBER_ID), ("", 9, Code.ILLEGAL_GENERATION)],
)
def test_sync_and_heartbeat_of_others_and_old_ones_are_refused(
    rig: Rig, member_id: str, generation: int, code: Code
) -> None:
    rig.consume("a")
    own_id = rig.reply(rig.join(rig.new_id(), protocols=EAGER), JoinGroupReply).member_id
    assert rig.reply(rig.sync(member_id or own_id, generation), SyncGroupReply).code is code
    assert rig.beat(member_id or own_id, generation) is code


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", EAGER), ("consumer", ()), ("consumer", (("sticky", EAGER[0][1]),)), ("consumer", (("range", b"\0"),))],
    ids=["type", "none", "not of all", "malformed"],
)
def test_protocols_that_do_not_fit_are_refused(
    rig: Rig, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    rig.consume("a")
    rig.join(rig.new_id(), protocols=EAGER)
    written = len(rig.log)
    refused = rig.reply(rig.join("b", protocol_type=protocol_type, protocols=protocols), JoinGroupReply)
    assert (refused.code, len(rig.log)) == (Code.INCONSISTENT_GROUP_PROTOCOL, written)


def test_classic_member_that_does_not_join_again_in_time_is_removed(rig: Rig) -> None:
    rig.consume("a")
    member_id = rig.reply(rig.join(rig.new_id(), protocols=EAGER, rebalance_ms=30_000), JoinGroupReply).member_id
    rig.sync(member_id, 2)
    rig.consume("b")
    for _ in range(5):
        assert rig.beat(member_id, 2) is Code.REBALANCE_IN_PROGRESS
        rig.pass_ms(6_000)
    assert rig.beat(member_id, 2) is Code.UNKNOWN_MEMBER_ID


def test_session_of_a_classic_member_is_its_own(rig: Rig) -> None:
    rig.consume("a")
    member_id = rig.reply(rig.join(rig.new_id(), protocols=EAGER, session_ms=7_000), JoinGroupReply).member_id
    rig.pass_ms(6_999)
    assert member_id in group_of(rig).members
    rig.pass_ms(1)
    assert member_id not in group_of(rig).members and "a" in group_of(rig).members


def test_members_leave_by_id_or_instance_and_the_epoch_grows_once(rig: Rig) -> None:
    rig.consume("a")
    first = rig.reply(rig.join(rig.new_id(), protocols=EAGER), JoinGroupReply).member_id
    static = rig.reply(rig.join(instance_id="i", protocols=EAGER), JoinGroupReply).member_id
    epoch = group_of(rig).epoch
    codes = rig.leave(first, first, "a", LeavingMember("other", "i"), LeavingMember("", "i"), LeavingMember("", "j"))
    unknown = Code.UNKNOWN_MEMBER_ID
    assert codes == (Code.NONE, unknown, unknown, Code.FENCED_INSTANCE_ID, Code.NONE, unknown)
    assert (list(group_of(rig).members), group_of(rig).epoch) == (["a"], epoch + 1)
    assert static not in group_of(rig).members


def test_static_member_keeps_its_partitions_under_the_other_protocol(rig: Rig) -> None:
    rig.consume("b")
    classic = rig.reply(rig.join(instance_id="i", protocols=EAGER), JoinGroupReply)
    rig.consume("b", 1, owned=partitions(t={0, 1}))
    again = rig.reply(rig.join(classic.member_id, instance_id="i", protocols=EAGER), JoinGroupReply)
    assert group_of(rig).members[again.member_id].current.assigned == partitions(t={2, 3})
    upgraded = rig.consume("a", instance_id="i")
    assert (upgraded.code, upgraded.assignment) == (Code.NONE, partitions(t={2, 3}))
    assert group_of(rig).static_members == {"i": "a"} and group_of(rig).classic_members() == []
    assert rig.beat(classic.member_id, 2, instance_id="i") is Code.FENCED_INSTANCE_ID


# -- downgrades -------------------------------------------------------------------------------------------------------


def test_group_becomes_classic_when_its_last_consumer_leaves(rig: Rig) -> None:
    client = start(rig)
    rig.consume("a")
    for _ in range(4):
        client.poll()
    epoch = group_of(rig).epoch
    assert rig.consume("a", -1).code is Code.NONE
    group = rig.shard.state.groups[G]
    assert (group.state, group.reason, group.generation) == (ClassicGroupState.PREPARING, DOWNGRADED, epoch)
    assert G not in rig.shard.log_state.consumer_groups
    rig.reload()
    assert classic_state(rig) is ClassicGroupState.PREPARING, "the partitions of the member that left have no owner"
    for _ in range(3):
        client.poll()
    assert (client.owned, client.generation, classic_state(rig)) == (ALL, epoch + 1, ClassicGroupState.STABLE)


def test_group_becomes_classic_when_its_last_consumer_expires(rig: Rig) -> None:
    rig.consume("a")
    client = start(rig)
    for _ in range(9):
        rig.pass_ms(5_000)
        client.poll()
    for _ in range(3):
        client.poll()
    assert (client.owned, classic_state(rig)) == (ALL, ClassicGroupState.STABLE)


def test_static_client_that_goes_back_downgrades_the_group(rig: Rig) -> None:
    client = start(rig)
    rig.consume("a", instance_id="i")
    rig.consume("a", -2, instance_id="i")
    token = rig.join(instance_id="i", protocols=EAGER)
    for _ in range(2):
        client.poll()
    assert rig.reply(token, JoinGroupReply).code is Code.NONE
    assert classic_state(rig) is ClassicGroupState.STABLE


def test_only_consumer_that_goes_back_has_a_classic_group(rig: Rig) -> None:
    rig.consume("a", instance_id="i")
    token = rig.join(instance_id="i", protocols=EAGER)
    rig.pass_ms(1)
    assert rig.reply(token, JoinGroupReply).code is Code.NONE
    assert G not in rig.shard.log_state.consumer_groups


@pytest.mark.parametrize("policy", ["upgrade", "disabled"])
def test_policy_without_downgrades_keeps_the_consumer_group(rig: Rig, policy: str) -> None:
    rig.consume("a")
    client = start(rig)
    set_policy(rig, policy)
    rig.consume("a", -1)
    for _ in range(4):
        client.poll()
    assert (client.owned, group_of(rig).classic_members()) == (ALL, [client.member_id])
    rig.set_topic("t", 5)
    client.poll()
    assert client.needs_join, "the coordinator notices the new partition, for there is no leader"


def test_group_too_large_for_a_classic_one_is_not_downgraded() -> None:
    rig = Rig(GroupSettings(initial_rebalance_delay_ms=0, size_max=1))
    rig.set_topic("t", 4, T)
    rig.consume("a")
    for _ in range(2):
        rig.join(rig.new_id(), protocols=EAGER)
    rig.consume("a", -1)
    assert len(group_of(rig).classic_members()) == 2
