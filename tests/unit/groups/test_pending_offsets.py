"""Offsets of transactions: visible with the commit marker only, fenced by generation and member, and in order.

`Rig.check` compares the state after each step with a replay of the log and with the snapshot.
"""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import THAT, THIS, G, Rig
from tiered.coordination.offset_corrections import OffsetCorrections
from tiered.durability.loss_rules import OffsetLimit
from tiered.errors import Code
from tiered.groups.limits import GroupSettings
from tiered.groups.log_state import LogState
from tiered.groups.records import OffsetKey
from tiered.groups.requests import (
    CommitOffsetsReply,
    CommitTransactionalOffsets,
    DeleteGroup,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    FetchOffsetsReply,
    JoinGroupReply,
    LostOffset,
    LowerOffsets,
    OffsetLowered,
    PartitionOffset,
    TopicsDeleted,
)
from tiered.shard import ProducerIdAndEpoch

UNSTABLE = Code.UNSTABLE_OFFSET_COMMIT


@pytest.fixture
def rig() -> Rig:
    return Rig()


# -- commit and abort -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", ["no", "log", "snapshot"])
@pytest.mark.parametrize(("is_commit", "after"), [(True, 9), (False, 5)])
def test_offset_of_a_transaction_takes_effect_with_its_commit_only(
    rig: Rig, moved: str, is_commit: bool, after: int
) -> None:
    rig.commit(offset=5)
    assert rig.commit_in_transaction(offset=9) is Code.NONE
    assert (rig.committed(), rig.stable_offset()) == (5, UNSTABLE)
    if moved != "no":
        rig.reload(through_image=moved == "snapshot")
        assert (rig.committed(), rig.stable_offset()) == (5, UNSTABLE)
    rig.end_transaction(is_commit=is_commit)
    assert (rig.committed(), rig.stable_offset()) == (after, after)


def test_last_of_several_offsets_of_a_transaction_counts(rig: Rig) -> None:
    for offset in (3, 9, 7):
        rig.commit_in_transaction(offset=offset)
    rig.end_transaction()
    assert rig.committed() == 7


def test_repeated_marker_and_marker_of_an_unknown_producer_change_nothing(rig: Rig) -> None:
    rig.commit_in_transaction(1, 3)
    rig.end_transaction(2)
    assert rig.stable_offset() == UNSTABLE
    rig.end_transaction(1)
    rig.end_transaction(1, is_commit=False)
    assert rig.stable_offset() == 3


def test_transactions_of_two_producers_end_apart(rig: Rig) -> None:
    rig.commit_in_transaction(1, 10, topic="t")
    rig.commit_in_transaction(2, 20, topic="u")
    rig.end_transaction(1)
    assert (rig.stable_offset("t"), rig.stable_offset("u")) == (10, UNSTABLE)
    rig.end_transaction(2, is_commit=False)
    assert (rig.stable_offset("t"), rig.stable_offset("u")) == (10, -1)


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through_image", [False, True])
def test_offset_that_was_committed_after_the_pending_one_stays(rig: Rig, through_image: bool) -> None:
    rig.commit_in_transaction(offset=3)
    rig.commit(offset=8)
    assert rig.stable_offset() == UNSTABLE, "the transaction is still open"
    rig.reload(through_image=through_image)
    rig.end_transaction()
    assert rig.stable_offset() == 8


@pytest.mark.parametrize("through_image", [False, True])
def test_later_of_two_pending_offsets_stays_if_its_producer_commits_first(rig: Rig, through_image: bool) -> None:
    rig.commit_in_transaction(1, 3)
    rig.commit_in_transaction(2, 8)
    rig.end_transaction(2)
    rig.reload(through_image=through_image)
    rig.end_transaction(1)
    assert rig.stable_offset() == 8


@pytest.mark.parametrize("through_image", [False, True])
def test_later_of_two_pending_offsets_replaces_the_earlier_one(rig: Rig, through_image: bool) -> None:
    rig.commit_in_transaction(2, 3)
    rig.commit_in_transaction(1, 8)
    rig.reload(through_image=through_image)
    rig.end_transaction(2)
    assert (rig.committed(), rig.stable_offset()) == (3, UNSTABLE)
    rig.end_transaction(1)
    assert rig.stable_offset() == 8


