"""Offsets: permission to commit and delete, stored values, and replies."""

from __future__ import annotations

import itertools

import pytest

from tests.unit.groups.rig import THAT, THIS, WALL, G, Rig
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.records import NO_TIME, OffsetValue
from tiered.groups.requests import (
    NO_OFFSET,
    CommitOffsets,
    CommitOffsetsReply,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    FetchOffsetsReply,
    PartitionOffset,
    TopicsDeleted,
)
from tiered.quotas.shares import GROUP_BYTES, Holdings


@pytest.fixture
def rig() -> Rig:
    return Rig()


def completing(rig: Rig) -> str:
    member = rig.new_id()
    rig.join(member)
    rig.pass_ms(500)
    return member


# -- who may commit ---------------------------------------------------------------------------------------------------


def test_commit_without_a_member_creates_a_simple_group(rig: Rig) -> None:
    assert rig.commit(offset=7) is Code.NONE
    assert rig.committed() == 7
    assert (rig.describe().state, rig.describe().protocol_type) == ("Empty", "")
    rig.reload()
    assert rig.committed() == 7


def test_group_whose_first_commit_is_refused_leaves_nothing() -> None:
    full = Rig(GroupSettings(bytes_max=0))
    assert full.commit() is full.commit_in_transaction(group="h") is Code.COORDINATOR_NOT_AVAILABLE
    assert not full.shard.state.groups


def test_offsets_of_all_groups_are_bounded_and_old_ones_can_move() -> None:
    rig = Rig(GroupSettings(bytes_max=3_000))
    codes = [rig.commit(group=f"g{number}") for number in range(20)]
    kept = codes.count(Code.NONE)
    assert 5 <= kept < 20 and set(codes[kept:]) == {Code.COORDINATOR_NOT_AVAILABLE}
    assert rig.commit(group="g0", offset=9) is Code.NONE, "one that is there needs no room"
    assert rig.committed(group="g0") == 9
    assert rig.reply_to(DeleteOffsets("g0", (("t", 0),)), DeleteReply).code is Code.NONE
    assert rig.commit(group="another") is Code.NONE
    rig.check()


def test_commit_of_many_offsets_asks_for_the_free_memory_once(rig: Rig) -> None:
    """It asked all shards of the broker for each offset: 10,000 took 0.18 s in one turn of the event loop."""
    asked = itertools.count()
    rig.shard.state.holdings = Holdings(GROUP_BYTES, lambda: 1 << 20, lambda: next(asked))
    rows = tuple(PartitionOffset("t", partition, 5) for partition in range(100))
    assert rig.reply_to(CommitOffsets(G, rows), CommitOffsetsReply).codes == (Code.NONE,) * 100
    assert next(asked) == 1


def test_member_of_an_unknown_group_cannot_commit(rig: Rig) -> None:
    assert rig.commit("m", 1) is Code.GROUP_ID_NOT_FOUND
    assert rig.describe().state == "Dead"


