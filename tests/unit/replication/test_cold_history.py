"""Tests of producer state in a log that starts at the cold end: the last five batches of each producer are known."""

from __future__ import annotations

import pytest

from tests.refusal import refuses
from tests.scenario import in_rig
from tests.unit.hot.fixtures import NOW, batch
from tests.unit.replication.rig import TP, BrokerRig, DirectPeers, ReplicationRig, RunningFetchers
from tests.unit.replication.test_leader_replica_roles import wait_until
from tiered.config.settings import TopicConfig
from tiered.errors import Code
from tiered.hot.disk_log import DiskLog
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.producers.entry import BATCHES_RETAINED
from tiered.records.batch import encode_batch
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
    with refuses(Code.OUT_OF_ORDER_SEQUENCE_NUMBER):
        leader.append_now(batch(0, producer=7, sequence=BATCHES - BATCHES_RETAINED - 1), 1)
    assert not leader.append_now(batch(BATCHES, producer=7, sequence=BATCHES), 1).is_duplicate


@pytest.mark.parametrize("per_segment", [BATCHES, 2, 1], ids=["one segment", "two batches each", "one batch each"])
@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_leader_that_lost_its_disk_finds_retries_of_cold_batches(
    rig: ReplicationRig, *, per_segment: int
) -> None:
    await upload_batches(await rig.brokers[1].lead(0, [1]), per_segment)
    new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    assert new_leader.log.local_start_offset == new_leader.log.end_offset == BATCHES
    check_retries(new_leader)


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)
async def test_retries_are_known_by_segments_that_only_sub_manifests_name(rig: ReplicationRig) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    await upload_batches(leader, 1)
    manifest = leader.manifest
    assert manifest is not None and len(manifest.entries) < BATCHES_RETAINED and manifest.submanifests[0].level > 1
    check_retries(await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE))


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
@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)
async def test_without_its_sub_manifest_a_producer_is_known_by_its_last_batch(
    rig: ReplicationRig, *, lost: bool
) -> None:
    leader = await rig.brokers[1].lead(0, [1])
    await upload_batches(leader, 1)
    assert leader.manifest is not None
    if lost:
        await rig.bucket.memory.delete([leader.manifest.submanifests[-1].key])
    new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    known = new_leader.log.producers.get(7)
    assert known is not None and len(known.batches) == (1 if lost else BATCHES_RETAINED)


