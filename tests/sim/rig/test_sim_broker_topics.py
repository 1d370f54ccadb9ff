"""Tests of topics, settings, retention and reads of one broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.disk import DiskFault, Op
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, numbers, read_values, run
from tiered.broker import broker as node_module
from tiered.cold import manifest_store
from tiered.controller.requests import (
    AlterBrokerConfigs,
    AlterTopicConfigs,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
)
from tiered.errors import Code, Refused
from tiered.metadata.parts.topics import TopicImage
from tiered.object_store.faulty import FaultKind, FaultRule

# -- topics -----------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_deleted_topic_is_gone_at_once_and_its_objects_after_the_delay(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    topic_id = rig.broker.image.topics["t"].topic_id
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    waiting = asyncio.create_task(replica.reads.read(10, 1000, max_wait_ms=60_000))
    await asyncio.sleep(0)
    await rig.broker.submit(DeleteTopic("t"))
    for ask in (replica.append(batch([b"x"])), replica.reads.read(0, 1000), waiting):
        with refuses(Code.UNKNOWN_TOPIC_OR_PARTITION):
            await ask
    with pytest.raises(Refused):
        rig.broker.leader_replica("t", 0)
    await asyncio.sleep(30)
    assert await rig.bucket.memory.list(f"data/{topic_id}/")
    await rig.wait_until(lambda: not rig.broker.image.deleted_topics, 300)
    assert await rig.bucket.memory.list(f"data/{topic_id}/") == []
    assert [name for name in rig.machine.disk.list("log") if name.startswith("t-0")] == []


@pytest.mark.parametrize("pauses", [(45,), (100,), (100, 90)], ids=["early", "late", "one after the other"])
@run_by(run)
async def test_late_objects_of_a_deleted_topic_go_even_with_a_wrong_clock(
    rig: SimBrokerRig, *, pauses: tuple[int, ...]
) -> None:
    await rig.start()
    topic_id = (await rig.create()).topic_id
    await rig.broker.submit(DeleteTopic("t"))
    rig.machine.clock.jump(3_600_000)
    for number, seconds in enumerate(pauses):
        await asyncio.sleep(seconds)
        late = f"data/{topic_id}/0/segments/late-{number}"
        await rig.bucket.memory.put(late, b"an upload that was under way")
    await rig.wait_until(lambda: not rig.broker.image.deleted_topics, 600)
    assert await rig.bucket.memory.list(f"data/{topic_id}/") == []


@run_by(run)
async def test_files_of_a_deleted_topic_go_at_the_end_of_their_delay(rig: SimBrokerRig) -> None:
    await rig.start(replace(QUICK, log_retention_check_interval_ms=3_600_000))
    for name in ("t", "u"):
        await fill(await rig.create(name, file_delete_delay_ms="1000"), 1)
        await rig.broker.submit(DeleteTopic(name))
    disk = rig.machine.disk
    assert len([name for name in disk.list("log") if name.endswith("-delete")]) == 2
    await rig.wait_until(lambda: not [name for name in disk.list("log") if name.endswith("-delete")], 10)


@run_by(run)
async def test_topic_that_the_bucket_cannot_delete_delays_no_other(rig: SimBrokerRig) -> None:
    await rig.start()
    first, second = await rig.create("a"), await rig.create("b")
    await fill(first, 4)
    await fill(second, 4)
    await rig.wait_until(lambda: first.cold_end_offset == second.cold_end_offset == 3)
    rig.machine.faults.rules = [FaultRule(FaultKind.ERROR, ("list",), key=first.topic_id)]
    await rig.broker.submit(DeleteTopic("a"))
    await rig.broker.submit(DeleteTopic("b"))
    await rig.wait_until(lambda: list(rig.broker.image.deleted_topics) == [first.topic_id], 600)
    rig.machine.faults.rules = []
    await rig.wait_until(lambda: not rig.broker.image.deleted_topics, 600)
    assert not [key for key in rig.bucket.objects if key.startswith("data/")]


@run_by(run)
async def test_recreated_topic_is_another_topic(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    await rig.broker.submit(DeleteTopic("t"))
    again = await rig.create()
    assert (again.topic_id != replica.topic_id, again.high_watermark, again.cold_end_offset) == (True, 0, 0)
    await fill(again, 3, start=700)
    await rig.stop()
    node = await rig.start()
    assert await read_values(node.leader_replica("t", 0), 0) == numbers(700, 703)


@run_by(run)
async def test_recreated_topic_is_empty_even_if_the_old_log_could_not_go(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 12)
    assert replica.log.segments.count > 2
    fault = DiskFault("rename", "log/t-0", "EMFILE")
    rig.machine.disk.faults.append(fault)
    await rig.broker.submit(DeleteTopic("t"))
    again = await rig.create()
    assert fault.times == 0, "the old log stayed where it was"
    assert (again.high_watermark, again.log.end_offset) == (0, 0)
    await fill(again, 2, start=700)
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert await read_values(again, 0) == numbers(700, 702)


@run_by(run)
async def test_topic_deleted_while_its_log_was_missing_leaves_nothing(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 2)
    await rig.broker.submit(DeleteTopic("t"))
    await rig.crash(rig.machine.kill)
    await rig.start()
    assert [name for name in rig.machine.disk.list("log") if name.startswith("t-0")] == []


@run_by(run)
async def test_partitions_are_added_while_it_runs(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create()
    topic = await rig.broker.submit(CreatePartitions("t", 3))
    assert isinstance(topic, TopicImage)
    assert len(topic.partitions) == 3
    await fill(rig.broker.leader_replica("t", 2), 2)
    assert await read_values(rig.broker.leader_replica("t", 2), 0) == numbers(0, 2)


@run_by(run)
async def test_settings_take_effect_while_it_runs(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(retention_ms="-1")
    await rig.broker.submit(AlterTopicConfigs("t", {"max.message.bytes": "100"}))
    with refuses(Code.MESSAGE_TOO_LARGE):
        await fill(replica, 1)
    await rig.broker.submit(AlterTopicConfigs("t", {"max.message.bytes": None}))
    await fill(replica, 1)
    await rig.broker.submit(AlterBrokerConfigs(-1, {"message.max.bytes": "200"}))
    with pytest.raises(Refused):
        await fill(replica, 1)
    assert replica.config.max_message_bytes == 200
    await rig.stop()
    assert (await rig.start()).leader_replica("t", 0).config.max_message_bytes == 200


@run_by(run)
async def test_unknown_names_are_errors(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create()
    for topic, partition in (("u", 0), ("t", 1), ("t", -1)):
        with refuses(Code.UNKNOWN_TOPIC_OR_PARTITION):
            rig.broker.leader_replica(topic, partition)


# -- time -------------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_quiet_topic_is_uploaded_too(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 1)
    await asyncio.sleep(9 * 60)
    assert replica.cold_end_offset == 0
    await rig.wait_until(lambda: replica.cold_end_offset == 1, 90)


@run_by(run)
async def test_total_retention_moves_the_log_start_hot_and_cold(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(internal_segment_bytes="4096", retention_ms="600000", local_retention_bytes="1")
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.local_start_offset == 9)
    await rig.wait_until(lambda: replica.log_start_offset == 10, 1500)
    with refuses(Code.OFFSET_OUT_OF_RANGE):
        await replica.reads.read(0, 1000)
    await asyncio.sleep(120)
    segments = [each for each in await rig.bucket.memory.list("data/") if each.key.endswith(".seg")]
    assert segments == []
    await fill(replica, 1, start=10)
    assert await read_values(replica, 10) == numbers(10, 11)


@run_by(run)
async def test_untiered_topic_stays_on_its_disk(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(
        internal_segment_bytes="4096", retention_ms="-1", retention_bytes="9000", remote_storage_enable="false"
    )
    await fill(replica, 20)
    await rig.wait_until(lambda: replica.log_start_offset > 0)
    assert replica.log.segments.size_bytes <= 9000 + 4096
    assert await rig.bucket.memory.list("data/") == []
    assert await read_values(replica, replica.log_start_offset) == numbers(replica.log_start_offset, 20)


@run_by(run)
async def test_idle_broker_sends_no_requests_to_the_bucket(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create("t", 5)
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    await asyncio.sleep(20 * 60)
    before = rig.broker.store.request_count()
    await asyncio.sleep(60 * 60)
    assert rig.broker.store.request_count() - before <= 60


def test_many_cold_segments_cost_no_request_while_none_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are more sub-manifests than memory keeps: the oldest segment is looked up once, and not at every pass."""
    monkeypatch.setattr(manifest_store, "OPENED_MAX", 1)

    async def scenario(rig: SimBrokerRig) -> None:
        await rig.start(fan=2)
        replica = await rig.create(internal_segment_bytes="4096", retention_ms="-1", retention_bytes="1000000")
        await fill(replica, 40)
        await rig.wait_until(lambda: replica.cold_end_offset == 39)
        assert replica.manifest is not None and max(node.level for node in replica.manifest.nodes) >= 2
        await rig.stop()
        node = await rig.start(fan=2)
        written = len(rig.bucket.written)
        await asyncio.sleep(60)
        assert not [key for key, _ in rig.bucket.written[written:] if key.endswith("/manifest")]
        await asyncio.sleep(20 * 60)
        before = node.store.request_count()
        await asyncio.sleep(60 * 60)
        assert node.store.request_count() - before <= 60, "more than the one look a minute for a newer controller"
        await node.submit(AlterTopicConfigs("t", {"retention.bytes": "20000"}))
        await rig.wait_until(lambda: node.leader_replica("t", 0).log_start_offset > 0)
        await rig.stop()

    run(scenario)


