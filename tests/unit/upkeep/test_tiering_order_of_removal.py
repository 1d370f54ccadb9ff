"""Tests of the order of removal: the manifest changes before local files, so that records stay readable until the
bucket has the deletion."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import (
    INCARNATIONS,
    TOPIC_ID,
    BrokerRig,
    LeaderList,
    ReplicationRig,
    append_batch,
    read_log,
)
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import PartitionId
from tiered.peers import PartitionFetch
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import LeaderReplica
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.tiering import Tiering

RECORDS = 60


def tiering(broker: BrokerRig, replica: LeaderReplica) -> Tiering:
    """Returns the tiering loop of one broker, to run single passes."""
    return Tiering(
        Settings(),
        LeaderList(replica),
        RetentionClock(broker.clock),
        broker.clock,
        broker.rng,
        broker.metrics,
    )


def fill(replica: LeaderReplica) -> None:
    for number in range(RECORDS):
        append_batch(replica, number)


def check_all_is_there(replica: LeaderReplica) -> None:
    """Checks that consumers and followers can read each record."""
    assert replica.log.start_offset == replica.log.local_start_offset == replica.log_start_offset == 0
    assert replica.reads.read_now(0, 1) is not None
    assert read_log(replica.log, 0).startswith(batch(0)[:8])


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, index_interval_bytes=200, retention_bytes=3000))
async def test_retention_deletes_nothing_before_the_manifest_is_changed(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    await broker.cold.manifests.take_over(PartitionId(TOPIC_ID, (await broker.lead(0, [1])).tp.partition), "t", 0)
    replica = await broker.lead(1, [1], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    fill(replica)
    segments = replica.log.segments.count
    broker.faults.outage = True
    with pytest.raises(Unavailable):
        await tiering(broker, replica).run_steps(replica)
    check_all_is_there(replica)
    assert replica.log.segments.count == segments
    broker.faults.outage = False
    await tiering(broker, replica).run_steps(replica)
    assert replica.manifest is not None and 0 < replica.manifest.log_start_offset == replica.log.start_offset


@in_rig(ReplicationRig)
async def test_deleted_records_stay_until_the_manifest_is_changed(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1])
    fill(replica)
    broker.faults.outage = True
    with pytest.raises(Unavailable):
        await replica.deletion.delete_records(30)
    check_all_is_there(replica)
    broker.faults.outage = False
    assert await replica.deletion.delete_records(30) == replica.log.start_offset == 30


@in_rig(ReplicationRig)
async def test_replaced_leader_does_not_acknowledge_a_waiting_deletion(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    fill(replica)
    replica.handle_follower_fetch(2, INCARNATIONS[2], PartitionFetch(TOPIC_ID, 0, 0, RECORDS, 0, 0, 0), 0)
    deleting = asyncio.create_task(replica.deletion.delete_records(30))
    while not replica.deletion.waiting:
        await asyncio.sleep(0.01)
    replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another one leads it"))
    with pytest.raises(Refused, match="another one leads it"):
        await deleting


@in_rig(ReplicationRig)
async def test_leader_without_controller_contact_confirms_no_waiting_deletion(
    rig: ReplicationRig, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last in-sync follower says that it knows the log start. Without contact, others may be in sync by then."""
    replica = await rig.brokers[1].lead(0, [1, 2])
    fill(replica)

    def fetch_as_follower(start: int) -> None:
        request = PartitionFetch(TOPIC_ID, 0, 0, RECORDS, 0, start, 0)
        replica.handle_follower_fetch(2, INCARNATIONS[2], request, 0)

    fetch_as_follower(0)
    deleting = asyncio.create_task(replica.deletion.delete_records(30))
    while not replica.deletion.waiting:
        await asyncio.sleep(0.01)
    monkeypatch.setattr(replica.admission, "_has_controller_contact", lambda: False)
    fetch_as_follower(30)
    with pytest.raises(Refused, match="no contact with the controller"):
        await deleting