@pytest.mark.parametrize("through_image", [False, True])
def test_pending_offset_that_is_written_again_is_the_later_one(rig: Rig, through_image: bool) -> None:
    rig.commit_in_transaction(1, 3)
    rig.commit_in_transaction(2, 8)
    rig.commit_in_transaction(1, 4)
    rig.reload(through_image=through_image)
    rig.end_transaction(1)
    rig.end_transaction(2)
    assert rig.stable_offset() == 4


def test_offset_written_again_after_a_commit_outside_takes_effect(rig: Rig) -> None:
    rig.commit_in_transaction(offset=3)
    rig.commit(offset=8)
    rig.commit_in_transaction(offset=9)
    rig.end_transaction()
    assert rig.committed() == 9


# -- permissions (KIP-447) --------------------------------------------------------------------------------------------


def test_member_of_the_generation_commits_and_others_are_fenced(rig: Rig) -> None:
    (member,), generation = rig.stable()
    commit = rig.commit_in_transaction
    assert commit(member_id=member, generation=generation) is Code.NONE
    assert commit(member_id=member, generation=generation - 1) is Code.ILLEGAL_GENERATION
    assert commit(member_id=member, generation=generation + 1) is Code.ILLEGAL_GENERATION
    assert commit(member_id="else", generation=generation) is Code.UNKNOWN_MEMBER_ID
    assert commit(member_id=member, generation=generation, instance_id="i") is Code.UNKNOWN_MEMBER_ID
    assert commit(member_id=member) is Code.ILLEGAL_GENERATION
    assert commit() is Code.NONE, "before v3 no request names a member"


def test_static_member_that_was_replaced_is_fenced(rig: Rig) -> None:
    first = rig.join(instance_id="i", id_required=False)
    rig.pass_ms(1_000)
    old = rig.reply(first, JoinGroupReply)
    rig.assign(old.member_id, old.generation, {old.member_id: b"a"})
    new = rig.reply(rig.join(instance_id="i", id_required=False), JoinGroupReply)
    commit = rig.commit_in_transaction
    generation = rig.shard.state.groups[G].generation
    reply = commit(member_id=old.member_id, generation=generation, instance_id="i")
    assert reply is Code.FENCED_INSTANCE_ID
    assert commit(member_id=new.member_id, generation=generation, instance_id="i") is Code.NONE


def test_member_commits_during_a_rebalance_of_its_generation(rig: Rig) -> None:
    (member,), generation = rig.stable()
    rig.join(rig.new_id())
    assert rig.describe().state == "PreparingRebalance"
    assert rig.commit_in_transaction(member_id=member, generation=generation) is Code.NONE
    rig.join(member)
    generation += 1
    assert rig.describe().state == "CompletingRebalance"
    assert rig.commit_in_transaction(member_id=member, generation=generation) is Code.NONE


def test_unknown_group_is_created_for_a_client_without_generation_only(rig: Rig) -> None:
    assert rig.commit_in_transaction(member_id="m", generation=3) is Code.ILLEGAL_GENERATION
    assert rig.commit_in_transaction() is Code.NONE
    assert rig.describe().state == "Empty"
    assert rig.commit_in_transaction(group="g" * 40_000) is Code.INVALID_GROUP_ID


def test_commit_does_not_keep_the_session_of_a_member(rig: Rig) -> None:
    (member,), generation = rig.stable()
    rig.pass_ms(6_000)
    rig.commit_in_transaction(member_id=member, generation=generation)
    rig.pass_ms(6_000)
    assert rig.describe().state == "Empty"


def test_rows_that_cannot_be_stored_are_refused_alone(rig: Rig) -> None:
    rows = (PartitionOffset("t", 0, 1, -1, "m" * 5_000), PartitionOffset("t", 1, 2, 4, "ok"))
    request = CommitTransactionalOffsets(G, rows, ProducerIdAndEpoch(1, 0))
    assert rig.reply_to(request, CommitOffsetsReply).codes == (Code.OFFSET_METADATA_TOO_LARGE, Code.NONE)
    rig.end_transaction()
    (row,) = rig.reply_to(FetchOffsets(G, None), FetchOffsetsReply).offsets
    assert row[:5] == ("t", 1, 2, 4, "ok")


