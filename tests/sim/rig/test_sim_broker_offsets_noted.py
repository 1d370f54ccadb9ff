"""Tests of the offset checkpoints of a data directory, which name logs by topic: their use and its limits."""

from __future__ import annotations

import pytest

from tests.sim.harness.disk import DiskFault
from tests.sim.rig.broker_rig import SimBrokerRig, fill, numbers, read_values, run
from tiered.controller.requests import DeleteTopic
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.partition_report import explain


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


@pytest.mark.parametrize("between", ["nothing", "opening"])
def test_notes_of_a_log_that_a_start_could_not_open_stay(between: str) -> None:
    """The log is not open when that process saves the offsets, and perhaps opens later."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        replica = await create_local_topic(site)
        await fill(replica, 30)
        await replica.delete_records(20)
        await site.crash(site.machine.kill)
        site.machine.disk.faults.append(DiskFault("open", "log/t-0/0", "EMFILE", times=-1))
        await site.start()
        assert site.node.hosted_replicas.list_unserved()
        await site.node.hosted_replicas.save_offsets()
        if between == "opening":
            site.machine.disk.faults.clear()
            await site.wait_until(lambda: not site.node.hosted_replicas.list_unserved())
            assert site.node.leader_replica("t", 0).log_start_offset == 20
        await site.crash(site.machine.kill)
        site.machine.disk.faults.clear()
        again = (await site.start()).leader_replica("t", 0)
        assert again.log_start_offset == 20
        assert await read_values(again, 20) == numbers(20, 30)
        await site.stop()

    run(scenario)


@pytest.mark.parametrize("is_saved", [False, True])
def test_log_that_is_opened_again_starts_where_it_did(is_saved: bool) -> None:
    """A full disk closed the log in the middle of a change."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        replica = await create_local_topic(site)
        await fill(replica, 30)
        await replica.delete_records(20)
        store, topic = site.node.hosted_replicas.log_store, site.node.image.topics["t"]
        store.close_broken(replica.tp)
        if is_saved:
            await store.save_offsets()
            await site.crash(site.machine.kill)
            assert (await site.start()).leader_replica("t", 0).log_start_offset == 20
        else:
            assert (await store.open_or_create(replica.tp, topic, is_new=False)).start_offset == 20
        await site.stop()

    run(scenario)


def test_stop_with_a_broken_log_is_not_clean() -> None:
    """The log was closed in the middle of a change, and nothing made its records durable."""

    async def scenario(site: SimBrokerRig) -> None:
        await site.start()
        replica = await create_local_topic(site)
        await fill(replica, 30)
        site.node.hosted_replicas.log_store.close_broken(replica.tp)
        await site.stop()
        site.machine.power_cut()
        again = (await site.start()).leader_replica("t", 0)
        assert (explain(again)["possible_loss"] or {}).get("from_offset") == again.high_watermark
        await site.stop()

    run(scenario)
