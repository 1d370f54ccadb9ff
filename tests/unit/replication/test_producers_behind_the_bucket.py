"""A log that begins behind what is cold knows the last five batches of each producer: who was never answered tries all
of them again."""

from __future__ import annotations

import pytest

from tests.unit.hot.fixtures import batch
from tests.unit.replication.rig import DirectPeers, ReplicationRig, RunningFetchers
from tests.unit.replication.test_roles import until
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.hot.producer_state import BATCHES_RETAINED
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.replication import cold_history
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.leader_replica import LeaderReplica

BATCHES = 12


async def made_cold(leader: LeaderReplica, per_segment: int) -> None:
    """One producer's batches, so many to a segment, all of them in the bucket."""
    for sequence in range(BATCHES):
        leader.append_now(batch(sequence, producer=7, sequence=sequence), 1)
        if (sequence + 1) % per_segment == 0:
            leader.roll()
    manifest = await leader.cold.manifests.take_over(leader.partition_id, leader.topic, leader.leader_epoch)
    written = await leader.cold.uploader.upload_next(leader.log, manifest, leader.leader_epoch, BATCHES)
    assert written is not None and written.cold_end_offset == BATCHES
    leader.manifest = written


def check_retries(leader: LeaderReplica) -> None:
    """The last five are known, older ones are out of order, and the next one goes on."""
    for sequence in range(BATCHES - BATCHES_RETAINED, BATCHES):
        told = leader.append_now(batch(sequence, producer=7, sequence=sequence), 1)
        assert (told.base_offset, told.is_duplicate) == (sequence, True)
    with pytest.raises(Refused) as refused:
        leader.append_now(batch(0, producer=7, sequence=BATCHES - BATCHES_RETAINED - 1), 1)
    assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not leader.append_now(batch(BATCHES, producer=7, sequence=BATCHES), 1).is_duplicate


@pytest.mark.parametrize("per_segment", [BATCHES, 2, 1], ids=["one segment", "two batches each", "one batch each"])
def test_a_leader_that_lost_its_disk_knows_retries_of_what_is_cold(per_segment: int) -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        await made_cold(await rig.brokers[1].lead(0, [1]), per_segment)
        heir = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        assert heir.log.local_start_offset == heir.log.end_offset == BATCHES
        check_retries(heir)

    rig.run(scenario)


def test_retries_are_known_by_segments_that_only_sub_manifests_name() -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)

    async def scenario() -> None:
        leader = await rig.brokers[1].lead(0, [1])
        await made_cold(leader, 1)
        manifest = leader.manifest
        assert manifest is not None and len(manifest.entries) < BATCHES_RETAINED and manifest.submanifests[0].level > 1
        check_retries(await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE))

    rig.run(scenario)


def test_no_more_segments_are_read_for_retries_than_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_history, "RECALL_SEGMENTS", 3)
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)

    async def scenario() -> None:
        await made_cold(await rig.brokers[1].lead(0, [1]), 1)
        heir = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        known = heir.log.producers.get(7)
        assert known is not None and [each.base_offset for each in known.batches] == [9, 10, 11]

    rig.run(scenario)


@pytest.mark.parametrize("lost", [False, True])
def test_without_its_sub_manifest_a_producer_is_known_by_its_last_batch(lost: bool) -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200), fan=2)

    async def scenario() -> None:
        leader = await rig.brokers[1].lead(0, [1])
        await made_cold(leader, 1)
        assert leader.manifest is not None
        if lost:
            await rig.bucket.memory.delete([leader.manifest.submanifests[-1].key])
        heir = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        known = heir.log.producers.get(7)
        assert known is not None and len(known.batches) == (1 if lost else BATCHES_RETAINED)

    rig.run(scenario)


@pytest.mark.parametrize("rotten", [False, True], ids=["on their way", "in the bucket"])
def test_older_batches_of_a_producer_are_read_again_where_their_bytes_come_wrong(rotten: bool) -> None:
    """Each look reads a segment that does not prove itself twice."""
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        await made_cold(await rig.brokers[1].lead(0, [1]), 2)
        rig.brokers[2].faults.rules.append(
            FaultRule(FaultKind.TRUNCATED, ("get",), "00000000000000000006-", times=-1 if rotten else 2)
        )
        heir = await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.MAY_STILL_WRITE)
        known = heir.log.producers.get(7)
        assert known is not None
        assert ([each.base_offset for each in known.batches] == [7, 8, 9, 10, 11]) is not rotten

    rig.run(scenario)


def test_a_new_follower_that_leads_later_knows_retries_of_what_is_cold() -> None:
    rig = ReplicationRig(config=TopicConfig(segment_bytes=1 << 20, index_interval_bytes=200))

    async def scenario() -> None:
        first = await rig.brokers[1].lead(0, [1], [1, 2])
        await made_cold(first, 3)
        peers = DirectPeers(rig)
        peers.add_leader(first)
        following = RunningFetchers(rig, rig.brokers[2], peers)
        copy = await following.follow(1, 0)
        await until(lambda: copy.log.end_offset == BATCHES)
        assert copy.log.local_start_offset == BATCHES, "only what is not cold is copied"
        copy.stop()
        await following.stop()
        check_retries(await rig.brokers[2].lead(1, [2], previous_leader=PreviousLeader.WAS_IN_SYNC_WITH))

    rig.run(scenario)
