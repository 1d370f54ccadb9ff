"""Tests of a broker under faults: an unreachable bucket, a full or failed disk, faults everywhere."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.sim.harness.clock import SimRng
from tests.sim.harness.disk import DiskFault
from tests.sim.rig.broker_rig import SimBrokerRig, batch, fill, numbers, read_values, run
from tiered.broker.partition_report import explain
from tiered.config.settings import Settings
from tiered.controller.requests import CreateTopic
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.metadata.changes import TopicConfigChanged
from tiered.metadata.layout import BOUNDARY_KEY
from tiered.metadata.log_writer import MetadataLog
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultKind, FaultRule
from tiered.object_store.metered import READS, Outage

# -- bad days ---------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_unreachable_bucket_costs_no_ack_and_is_reported(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    rig.machine.faults.outage = True
    await fill(replica, 20)
    await rig.wait_until(lambda: rig.broker.store.outage is not None)
    assert await read_values(replica, 0) == numbers(0, 20)
    health = rig.broker.health()
    assert health.ok
    assert any("store unreachable since" in each and "segments wait" in each for each in health.problems)
    assert health.details["waiting_segments"] >= 5
    assert "tiered_upload_waiting_segments 6" in rig.broker.metrics.render()
    with refuses(Code.REQUEST_TIMED_OUT):
        await rig.broker.submit(CreateTopic("u"))
    rig.machine.faults.outage = False
    await rig.wait_until(lambda: replica.cold_end_offset == 18, 300)
    await rig.wait_until(lambda: "u" in rig.broker.image.topics, 300)
    assert rig.broker.health().problems == []


@run_by(run)
async def test_full_disk_refuses_appends_serves_reads_and_recovers(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 3)
    rig.machine.disk.capacity = 1
    with refuses(Code.KAFKA_STORAGE_ERROR):
        await fill(replica, 1, start=3)
    health = rig.broker.health()
    assert any(each.startswith("disk full since") for each in health.problems)
    assert "\ntiered_disk_full 1" in rig.broker.metrics.render()
    assert await read_values(replica, 0) == numbers(0, 3)
    rig.machine.disk.capacity = None
    await fill(replica, 1, start=3)
    await rig.wait_until(lambda: rig.broker.health().problems == [], 15)
    assert "\ntiered_disk_full 0" in rig.broker.metrics.render()
    assert await read_values(replica, 0) == numbers(0, 4)


@pytest.mark.parametrize("file", ["metadata-position", "recovery-point-offset-checkpoint"])
@run_by(run)
async def test_full_disk_that_only_a_note_meets_is_a_problem(rig: SimBrokerRig, *, file: str) -> None:
    await rig.start()
    replica = await rig.create()
    rig.machine.disk.faults = [DiskFault("append", file, "ENOSPC", times=-1)]
    await rig.create("u")
    await rig.wait_until(lambda: "disk full since" in str(rig.broker.health().problems), 70)
    assert "\ntiered_disk_full 1" in rig.broker.metrics.render()
    await fill(replica, 1)
    rig.machine.disk.faults.clear()
    await rig.wait_until(lambda: rig.broker.health().problems == [], 30)


@run_by(run)
async def test_full_disk_that_takes_small_appends_keeps_its_begin(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(segment_bytes="1048576")
    await fill(replica, 1)
    disk = rig.machine.disk
    disk.capacity = disk.space().total - disk.space().free + 30_000
    found = set()
    for number in range(20):
        with pytest.raises(Refused):
            await replica.append(batch([b"x" * 40_000]))
        await fill(replica, 1, start=1 + number)
        found |= {each for each in rig.broker.health().problems if each.startswith("disk full since")}
        assert "\ntiered_disk_full 1" in rig.broker.metrics.render()
        await asyncio.sleep(1)
    assert len(found) == 1, found
    disk.capacity = None


@run_by(run)
async def test_directory_with_a_closed_log_is_not_trusted(rig: SimBrokerRig) -> None:
    await rig.start()
    await fill(await rig.create(flush="ack", retention_ms="-1"), 5)
    await rig.wait_until(lambda: rig.broker.health().problems == [])
    await rig.crash(rig.machine.power_cut)
    rig.machine.disk.faults.append(DiskFault("open", "log/t-0/0000", "EMFILE", times=-1))
    await rig.start()
    assert not rig.broker.losses.suspect_partitions, "what was synced is noted"
    await asyncio.sleep(10)
    assert not rig.broker.leader_replicas() and not rig.broker.loss_reporter.directory_trusted
    rig.machine.disk.faults.clear()
    await rig.wait_until(lambda: rig.broker.loss_reporter.directory_trusted)
    assert await read_values(rig.broker.leader_replica("t", 0), 0) == numbers(0, 5)


@pytest.mark.parametrize("verb", ["append", "sync", "rename"])
@pytest.mark.parametrize("restarts", [False, True], ids=["first start", "restart"])
def test_broker_whose_disk_fails_at_its_start_never_serves(
    verb: str, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker whose last note failed said that it serves, and then ended. Each write of a start fails once here."""
    caplog.set_level("INFO")

    async def scenario(rig: SimBrokerRig) -> None:
        if restarts:
            await rig.start()
            await fill(await rig.create(), 1)
            await rig.crash(rig.machine.kill)
        caplog.clear()
        rig.machine.disk.faults = [fault]
        with contextlib.suppress(Unavailable, Refused):
            await rig.start()
        rig.machine.disk.faults = []
        has_failed = rig.machine.disk.failed
        assert rig.broker.served.is_set() is not has_failed, caplog.text
        assert ("broker serves" in caplog.text) is not has_failed
        await rig.stop()

    for number in range(100):
        fault = DiskFault(verb, error="EIO", skip=number)
        run(scenario)
        if fault.times:  # the start has no such write any more
            break
    assert 0 < number < 99