@pytest.mark.parametrize("rotten", [False, True], ids=["on their way", "in the bucket"])
@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_damaged_batches_of_a_producer_are_read_again(rig: ReplicationRig, *, rotten: bool) -> None:
    """Each attempt reads a damaged segment twice."""
    await upload_batches(await rig.brokers[1].lead(0, [1]), 2)
    rig.brokers[2].faults.rules.append(
        FaultRule(FaultKind.TRUNCATED, ("get",), "00000000000000000006-", times=-1 if rotten else 2)
    )
    new_leader = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    known = new_leader.log.producers.get(7)
    assert known is not None
    assert ([each.base_offset for each in known.batches] == [7, 8, 9, 10, 11]) is not rotten


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_new_follower_that_leads_later_finds_retries_of_cold_batches(rig: ReplicationRig) -> None:
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


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_leader_finds_cold_retries_after_an_interrupted_restart(rig: ReplicationRig) -> None:
    """The restart was not synced, and a power cut took the snapshot of the producers only."""
    await upload_batches(await rig.brokers[1].lead(0, [1]), 3)
    broker = rig.brokers[2]
    await broker.lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    broker.disk.remove(f"log/{TP}/{BATCHES:020d}.snapshot")
    restart(broker)
    again = await broker.lead(2, [2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH)
    assert again.log.local_start_offset == again.log.end_offset == BATCHES
    check_retries(again)


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_follower_finds_cold_retries_after_an_interrupted_restart(rig: ReplicationRig) -> None:
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


@in_rig(ReplicationRig, config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))
async def test_follower_takes_lost_producers_while_the_bucket_has_them(rig: ReplicationRig) -> None:
    """Its restart was interrupted. The cold segment that has the producers is damaged when it leads."""
    first, broker = await rig.brokers[1].lead(0, [1], [1, 2]), rig.brokers[2]
    await upload_batches(first, 3)
    peers = DirectPeers(rig)
    peers.add_leader(first)

    async def follow_until_known() -> None:
        following = RunningFetchers(rig, broker, peers)
        copy = await following.follow(1, 0)
        await wait_until(lambda: copy.log.producers.get(7) is not None)
        copy.stop()
        await following.stop()

    await follow_until_known()
    broker.disk.remove(f"log/{TP}/{BATCHES:020d}.snapshot")
    restart(broker)
    await follow_until_known()
    broker.faults.rules.append(FaultRule(FaultKind.TRUNCATED, ("get",), ".seg", times=-1))
    check_retries(await broker.lead(1, [2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH))


ROUND = 4
"""Batches of one producer, and of one segment."""
PRODUCERS = (7, 8, 9)


async def lose_begin(broker: BrokerRig, cold_segments: int) -> DiskLog:
    """Writes a segment for each producer, and uploads `cold_segments`. Returns the log as it is after a power cut: the
    first segment and the content of all producer snapshots were not synced."""
    leader = await broker.lead(0, [1])
    for producer in PRODUCERS:
        for sequence in range(ROUND):
            leader.append_now(batch(sequence, producer=producer, sequence=sequence), 1)
        leader.roll()
    await upload_below(leader, ROUND * cold_segments)
    restart(broker)
    for name in broker.disk.list(f"log/{TP}"):
        if name.startswith(f"{0:020d}."):
            broker.disk.remove(f"log/{TP}/{name}")
        elif name.endswith(".snapshot"):
            broker.disk.open(f"log/{TP}/{name}").truncate(0)
    log = await broker.open_log(same_boot=False)
    assert (log.local_start_offset, log.end_offset) == (ROUND, ROUND * len(PRODUCERS))
    return log


def restart(broker: BrokerRig) -> None:
    broker.restart(broker.disk.after_kill())
    broker.logs.clear()


async def upload_below(leader: LeaderReplica, end: int) -> None:
    manifest = await leader.cold.manifests.take_over(leader.partition_id, leader.topic, leader.leader_epoch)
    written = await leader.cold.uploader.upload_next(leader.log, manifest, leader.leader_epoch, end)
    if written is not None:
        leader.unified_log.update_manifest(written)
    assert (written or manifest).cold_end_offset == end


def check_rounds(leader: LeaderReplica, producers: tuple[int, ...] = PRODUCERS) -> None:
    """Checks that every batch of these producers is a duplicate."""
    end = leader.log.end_offset
    for producer in producers:
        for sequence in range(ROUND):
            appended = leader.append_now(batch(sequence, producer=producer, sequence=sequence), 1)
            first = ROUND * PRODUCERS.index(producer)
            assert (appended.base_offset, appended.is_duplicate) == (first + sequence, True)
    assert leader.log.end_offset == end


@pytest.mark.parametrize("cold_segments", [1, 2, 3])
@pytest.mark.parametrize("past", [PreviousLeader.MAY_STILL_WRITE, PreviousLeader.WAS_IN_SYNC_WITH])
@in_rig(ReplicationRig)
async def test_leader_restores_producers_that_a_power_cut_took(
    rig: ReplicationRig, *, cold_segments: int, past: PreviousLeader
) -> None:
    broker = rig.brokers[1]
    await lose_begin(broker, cold_segments)
    leader = await broker.lead(1, [1], previous_leader=past)
    assert leader.log.local_start_offset == ROUND and not leader.restarted_at_cold_end
    check_rounds(leader)
    restart(broker)
    known = (await broker.open_log()).producers  # from the disk alone
    assert [each.producer_id for each in known.list_producers()] == list(PRODUCERS) and not known.is_incomplete


@pytest.mark.parametrize("is_clean", [True, False])
@in_rig(ReplicationRig)
async def test_follower_that_lacks_producers_lacks_them_after_its_next_starts(
    rig: ReplicationRig, *, is_clean: bool
) -> None:
    """It closes segments and drops others meanwhile. Its snapshots must not hide what it lacks."""
    broker = rig.brokers[1]
    log = await lose_begin(broker, 2)
    log.append_as_follower(
        encode_batch([(NOW, None, b"v", ())], base_offset=log.end_offset, leader_epoch=0), now_ms=NOW
    )
    log.roll()
    assert await log.drop_local_below(2 * ROUND) == 1
    for _ in range(2):
        if is_clean:
            await log.close_clean()
        restart(broker)
        log = await broker.open_log()
    assert log.producers.get(7) is None
    check_rounds(await broker.lead(1, [1], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH))


@in_rig(ReplicationRig)
async def test_restored_producers_go_to_the_bucket_with_the_next_segment(rig: ReplicationRig) -> None:
    """Its snapshot was not written before: the log lacked producers then."""
    await lose_begin(rig.brokers[1], 1)
    leader = await rig.brokers[1].lead(1, [1], previous_leader=PreviousLeader.MAY_STILL_WRITE)
    await upload_below(leader, 2 * ROUND)
    check_rounds(await rig.brokers[2].lead(2, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE), (7, 8))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_producers_that_nobody_knows_are_reported_once(is_damaged: bool, caplog: pytest.LogCaptureFixture) -> None:
    rig = ReplicationRig()

    async def scenario() -> None:
        broker = rig.brokers[1]
        await lose_begin(broker, 2 * is_damaged)
        if is_damaged:
            rig.brokers[1].faults.rules.append(FaultRule(FaultKind.TRUNCATED, ("get",), ".seg", times=-1))
        for epoch in (1, 2):
            check_rounds(await broker.lead(epoch, [1], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH), (8, 9))
            restart(broker)

    rig.run(scenario)
    assert caplog.text.count("retries may be appended twice") == 1