def test_members_of_the_current_generation_commit(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    assert rig.commit(ids[1], generation, 5) is Code.NONE
    assert rig.commit(ids[1], generation - 1) is Code.ILLEGAL_GENERATION
    assert rig.commit(ids[1], generation + 1) is Code.ILLEGAL_GENERATION
    assert rig.commit("unknown", generation) is Code.UNKNOWN_MEMBER_ID
    assert rig.commit(ids[1], -1) is Code.ILLEGAL_GENERATION
    assert rig.committed() == 5


def test_only_members_commit_while_there_are_members(rig: Rig) -> None:
    ids, _ = rig.stable()
    assert rig.commit() is Code.UNKNOWN_MEMBER_ID
    rig.join(ids[0])
    assert rig.commit() is Code.UNKNOWN_MEMBER_ID


def test_commit_without_a_member_is_accepted_for_an_empty_group(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.leave(*ids)
    assert rig.commit() is Code.NONE
    assert rig.commit(ids[0], generation) is Code.UNKNOWN_MEMBER_ID


def test_commit_before_the_assignment_gets_rebalance_in_progress(rig: Rig) -> None:
    member = completing(rig)
    assert rig.commit(member, 1) is Code.REBALANCE_IN_PROGRESS
    assert rig.committed() == NO_OFFSET


def test_members_may_commit_during_a_rebalance(rig: Rig) -> None:
    ids, generation = rig.stable(2)
    rig.join(ids[0])
    assert rig.commit(ids[1], generation) is Code.NONE


def test_commit_extends_the_session(rig: Rig) -> None:
    ids, generation = rig.stable()
    for _ in range(5):
        rig.pass_ms(9_000)
        assert rig.commit(ids[0], generation) is Code.NONE


@pytest.mark.parametrize(("instance", "code"), [("z", Code.UNKNOWN_MEMBER_ID), ("a", Code.FENCED_INSTANCE_ID)])
def test_replaced_static_member_cannot_commit(rig: Rig, instance: str, code: Code) -> None:
    token = rig.join(instance_id="a")
    rig.pass_ms(500)
    member_id = "a-id1"
    rig.assign(member_id, 1, {})
    assert token in rig.replies
    rig.join(instance_id="a")
    (reply,) = rig.reply_to(
        CommitOffsets(G, (PartitionOffset("t", 0, 1),), 1, member_id, instance), CommitOffsetsReply
    ).codes
    assert reply is code


# -- what is kept -----------------------------------------------------------------------------------------------------


def test_fetch_returns_all_committed_fields(rig: Rig) -> None:
    rig.ms = 123
    rows = (
        PartitionOffset("t", 0, 5, 3, "note", THIS),
        PartitionOffset("u", 1, 0),
        PartitionOffset("t", 2, -7),
        PartitionOffset("t", 3, 2**63 - 1),
    )
    assert rig.reply_to(CommitOffsets(G, rows), CommitOffsetsReply).codes == (Code.NONE,) * 4
    assert (
        rig.reply_to(FetchOffsets(G, tuple((row.topic, row.partition) for row in rows)), FetchOffsetsReply).offsets
        == rows
    )
    everything = rig.reply_to(FetchOffsets(G, None), FetchOffsetsReply)
    assert everything.offsets == (rows[0], rows[2], rows[3], rows[1])
    assert rig.shard.log_state.committed_offset(G, "t", 0) == OffsetValue(5, 3, "note", WALL + 123, NO_TIME, THIS)


def test_fetch_of_an_uncommitted_partition_returns_no_offset(rig: Rig) -> None:
    rig.commit()
    asked = FetchOffsets(G, (("t", 1), ("u", 0)))
    assert rig.reply_to(asked, FetchOffsetsReply) == FetchOffsetsReply(
        Code.NONE, (PartitionOffset("t", 1, NO_OFFSET), PartitionOffset("u", 0, NO_OFFSET))
    )
    assert rig.reply_to(FetchOffsets("nobody", None, "m", 5), FetchOffsetsReply) == FetchOffsetsReply(Code.NONE, ())


def test_offset_of_an_earlier_topic_of_the_name_is_none(rig: Rig) -> None:
    rig.ask(CommitOffsets(G, (PartitionOffset("t", 0, 5, topic_id=THIS),)))
    for asked, offset in ((THIS, 5), (THAT, NO_OFFSET), ("", 5)):
        fetched = rig.reply_to(FetchOffsets(G, (("t", 0),), topic_ids=(("t", asked),)), FetchOffsetsReply)
        assert fetched.offsets[0].offset == offset


def test_commit_without_a_topic_id_is_for_the_topic_that_has_the_name(rig: Rig) -> None:
    rig.topic_ids["t"] = THIS
    assert rig.commit(offset=5) is Code.NONE
    value = rig.shard.log_state.committed_offset(G, "t", 0)
    assert value is not None and (value.offset, value.topic_id) == (5, THIS)
    rig.topic_ids["t"] = THAT
    assert rig.committed() == NO_OFFSET
    assert rig.reply_to(FetchOffsets(G, None), FetchOffsetsReply).offsets == ()
    assert rig.commit(offset=2) is Code.NONE
    assert rig.committed() == 2


def test_commit_for_a_topic_that_had_the_name_before_is_refused_alone(rig: Rig) -> None:
    rig.topic_ids["t"] = THIS
    rows = (PartitionOffset("t", 0, 5, topic_id=THAT), PartitionOffset("t", 1, 6, topic_id=THIS))
    codes = rig.reply_to(CommitOffsets(G, rows), CommitOffsetsReply).codes
    assert codes == (Code.UNKNOWN_TOPIC_ID, Code.NONE)
    fetched = rig.reply_to(FetchOffsets(G, (("t", 0), ("t", 1))), FetchOffsetsReply).offsets
    assert [row.offset for row in fetched] == [NO_OFFSET, 6]


def test_offset_with_an_expiry_time_has_no_topic_id_and_is_shown(rig: Rig) -> None:
    rig.topic_ids["t"] = THIS
    rig.ask(CommitOffsets(G, (PartitionOffset("t", 0, 5),), retention_ms=60_000))
    rig.topic_ids["t"] = THAT
    assert rig.committed() == 5
    rig.ask(TopicsDeleted(("t",)))
    assert rig.committed() == NO_OFFSET


@pytest.mark.parametrize(
    ("metadata", "code"),
    [
        ("x" * 10, Code.NONE),
        ("x" * 11, Code.OFFSET_METADATA_TOO_LARGE),
        ("\u20ac" * 10, Code.NONE),
        ("\U0001f600" * 5, Code.NONE),
        ("\U0001f600" * 6, Code.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_is_measured_as_in_java(metadata: str, code: Code) -> None:
    rig = Rig(GroupSettings(metadata_bytes_max=10))
    rows = (PartitionOffset("t", 0, 1, metadata=metadata), PartitionOffset("t", 1, 2))
    assert rig.reply_to(CommitOffsets(G, rows), CommitOffsetsReply).codes == (code, Code.NONE)
    assert rig.committed() == (1 if code is Code.NONE else NO_OFFSET)


def test_metadata_too_long_for_a_record_is_refused() -> None:
    rig = Rig(GroupSettings(metadata_bytes_max=1_000_000))
    rows = (PartitionOffset("t", 0, 1, metadata="\u20ac" * 20_000),)
    assert rig.reply_to(CommitOffsets(G, rows), CommitOffsetsReply).codes == (Code.OFFSET_METADATA_TOO_LARGE,)


def test_commit_of_an_older_client_has_its_own_retention(rig: Rig) -> None:
    rig.ask(CommitOffsets(G, (PartitionOffset("t", 0, 1, 4),), retention_ms=60_000))
    assert rig.shard.log_state.committed_offset(G, "t", 0) == OffsetValue(1, -1, "", WALL, WALL + 60_000)


def test_name_too_long_for_a_record_is_refused(rig: Rig) -> None:
    assert rig.commit(group="g" * 32_768) is Code.INVALID_GROUP_ID


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_offsets_of_a_topic_in_use_cannot_be_deleted(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.commit(ids[0], generation, topic="t")
    rig.commit(ids[0], generation, topic="u")
    reply = rig.reply_to(DeleteOffsets(G, (("t", 0), ("u", 0), ("u", 1))), DeleteReply)
    assert reply == DeleteReply(Code.NONE, (Code.GROUP_SUBSCRIBED_TO_TOPIC, Code.NONE, Code.NONE))
    assert (rig.committed("t"), rig.committed("u")) == (1, NO_OFFSET)
    rig.leave(*ids)
    assert rig.reply_to(DeleteOffsets(G, (("t", 0),)), DeleteReply).codes == (Code.NONE,)
    assert rig.committed() == NO_OFFSET


def test_offsets_of_an_unknown_group_cannot_be_deleted(rig: Rig) -> None:
    assert rig.reply_to(DeleteOffsets(G, (("t", 0),)), DeleteReply) == DeleteReply(Code.GROUP_ID_NOT_FOUND)


def test_offsets_of_another_kind_of_group_go_only_once_it_is_empty(rig: Rig) -> None:
    rig.commit()
    token = rig.join(rig.new_id(), protocol_type="connect", protocols=(("sessioned", b"\xff"),))
    rig.pass_ms(500)
    assert token in rig.replies
    assert rig.reply_to(DeleteOffsets(G, (("t", 0),)), DeleteReply) == DeleteReply(Code.NON_EMPTY_GROUP)


def test_consumers_with_unreadable_metadata_may_use_any_topic(rig: Rig) -> None:
    rig.commit()
    rig.join(rig.new_id(), protocols=(("range", b"\x00"),))
    rig.pass_ms(500)
    reply = rig.reply_to(DeleteOffsets(G, (("t", 0),)), DeleteReply)
    assert reply.codes == (Code.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_offsets_of_a_deleted_topic_are_removed(rig: Rig) -> None:
    ids, generation = rig.stable()
    rig.commit(ids[0], generation)
    rig.commit(group="h", topic="t")
    rig.commit(group="h", topic="u")
    rig.ask(TopicsDeleted(("t", "unknown")))
    assert [rig.committed(), rig.committed(group="h"), rig.committed("u", group="h")] == [NO_OFFSET, NO_OFFSET, 1]
    assert rig.beat(ids[0], generation) is Code.NONE
