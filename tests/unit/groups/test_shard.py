"""The shard as its runtime uses it: callers that go away, moves, and the cost of a large group."""

from __future__ import annotations

import pytest

from tests.unit.controller.test_topics_of_many_partitions import count_calls
from tests.unit.groups.rig import RANGE, G, Rig, subscription
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.records import GroupValue, MemberValue, OffsetValue, group_record, offset_record, read_group
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    Event,
    Heartbeat,
    JoinGroup,
    JoinGroupReply,
    PartitionOffset,
    Reply,
    SyncGroup,
)
from tiered.groups.shard import GroupShard
from tiered.shard import CoordinatorResult


@pytest.fixture
def rig() -> Rig:
    return Rig()


# -- callers ----------------------------------------------------------------------------------------------------------


def test_caller_that_is_gone_gets_no_reply(rig: Rig) -> None:
    member = rig.new_id()
    token = rig.join(member)
    rig.shard.cancel_request(token)
    rig.pass_ms(500)
    assert token not in rig.replies
    assert rig.describe().members[0].member_id == member, "it may come again by its id"


def test_new_member_without_id_expires_when_its_caller_is_gone(rig: Rig) -> None:
    (first,), _ = rig.stable()
    gone = rig.join(id_required=False)
    token = rig.join(first)
    assert token in rig.replies
    rig.assign(first, 2, {})
    rig.shard.cancel_request(gone)
    assert len(rig.describe().members) == 2, "it was told when the rebalance was complete"
    gone = rig.join(id_required=False)
    rig.shard.cancel_request(gone)
    rig.pass_ms(0)
    assert len(rig.describe().members) == 2
    rig.check()


def test_cancel_of_an_unknown_caller_changes_nothing(rig: Rig) -> None:
    rig.shard.cancel_request(12_345)
    rig.check()


def test_deadlines_are_due_at_their_time(rig: Rig) -> None:
    rig.stable()
    due = rig.shard.next_due_ms
    assert due is not None
    rig.ms = due - 1
    assert rig.shard.due(rig.now).records == ()
    rig.ms = due
    assert rig.shard.due(rig.now).records != ()


# -- moves ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_image", [False, True])
def test_moved_coordinator_has_all_acknowledged_state(rig: Rig, through_image: bool) -> None:
    ids, generation = rig.stable(3)
    rig.commit(ids[1], generation, 42)
    rig.commit(group="simple", offset=7)
    before = rig.describe()
    rig.reload(through_image=through_image)
    assert rig.describe() == before
    assert (rig.committed(), rig.committed(group="simple")) == (42, 7)
    assert [rig.beat(each, generation) for each in ids] == [Code.NONE] * 3


def test_leader_that_is_no_member_does_not_lead(rig: Rig) -> None:
    member = MemberValue("m", None, "c", "h", 60_000, 10_000, subscription("t"), b"")
    value = GroupValue("consumer", 1, "range", "gone", rig.now.wall_ms, (member,))
    shard = GroupShard(GroupSettings(), str)
    shard.apply([group_record(G, value)])
    shard.on_loaded(rig.now)
    assert shard.state.groups[G].leader == "m"


