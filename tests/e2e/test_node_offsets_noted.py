"""Tests of the offset checkpoints of a data directory, which name logs by topic: their use and its limits."""

from __future__ import annotations

import pytest

from tests.e2e.site import SimBrokerRig, fill, numbers, read_values, run
from tiered.controller.requests import DeleteTopic
from tiered.replication.leader_replica import LeaderReplica


async def create_local_topic(site: SimBrokerRig) -> LeaderReplica:
    """Creates a topic whose records never go into the bucket."""
    return await site.create(remote_storage_enable="false", retention_ms="-1")


@pytest.mark.parametrize("between", ["nothing", "a clean stop"])
def test_checkpoints_of_a_deleted_topic_do_not_apply_to_the_next_one(between: str) -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        replica = await create_local_topic(site)
        await fill(replica, 30)
        await replica.delete_records(20)
        await replica.flush()
        await site.node.hosted_replicas.save_offsets()
        if between == "a clean stop":
            await site.stop()
            await site.start()
        await site.node.submit(DeleteTopic("t"))
        await fill(await create_local_topic(site), 5, start=700)
        await site.crash(site.machine.kill)
        again = (await site.start()).leader_replica("t", 0)
        assert (again.log_start_offset, again.high_watermark) == (0, 5)
        assert await read_values(again, 0) == numbers(700, 705)
        await site.stop()

    run(scenario)


@pytest.mark.parametrize("seed", range(8))
def test_log_that_lost_all_records_continues_at_its_start(seed: int) -> None:
    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        replica = await create_local_topic(site)
        await fill(replica, 30)
        await replica.delete_records(20)
        await site.node.hosted_replicas.save_offsets()
        await site.crash(site.machine.power_cut)
        again = (await site.start()).leader_replica("t", 0)
        assert again.log_start_offset <= again.high_watermark
        await fill(again, 5, start=700)
        assert (await read_values(again, again.log_start_offset))[-5:] == numbers(700, 705)
        await site.crash(site.machine.kill)
        once_more = (await site.start()).leader_replica("t", 0)
        assert (await read_values(once_more, once_more.log_start_offset))[-5:] == numbers(700, 705)
        await site.stop()

    run(scenario, seed)
