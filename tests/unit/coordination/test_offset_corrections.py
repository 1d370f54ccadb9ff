"""Corrections of committed offsets after a load (R5): partitions that lost records, and topics that are gone."""

from __future__ import annotations

import pytest

from tests.unit.groups.rig import THAT, THIS, G, Rig
from tiered.coordination.offset_corrections import NO_TOPIC, OffsetCorrections
from tiered.durability.loss_rules import OffsetLimit
from tiered.groups.records import OffsetValue
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    LostOffset,
    LowerOffsets,
    OffsetLowered,
    PartitionOffset,
    TopicsDeleted,
)

LOST = OffsetLimit(10, 5)
LIMITS = {("lost", 0): LOST, ("lost", 1): LOST, ("gone", 0): NO_TOPIC, ("gone", 1): NO_TOPIC}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def corrections(rig: Rig) -> OffsetCorrections:
    def find_limit(topic: str, partition: int, written: OffsetValue) -> OffsetLimit | None:
        return NO_TOPIC if written.topic_id == THAT else LIMITS.get((topic, partition))

    return OffsetCorrections(rig.shard.log_state, find_limit)


def commit(rig: Rig, group: str, *offsets: PartitionOffset) -> None:
    rig.reply_to(CommitOffsets(group, offsets), CommitOffsetsReply)


def test_only_offsets_beyond_the_end_are_lowered(rig: Rig) -> None:
    commit(rig, G, PartitionOffset("lost", 0, 11, 3, "metadata"), PartitionOffset("lost", 1, 10, 3))
    commit(rig, "h", PartitionOffset("whole", 0, 99, 3))
    found = corrections(rig)
    assert [found.check_group(each) for each in (G, "h", "unknown")] == [2, 1, 0]
    (request,) = found.requests()
    assert request == LowerOffsets((LostOffset(G, "lost", 0, 10, 5),))
    rig.ask(request)
    offsets = {partition: each for _, partition, each in rig.shard.log_state.iterate_offsets(G)}
    lowered, kept = offsets[0], offsets[1]
    assert (lowered.offset, lowered.leader_epoch, lowered.metadata) == (10, -1, "metadata")
    assert (kept.offset, kept.leader_epoch) == (10, 3)
    assert rig.events == [OffsetLowered(G, "lost", 0, 11, 10)]


def test_offset_of_a_later_leader_epoch_is_not_lowered(rig: Rig) -> None:
    commit(rig, G, PartitionOffset("lost", 0, 11, 5), PartitionOffset("lost", 1, 11, -1))
    found = corrections(rig)
    found.check_group(G)
    (request,) = found.requests()
    assert request == LowerOffsets((LostOffset(G, "lost", 1, 10, 5),))
    rig.ask(LowerOffsets((LostOffset(G, "lost", 0, 10, 5), LostOffset(G, "lost", 1, 10, 5))))
    assert rig.events == [OffsetLowered(G, "lost", 1, 11, 10)]


def test_offset_that_is_in_the_partition_by_now_is_not_lowered(rig: Rig) -> None:
    commit(rig, G, PartitionOffset("lost", 0, 9))
    records = len(rig.log)
    rig.ask(LowerOffsets((LostOffset(G, "lost", 0, 10, 5), LostOffset(G, "unknown", 0, 10, 5))))
    assert len(rig.log) == records and rig.events == []


def test_offsets_of_topics_that_are_gone_are_removed(rig: Rig) -> None:
    commit(rig, G, PartitionOffset("gone", 0, 1), PartitionOffset("gone", 1, 2), PartitionOffset("whole", 0, 3))
    found = corrections(rig)
    found.check_group(G)
    assert found.requests() == [TopicsDeleted(("gone",))]
    for request in found.requests():
        rig.ask(request)
    assert [topic for topic, _, _ in rig.shard.log_state.iterate_offsets(G)] == ["whole"]


def test_only_offsets_of_the_deleted_topic_go_if_another_has_its_name(rig: Rig) -> None:
    commit(rig, G, PartitionOffset("t", 0, 1, topic_id=THAT), PartitionOffset("t", 1, 2))
    commit(rig, "h", PartitionOffset("t", 0, 3, topic_id=THIS))
    rig.topic_ids["t"] = THIS
    found = corrections(rig)
    found.check_group(G)
    found.check_group("h")
    (request,) = found.requests()
    assert request == TopicsDeleted(("t",))
    rig.ask(request)
    assert list(rig.shard.log_state.iterate_offsets(G)) == []
    assert [value.offset for _, _, value in rig.shard.log_state.iterate_offsets("h")] == [3]


def test_shard_that_agrees_with_the_cluster_needs_no_request(rig: Rig) -> None:
    commit(rig, G, PartitionOffset("lost", 0, 10), PartitionOffset("whole", 0, 3))
    found = corrections(rig)
    found.check_group(G)
    assert found.requests() == []