def test_members_get_a_fresh_session_from_a_new_coordinator(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.pass_ms(9_000)
    rig.reload()
    rig.pass_ms(9_000)
    assert rig.beat(ids[0], generation) is Code.NONE
    rig.reload()
    rig.pass_ms(10_000)
    assert rig.describe().state == "Empty"


def test_generation_that_still_forms_is_lost_by_a_move(rig: Rig) -> None:
    ids, _ = rig.stable(2)
    tokens = [rig.join(each) for each in ids]
    assert {rig.reply(token, JoinGroupReply).generation for token in tokens} == {2}
    rig.reload()
    assert [rig.beat(each, 2) for each in ids] == [Code.ILLEGAL_GENERATION] * 2
    assert rig.commit(ids[0], 2) is Code.ILLEGAL_GENERATION
    assert rig.commit(ids[0], 1) is Code.NONE


def test_tombstone_without_a_record_changes_nothing(rig: Rig) -> None:
    """Compaction may keep a tombstone whose record is gone already."""
    rig.log = [
        offset_record(G, "t", 0, OffsetValue(1, 0, "", 0))._replace(value=None),
        group_record(G, read_group(b"\0\3\0\0" + bytes(4) + b"\xff\xff\xff\xff" + bytes(12)))._replace(value=None),
        offset_record(G, "t", 1, OffsetValue(5, 0, "", 0)),
    ]
    rig.reload()
    assert rig.committed() == -1
    assert rig.describe().state == "Empty"


# -- cost -------------------------------------------------------------------------------------------------------------


class Plain:
    """A shard without the rig's checks: only what the runtime does."""

    def __init__(self, members: int) -> None:
        numbers = iter(range(10**9))
        self.shard = GroupShard(GroupSettings(size_max=members), lambda: f"{next(numbers):032x}")
        self.rig = Rig()
        self.shard.on_loaded(self.rig.now)
        self.answers: dict[int, Reply] = {}
        self._tokens = iter(range(10**9))

    def ask(self, request: JoinGroup | SyncGroup | Heartbeat | CommitOffsets) -> Reply | None:
        token = next(self._tokens)
        self._take(self.shard.decide(request, self.rig.now, token))
        return self.answers.get(token)

    def until_quiet(self) -> None:
        self.rig.ms += 1_000
        self._take(self.shard.due(self.rig.now))

    def _take(self, outcome: CoordinatorResult[Reply, Event]) -> None:
        self.answers.update(outcome.replies)


def rebalance(members: int) -> None:
    """Lets `members` join and sync, for two generations."""
    plain, topics = Plain(members), RANGE
    ids = []
    for _ in range(members):
        reply = plain.ask(JoinGroup(G, "", None, "c", "h", 10_000, 60_000, "consumer", topics))
        assert isinstance(reply, JoinGroupReply)
        ids.append(reply.member_id)
    for generation in (1, 2):
        for each in ids:
            plain.ask(JoinGroup(G, each, None, "c", "h", 10_000, 60_000, "consumer", topics))
        if generation == 1:
            plain.until_quiet()
            plain.until_quiet()
        for each in ids[1:]:
            plain.ask(SyncGroup(G, generation, each))
        given = tuple((each, bytes(100)) for each in ids)
        plain.ask(SyncGroup(G, generation, ids[0], assignments=given))
    assert plain.shard.state.groups[G].generation == 2
    assert len(plain.shard.state.groups[G].members) == members


def test_cost_of_a_rebalance_is_proportional_to_its_members() -> None:
    rebalance(10)  # what is made once is not counted
    few = count_calls(lambda: rebalance(20))
    assert count_calls(lambda: rebalance(200)) < 11 * few


def test_heartbeat_costs_the_same_in_a_large_group() -> None:
    def beats(members: int) -> int:
        plain = Plain(members)
        for number in range(members):
            plain.ask(JoinGroup(G, "", f"i{number}", "c", "h", 10_000, 60_000, "consumer", RANGE))
        plain.until_quiet()
        plain.until_quiet()
        ids = list(plain.shard.state.groups[G].members)
        plain.ask(SyncGroup(G, 1, ids[0]))

        def beat() -> None:
            for number in range(50):
                plain.rig.ms += 1
                plain.ask(Heartbeat(G, 1, ids[number % members]))

        return count_calls(beat)

    beats(10)
    assert beats(200) == beats(10)


def test_commit_of_many_partitions_takes_few_calls_for_each() -> None:
    """It is one turn of the event loop. To decode what it has just encoded took 20 calls more."""
    plain = Plain(10)
    rows = tuple(PartitionOffset(f"topic-{p // 100}", p, p, 1, "") for p in range(2_000))
    replies: list[Reply | None] = []
    calls = count_calls(lambda: replies.append(plain.ask(CommitOffsets(G, rows))))
    assert isinstance(replies[0], CommitOffsetsReply)
    assert set(replies[0].codes) == {Code.NONE}
    assert calls < 33 * len(rows)
