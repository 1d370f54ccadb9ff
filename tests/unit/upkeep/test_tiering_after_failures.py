"""Tests of tiering after failures: a failed pass is repeated, its objects are deleted, and a fenced leader resigns."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.hot.cleaning import resources
from tests.unit.replication.rig import BrokerRig, LeaderList, ReplicationRig, append_batch
from tiered.cold.layout import parse_key
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Code, Refused, Unavailable
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.tiering import UPLOAD_IN_FLIGHT_MS, Tiering

INTERVAL = 3_000.0
"""Seconds between two ticks. A pass that runs within an interval was triggered by a failure."""
SETTLED = UPLOAD_IN_FLIGHT_MS / 1000 + Settings().tiered_object_delete_delay_ms / 1000


class TieringRun:
    """The running tiering loop of one broker over one partition."""

    def __init__(self, broker: BrokerRig, replica: LeaderReplica) -> None:
        self.leaders = LeaderList(replica)
        settings = Settings(remote_log_manager_task_interval_ms=int(INTERVAL * 1000))
        self.tiering = Tiering(
            settings,
            self.leaders,
            RetentionClock(broker.clock),
            broker.clock,
            broker.rng,
            broker.metrics,
        )
        self._broker = broker
        self.replica = replica
        self._task = asyncio.create_task(self.tiering.run())

    async def run_for(self, seconds: float) -> None:
        """Lets time pass. Due work is done, and late writes land when the store gets the next request."""
        for _ in range(int(seconds / 10)):
            await asyncio.sleep(10)
            self.tiering.wake(self.replica)
            await self._broker.store.get("anything")
            await self._broker.cold.collector.delete_expired()

    def stop(self) -> None:
        self._task.cancel()


def fill(replica: LeaderReplica) -> None:
    for _ in range(30):
        append_batch(replica, replica.log.end_offset)
    replica.roll()


def segment_keys(rig: ReplicationRig) -> set[str]:
    return {key for key in rig.bucket.objects if parse_key(key) is not None}


async def named_keys(replica: LeaderReplica) -> set[str]:
    manifest = await replica.cold.manifests.load(replica.partition_id)
    assert manifest is not None
    return {key async for key in replica.cold.manifests.list_keys(manifest)}


@in_rig(ReplicationRig)
async def test_partition_with_a_failed_pass_is_retried_before_the_next_tick(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    fill(replica)
    rig.brokers[1].faults.outage = True
    passes = TieringRun(rig.brokers[1], replica)
    await asyncio.sleep(60)
    assert replica.cold_end_offset == 0 and replica.upload_problem
    rig.brokers[1].faults.outage = False
    await asyncio.sleep(120)
    assert replica.cold_end_offset == 30 and not replica.upload_problem
    passes.stop()


@pytest.mark.parametrize(
    "fault",
    [
        FaultRule(FaultKind.LOST_REPLY, ("upload",), times=1),
        FaultRule(FaultKind.LATE_APPLY, ("upload",), times=1, seconds=110),
    ],
    ids=["landed at once", "lands late"],
)
@in_rig(ReplicationRig)
async def test_object_of_a_failed_upload_is_deleted(rig: ReplicationRig, *, fault: FaultRule) -> None:
    """The failure triggers another sweep, after the sweep that every leader epoch makes once."""
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1])
    fill(replica)
    passes = TieringRun(broker, replica)
    await passes.run_for(3 * SETTLED)
    broker.faults.rules.append(fault)
    fill(replica)
    passes.tiering.wake(replica)
    await asyncio.sleep(SETTLED / 2)
    assert replica.cold_end_offset == 60
    await passes.run_for(4 * SETTLED)
    assert fault.times == 0 and segment_keys(rig) == await named_keys(replica)
    passes.stop()


@pytest.mark.parametrize(
    "faults",
    [
        [FaultRule(FaultKind.LOST_REPLY, ("upload",), times=1)],
        [FaultRule(FaultKind.LATE_APPLY, ("upload",), times=1, seconds=110)],
        [
            FaultRule(FaultKind.LOST_REPLY, ("put",), key="manifest", times=1),
            FaultRule(FaultKind.ERROR, ("get",), key="manifest", skip=1),
        ],
        [
            FaultRule(FaultKind.LATE_APPLY, ("put",), key="manifest", times=1, seconds=60),
            FaultRule(FaultKind.ERROR, ("get",), key="manifest", skip=1),
        ],
    ],
    ids=["put landed at once", "put lands late", "change landed", "change lands late"],
)
@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, cleanup_policy=("compact",)))
async def test_objects_of_a_failed_clean_are_deleted_although_no_clean_follows(
    rig: ReplicationRig, *, faults: list[FaultRule]
) -> None:
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1])
    for number in range(60):
        replica.append_now(bytearray(encode_batch([(number, b"k", b"x" * 100, ())])), 1)
    replica.roll()
    passes = TieringRun(broker, replica)
    await passes.run_for(3 * SETTLED)
    broker.faults.rules += faults
    assert replica.manifest is not None and replica.cold_end_offset == 60
    cleaning = broker.cold.cleaner.clean(replica.manifest, 0, replica.config, 1, resources())
    with pytest.raises(Unavailable):
        await cleaning
    broker.faults.rules.clear()
    await passes.run_for(4 * SETTLED)
    assert segment_keys(rig) == await named_keys(replica)
    assert not broker.cold.cleaner.keys_in_flight(replica.partition_id)
    passes.stop()


@in_rig(ReplicationRig)
async def test_object_of_a_stopped_leader_that_lands_after_the_sweep_is_deleted(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    earlier = await broker.lead(0, [1])
    fill(earlier)
    hangs = FaultRule(FaultKind.DELAY, ("upload",), times=1, seconds=6 * SETTLED)
    broker.faults.rules.append(hangs)
    passes = TieringRun(broker, earlier)
    await asyncio.sleep(10)
    earlier.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another broker leads"))
    broker.cold.uploader.forget(earlier.partition_id)
    later = passes.replica = await broker.lead(1, [1])  # the broker leads again
    await passes.run_for(4 * SETTLED)
    assert hangs.times == 0 and segment_keys(rig) == await named_keys(later)
    await asyncio.sleep(3 * SETTLED)
    assert segment_keys(rig) > await named_keys(later)
    await passes.run_for(4 * SETTLED)
    assert segment_keys(rig) == await named_keys(later)
    passes.stop()


@in_rig(ReplicationRig)
async def test_later_leader_found_in_the_manifest_is_reported(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1])
    fill(replica)
    await rig.brokers[2].cold.manifests.take_over(replica.partition_id, replica.topic, 1)
    passes = TieringRun(rig.brokers[1], replica)
    await asyncio.sleep(10)
    assert passes.leaders.fenced == [replica] and replica.cold_end_offset == 0
    passes.stop()
