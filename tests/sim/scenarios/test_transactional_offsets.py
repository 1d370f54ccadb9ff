"""Tests of offsets in transactions whose group coordinator moves, or loses its disk: they become visible with the
commit, and only then (I15)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.scenarios.test_transactions import (
    DONE_SECONDS,
    SETTINGS,
    begin,
    lose_all_disks,
    stop_markers,
    wait_complete,
)
from tests.sim.scenarios.three import QUIET, SimBroker, ThreeBrokers, run_scenario
from tests.sim.scenarios.transactions import SimProducer, find_coordinator, find_leader, running
from tiered.coordination.group_coordinators import SLICE_OFFSETS
from tiered.coordination.late_transactions import LATE_GRACE_MS
from tiered.coordination.marker_writer import MarkerDue, MarkerReason
from tiered.coordination.orphaned_transactions import CHECK_SECONDS
from tiered.coordinator.host import SNAPSHOT_SECONDS
from tiered.errors import Code, Refused
from tiered.groups.records import OffsetKey, OffsetValue
from tiered.groups.requests import (
    CommitOffsets,
    CommitTransactionalOffsets,
    FetchOffsets,
    LostOffset,
    LowerOffsets,
    PartitionOffset,
    TopicsDeleted,
)
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.peers import TransactionPartitions
from tiered.producers.states import ProducerStates
from tiered.records.marker import TransactionMarker
from tiered.shard import ProducerIdAndEpoch
from tiered.transactions.metadata import TransactionState

GROUP = "g"
OFFSETS_SETTINGS = {**SETTINGS, "offsets_topic_num_partitions": 1}
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
COMMITTED = TransactionState.COMPLETE_COMMIT


async def retry(three: ThreeBrokers, ask: Any) -> Any:
    """Returns the reply of the coordinator of the group, wherever it is."""
    start = three.now
    while True:
        assert three.now - start < DONE_SECONDS
        leader = find_leader(three, OFFSETS)
        node = (three.brokers[leader.state.node_id] if leader is not None else running(three)[0]).node
        try:
            return await ask(node)
        except Refused as refused:
            assert refused.code.retriable, refused
        await asyncio.sleep(0.05)


async def commit_in_transaction(three: ThreeBrokers, producer: SimProducer, offset: int) -> None:
    """Writes an offset of the group in the transaction of a producer."""
    request = CommitTransactionalOffsets(
        GROUP, (PartitionOffset("t", 0, offset),), ProducerIdAndEpoch(producer.producer_id, producer.epoch)
    )

    async def ask(node: Any) -> Any:
        async def verify(tp: TopicPartition) -> Code:
            asked = TransactionPartitions(producer.name, producer.producer_id, producer.epoch, False, (tp,))
            code: Code = (await node.transaction_verification.query(asked))[tp]
            return code

        return await node.group_coordinators.commit_transactional_offsets(request, verify, adds_partition=True)

    assert (await retry(three, ask)).codes == (Code.NONE,)


async def offset_of(three: ThreeBrokers, *, stable: bool = True) -> int | Code:
    request = FetchOffsets(GROUP, (("t", 0),), require_stable=stable)
    reply = await retry(three, lambda node: node.group_coordinators.submit(GROUP, request))
    return Code.UNSTABLE_OFFSET_COMMIT if reply.unstable else reply.offsets[0].offset


async def begin_with_offset(three: ThreeBrokers, timeout_ms: int = 300_000) -> SimProducer:
    """Returns a producer whose open transaction has an offset of 7, above a committed one of 3."""
    producer = await begin(three, timeout_ms=timeout_ms)
    commit = CommitOffsets(GROUP, (PartitionOffset("t", 0, 3),))
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, commit))
    await commit_in_transaction(three, producer, 7)
    return producer


def group_coordinator(three: ThreeBrokers) -> SimBroker:
    leader = find_leader(three, OFFSETS)
    assert leader is not None
    return three.brokers[leader.state.node_id]


@pytest.mark.parametrize("commit", [True, False])
@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_offset_of_an_open_transaction_moves_with_the_group_coordinator(
    three: ThreeBrokers, *, commit: bool
) -> None:
    producer = await begin_with_offset(three)
    await group_coordinator(three).kill()
    assert await offset_of(three) is Code.UNSTABLE_OFFSET_COMMIT and await offset_of(three, stable=False) == 3
    assert await producer.end(commit) is Code.NONE
    await wait_complete(three, producer, COMMITTED if commit else TransactionState.COMPLETE_ABORT)
    assert await offset_of(three) == (7 if commit else 3)


@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_decided_offset_moves_with_the_coordinator_of_the_group(three: ThreeBrokers) -> None:
    producer = await begin_with_offset(three)
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)
    await group_coordinator(three).kill()
    assert await offset_of(three) == 7


@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_offset_of_a_decided_transaction_survives_the_loss_of_all_disks(three: ThreeBrokers) -> None:
    producer = await begin_with_offset(three)
    keeper = find_coordinator(three, producer.name)
    assert keeper is not None
    stop_markers(keeper)
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep(SNAPSHOT_SECONDS + 5)
    await lose_all_disks(three)
    await wait_complete(three, producer, COMMITTED)
    assert await offset_of(three) == 7, "the snapshot of groups has it, and the marker comes after all"


@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_late_marker_ends_no_transaction_of_a_log_without_its_producers(three: ThreeBrokers) -> None:
    producer = await begin_with_offset(three)
    leader = find_leader(three, OFFSETS)
    assert leader is not None
    leader.log._writer.replace_producers(ProducerStates(leader.log.end_offset))  # as after a start from a snapshot
    groups = group_coordinator(three).node.group_coordinators
    late = TransactionMarker(producer.producer_id, producer.epoch, False, 0, version=2)
    with pytest.raises(Refused) as refused:
        await groups.write_marker(0, late)
    assert refused.value.code is Code.INVALID_PRODUCER_EPOCH, "it is the marker of the transaction before"
    assert await offset_of(three) is Code.UNSTABLE_OFFSET_COMMIT
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)
    assert await offset_of(three) == 7


@run_by(run_scenario, **OFFSETS_SETTINGS, transaction_max_timeout_ms=1_000, **QUIET)
async def test_pending_offset_without_its_marker_holds_no_consumer_for_ever(three: ThreeBrokers) -> None:
    commit = CommitOffsets(GROUP, (PartitionOffset("t", 0, 3),))
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, commit))
    (shard,) = group_coordinator(three).node.group_coordinators.host.shards()
    value = OffsetValue(7, -1, "", 0)
    pending = shard.log_state.pending
    pending.add(ProducerIdAndEpoch(99, 4), OffsetKey(GROUP, "t", 0), value)  # as after a start from a snapshot
    await SimProducer(three).init(1_000)  # so that there are coordinators
    await asyncio.sleep(CHECK_SECONDS)
    assert await offset_of(three) is Code.UNSTABLE_OFFSET_COMMIT, "its marker may yet come"
    await asyncio.sleep(LATE_GRACE_MS / 1000 + 3 * CHECK_SECONDS)
    assert await offset_of(three) == 3


@run_by(run_scenario, **OFFSETS_SETTINGS, transaction_max_timeout_ms=60_000, **QUIET)
async def test_pending_offset_stays_while_its_coordinator_may_send_the_marker(three: ThreeBrokers) -> None:
    """Its coordinator has the commit, and no marker goes out for longer than any timeout allows."""
    producer = await begin_with_offset(three, 60_000)
    leader, keeper = find_leader(three, OFFSETS), find_coordinator(three, producer.name)
    assert leader is not None and keeper is not None
    leader.log._writer.replace_producers(ProducerStates(leader.log.end_offset))  # as after a start from a snapshot
    waiting = stop_markers(keeper)
    assert await producer.end(True) is Code.NONE
    await asyncio.sleep(60 + LATE_GRACE_MS / 1000 + 4 * CHECK_SECONDS)
    assert await offset_of(three) is Code.UNSTABLE_OFFSET_COMMIT
    del keeper.node.transaction_coordinators.markers.send
    keeper.node.transaction_coordinators.markers.send(*waiting[0])
    await wait_complete(three, producer, COMMITTED)
    assert await offset_of(three) == 7, "the producer has the reply to its commit"


@run_by(run_scenario, **OFFSETS_SETTINGS, transaction_max_timeout_ms=1_000, **QUIET)
async def test_transaction_that_the_log_learns_late_is_not_aborted(three: ThreeBrokers) -> None:
    """The broker looks a second time before it aborts, because it has waited since it found the transaction."""
    await SimProducer(three).init(1_000)  # so that there are coordinators
    commit = CommitOffsets(GROUP, tuple(PartitionOffset("t", partition, 3) for partition in range(2)))
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, commit))
    (led,) = group_coordinator(three).node.group_coordinators.host.led_partitions.values()
    coordinator = led.coordinator
    assert coordinator is not None
    pending = coordinator.shard.log_state.pending
    for partition in range(2):  # as after a start from a snapshot
        producer, key = ProducerIdAndEpoch(97 + partition, 4), OffsetKey(GROUP, "t", partition)
        pending.add(producer, key, OffsetValue(7, -1, "", 0))
    leader = coordinator.replica
    await leader.wait_committed(leader.log.end_offset + 1, 2 * LATE_GRACE_MS)
    assert (pending.epoch_of(97), pending.epoch_of(98)) == (None, 4)
    coordinator.submit_unawaited(LowerOffsets((LostOffset(GROUP, "t", 1, 5, 9),)), at_once=True)
    assert leader.log.producers.has_ongoing_txn(98, 4)
    await asyncio.sleep(1)
    assert leader.log.producers.has_ongoing_txn(98, 4)


@run_by(run_scenario, **OFFSETS_SETTINGS, transaction_max_timeout_ms=1_000, **QUIET)
async def test_orphan_of_many_offsets_ends_in_the_turn_of_the_last_look(three: ThreeBrokers) -> None:
    """Markers of many offsets wait for a turn of their own. In between the log could learn the transaction."""
    await SimProducer(three).init(1_000)  # so that there are coordinators
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, FetchOffsets(GROUP, ())))
    groups = group_coordinator(three).node.group_coordinators
    (shard,) = groups.host.shards()
    pending = shard.log_state.pending
    for partition in range(SLICE_OFFSETS + 1):  # as after a start from a snapshot
        pending.add(ProducerIdAndEpoch(99, 4), OffsetKey(GROUP, "t", partition), OffsetValue(7, -1, "", 0))
    async with groups._long_marker:
        await asyncio.sleep(LATE_GRACE_MS / 1000 + 4 * CHECK_SECONDS)
        assert pending.epoch_of(99) is None


@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_operator_aborts_pending_offsets_that_the_log_does_not_know(three: ThreeBrokers) -> None:
    commit = CommitOffsets(GROUP, (PartitionOffset("t", 0, 3),))
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, commit))
    node = group_coordinator(three).node
    (shard,) = node.group_coordinators.host.shards()
    value = OffsetValue(7, -1, "", 0)
    shard.log_state.pending.add(ProducerIdAndEpoch(99, 4), OffsetKey(GROUP, "t", 0), value)  # from an image
    await node.marker_writer.write(MarkerDue(OFFSETS, TransactionMarker(99, 4, False, 0), MarkerReason.OPERATOR))
    assert await offset_of(three) == 3


@pytest.mark.parametrize(
    ("later_epoch", "coordinator_epoch", "code"),
    [(0, 1_000_000, Code.INVALID_REQUEST), (100, 0, Code.INVALID_PRODUCER_EPOCH)],
)
@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_operator_cannot_fence_a_producer_with_pending_offsets(
    three: ThreeBrokers, *, later_epoch: int, coordinator_epoch: int, code: Code
) -> None:
    """Any client may send such a marker. It would fence the coordinator, or make its commit count as late."""
    producer = await begin_with_offset(three)
    marker = TransactionMarker(producer.producer_id, producer.epoch + later_epoch, False, coordinator_epoch)
    with refuses(code):
        await group_coordinator(three).node.marker_writer.write(MarkerDue(OFFSETS, marker, MarkerReason.OPERATOR))
    assert await producer.end(True) is Code.NONE
    await wait_complete(three, producer, COMMITTED)
    assert await offset_of(three) == 7


@run_by(run_scenario, **OFFSETS_SETTINGS)
async def test_only_pending_offset_of_a_group_is_corrected_after_a_load(three: ThreeBrokers) -> None:
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, FetchOffsets(GROUP, ())))
    groups = group_coordinator(three).node.group_coordinators
    shard, key = groups.make_shard(), OffsetKey(GROUP, "gone", 0)
    partition = groups.host.led_partitions[OFFSETS.partition]
    shard.log_state.pending.add(ProducerIdAndEpoch(99, 4), key, OffsetValue(7, -1, "", 0))
    assert await groups.find_corrections(shard, partition) == [TopicsDeleted(("gone",))]


@run_by(run_scenario, **OFFSETS_SETTINGS, transaction_max_timeout_ms=1_000, **QUIET)
async def test_pending_offset_that_a_load_corrected_holds_no_consumer_for_ever(three: ThreeBrokers) -> None:
    commit = CommitOffsets(GROUP, (PartitionOffset("t", 0, 3),))
    await retry(three, lambda node: node.group_coordinators.submit(GROUP, commit))
    groups = group_coordinator(three).node.group_coordinators
    (shard,) = groups.host.shards()
    key = OffsetKey(GROUP, "t", 0)
    shard.log_state.pending.add(ProducerIdAndEpoch(99, 4), key, OffsetValue(7, -1, "", 0))  # from an image
    groups.host.submit_unawaited(LowerOffsets((LostOffset(GROUP, "t", 0, 5, 9),)))
    leader = find_leader(three, OFFSETS)
    assert leader is not None
    await three.wait_until(lambda: leader.log.producers.has_ongoing_txn(99, 4), 5)
    assert await offset_of(three) is Code.UNSTABLE_OFFSET_COMMIT
    producer = SimProducer(three)
    await producer.init(1_000)  # so that there are coordinators
    await asyncio.sleep(LATE_GRACE_MS / 1000 + 3 * CHECK_SECONDS)
    assert await offset_of(three) == 3
