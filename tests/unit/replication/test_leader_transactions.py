"""Transactions at a leader replica: guards, markers, and the wait of markers for the report of a loss. The states of a
partition over several leaders stand in `test_leader_replica_transactions.py`."""

from __future__ import annotations

import asyncio

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.unit.hot.transactions import transactional_batch
from tests.unit.replication.rig import ReplicationRig
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.records.marker import TransactionMarker
from tiered.replication.leader_replica import LeaderReplica

PRODUCER = 7
COMMIT = TransactionMarker(PRODUCER, 1, True, 3, version=2)


def begin_transaction(replica: LeaderReplica) -> None:
    guard = replica.transactions.begin_verification(PRODUCER, 0)
    replica.append_now(transactional_batch(PRODUCER, 0), 1, guard=guard)
    replica.transactions.end_verification(guard)


@in_rig(ReplicationRig)
async def test_transaction_begins_only_under_a_guard(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    with refuses(Code.INVALID_TXN_STATE):
        replica.append_now(transactional_batch(PRODUCER, 0), 1)
    guard = replica.transactions.begin_verification(PRODUCER, 0)
    replica.transactions.end_verification(guard)
    with pytest.raises(Refused) as refused:
        replica.append_now(transactional_batch(PRODUCER, 0), 1, guard=guard)
    assert refused.value.code is Code.INVALID_TXN_STATE and replica.log.end_offset == 0


@in_rig(ReplicationRig, config=TopicConfig(min_insync_replicas=2))
async def test_coordinator_is_refused_where_its_records_would_be(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    with refuses(Code.INVALID_TXN_STATE):
        replica.transactions.check_transaction(PRODUCER, 0, None)
    guard = replica.transactions.begin_verification(PRODUCER, 0)
    replica.transactions.check_transaction(PRODUCER, 0, guard)
    replica.apply_isr([1], [1, 2], 1)
    with refuses(Code.NOT_ENOUGH_REPLICAS):
        replica.transactions.check_transaction(PRODUCER, 0, guard)


@in_rig(ReplicationRig)
async def test_repeated_marker_is_confirmed_and_not_written(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    begin_transaction(replica)
    assert replica.transactions.append_marker_now(COMMIT) == 2
    assert replica.transactions.append_marker_now(COMMIT) == replica.transactions.find_marker_end(PRODUCER) == 2
    assert replica.log.end_offset == 2 == replica.last_stable_offset


@in_rig(ReplicationRig)
async def test_marker_waits_for_the_report_of_a_loss_if_it_may(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    begin_transaction(replica)
    replica.admission.block_appends()
    with refuses(Code.NOT_LEADER_OR_FOLLOWER):
        await replica.transactions.append_marker(COMMIT, may_wait=False)
    waiting = asyncio.create_task(replica.transactions.append_marker(COMMIT))
    await asyncio.sleep(0.5)
    assert not waiting.done() and replica.log.end_offset == 1
    replica.admission.on_loss_reported()
    await waiting
    assert replica.log.end_offset == 2


@in_rig(ReplicationRig)
async def test_lost_markers_come_before_another_marker(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    begin_transaction(replica)
    replica.transactions.lost_markers.append(COMMIT)
    later = TransactionMarker(PRODUCER + 1, 0, False, 3)
    assert replica.transactions.append_marker_now(later) == 3
    assert replica.transactions.lost_markers == [] and replica.transactions.find_marker_end(PRODUCER) == 2