@run_by(run)
async def test_broker_that_failed_after_its_start_announces_no_address(rig: SimBrokerRig) -> None:
    """Its line with the addresses follows the announcement."""
    node = await rig.start()
    rig.machine.disk.faults = [DiskFault("append", "recovery-point-offset-checkpoint", "EIO")]
    await rig.wait_until(node.ended.is_set)
    with pytest.raises(Unavailable, match="the broker failed at its start: data directory: "):
        await node.announce("127.0.0.1:1", {})


@run_by(run)
async def test_disk_that_fails_during_a_checkpoint_ends_the_broker(rig: SimBrokerRig) -> None:
    node = await rig.start()
    await fill(await rig.create(), 3)
    rig.machine.disk.faults = [DiskFault("append", "recovery-point-offset-checkpoint", "EIO")]
    await rig.wait_until(node.ended.is_set)
    assert any("the data directory failed" in problem for problem in node.health().problems)


@pytest.mark.parametrize("tiered", ["true", "false"])
@run_by(run)
async def test_disk_that_fails_under_a_roll_by_age_ends_the_broker(rig: SimBrokerRig, *, tiered: str) -> None:
    node = await rig.start()
    replica = await rig.create(segment_ms="1000", remote_storage_enable=tiered)
    await fill(replica, 3)
    rig.machine.disk.faults = [DiskFault("append", ".snapshot", "EIO")]
    await rig.wait_until(lambda: rig.machine.disk.failed)
    assert node.ended.is_set(), "the rest of the log waits for the next append, and a kill would hide the error"
    assert any("the data directory failed" in problem for problem in node.health().problems)


@run_by(run)
async def test_failure_counters_have_a_sample_before_the_first_failure(rig: SimBrokerRig) -> None:
    await rig.start()
    shown = set(rig.broker.metrics.render().splitlines())
    for why in ("unavailable", "corrupt"):
        assert {
            f'tiered_cold_read_failures_total{{why="{why}"}} 0',
            f'tiered_tiering_failures_total{{why="{why}"}} 0',
        } <= shown


