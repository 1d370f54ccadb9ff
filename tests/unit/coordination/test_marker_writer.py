"""Tests of the one way of a marker into a partition: what its reason changes."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.hot.transactions import transactional_batch
from tests.unit.replication.rig import TP, ReplicationRig
from tiered.coordination.marker_writer import MarkerDue, MarkerReason, MarkerWriter
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.records.marker import TransactionMarker
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica

PRODUCER = 7
ABORT = TransactionMarker(PRODUCER, 0, False, 0)
IN_THIS_TURN = [each for each in MarkerReason if each is not MarkerReason.DECIDED]


class PendingOffsets:
    """Group coordinators with one open transaction, which remember the markers that they get."""

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.written: list[tuple[TransactionMarker, bool]] = []

    async def write_marker(self, partition: int, marker: TransactionMarker, *, may_wait: bool = True) -> None:
        self.written.append((marker, may_wait))

    def pending_epoch_of(self, partition: int, producer_id: int) -> int:
        return self.epoch


def begin_transaction(leader: LeaderReplica) -> None:
    guard = leader.transactions.begin_verification(PRODUCER, 0)
    leader.append_now(transactional_batch(PRODUCER, 0, epoch=0), ACKS_ALL, guard=guard)
    leader.transactions.end_verification(guard)


async def lead(rig: ReplicationRig, tp: TopicPartition = TP, epoch: int = 0) -> tuple[LeaderReplica, MarkerWriter]:
    leader = await rig.brokers[1].lead(epoch, [1], tp=tp)
    return leader, MarkerWriter(lambda topic, partition: leader, PendingOffsets())


@pytest.mark.parametrize("reason", MarkerReason)
@in_rig(ReplicationRig)
async def test_marker_ends_an_open_transaction_for_each_reason(rig: ReplicationRig, *, reason: MarkerReason) -> None:
    leader, writer = await lead(rig)
    begin_transaction(leader)
    await writer.write(MarkerDue(TP, ABORT, reason))
    assert not leader.log.producers.has_ongoing_txn(PRODUCER, 0) and leader.log.end_offset == 2
    await writer.write(MarkerDue(TP, ABORT, reason))
    assert leader.log.end_offset == 2, "a repeated marker changes nothing"


@in_rig(ReplicationRig)
async def test_operator_without_an_open_transaction_writes_no_marker(rig: ReplicationRig) -> None:
    leader, writer = await lead(rig)
    assert await writer.try_write(MarkerDue(TP, ABORT, MarkerReason.OPERATOR)) is Code.INVALID_TXN_STATE
    assert leader.log.end_offset == 0
    await writer.write(MarkerDue(TP, ABORT))
    assert leader.log.end_offset == 1, "a coordinator knows more than the partition"


@pytest.mark.parametrize("reason", IN_THIS_TURN)
@in_rig(ReplicationRig)
async def test_only_a_decided_marker_waits_for_the_report_of_a_loss(
    rig: ReplicationRig, *, reason: MarkerReason
) -> None:
    """After a wait, records of a later transaction may be there: the others end what their caller has looked at."""
    leader, writer = await lead(rig)
    begin_transaction(leader)
    leader.admission.block_appends()
    decided = asyncio.create_task(writer.try_write(MarkerDue(TP, ABORT)))
    await asyncio.sleep(0.1)
    with pytest.raises(Refused) as refused:
        await writer.write(MarkerDue(TP, ABORT, reason))
    assert refused.value.code is Code.NOT_LEADER_OR_FOLLOWER and not decided.done()
    assert await writer.try_write(MarkerDue(TP, ABORT, reason)) is Code.NOT_LEADER_OR_FOLLOWER
    leader.admission.on_loss_reported()
    assert await decided is Code.NONE and leader.log.end_offset == 2


def test_marker_of_offsets_goes_to_the_groups() -> None:
    rig, offsets = ReplicationRig(), TopicPartition(OFFSETS_TOPIC, 0)

    async def scenario() -> None:
        leader = await rig.brokers[1].lead(0, [1], tp=offsets)
        groups = PendingOffsets(epoch=0)
        writer = MarkerWriter(lambda topic, partition: leader, groups)
        assert not writer.write_now(MarkerDue(offsets, ABORT)), "the groups have to be told too"
        for reason in MarkerReason:
            await writer.write(MarkerDue(offsets, ABORT, reason))
        assert groups.written == [(ABORT, each is MarkerReason.DECIDED) for each in MarkerReason]
        groups.epoch = -1
        assert await writer.try_write(MarkerDue(offsets, ABORT, MarkerReason.OPERATOR)) is Code.INVALID_TXN_STATE
        assert len(groups.written) == len(MarkerReason), "nothing is open"

    rig.run(scenario)
