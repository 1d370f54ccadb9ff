"""Tests of events that cross: passes, deletions and openings, and very many partitions at a start."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import DiskFault
from tests.sim.harness.machine import SimMachine
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, fill, numbers, read_values, run
from tiered.broker.broker import Broker
from tiered.broker.partition_report import explain
from tiered.controller.requests import AlterTopicConfigs, CreateTopic, DeleteTopic
from tiered.errors import Fenced
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule


@run_by(run)
async def test_topic_deleted_while_its_upload_is_queued_ends_no_broker(rig: SimBrokerRig) -> None:
    await rig.start(replace(QUICK, remote_log_manager_copier_thread_pool_size=1))
    first, second = await rig.create("a"), await rig.create("b")
    rig.machine.faults.rules = [FaultRule(FaultKind.DELAY, ("upload",), seconds=5)]
    await fill(first, 5)
    await fill(second, 5)
    await asyncio.sleep(1)
    await rig.broker.submit(DeleteTopic("b"))
    await rig.wait_until(lambda: first.cold_end_offset == 3)
    await asyncio.sleep(10)
    assert not rig.broker.ended.is_set(), rig.broker.health().problems
    assert second.cold_end_offset == 0


@run_by(run)
async def test_topic_deleted_while_its_log_opens_stays_deleted(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    await rig.crash(rig.machine.lose_disk)
    rig.machine.faults.rules = [
        FaultRule(FaultKind.ERROR, ("get",), key="/manifest", times=3),
        FaultRule(FaultKind.DELAY, ("get",), key="/manifest", seconds=10),
    ]
    node = await rig.start()
    await asyncio.sleep(5)
    assert node.hosted_replicas.unopened_leaders
    await node.submit(DeleteTopic("t"))
    await node.submit(CreateTopic("u"))
    await asyncio.sleep(30)
    assert not node.ended.is_set(), node.health().problems
    assert [str(each.tp) for each in node.leader_replicas()] == ["u-0"]
    again = await rig.create()
    await fill(again, 1)
    assert await read_values(again, 0) == numbers(0, 1)


@run_by(run)
async def test_new_logs_are_made_one_in_a_turn_of_the_loop(rig: SimBrokerRig) -> None:
    """Each takes about a millisecond of the loop: a neighbour made 5,000, and requests waited for 32 at a time."""
    broker = await rig.start()
    loop, opened = asyncio.get_running_loop(), [0]

    def look() -> None:
        opened.append(len(broker.leader_replicas()))
        if opened[-1] < 100:
            loop.call_soon(look)

    loop.call_soon(look)
    await rig.create("t", 100)
    await rig.wait_until(lambda: len(broker.leader_replicas()) == 100)
    look()
    assert max(after - before for before, after in pairwise(opened)) == 1


@run_by(run)
async def test_more_losses_than_pending_requests_are_all_reported(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create("t", 1200)
    await rig.crash(rig.machine.lose_disk)
    node = await rig.start()
    assert len(node.leader_replicas()) == 1200
    assert len(node.health().details["possible_loss"]) == 1200


@run_by(run)
async def test_slow_bucket_delays_a_start_with_many_partitions(rig: SimBrokerRig) -> None:
    """After a kill the broker takes over every manifest before it serves: here that takes a minute and a half."""
    await rig.start()
    await rig.create("t", 320)
    await rig.crash(rig.machine.kill)
    rig.machine.faults.rules = [FaultRule(FaultKind.DELAY, ("put",), key="/manifest", seconds=9)]
    node = await rig.start()
    assert len(node.leader_replicas()) == 320


@run_by(run)
async def test_start_waits_for_a_bucket_without_writes(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.crash(rig.machine.kill)
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("put",))]
    starts = asyncio.create_task(rig.start())
    await asyncio.sleep(600)
    assert not starts.done() and rig.broker.health().problems
    rig.machine.faults.rules = []
    await starts
    assert rig.broker.health().ok


@pytest.mark.parametrize("seconds", [2.8, 3.0, 3.1, 3.2, 3.3])
@run_by(run)
async def test_outage_during_a_start_does_not_mark_the_clock_as_fast(rig: SimBrokerRig, *, seconds: float) -> None:
    """The controller keeps the time of the first registration request. The broker sends the request again once the
    bucket is back."""
    rig.machine.faults.first_byte_seconds = 0.1
    starts = asyncio.create_task(rig.start())
    await asyncio.sleep(seconds)
    rig.machine.faults.outage = True
    await asyncio.sleep(130)
    rig.machine.faults.outage = False
    await starts
    assert rig.broker.retention_clock.now_ms() == rig.broker.world.clock.wall_ms()


@run_by(run)
async def test_local_copies_of_cold_segments_are_deleted_while_uploads_fail(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="-1")
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("upload",))]
    await fill(replica, 6, start=10)
    await rig.broker.submit(AlterTopicConfigs("t", {"local.retention.bytes": "1"}))
    await rig.wait_until(lambda: replica.local_start_offset >= 9)


@run_by(run)
async def test_segment_of_an_undecided_change_is_not_uploaded_repeatedly(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("put",), key="/manifest", skip=1)]
    await fill(replica, 4)
    await asyncio.sleep(1200)
    assert sum(key.endswith(".seg") for key, _ in rig.bucket.written) == 1
    rig.machine.faults.rules = []
    await rig.wait_until(lambda: replica.cold_end_offset >= 3)


@run_by(run)
async def test_topic_that_was_never_opened_leaves_no_file_for_the_next_one(rig: SimBrokerRig) -> None:
    """Bytes in a file that has lost its name are gone with the process."""
    await rig.start()
    rig.machine.disk.capacity = 1
    await rig.broker.submit(CreateTopic("t"))
    assert rig.broker.hosted_replicas.unopened_leaders
    await rig.broker.submit(DeleteTopic("t"))
    rig.machine.disk.capacity = None
    replica = await rig.create()
    await fill(replica, 2)
    await rig.crash(rig.machine.kill)
    assert await read_values((await rig.start()).leader_replica("t", 0), 0) == numbers(0, 2)


@run_by(run)
async def test_failed_upload_of_a_deleted_topic_ends_no_broker(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    rig.machine.faults.rules = [
        FaultRule(FaultKind.DELAY, ("upload",), seconds=5, times=1),
        FaultRule(FaultKind.ERROR, ("get",), key=".seg"),
    ]
    await fill(replica, 4)
    await asyncio.sleep(1)
    await rig.broker.submit(DeleteTopic("t"))
    await asyncio.sleep(30)
    assert not rig.broker.ended.is_set(), rig.broker.health().problems


@run_by(run)
async def test_late_upload_leaves_no_object_of_a_deleted_topic(rig: SimBrokerRig) -> None:
    await rig.start(replace(QUICK, tiered_topic_delete_delay_ms=1000))
    replica = await rig.create()
    rig.machine.faults.rules = [FaultRule(FaultKind.LATE_APPLY, ("upload",), seconds=70, times=1)]
    await fill(replica, 4)
    await asyncio.sleep(1)
    await rig.broker.submit(DeleteTopic("t"))
    await rig.wait_until(lambda: not rig.broker.image.deleted_topics, 600)
    await asyncio.sleep(300)
    await rig.bucket.store(rig.machine.faults, rig.machine.clock).list("")
    assert not [key for key in rig.bucket.objects if key.startswith("data/")]


@run_by(run)
async def test_recreated_topic_is_new_even_if_the_old_log_could_not_be_moved(rig: SimBrokerRig) -> None:
    await rig.start()
    await fill(await rig.create(), 2)
    disk = rig.machine.disk
    disk.faults += [DiskFault("rename", "log/t-0", "EMFILE") for _ in range(9)]
    await rig.broker.submit(DeleteTopic("t"))
    disk.faults.clear()
    assert disk.exists("log/t-0")
    disk.open("log/t-0/partition.metadata").truncate(0)
    again = await rig.create()
    assert again.high_watermark == 0
    await fill(again, 1, start=7)
    assert await read_values(again, 0) == numbers(7, 8)


@run_by(run)
async def test_topic_deleted_on_a_full_disk_can_be_recreated(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(internal_segment_bytes="65536", index_interval_bytes="100", retention_ms="-1")
    await fill(replica, 9)
    rig.machine.disk.capacity = 1
    await rig.broker.submit(DeleteTopic("t"))
    rig.machine.disk.capacity = None
    again = await rig.create()
    assert again.high_watermark == 0


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize("torn", [None, b"", bytes(44), b"version: 0\ntopic_id: AB"])
@run_by(run)
async def test_log_without_a_durable_topic_id_belongs_to_no_topic(
    rig: SimBrokerRig, *, torn: bytes | None, noted: bool
) -> None:
    """No record of the log was ever durable, and it may be of an earlier topic of that name. It does not matter if the
    checkpoint `noted` the log: its line says that nothing was durable. `torn` None: no file is left."""
    await rig.start()
    await fill(await rig.create(), 2)
    if noted:
        await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.kill)
    disk = rig.machine.disk
    disk.remove("log/proof")
    disk.remove("log/t-0/partition.metadata")
    if torn is not None:
        disk.open("log/t-0/partition.metadata", create=True).append([torn])
    again = (await rig.start()).leader_replica("t", 0)
    assert again.high_watermark == 0
    assert explain(again)["possible_loss"]["from_offset"] == 0


@run_by(run)
async def test_log_that_was_durable_once_stays_without_its_topic_id(rig: SimBrokerRig) -> None:
    """A flush makes the file with the topic id durable before any record counts as durable. So no power cut tore it."""
    await rig.start()
    replica = await rig.create()
    await fill(replica, 2)
    await replica.flush()
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.kill)
    disk = rig.machine.disk
    disk.remove("log/proof")
    disk.open("log/t-0/partition.metadata").truncate(0)
    assert (await rig.start()).leader_replica("t", 0).high_watermark == 2


@run_by(run)
async def test_new_log_ignores_checkpoints_of_an_earlier_topic_of_its_name(rig: SimBrokerRig) -> None:
    """A start deletes the log of the earlier topic. The disk is full, so that its checkpoints cannot be deleted with
    it."""
    await rig.start()
    replica = await rig.create(remote_storage_enable="false")
    await fill(replica, 6)
    await replica.deletion.delete_records(5)
    await rig.broker.hosted_replicas.save_offsets()
    await rig.crash(rig.machine.kill)
    disk = rig.machine.disk
    name = disk.open("log/t-0/partition.metadata")
    name.truncate(0)
    name.append([b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"])
    disk.capacity = 1
    await rig.start()
    await rig.crash(rig.machine.kill)
    rig.machine.disk.capacity = None
    again = (await rig.start()).leader_replica("t", 0)
    assert again.log_start_offset == again.high_watermark == 0


@run_by(run)
async def test_late_takeover_of_a_deleted_topic_spares_the_recreated_one(rig: SimBrokerRig) -> None:
    await rig.start()
    old = await rig.create()
    await rig.broker.submit(DeleteTopic("t"))
    new = await rig.create()
    rig.broker.hosted_replicas.on_fenced(old, Fenced("the manifest is gone, the topic was deleted"))
    assert rig.broker.leader_replica("t", 0) is new
    await fill(new, 3)
    assert await read_values(new, 0) == numbers(0, 3)


@run_by(run)
async def test_killed_broker_did_not_stop_cleanly_even_if_reported_as_gone(rig: SimBrokerRig) -> None:
    """A write of its last process may still be in flight: it takes each manifest over."""
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    await rig.crash(rig.machine.kill)
    other = SimMachine(rig.loop, "two", rig.bucket, rig.network)
    second = Broker(replace(QUICK, node_id=2), other.process(), Metrics())
    await second.start()
    await rig.wait_until(lambda: second.image.brokers[QUICK.node_id].fenced)
    await second.stop()
    node = await rig.start()
    manifest = await node.cold_tier.manifests.load(replica.partition_id)
    assert manifest is not None and manifest.leader_epoch == node.leader_replica("t", 0).leader_epoch