@run_by(run)
async def test_broker_of_a_cluster_makes_no_other_one_in_an_empty_store(rig: SimBrokerRig) -> None:
    """The store may be a directory that is not mounted, or a name with a typing error."""
    await rig.start()
    await fill(await rig.create(), 3)
    await rig.stop()
    there = dict(rig.bucket.objects), list(rig.bucket.memory._keys)
    rig.bucket.memory._objects.clear()
    rig.bucket.memory._keys.clear()
    starting = asyncio.create_task(rig.start())
    await asyncio.sleep(60)
    assert not starting.done() and rig.broker.startup_retry.waiting_since_ns >= 0
    assert not rig.bucket.objects
    rig.bucket.memory._objects.update(there[0])
    rig.bucket.memory._keys.extend(there[1])
    node = await starting
    assert node.leader_replica("t", 0).log.end_offset == 3


@run_by(run)
async def test_loss_not_reported_before_a_stop_is_reported_by_the_next_start(rig: SimBrokerRig) -> None:
    """A partition that is not served yet has not reported the loss of a power cut: a clean stop must not hide it."""
    await rig.start()
    await fill(await rig.create(), 3)
    await rig.crash(rig.machine.power_cut)
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("get",), key="/manifest")]
    node = await rig.start()
    assert node.hosted_replicas.unopened_leaders
    await rig.stop()
    rig.machine.kill()
    rig.machine.faults.rules = []
    again = (await rig.start()).leader_replica("t", 0)
    assert explain(again)["possible_loss"]["from_offset"] == again.high_watermark


@run_by(run)
async def test_partition_whose_manifest_was_unreadable_is_served_later(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    await rig.crash(rig.machine.lose_disk)
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("get",), key="/manifest", times=3)]
    node = await rig.start()
    with pytest.raises(Refused, match="not served"):
        node.leader_replica("t", 0)
    assert any("t-0 is not served" in each for each in node.health().problems)
    await rig.wait_until(lambda: not node.hosted_replicas.unopened_leaders)
    assert await read_values(node.leader_replica("t", 0), 0) == numbers(0, 9)
    await rig.wait_until(lambda: explain(node.leader_replica("t", 0))["possible_loss"] is not None)
    (problem,) = node.health().problems
    assert "t-0 may be gone from offset 9 on" in problem


@run_by(run)
async def test_partition_that_could_not_be_led_is_led_soon_by_default_settings(rig: SimBrokerRig) -> None:
    await rig.start(Settings(tiered_internal_configs_enable=True))
    replica = await rig.create()
    await fill(replica, 10)
    await rig.crash(rig.machine.power_cut)
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("get",), key="/manifest")]
    node = await rig.start(Settings(tiered_internal_configs_enable=True))
    await asyncio.sleep(60)
    assert node.hosted_replicas.unopened_leaders
    rig.machine.faults.rules = []
    await rig.wait_until(lambda: not node.hosted_replicas.unopened_leaders, 15)
    await rig.wait_until(lambda: node.image.topics["t"].partitions[0].loss is not None, 15)


@pytest.mark.parametrize("away", [False, True])
@run_by(run)
async def test_pending_loss_is_reported_by_a_stop_or_by_the_next_start(rig: SimBrokerRig, *, away: bool) -> None:
    node = await rig.start(Settings(tiered_internal_configs_enable=True))
    replica = await rig.create()
    await fill(replica, 3)
    assert node.loss_reporter.directory_trusted
    node.losses.add_unreported(replica)  # as for a log that the bucket made begin anew
    rig.machine.faults.outage = away
    await rig.stop()
    rig.machine.faults.outage = False
    again = await rig.start()
    await rig.wait_until(lambda: again.image.topics["t"].partitions[0].loss is not None, 15 if away else 0.1)


@pytest.mark.parametrize("bucket_seconds", [0.0, 0.2])
@run_by(run)
async def test_old_tail_is_fsynced_after_a_kill(rig: SimBrokerRig, *, bucket_seconds: float) -> None:
    """The broker fsyncs it even while the bucket delays the registration."""
    await rig.start()
    replica = await rig.create()
    await fill(replica, 5)
    await rig.crash(rig.machine.kill)
    rig.machine.faults.first_byte_seconds = bucket_seconds
    again = (await rig.start()).leader_replica("t", 0)
    await rig.wait_until(lambda: again.log.flushed_offset == 5, 5)
    await rig.crash(rig.machine.power_cut)
    assert (await rig.start()).leader_replica("t", 0).high_watermark == 5


