"""Tests of the settings that end the copies of a topic to the bucket (KIP-950): `remote.log.copy.disable` and
`remote.log.delete.on.disable`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.scenario import in_rig
from tests.unit.replication.rig import BrokerRig, LeaderList, ReplicationRig, append_batch, read_log
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Unavailable
from tiered.replication.leader_replica import LeaderReplica
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.tiering import Tiering

FIRST, SECOND = 60, 120


def small(**settings: int) -> TopicConfig:
    """Returns settings of a topic with small segments."""
    return replace(TopicConfig(segment_bytes=2000, index_interval_bytes=200), **settings)  # type: ignore[arg-type]


async def run_passes(broker: BrokerRig, replica: LeaderReplica) -> None:
    """Runs the passes of the tiering loop that copy all closed segments."""
    tiering = Tiering(
        Settings(), LeaderList(replica), RetentionClock(broker.clock), broker.clock, broker.rng, broker.metrics
    )
    await tiering.run_steps(replica)
    while replica.unified_log.waiting_segments:
        await tiering.run_steps(replica)


def fill(replica: LeaderReplica, start: int, end: int) -> None:
    for number in range(start, end):
        append_batch(replica, number)


async def lead_tiered(broker: BrokerRig, **settings: int) -> LeaderReplica:
    """Returns a leader with records of which all but the newest segment are in the bucket."""
    replica = await broker.lead(0, [1])
    replica.log.configure(small(**settings))
    fill(replica, 0, FIRST)
    await run_passes(broker, replica)
    assert 0 < replica.cold_end_offset < FIRST
    return replica


@in_rig(ReplicationRig)
async def test_disabled_copies_leave_the_bucket_as_it_is(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await lead_tiered(broker)
    cold_end = replica.cold_end_offset
    replica.log.configure(small(remote_log_copy_disable=True))
    fill(replica, FIRST, SECOND)
    await run_passes(broker, replica)
    assert (replica.cold_end_offset, replica.log_start_offset) == (cold_end, 0)
    assert replica.unified_log.waiting_bytes == 0 and replica.unified_log.upload_lag_since_ms is None
    replica.log.configure(small())
    await run_passes(broker, replica)
    assert replica.cold_end_offset > FIRST, "copies go on where they ended"


@in_rig(ReplicationRig)
async def test_local_retention_deletes_no_record_that_was_not_copied(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await lead_tiered(broker)
    cold_end = replica.cold_end_offset
    replica.log.configure(small(remote_log_copy_disable=True, local_retention_bytes=1))
    fill(replica, FIRST, SECOND)
    await run_passes(broker, replica)
    assert replica.log.local_start_offset == cold_end, "what the bucket has goes, and nothing else"
    assert (replica.log_start_offset, replica.log.end_offset) == (0, SECOND)


@in_rig(ReplicationRig)
async def test_total_retention_goes_on_without_copies(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await lead_tiered(broker)
    replica.log.configure(small(remote_log_copy_disable=True, retention_bytes=3000))
    fill(replica, FIRST, SECOND)
    for _ in range(3):
        await run_passes(broker, replica)
    assert replica.manifest is not None and replica.manifest.segment_count == 0
    assert replica.cold_end_offset <= replica.log_start_offset == replica.log.local_start_offset > FIRST
    replica.log.configure(small())
    fill(replica, SECOND, SECOND + FIRST)
    await run_passes(broker, replica)
    assert replica.cold_end_offset > SECOND, "copies begin again behind what expired meanwhile"


@pytest.mark.parametrize("delete", [False, True])
@in_rig(ReplicationRig)
async def test_tier_that_is_switched_off_is_deleted_only_on_demand(rig: ReplicationRig, *, delete: bool) -> None:
    broker = rig.brokers[1]
    replica = await lead_tiered(broker, local_retention_bytes=1)
    local_start = replica.log.local_start_offset
    assert (replica.log_start_offset, local_start) == (0, replica.cold_end_offset)
    off = small(remote_storage_enable=False, remote_log_delete_on_disable=delete)
    replica.log.configure(off)
    broker.faults.outage = True
    if delete:
        with pytest.raises(Unavailable):
            await run_passes(broker, replica)
        assert replica.log_start_offset == 0, "the manifest has the new start first"
    broker.faults.outage = False
    await run_passes(broker, replica)
    assert replica.manifest is not None
    assert replica.manifest.log_start_offset == replica.log_start_offset == (local_start if delete else 0)
    assert (replica.manifest.segment_count == 0) == delete
    assert replica.log.local_start_offset == local_start and read_log(replica.log), "what the disk has stays"


@in_rig(ReplicationRig)
async def test_setting_alone_deletes_nothing_of_a_tiered_topic(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await lead_tiered(broker, local_retention_bytes=1)
    cold = replica.cold_end_offset
    replica.log.configure(small(local_retention_bytes=1, remote_log_delete_on_disable=True))
    fill(replica, FIRST, SECOND)
    await run_passes(broker, replica)
    assert replica.log_start_offset == 0 and replica.cold_end_offset > cold