# -- reading ----------------------------------------------------------------------------------------------------------


@run_by(run)
async def test_long_poll_ends_with_the_first_record_or_at_its_deadline(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    began = rig.loop.now_ns
    assert (await replica.reads.read(0, 1000, max_wait_ms=500)).size == 0
    assert rig.loop.now_ns - began == 500_000_000
    waiting = asyncio.create_task(replica.reads.read(0, 5000, max_wait_ms=60_000, min_bytes=1500))
    await asyncio.sleep(1)
    await fill(replica, 1)
    await asyncio.sleep(1)
    assert not waiting.done()
    await fill(replica, 1)
    assert (await waiting).size >= 1500


@run_by(run)
async def test_records_are_found_by_time_hot_and_cold(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
    base = rig.broker.world.clock.wall_ms()
    for number in range(10):
        await replica.append(batch([b"x" * 1000], timestamp=base + 100 * number))
    await rig.wait_until(lambda: replica.local_start_offset == 9)
    for number in range(10):
        assert await replica.reads.offset_for_timestamp(base + 100 * number - 50) == (
            number,
            base + 100 * number,
            0,
        )
    assert await replica.reads.offset_for_timestamp(base + 1000) is None


@run_by(run)
async def test_deleted_records_stay_deleted(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    before = replica.manifest
    assert await replica.deletion.delete_records(4) == 4
    with pytest.raises(Refused):
        await replica.reads.read(3, 1000)
    with pytest.raises(Refused):
        await replica.deletion.delete_records(11)
    assert await read_values(replica, 4) == numbers(4, 10)
    assert before is not None
    replica.unified_log.update_manifest(before)  # as an upload does whose answer comes late
    assert (replica.log_start_offset, replica.cold_end_offset) == (4, 9)
    await rig.crash(rig.machine.lose_disk)
    again = (await rig.start()).leader_replica("t", 0)
    assert again.log_start_offset == 4
    assert await again.deletion.delete_records(-1) == again.high_watermark


def test_clean_stop_syncs_only_written_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, 60,000 empty partitions took more than a minute to stop, with six syncs each. The stop resigns them in
    shares: one decision on all of them blocked the event loop for seconds."""
    monkeypatch.setattr(node_module, "LEAVE_BATCH_MAX", 70)

    async def scenario(rig: SimBrokerRig) -> None:
        for life in range(2):
            node = await rig.start()
            if not life:
                await rig.create("t", 300)
            await fill(node.leader_replica("t", 7), 3)
            done: list[Op] = []
            rig.machine.disk.on_op = done.append
            before = node.image.slot
            await rig.stop()
            assert node.image.slot == before + 6, "five shares, and the stop"
            rig.machine.disk.on_op = None
            synced = [op.path for op in done if "sync" in op.verb]
            assert len(synced) < 40, len(synced)
            assert any("t-7/" in path for path in synced)
        rig.machine.power_cut()
        await rig.start()
        assert [rig.broker.leader_replica("t", p).log.end_offset for p in range(300)] == [
            6 * (p == 7) for p in range(300)
        ]
        assert rig.broker.health().ok
        await fill(rig.broker.leader_replica("t", 8), 1)

    run(scenario)


@run_by(run)
async def test_topic_without_settings_has_the_startup_settings_of_its_broker(rig: SimBrokerRig) -> None:
    own = replace(QUICK, log_segment_bytes=2_000, log_retention_ms=12_345, message_max_bytes=777, log_flush="ack")
    node = await rig.start(own)
    await node.submit(CreateTopic("t"))
    config = node.leader_replica("t", 0).log.config
    assert config == own.topic_defaults()
    assert (config.segment_bytes, config.retention_ms, config.max_message_bytes) == (2_000, 12_345, 777)
    await rig.stop()
    again = await rig.start(own)
    assert again.leader_replica("t", 0).log.config == config