@pytest.mark.parametrize("seed", range(6))
@run_by(run, seed=GIVEN)
async def test_faulty_bucket_delays_and_loses_nothing(rig: SimBrokerRig) -> None:
    rig.machine.faults.rules = [
        FaultRule(FaultKind.ERROR, probability=0.1),
        FaultRule(FaultKind.LOST_REPLY, ("put", "upload"), probability=0.2),
        FaultRule(FaultKind.LATE_APPLY, ("put", "upload"), probability=0.1, seconds=3),
    ]
    for _ in range(50):
        try:
            await rig.start()
            break
        except (Unavailable, Refused):
            await rig.crash(rig.machine.kill)
    replica = await rig.create(internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
    await fill(replica, 20)
    await rig.wait_until(lambda: replica.local_start_offset >= 18, 3000)
    rig.machine.faults.rules = []
    assert await read_values(replica, 0) == numbers(0, 20)
    await rig.crash(rig.machine.lose_disk)
    again = (await rig.start()).leader_replica("t", 0)
    assert await read_values(again, 0) == numbers(0, again.cold_end_offset)
    await rig.stop()


@run_by(run)
async def test_manifest_of_a_later_epoch_stops_its_partition_and_not_the_broker(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 4)
    await rig.wait_until(lambda: replica.cold_end_offset == 3)
    await rig.broker.cold_tier.manifests.take_over(replica.partition_id, "t", 7)
    await rig.crash(rig.machine.kill)
    node = await rig.start()
    assert any("t-0 is not served" in each and "epoch" in each for each in node.health().problems)
    assert await read_values(await rig.create("u"), 0) == []


@run_by(run)
async def test_idle_broker_sends_one_request_a_minute_during_an_outage(rig: SimBrokerRig) -> None:
    node = await rig.start()
    rig.machine.faults.outage = True
    with pytest.raises(Unavailable):
        await node.store.get("data/any")
    await asyncio.sleep(300)
    began = node.store.request_count()
    await asyncio.sleep(3600)
    assert 55 <= node.store.request_count() - began <= 61
    rig.machine.faults.outage = False
    await rig.wait_until(lambda: node.store.outage is None)


@run_by(run)
async def test_records_of_a_damaged_local_file_are_read_from_the_bucket(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 12)
    await rig.wait_until(lambda: replica.cold_end_offset >= 9)
    first = replica.log.segments.closed()[0]
    await rig.crash(rig.machine.kill)
    rig.machine.disk.open(f"log/t-0/{first.base_offset:020d}.log").truncate(first.size - 1)
    again = (await rig.start()).leader_replica("t", 0)
    assert again.log.segments.gaps == [(first.next_offset - 1, first.next_offset)]
    assert await read_values(again, 0) == numbers(0, 12)


@run_by(run)
async def test_refusing_bucket_is_not_reported_as_unreachable(rig: SimBrokerRig) -> None:
    node = await rig.start()
    node.store.outages[READS] = Outage(0, "AccessDenied", refused=True)
    assert node.health().problems[0].startswith("store refuses requests since 1970")
    assert node.health().ok, "a restart would not help"
    node.store.outages[READS] = Outage(0, "InvalidAccessKeyId", refused=True, login_refused=True)
    assert not node.health().ok


@run_by(run)
async def test_uploads_are_retried_at_intervals_during_an_outage_of_an_hour(rig: SimBrokerRig) -> None:
    """New segments and the clock do not speed up a partition whose uploads fail. All is uploaded afterwards."""
    node = await rig.start()
    replica = await rig.create()
    rig.machine.faults.outage = True
    began = node.store.request_count()
    for number in range(360):
        await fill(replica, 3, start=3 * number)
        await asyncio.sleep(10)
    assert node.store.request_count() - began < 250
    assert node.health().details["waiting_segments"] >= 350
    rig.machine.faults.outage = False
    await rig.wait_until(lambda: replica.cold_end_offset >= 1070, 300)
    assert node.health().problems == []
    assert await read_values(replica, 0) == numbers(0, 1080)


@run_by(run)
async def test_garbled_boundary_stops_changes_and_is_reported_until_restored(rig: SimBrokerRig) -> None:
    node = await rig.start()
    replica = await rig.create()
    await rig.bucket.memory.put(BOUNDARY_KEY, b"{}")
    asked = asyncio.create_task(node.submit(CreateTopic("u")))
    await asyncio.sleep(10)
    await fill(replica, 2)
    assert not asked.done() and not node.ended.is_set()
    assert any("1 changes of metadata wait" in each and BOUNDARY_KEY in each for each in node.health().problems)
    await rig.bucket.memory.delete([BOUNDARY_KEY])
    assert (await asked).name == "u"
    assert node.health().problems == []
    await rig.bucket.memory.put(BOUNDARY_KEY, b"{}")
    await rig.crash(rig.machine.kill)
    with pytest.raises(Corrupt, match=BOUNDARY_KEY):
        await rig.start()


@run_by(run)
async def test_damaged_epoch_file_costs_no_record(rig: SimBrokerRig) -> None:
    """Records above the cold end are on this disk only: a lineage that the batches themselves disprove must not drop
    them."""
    await rig.start()
    replica = await rig.create()
    await fill(replica, 20)
    await rig.wait_until(lambda: replica.cold_end_offset == 18)
    epoch = replica.leader_epoch
    await rig.stop()
    path = "log/t-0/leader-epoch-checkpoint"
    file = rig.machine.disk.open(path)
    assert epoch == 0 and file.pread(0, file.size()) == b"0\n1\n0 0\n"
    rig.machine.disk.flip_bit(path, 4 * 8 + 1)
    assert file.pread(0, file.size()) == b"0\n1\n2 0\n"
    file.close()
    node = await rig.start()
    again = node.leader_replica("t", 0)
    assert again.possible_loss is None
    assert again.high_watermark == 20
    assert await read_values(again, 0) == numbers(0, 20)
    assert again.log.epochs.lineage == ((epoch, 0),)


@pytest.mark.parametrize("collected", [False, True], ids=["the slot is there", "the slot is collected"])
@run_by(run)
async def test_broker_replaced_while_frozen_stops_within_minutes(rig: SimBrokerRig, *, collected: bool) -> None:
    frozen = await rig.start()
    replica = await rig.create()
    other = MetadataLog(rig.bucket.memory, rig.machine.clock, SimRng("other"), Metrics())
    image = await other.take_over(await other.load(), 1, "the other incarnation")
    if collected:
        await other.write_snapshot(image)
        await other.append([TopicConfigChanged(replica.topic_id, {})])
        await other.write_snapshot(image.apply([TopicConfigChanged(replica.topic_id, {})], other.next_slot - 1))
        await other.append([TopicConfigChanged(replica.topic_id, {})])
        await other.write_snapshot(image.apply([TopicConfigChanged(replica.topic_id, {})], other.next_slot - 1))
    await rig.wait_until(frozen.ended.is_set, 130)
    with pytest.raises(Refused):
        await replica.append(batch([b"too late"]))
    assert not frozen.health().ok


@run_by(run)
async def test_missing_object_is_a_problem_until_it_can_be_read(rig: SimBrokerRig) -> None:
    node = await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    manifest = await node.cold_tier.manifests.load(replica.partition_id)
    assert manifest is not None and not node.health().problems
    key = manifest.entries[0].key
    content = rig.bucket.objects[key].data
    await rig.bucket.memory.delete([key])
    with pytest.raises(Corrupt):
        await node.cold_tier.reader.read(replica.partition_id, manifest, 0, 1)
    [problem] = node.health().problems
    assert problem.startswith("cold reads of t-0 fail, last at ") and f"object is missing where={key}" in problem
    assert node.health().own_problems == [problem] and node.health().details["damaged_objects"] == 1
    await rig.bucket.memory.put(key, content)
    await asyncio.sleep(1)
    await node.cold_tier.reader.read(replica.partition_id, manifest, 0, 1)
    assert not node.health().problems
