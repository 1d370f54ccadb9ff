"""Deletion of records: its bounds, its wait for followers and for the disk. The order of manifest and local log, and
deletions by leaders that are replaced, stand in `tests/unit/upkeep/test_tiering_order_of_removal.py`."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import in_rig
from tests.unit.replication.rig import INCARNATIONS, TOPIC_ID, ReplicationRig, append_batch
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Refused
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica

END = 20
NOT_TIERED = TopicConfig(remote_storage_enable=False)


async def lead(rig: ReplicationRig, isr: list[int]) -> LeaderReplica:
    """Returns a leader replica whose records are committed on all in-sync replicas."""
    replica = await rig.brokers[1].lead(0, isr)
    for number in range(END):
        append_batch(replica, number)
    for follower in isr[1:]:
        fetch_as_follower(replica, follower, log_start=0)
    assert replica.high_watermark == END
    return replica


def fetch_as_follower(replica: LeaderReplica, follower: int, *, log_start: int) -> None:
    request = PartitionFetch(TOPIC_ID, 0, 0, END, 0, log_start, 0)
    replica.handle_follower_fetch(follower, INCARNATIONS[follower], request, 0)


async def find_code(replica: LeaderReplica, before: int) -> Code:
    with pytest.raises(Refused) as refused:
        await replica.deletion.start(before)
    assert replica.log_start_offset == 0
    return refused.value.code


@in_rig(ReplicationRig)
async def test_deletion_is_bounded_by_the_high_watermark(rig: ReplicationRig) -> None:
    replica = await lead(rig, [1, 2])
    append_batch(replica, END)
    for before in (END + 1, -2):
        assert await find_code(replica, before) is Code.OFFSET_OUT_OF_RANGE
    assert await replica.deletion.start(-1) == END == replica.log_start_offset


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete"])
def test_deletion_is_refused_where_records_are_only_compacted(policy: str) -> None:
    rig = ReplicationRig(config=TopicConfig(cleanup_policy=tuple(policy.split(","))))

    async def scenario() -> None:
        replica = await lead(rig, [1])
        if policy == "compact":
            assert await find_code(replica, 5) is Code.POLICY_VIOLATION
        else:
            assert await replica.deletion.delete_records(5) == 5

    rig.run(scenario)


@in_rig(ReplicationRig)
async def test_deletion_ends_once_each_in_sync_replica_knows_of_it(rig: ReplicationRig) -> None:
    replica = await lead(rig, [1, 2, 3])
    deleting = asyncio.create_task(replica.deletion.delete_records(7))
    while not replica.deletion.waiting:
        await asyncio.sleep(0.01)
    fetch_as_follower(replica, 2, log_start=7)
    await asyncio.sleep(0.1)
    assert not deleting.done() and replica.log_start_offset == 7
    fetch_as_follower(replica, 3, log_start=7)
    assert await deleting == 7 and replica.deletion.waiting == 0


@in_rig(ReplicationRig)
async def test_deletion_goes_on_without_a_replica_that_left_the_isr(rig: ReplicationRig) -> None:
    replica = await lead(rig, [1, 2])
    deleting = asyncio.create_task(replica.deletion.delete_records(7))
    while not replica.deletion.waiting:
        await asyncio.sleep(0.01)
    replica.apply_isr([1], [1, 2], 1)
    assert await deleting == 7


@in_rig(ReplicationRig)
async def test_caller_that_gives_up_is_no_longer_counted(rig: ReplicationRig) -> None:
    replica = await lead(rig, [1, 2])
    deleting = asyncio.create_task(replica.deletion.delete_records(7))
    while not replica.deletion.waiting:
        await asyncio.sleep(0.01)
    deleting.cancel()
    await asyncio.wait([deleting])
    assert deleting.cancelled() and replica.deletion.waiting == 0 and replica.log_start_offset == 7


@in_rig(ReplicationRig, config=NOT_TIERED)
async def test_deletion_without_a_manifest_is_saved_on_disk_first(rig: ReplicationRig) -> None:
    replica = await lead(rig, [1])
    assert await replica.deletion.start(7) == 7 and replica.log.checkpointed_start_offset == 0
    assert await replica.deletion.finish(7) == 7 == replica.log.checkpointed_start_offset
    assert replica.manifest is None


@in_rig(ReplicationRig)
async def test_local_start_moves_only_while_this_broker_leads(rig: ReplicationRig) -> None:
    replica = await lead(rig, [1])
    replica.deletion.advance_start(5)
    replica.deletion.advance_start(3)
    assert replica.log_start_offset == 5
    replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "over"))
    with pytest.raises(Refused, match="over"):
        replica.deletion.advance_start(9)
    assert replica.log_start_offset == 5
