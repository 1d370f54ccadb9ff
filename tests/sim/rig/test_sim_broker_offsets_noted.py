"""Tests of the offset checkpoints of a data directory, which name logs by topic: their use and its limits."""

from __future__ import annotations

import pytest

from tests.scenario import GIVEN, run_by
from tests.sim.harness.disk import DiskFault
from tests.sim.rig.broker_rig import SimBrokerRig, fill, numbers, read_values, run
from tiered.broker.partition_report import explain
from tiered.controller.requests import DeleteTopic
from tiered.replication.leader_replica import LeaderReplica


async def create_local_topic(rig: SimBrokerRig) -> LeaderReplica:
    """Creates a topic whose records never go into the bucket."""
    return await rig.create(remote_storage_enable="false", retention_ms="-1")


@pytest.mark.parametrize("between", ["nothing", "a clean stop"])
@run_by(run)
async def test_checkpoints_of_a_deleted_topic_do_not_apply_to_the_next_one(rig: SimBrokerRig, *, between: str) -> None:
    await rig.start()
    replica = await create_local_topic(rig)
    await fill(replica, 30)
    await replica.deletion.delete_records(20)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    if between == "a clean stop":
        await rig.stop()
        await rig.start()
    await rig.broker.submit(DeleteTopic("t"))
    await fill(await create_local_topic(rig), 5, start=700)
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert (again.log_start_offset, again.high_watermark) == (0, 5)
    assert await read_values(again, 0) == numbers(700, 705)


@pytest.mark.parametrize("seed", range(8))
@run_by(run, seed=GIVEN)
async def test_log_that_lost_all_records_continues_at_its_start(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await create_local_topic(rig)
    await fill(replica, 30)
    await replica.deletion.delete_records(20)
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.power_cut)
    again = (await rig.start()).leader_replica("t", 0)
    assert again.log_start_offset <= again.high_watermark
    await fill(again, 5, start=700)
    assert (await read_values(again, again.log_start_offset))[-5:] == numbers(700, 705)
    await rig.crash(rig.machine.kill)
    once_more = (await rig.start()).leader_replica("t", 0)
    assert (await read_values(once_more, once_more.log_start_offset))[-5:] == numbers(700, 705)
    await rig.stop()


@pytest.mark.parametrize("between", ["nothing", "opening"])
@run_by(run)
async def test_notes_of_a_log_that_a_start_could_not_open_stay(rig: SimBrokerRig, *, between: str) -> None:
    """The log is not open when that process saves the offsets, and perhaps opens later."""
    await rig.start()
    replica = await create_local_topic(rig)
    await fill(replica, 30)
    await replica.deletion.delete_records(20)
    await rig.crash(rig.machine.kill)
    rig.machine.disk.faults.append(DiskFault("open", "log/t-0/0", "EMFILE", times=-1))
    await rig.start()
    assert rig.broker.hosted_replicas.list_unserved()
    await rig.broker.hosted_replicas.save_offsets()
    if between == "opening":
        rig.machine.disk.faults.clear()
        await rig.wait_until(lambda: not rig.broker.hosted_replicas.list_unserved())
        assert rig.broker.leader_replica("t", 0).log_start_offset == 20
    await rig.crash(rig.machine.kill)
    rig.machine.disk.faults.clear()
    again = (await rig.start()).leader_replica("t", 0)
    assert again.log_start_offset == 20
    assert await read_values(again, 20) == numbers(20, 30)


@pytest.mark.parametrize("is_saved", [False, True])
@run_by(run)
async def test_log_that_is_opened_again_starts_where_it_did(rig: SimBrokerRig, *, is_saved: bool) -> None:
    """A full disk closed the log in the middle of a change."""
    await rig.start()
    replica = await create_local_topic(rig)
    await fill(replica, 30)
    await replica.deletion.delete_records(20)
    store, topic = rig.broker.hosted_replicas.log_store, rig.broker.image.topics["t"]
    store.close_broken(replica.tp)
    if is_saved:
        await store.save_offsets()
        await rig.crash(rig.machine.kill)
        assert (await rig.start()).leader_replica("t", 0).log_start_offset == 20
    else:
        assert (await store.open_or_create(replica.tp, topic, is_new=False)).start_offset == 20


@run_by(run)
async def test_stop_with_a_broken_log_is_not_clean(rig: SimBrokerRig) -> None:
    """The log was closed in the middle of a change, and nothing made its records durable."""
    await rig.start()
    replica = await create_local_topic(rig)
    await fill(replica, 30)
    rig.broker.hosted_replicas.log_store.close_broken(replica.tp)
    await rig.stop()
    rig.machine.power_cut()
    again = (await rig.start()).leader_replica("t", 0)
    assert (explain(again)["possible_loss"] or {}).get("from_offset") == again.high_watermark