# -- fetching ---------------------------------------------------------------------------------------------------------


def test_fetch_of_all_partitions_names_the_unstable_ones(rig: Rig) -> None:
    rig.commit(offset=1, topic="t")
    rig.commit(offset=2, topic="u")
    rig.commit_in_transaction(offset=3, topic="u")
    rig.commit_in_transaction(offset=4, topic="v")
    stable = rig.reply_to(FetchOffsets(G, None, require_stable=True), FetchOffsetsReply)
    assert [(row.topic, row.offset) for row in stable.offsets] == [("t", 1), ("u", -1)]
    assert stable.unstable == {("u", 0)}
    any_ = rig.reply_to(FetchOffsets(G, None), FetchOffsetsReply)
    assert [(row.topic, row.offset) for row in any_.offsets] == [("t", 1), ("u", 2)] and not any_.unstable


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_pending_offsets_count_as_committed_ones_do() -> None:
    rig = Rig(GroupSettings(bytes_max=5_000))
    codes = [rig.commit_in_transaction(number, group=f"g{number}") for number in range(30)]
    kept = codes.count(Code.NONE)
    assert 4 <= kept < 20 and set(codes[kept:]) == {Code.COORDINATOR_NOT_AVAILABLE}
    assert rig.commit_in_transaction(0, 9, group="g0") is Code.NONE, "one that is there needs no room"
    for number in range(kept):
        rig.end_transaction(number, is_commit=False)
    assert rig.shard.state.memory_bytes == 0
    assert rig.commit(group="another") is Code.NONE


# -- expiry and deletion ----------------------------------------------------------------------------------------------


def test_group_with_an_open_transaction_does_not_expire() -> None:
    rig = Rig(GroupSettings(retention_ms=60_000))
    rig.commit(offset=1)
    rig.commit(offset=1, topic="u")
    rig.commit_in_transaction(offset=2)
    rig.commit_in_transaction(offset=2, group="pending only")
    rig.pass_ms(1_300_000)
    assert (rig.committed(), rig.committed("u")) == (1, -1)
    assert rig.describe("pending only").state == "Empty"
    rig.end_transaction(is_commit=False)
    rig.pass_ms(1_300_000)
    assert {rig.describe(group).code for group in (G, "pending only")} == {Code.GROUP_ID_NOT_FOUND}


def test_deletion_removes_pending_offsets_too(rig: Rig) -> None:
    rig.commit_in_transaction(offset=2)
    rig.commit_in_transaction(offset=2, topic="u")
    assert rig.reply_to(DeleteOffsets(G, (("t", 0), ("w", 0))), DeleteReply).codes == (Code.NONE, Code.NONE)
    assert rig.stable_offset() == -1
    rig.end_transaction()
    assert (rig.stable_offset(), rig.stable_offset("u")) == (-1, 2)


def test_deletion_of_the_group_removes_pending_offsets_too(rig: Rig) -> None:
    rig.commit(offset=1, topic="u")
    rig.commit_in_transaction(1, offset=2)
    rig.commit_in_transaction(2, offset=2, topic="v")
    rig.reply_to(DeleteGroup(G), DeleteReply)
    rig.end_transaction(1)
    assert rig.describe().code is Code.GROUP_ID_NOT_FOUND and rig.shard.state.memory_bytes == 0


def test_pending_offset_goes_with_its_topic_and_not_with_its_successor(rig: Rig) -> None:
    rig.topic_ids["t"] = THIS
    rig.commit_in_transaction(1, 3)
    rig.topic_ids["t"] = THAT
    rig.commit(offset=1)
    rig.commit_in_transaction(2, 2)
    rig.ask(TopicsDeleted(("t",)))
    assert rig.committed() == 1
    rig.end_transaction(1)
    assert (rig.committed(), rig.stable_offset()) == (1, UNSTABLE)
    rig.end_transaction(2)
    assert rig.stable_offset() == 2


