"""Tests of producer state in a log that starts at the cold end: the last five batches of each producer are known."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import TP, DirectPeers, ReplicationRig, RunningFetchers
from tests.unit.replication.test_roles import wait_until
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.hot.producer_state import BATCHES_RETAINED
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication import cold_history
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import LeaderReplica

BATCHES = 12


async def upload_batches(leader: LeaderReplica, per_segment: int) -> None:
    """Uploads batches of one producer, `per_segment` to a segment."""
    for sequence in range(BATCHES):
        leader.append_now(batch(sequence, producer=7, sequence=sequence), 1)
        if (sequence + 1) % per_segment == 0:
            leader.roll()
    manifest = await leader.cold.manifests.take_over(leader.partition_id, leader.topic, leader.leader_epoch)
    written = await leader.cold.uploader.upload_next(leader.log, manifest, leader.leader_epoch, BATCHES)
    assert written is not None and written.cold_end_offset == BATCHES
    leader.unified_log.update_manifest(written)


def check_retries(leader: LeaderReplica) -> None:
    """Checks that the last five batches are duplicates, that older ones are out of order, and that the next one is
    appended."""
    for sequence in range(BATCHES - BATCHES_RETAINED, BATCHES):
        appended = leader.append_now(batch(sequence, producer=7, sequence=sequence), 1)
        assert (appended.base_offset, appended.is_duplicate) == (sequence, True)
    with pytest.raises(Refused) as refused:
        leader.append_now(batch(0, producer=7, sequence=BATCHES - BATCHES_RETAINED - 1), 1)
    assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not leader.append_now(batch(BATCHES, producer=7, sequence=BATCHES), 1).is_duplicate


@pytest.mark.parametrize("per_segment", [BATCHES, 2, 1], ids=["one segment", "two batches each", "one batch each"])
def test_leader_that_lost_its_disk_finds_retries_of_cold_batches(per_segment: int) -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        await upload_batches(await rig.brokers[1].lead(0, [1]), per_segment)
        new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        assert new_leader.log.local_start_offset == new_leader.log.end_offset == BATCHES
        check_retries(new_leader)

    rig.run(scenario)


def test_retries_are_known_by_segments_that_only_sub_manifests_name() -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)

    async def scenario() -> None:
        leader = await rig.brokers[1].lead(0, [1])
        await upload_batches(leader, 1)
        manifest = leader.manifest
        assert manifest is not None and len(manifest.entries) < BATCHES_RETAINED and manifest.submanifests[0].level > 1
        check_retries(await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE))

    rig.run(scenario)


def test_segments_read_for_producer_state_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_history, "RECALL_SEGMENTS", 3)
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)

    async def scenario() -> None:
        await upload_batches(await rig.brokers[1].lead(0, [1]), 1)
        new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        known = new_leader.log.producers.get(7)
        assert known is not None and [each.base_offset for each in known.batches] == [9, 10, 11]

    rig.run(scenario)


@pytest.mark.parametrize("lost", [False, True])
def test_without_its_sub_manifest_a_producer_is_known_by_its_last_batch(lost: bool) -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)

    async def scenario() -> None:
        leader = await rig.brokers[1].lead(0, [1])
        await upload_batches(leader, 1)
        assert leader.manifest is not None
        if lost:
            await rig.bucket.memory.delete([leader.manifest.submanifests[-1].key])
        new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        known = new_leader.log.producers.get(7)
        assert known is not None and len(known.batches) == (1 if lost else BATCHES_RETAINED)

    rig.run(scenario)


@pytest.mark.parametrize("rotten", [False, True], ids=["on their way", "in the bucket"])
def test_damaged_batches_of_a_producer_are_read_again(rotten: bool) -> None:
    """Each attempt reads a damaged segment twice."""
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        await upload_batches(await rig.brokers[1].lead(0, [1]), 2)
        rig.brokers[2].faults.rules.append(
            FaultRule(FaultKind.TRUNCATED, ("get",), "00000000000000000006-", times=-1 if rotten else 2)
        )
        new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        known = new_leader.log.producers.get(7)
        assert known is not None
        assert ([each.base_offset for each in known.batches] == [7, 8, 9, 10, 11]) is not rotten

    rig.run(scenario)


def test_new_follower_that_leads_later_finds_retries_of_cold_batches() -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        first = await rig.brokers[1].lead(0, [1], [1, 2])
        await upload_batches(first, 3)
        peers = DirectPeers(rig)
        peers.add_leader(first)
        following = RunningFetchers(rig, rig.brokers[2], peers)
        copy = await following.follow(1, 0)
        await wait_until(lambda: copy.log.end_offset == BATCHES)
        assert copy.log.local_start_offset == BATCHES, "only what is not cold is copied"
        copy.stop()
        await following.stop()
        check_retries(await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH))

    rig.run(scenario)


def test_leader_finds_cold_retries_after_an_interrupted_restart() -> None:
    """The restart was not synced, and a power cut took the snapshot of the producers only."""
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        await upload_batches(await rig.brokers[1].lead(0, [1]), 3)
        broker = rig.brokers[2]
        await broker.lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        broker.disk.remove(f"log/{TP}/{BATCHES:020d}.snapshot")
        broker.restart(broker.disk.after_kill())
        broker.logs.clear()
        again = await broker.lead(2, [2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
        assert again.log.local_start_offset == again.log.end_offset == BATCHES
        check_retries(again)

    rig.run(scenario)


def test_follower_finds_cold_retries_after_an_interrupted_restart() -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        first = await rig.brokers[1].lead(0, [1], [1, 2])
        await upload_batches(first, 3)
        (await rig.brokers[2].open_log()).truncate_fully_and_start_at(BATCHES, (), None)
        peers = DirectPeers(rig)
        peers.add_leader(first)
        following = RunningFetchers(rig, rig.brokers[2], peers)
        copy = await following.follow(1, 0)
        await wait_until(lambda: copy.log.producers.get(7) is not None)
        copy.stop()
        await following.stop()
        check_retries(await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH))

    rig.run(scenario)
