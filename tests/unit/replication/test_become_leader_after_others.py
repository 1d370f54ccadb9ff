"""Tests of a new leader that was in sync and serves before it has taken over the manifest: its own state, and the
writes of earlier leaders."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import LeaderList, ReplicationRig, append_batch, read_bytes
from tests.unit.replication.test_leader_replica_roles import wait_for_leader, wait_until
from tests.unit.replication.three_brokers import ThreeBrokers
from tiered.config.settings import Settings, TopicConfig
from tiered.errors import Fenced, Refused
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import ACKS_ALL
from tiered.upkeep.retention_clock import RetentionClock
from tiered.upkeep.tiering import Tiering


@in_rig(ThreeBrokers)
async def test_in_sync_leader_serves_at_once_and_survives_a_late_upload(cluster: ThreeBrokers) -> None:
    await cluster.start(internal_segment_bytes="2000")
    first = await wait_for_leader(cluster)
    for number in range(40):
        await first.append(batch(number), acks=ACKS_ALL)
    manifest = await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
    await cluster.fence(first.state.node_id)
    await wait_until(lambda: first.is_stopped)
    second = await wait_for_leader(cluster)
    assert second.manifest == manifest, "read, and not taken over yet"
    await second.append(batch(40), acks=ACKS_ALL)
    late = await first.cold.uploader.upload_next(first.log, manifest, first.leader_epoch, 40)
    assert late is not None and 0 < late.cold_end_offset <= 40
    taken = await second.cold.manifests.take_over(second.partition_id, second.topic, second.leader_epoch)
    assert taken.cold_end_offset == late.cold_end_offset
    cold = await second.cold.reader.read(second.partition_id, taken, 0, 1)
    hot = second.log.read(0, 1, end_offset=41)
    assert hot is not None and bytes(cold)[:61] == read_bytes(hot)[:61]
    with pytest.raises(Fenced):
        await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)


@pytest.mark.parametrize("known", [True, False], ids=["some of it was cold", "nothing was cold"])
@in_rig(ThreeBrokers)
async def test_in_sync_leader_knows_late_manifest_changes_after_one_pass(cluster: ThreeBrokers, *, known: bool) -> None:
    await cluster.start(internal_segment_bytes="2000")
    first = await wait_for_leader(cluster)
    for number in range(40):
        await first.append(batch(number), acks=ACKS_ALL)
    cold, partition_id, epoch = first.cold, first.partition_id, first.leader_epoch
    if known:
        await cold.manifests.take_over(partition_id, first.topic, epoch)
    await cluster.fence(first.state.node_id)
    second = await wait_for_leader(cluster)
    assert (second.manifest is not None) == known
    await wait_until(lambda: first.is_stopped)
    with pytest.raises(Refused):
        await first.deletion.delete_records(30)  # it is done all the same, and nobody may rely on that
    broker = cluster.members[second.state.node_id].broker
    tiering = Tiering(
        Settings(),
        LeaderList(second),
        RetentionClock(broker.clock),
        broker.clock,
        broker.rng,
        broker.metrics,
    )
    await tiering.run_steps(second)
    assert second.log_start_offset == 30 and second.manifest is not None
    assert second.manifest.leader_epoch == second.leader_epoch
    with pytest.raises(Fenced):
        await cold.manifests.take_over(partition_id, first.topic, epoch)


@pytest.mark.parametrize("tiered", ["true", "false"], ids=["tiered", "untiered"])
@in_rig(ThreeBrokers)
async def test_deposed_leader_with_controller_contact_completes_no_deletion(
    cluster: ThreeBrokers, *, tiered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader has read the manifest before the deletion, and serves the records."""
    await cluster.start(internal_segment_bytes="2000", remote_storage_enable=tiered)
    first = await wait_for_leader(cluster)
    for number in range(40):
        await first.append(batch(number), acks=ACKS_ALL)
    if tiered == "true":
        await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
    monkeypatch.setattr(cluster.members[cluster.partition.leader], "receive_image", lambda image: None)
    await cluster.fence(first.state.node_id)
    second = await wait_for_leader(cluster)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await first.deletion.delete_records(30)
    assert second.log_start_offset == 0, "so nobody may have been told of the deletion"
    assert first.deletion.waiting == 0


@in_rig(ThreeBrokers)
async def test_leader_without_controller_contact_deletes_no_records(
    cluster: ThreeBrokers, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker may lead by then. It has read the manifest before the deletion, and serves the records."""
    await cluster.start(internal_segment_bytes="2000")
    first = await wait_for_leader(cluster)
    for number in range(40):
        await first.append(batch(number), acks=ACKS_ALL)
    monkeypatch.setattr(cluster.members[cluster.partition.leader], "receive_image", lambda image: None)
    monkeypatch.setattr(first.admission, "_has_controller_contact", lambda: False)
    await cluster.fence(first.state.node_id)
    with pytest.raises(Refused, match="no contact with the controller"):
        await first.deletion.delete_records(30)
    assert (await wait_for_leader(cluster)).log_start_offset == 0


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20))
async def test_bytes_uploaded_by_an_earlier_leader_do_not_count_twice(rig: ReplicationRig) -> None:
    """The segments of the earlier leader ended at other offsets: one segment of the new leader lies across the cold
    end."""
    first, second = await rig.brokers[1].lead(0, [1]), await rig.brokers[2].lead(0, [2])
    for number in range(20):
        for each in (first, second):
            append_batch(each, number)
        if number == 9:
            first.roll()
    manifest = await first.cold.manifests.take_over(first.partition_id, first.topic, 0)
    written = await first.cold.uploader.upload_next(first.log, manifest, 0, first.log.end_offset)
    assert written is not None and written.cold_end_offset == 10
    second = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    assert second.cold_end_offset == 10 and second.unified_log.bytes_above_cold == 0
    second.roll()
    assert append_batch(second, 20) and second.unified_log.bytes_above_cold == len(batch(20))


@pytest.mark.parametrize("known", [True, False], ids=["some of it was cold", "nothing was cold"])
@in_rig(ThreeBrokers)
async def test_in_sync_leader_without_uploads_takes_over_within_a_tick(cluster: ThreeBrokers, *, known: bool) -> None:
    """The leader takes over the manifest although no segment is closed and none expires."""
    await cluster.start()
    first = await wait_for_leader(cluster)
    await first.append(batch(0), acks=ACKS_ALL)
    if known:
        await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
    await cluster.fence(first.state.node_id)
    await wait_until(lambda: first.is_stopped)
    second = await wait_for_leader(cluster)
    assert not second.unified_log.waiting_segments and (second.manifest is not None) == known
    broker, settings = cluster.members[second.state.node_id].broker, Settings()
    tiering = Tiering(
        settings,
        LeaderList(second),
        RetentionClock(broker.clock),
        broker.clock,
        broker.rng,
        broker.metrics,
    )
    task = cluster.rig.loop.create_task(tiering.run())
    await asyncio.sleep(settings.remote_log_manager_task_interval_ms / 1000 + 1)
    task.cancel()
    there = await second.cold.manifests.load(second.partition_id)
    assert there is not None and there.leader_epoch == second.leader_epoch
    with pytest.raises(Fenced):
        await first.cold.manifests.take_over(first.partition_id, first.topic, first.leader_epoch)