def test_pending_offsets_of_deleted_topics_go(rig: Rig) -> None:
    rig.commit_in_transaction(1, 3)
    rig.commit_in_transaction(1, 3, topic="u")
    rig.ask(TopicsDeleted(("t",)))
    rig.end_transaction(1)
    assert (rig.committed(), rig.committed("u")) == (-1, 3)


# -- loss of records (R5) ---------------------------------------------------------------------------------------------


def test_pending_offsets_beyond_a_loss_are_lowered_and_all_others_stay(rig: Rig) -> None:
    rig.commit(offset=9)
    rig.commit_in_transaction(1, 20)
    rig.commit_in_transaction(2, 4)
    corrections = OffsetCorrections(rig.shard.log_state, lambda topic, partition, written: OffsetLimit(6, 9))
    assert corrections.check_group(G) == 3
    (request,) = corrections.requests()
    assert request == LowerOffsets((LostOffset(G, "t", 0, 6, 9),) * 2)
    rig.ask(request)
    assert rig.events == [OffsetLowered(G, "t", 0, 9, 6), OffsetLowered(G, "t", 0, 20, 6)]
    assert rig.committed() == 6
    rig.end_transaction(1)
    rig.end_transaction(2)
    assert rig.committed() == 4


def test_epoch_of_a_pending_offset_is_that_of_its_producer(rig: Rig) -> None:
    rig.commit_in_transaction(7, 3, epoch=4)
    rig.reload(through_image=True)
    assert rig.shard.log_state.pending.epoch_of(7) == 4
    assert rig.shard.log_state.pending.epoch_of(8) is None
    assert rig.shard.log_state.pending.find(8, OffsetKey(G, "t", 0)) is None


def test_snapshot_in_parts_keeps_the_offset_of_a_later_transaction_pending(rig: Rig) -> None:
    rig.commit(offset=1, group="another")
    rig.commit_in_transaction(offset=3)
    parts, records, markers = rig.shard.snapshot(), len(rig.log), len(rig.markers)
    found = list(next(parts))
    rig.end_transaction()
    rig.commit_in_transaction(offset=9)
    for part in parts:
        found += part
    rig.end_transaction(is_commit=False)
    loaded = LogState()
    loaded.apply(found)
    for position, marker, is_commit in rig.markers[markers:]:
        loaded.apply(rig.log[records:position])
        loaded.end_transaction(marker, is_commit)
        records = position
    assert rig.committed() == 3
    assert loaded.offsets == rig.shard.log_state.offsets


@pytest.mark.parametrize("through_image", [False, True])
def test_commit_does_not_bring_an_offset_of_an_earlier_epoch_into_force(rig: Rig, through_image: bool) -> None:
    rig.commit(offset=3)
    rig.commit_in_transaction(offset=9, epoch=4)
    rig.commit_in_transaction(offset=7, epoch=5, topic="u")
    rig.reload(through_image=through_image)
    assert rig.stable_offset() == 3, "the marker of that transaction is lost"
    rig.end_transaction(epoch=6)
    assert (rig.committed(), rig.committed("u")) == (3, 7)


@pytest.mark.parametrize("through_image", [False, True])
@pytest.mark.parametrize(("marker_epoch", "after"), [(4, 9), (5, 9), (6, 3), (7, 3)])
def test_commit_of_a_later_epoch_drops_offsets_whose_marker_is_lost(
    rig: Rig, marker_epoch: int, after: int, through_image: bool
) -> None:
    """The epoch of a marker is that of its transaction, or with version 2 the next one."""
    rig.commit(offset=3)
    rig.commit_in_transaction(offset=9, epoch=4)
    rig.reload(through_image=through_image)
    rig.end_transaction(epoch=marker_epoch)
    assert (rig.committed(), rig.stable_offset()) == (after, after)


@pytest.mark.parametrize("is_commit", [False, True])
def test_marker_of_an_earlier_epoch_ends_no_pending_offset(rig: Rig, is_commit: bool) -> None:
    rig.commit_in_transaction(offset=9, epoch=4)
    rig.end_transaction(epoch=3, is_commit=is_commit)
    assert rig.stable_offset() == UNSTABLE
    rig.end_transaction(epoch=5)
    assert rig.stable_offset() == 9