@in_rig(ReplicationRig)
async def test_reply_to_a_deletion_names_the_start_that_the_isr_knows(rig: ReplicationRig) -> None:
    """Retention moves the start of the leader alone, while the deletion waits for a follower."""
    replica = await rig.brokers[1].lead(0, [1, 2])
    fill(replica)

    def fetch_as_follower(start: int) -> None:
        request = PartitionFetch(TOPIC_ID, 0, 0, RECORDS, 0, start, 0)
        replica.handle_follower_fetch(2, INCARNATIONS[2], request, 0)

    fetch_as_follower(0)
    deleting = asyncio.create_task(replica.deletion.delete_records(30))
    while not replica.deletion.waiting:
        await asyncio.sleep(0.01)
    replica.deletion.advance_start(35)
    fetch_as_follower(30)
    assert await deleting == 30 and replica.log_start_offset == 35
    assert await replica.deletion.delete_records(20) == 30
    fetch_as_follower(35)
    assert await replica.deletion.delete_records(20) == 35


@in_rig(ReplicationRig)
async def test_records_that_are_not_committed_are_not_deleted(rig: ReplicationRig) -> None:
    replica = await rig.brokers[1].lead(0, [1, 2])
    fill(replica)
    with pytest.raises(Refused) as refused:
        await replica.deletion.delete_records(1)
    assert refused.value.code is Code.OFFSET_OUT_OF_RANGE and replica.log_start_offset == 0
    assert await replica.deletion.delete_records(-1) == 0, "the high watermark"


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, index_interval_bytes=200, retention_bytes=1))
async def test_uncommitted_records_are_neither_uploaded_nor_expired(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1, 2])
    fill(replica)
    await tiering(broker, replica).run_steps(replica)
    check_all_is_there(replica)
    assert replica.cold_end_offset == 0 and not [key for key in rig.bucket.objects if key.endswith(".segment")]


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=2000, index_interval_bytes=200, retention_bytes=4000))
async def test_retention_by_size_waits_for_the_takeover_of_the_manifest(rig: ReplicationRig) -> None:
    """An earlier leader may make more records cold before the takeover. Retention by size would count these too, and
    delete more than the limit demands."""
    broker = rig.brokers[1]
    replica = await broker.lead(0, [1, 2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
    fill(replica)
    replica.state.high_watermark = replica.log.end_offset
    broker.faults.outage = True
    with pytest.raises(Unavailable):
        await tiering(broker, replica).run_steps(replica)
    assert replica.takeover_pending
    check_all_is_there(replica)


@in_rig(ReplicationRig)
async def test_leader_after_takeover_serves_no_deleted_records(rig: ReplicationRig) -> None:
    broker = rig.brokers[1]
    replica = await broker.lead(1, [1, 2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
    fill(replica)
    replica.state.high_watermark = replica.log.end_offset
    other = rig.brokers[2].cold
    manifest = await other.manifests.take_over(replica.partition_id, replica.topic, 0)
    await other.collector.advance_start(manifest, 0, 20)
    await tiering(broker, replica).run_steps(replica)
    assert replica.log_start_offset == replica.log.start_offset == 20


@pytest.mark.parametrize("policy", [(), ("delete",), ("delete", "compact"), ("compact",)])
def test_records_are_deleted_unless_the_policy_is_compact_alone(policy: tuple[str, ...]) -> None:
    """A topic without a policy keeps records for ever: nothing else shortens it."""
    config = TopicConfig(segment_bytes=2000, index_interval_bytes=200, cleanup_policy=policy)
    rig = ReplicationRig(config=config)

    async def scenario() -> None:
        replica = await rig.brokers[1].lead(0, [1])
        fill(replica)
        if policy == ("compact",):
            with pytest.raises(Refused) as refused:
                await replica.deletion.delete_records(30)
            assert refused.value.code is Code.POLICY_VIOLATION and "compact without delete" in refused.value.why
        else:
            assert await replica.deletion.delete_records(30) == replica.log_start_offset == 30

    rig.run(scenario)
