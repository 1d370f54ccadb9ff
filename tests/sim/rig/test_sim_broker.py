"""Tests of one broker on simulated ports: starts, stops, deaths, the recovered records, and one broker per store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.refusal import refuses
from tests.scenario import GIVEN, run_by
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.store import SimBucket
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, fill, numbers, read_values, run
from tiered.broker.broker import Broker
from tiered.broker.partition_report import explain
from tiered.config.settings import Settings
from tiered.controller.requests import AlterTopicConfigs, CreateTopic
from tiered.errors import Code
from tiered.ids import incarnation_digest
from tiered.metadata.log_reader import load_image
from tiered.metrics import Metrics
from tiered.ports import FileSlice, Stream
from tiered.records.batch import encode_batch

# -- the main path ----------------------------------------------------------------------------------------------------


@run_by(run)
async def test_records_are_read_hot_cold_and_across(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    await rig.broker.submit(AlterTopicConfigs("t", {"local.retention.bytes": "1"}))
    await rig.wait_until(lambda: replica.local_start_offset == 9)
    await fill(replica, 1, start=10)
    assert await read_values(replica, 0) == numbers(0, 11)
    assert await read_values(replica, 5) == numbers(5, 11)
    assert (replica.log_start_offset, replica.high_watermark) == (0, 11)
    assert isinstance((await replica.reads.read(9, 1 << 20)).data, FileSlice)
    assert isinstance((await replica.reads.read(0, 1 << 20)).data, bytes)


@run_by(run)
async def test_clean_restart_keeps_everything_under_a_new_epoch(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(internal_segment_bytes="4096", retention_ms="-1", local_retention_bytes="1")
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.local_start_offset == 9)
    await rig.stop()
    node = await rig.start()
    again = node.leader_replica("t", 0)
    assert (again.leader_epoch, again.high_watermark, again.cold_end_offset) == (1, 10, 9)
    assert await read_values(again, 0) == numbers(0, 10)
    assert explain(again)["possible_loss"] is None
    await fill(again, 5, start=10)
    await rig.wait_until(lambda: again.cold_end_offset >= 12)
    assert await read_values(again, 0) == numbers(0, 15)


@run_by(run)
async def test_killed_process_loses_nothing(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.crash(rig.machine.kill)
    again = (await rig.start()).leader_replica("t", 0)
    assert await read_values(again, 0) == numbers(0, 10)
    assert explain(again)["possible_loss"] is None


@pytest.mark.parametrize("seed", range(10))
@run_by(run, seed=GIVEN)
async def test_power_cut_keeps_fsynced_records_and_reports_the_rest(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(internal_segment_bytes="4096", retention_ms="-1", remote_storage_enable="false")
    await fill(replica, 5)
    await replica.flush()
    await fill(replica, 5, start=5)
    await rig.crash(rig.machine.power_cut)
    again = (await rig.start()).leader_replica("t", 0)
    assert 5 <= again.high_watermark <= 10
    assert await read_values(again, 0) == numbers(0, again.high_watermark)
    loss = explain(again)["possible_loss"]
    assert (loss["from_offset"], loss["leader_epoch"]) == (again.high_watermark, again.leader_epoch)
    await rig.stop()


@run_by(run)
async def test_acknowledged_records_with_flush_ack_survive_a_power_cut(rig: SimBrokerRig) -> None:
    await rig.start()
    replica = await rig.create(flush="ack", retention_ms="-1")
    await asyncio.gather(*(replica.append(batch([b"%06d" % number])) for number in range(10)))
    assert replica.high_watermark == 10
    await rig.crash(rig.machine.power_cut)
    again = (await rig.start()).leader_replica("t", 0)
    assert await read_values(again, 0) == numbers(0, 10)
    assert explain(again)["possible_loss"] is None


@run_by(run)
async def test_lost_disk_is_restored_from_the_bucket(rig: SimBrokerRig, *, caplog: pytest.LogCaptureFixture) -> None:
    await rig.start()
    first = await rig.create("a", 2)
    await rig.create("b", 3)
    await fill(first, 10)
    await rig.wait_until(lambda: first.cold_end_offset == 9)
    topics = rig.broker.image.topics
    await rig.crash(rig.machine.lose_disk)
    node = await rig.start()
    assert {name: topic.topic_id for name, topic in node.image.topics.items()} == {
        name: topic.topic_id for name, topic in topics.items()
    }
    again = node.leader_replica("a", 0)
    assert (again.high_watermark, again.leader_epoch) == (9, 1)
    assert await read_values(again, 0) == numbers(0, 9)
    losses = node.health().details["possible_loss"]
    offsets = {"a-0": 9, "a-1": 0, "b-0": 0, "b-1": 0, "b-2": 0}
    assert {name: loss["from_offset"] for name, loss in losses.items()} == offsets
    said = [each.message.partition(" topic=")[2] for each in caplog.records if "may be gone" in each.message]
    assert "b partitions=3 partition@offset=0@0,1@0,2@0" in said, "one line for all that are reported together"
    assert any("0@9" in line for line in said if line.startswith("a "))
    await fill(again, 5, start=9)
    assert await read_values(again, 0) == numbers(0, 14)
    await rig.wait_until(lambda: again.cold_end_offset >= 12)


@run_by(run)
async def test_idempotent_producer_continues_after_a_lost_disk(rig: SimBrokerRig) -> None:
    """Each of its last five batches gets its offset in the bucket, because their replies may have been lost too. The
    next batch continues the sequence."""

    def sent(sequence: int) -> bytearray:
        records = [(1, None, b"%06d" % sequence + b"x" * 1000, ())]
        return bytearray(encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=sequence))

    await rig.start()
    replica = await rig.create()
    for sequence in range(8):
        await replica.append(sent(sequence))
    replica.roll()
    await rig.wait_until(lambda: replica.cold_end_offset == 8)
    await rig.crash(rig.machine.lose_disk)
    again = (await rig.start()).leader_replica("t", 0)
    for sequence in range(3, 8):
        retried = await again.append(sent(sequence))
        assert (retried.base_offset, retried.is_duplicate) == (sequence, True)
    for forgotten in (2, 9):
        with refuses(Code.OUT_OF_ORDER_SEQUENCE_NUMBER):
            await again.append(sent(forgotten))
    assert (await again.append(sent(8))).base_offset == 8


@run_by(run)
async def test_offsets_named_by_a_manifest_never_change_their_bytes(rig: SimBrokerRig) -> None:
    """A log above the cold end is lost, and other records get its offsets. No offset below the cold end changes."""
    await rig.start()
    replica = await rig.create()
    await fill(replica, 10)
    await rig.wait_until(lambda: replica.cold_end_offset == 9)
    before = await read_values(replica, 0)
    await rig.crash(rig.machine.lose_disk)
    again = (await rig.start()).leader_replica("t", 0)
    await fill(again, 3, start=500)
    assert await read_values(again, 0) == before[:9] + numbers(500, 503)


# -- one broker per store ---------------------------------------------------------------------------------------------


async def serve_identity(rig: SimBrokerRig, machine: SimMachine, incarnation: Callable[[], str]) -> str:
    """Starts an HTTP server that returns an identity; returns its address."""

    def on_connection(stream: Stream) -> None:
        def reply() -> None:
            stream.on_readable(None)
            stream.recv_into(memoryview(bytearray(4096)))
            life = incarnation_digest(incarnation()).encode()
            body = b'{"cluster_id":"c","node_id":1,"incarnation_sha256":"%s"}' % life
            stream.sendmsg([b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body), body])
            stream.close()

        stream.on_readable(reply)

    listener = await machine.process().net.listen(machine.name, 8082, on_connection)
    return f"{machine.name}:{listener.port}"


@run_by(run)
async def test_second_process_of_a_node_id_is_refused_while_the_first_answers(rig: SimBrokerRig) -> None:
    first = await rig.start()
    await first.announce(await serve_identity(rig, rig.machine, lambda: first.incarnation), {})
    other = SimMachine(rig.loop, "two", rig.bucket, rig.network)
    duplicate = Broker(Settings(node_id=first.settings.node_id), other.process(), Metrics())
    with refuses(Code.DUPLICATE_BROKER_REGISTRATION):
        await duplicate.start()
    await duplicate.stop()
    await first.submit(CreateTopic("t"))


@run_by(run)
async def test_another_process_at_the_old_address_does_not_block_a_start(rig: SimBrokerRig) -> None:
    first = await rig.start()
    await first.announce(await serve_identity(rig, rig.machine, lambda: "somebody"), {})
    other = SimMachine(rig.loop, "two", rig.bucket, rig.network)
    duplicate = Broker(QUICK, other.process(), Metrics())
    await duplicate.start()
    with refuses(Code.NOT_CONTROLLER):
        await first.submit(CreateTopic("t"))
    await asyncio.wait_for(first.ended.wait(), 10)
    assert not first.health().ok
    await duplicate.submit(CreateTopic("t"))
    await first.stop()
    await duplicate.stop()


@run_by(run)
async def test_data_directory_of_another_cluster_is_refused(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.stop()
    elsewhere = SimMachine(rig.loop, "three", SimBucket(rig.loop), rig.network)
    founder = Broker(QUICK, elsewhere.process(), Metrics())
    await founder.start()
    await founder.stop()
    elsewhere.disk = rig.machine.disk
    node = Broker(QUICK, elsewhere.process(), Metrics())
    with refuses(Code.INCONSISTENT_CLUSTER_ID):
        await node.start()
    await node.stop()


@run_by(run)
async def test_cluster_is_described_from_the_bucket_without_a_broker(rig: SimBrokerRig) -> None:
    await rig.start()
    await rig.create("a", 2)
    await rig.create("b")
    image = await load_image(rig.bucket.memory)
    assert image == rig.broker.image
    assert {name: len(topic.partitions) for name, topic in image.topics.items()} == {"a": 2, "b": 1}
    await rig.stop()
    assert not (await load_image(rig.bucket.memory)).brokers[1].alive


@run_by(run)
async def test_entries_of_a_clean_stop_count_for_the_next_start_only(rig: SimBrokerRig) -> None:
    """Small logs are not opened after a clean stop. A later record is there after a kill, and a third start reads the
    manifest for records that were uploaded meanwhile."""
    await rig.start()
    await fill(await rig.create(), 2)
    await rig.stop()
    await fill((await rig.start()).leader_replica("t", 0), 1, start=2)
    await rig.crash(rig.machine.kill)
    replica = (await rig.start()).leader_replica("t", 0)
    assert await read_values(replica, 0) == numbers(0, 3)
    replica.roll()
    await rig.wait_until(lambda: replica.cold_end_offset == 3)
    await rig.stop()
    again = (await rig.start()).leader_replica("t", 0)
    assert (again.cold_end_offset, again.high_watermark) == (3, 3)
