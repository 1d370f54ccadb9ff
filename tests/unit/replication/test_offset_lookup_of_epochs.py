"""Tests of the end of a leader epoch that the local log no longer knows (OffsetForLeaderEpoch, KIP-320)."""

from __future__ import annotations

from tests.scenario import in_rig
from tests.unit.replication.rig import ReplicationRig
from tests.unit.replication.test_replica_fetcher import fill, upload
from tiered.replication.become_leader import PreviousLeader
from tiered.replication.offset_lookup import end_offset_for_epoch


@in_rig(ReplicationRig)
async def test_end_of_a_cold_epoch_is_found_in_lineages_of_segments(rig: ReplicationRig) -> None:
    broker, ends = rig.brokers[1], [0]
    for epoch in (0, 2, 3):
        replica = await broker.lead(epoch, [1], previous_leader=PreviousLeader.STOPPED_CLEANLY)
        await fill(replica, 40)
        ends.append(replica.log.end_offset)
        replica.roll()
        await upload(replica)
    later = await broker.lead(4, [1], previous_leader=PreviousLeader.STOPPED_CLEANLY)
    later.log.truncate_fully_and_start_at(later.cold_end_offset, ((3, ends[2]),), None)
    assert later.cold_end_offset == ends[3]
    assert [await end_offset_for_epoch(later, epoch) for epoch in range(6)] == [
        (0, ends[1]), (0, ends[1]), (2, ends[2]), (3, ends[3]), (4, ends[3]), (-1, -1),
    ]  # fmt: skip
