"""Tests of bit rot in the log of one replica: intact replicas win, and a replica that alone had the damaged records
reports the loss."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.scenario import GIVEN, run_by
from tests.sim.harness.disk import DiskFault, Op
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_cut_off import isolate
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic, Move, Reassign
from tiered.hot.checkpoints import METADATA_FILE
from tiered.ids import TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.parts.topics import PartitionImage
from tiered.replication.leader_replica import ACKS_ALL

AT = TopicPartition("t", 0)
RECORDS = 20


def log_file(broker: SimBroker) -> str:
    disk = broker.machine.disk
    (name,) = (name for name in disk.list(f"log/{AT}") if name.endswith(".log"))
    return f"log/{AT}/{name}"


def read_log_file(broker: SimBroker) -> bytes:
    file = broker.machine.disk.open(log_file(broker), write=False)
    return file.pread(0, file.size())


def flip_record_bit(broker: SimBroker, record: int) -> None:
    """Flips a bit in the middle of the batch of one record."""
    size = len(read_log_file(broker)) // RECORDS
    broker.machine.disk.flip_bit(log_file(broker), 8 * (record * size + size // 2))


def partition_image(three: ThreeBrokers) -> PartitionImage:
    return three.controller.node.image.topics[AT.topic].partitions[AT.partition]


async def create_filled_topic(
    three: ThreeBrokers, replicas: list[SimBroker], min_isr: int, flush: str = "none", *, tiered: bool = True
) -> None:
    """Creates a topic on these brokers with some acknowledged records; the first broker leads it."""
    configs = {"min.insync.replicas": str(min_isr), "flush": flush, "remote.storage.enable": str(tiered).lower()}
    nodes = [each.node_id for each in replicas]
    await three.controller.node.submit(CreateTopic(AT.topic, assignments=[nodes], configs=configs))
    leader = replicas[0]
    await three.wait_until(lambda: leader.node.hosted_replicas.find_leader(AT) is not None, 5)
    await three.wait_until(lambda: partition_image(three).isr == tuple(nodes), 5)
    for number in range(RECORDS):
        await leader.node.leader_replica(*AT).append(batch([b"%04d" % number * 20]), acks=ACKS_ALL, timeout_ms=5000)


async def kill_both(three: ThreeBrokers, leader: SimBroker, follower: SimBroker) -> None:
    """Kills the follower, and the leader after it, so that both are eligible and none leads."""
    await follower.kill()
    await three.wait_until(
        lambda: partition_image(three).leader == leader.node_id and len(partition_image(three).isr) == 1, 30
    )
    await leader.kill()
    await three.wait_until(lambda: partition_image(three).leader == NO_LEADER, 30)


@run_by(run_scenario)
async def test_damaged_replica_costs_no_acknowledged_record_of_the_others(three: ThreeBrokers) -> None:
    """All processes are killed, and no machine loses power. The damaged replica is back before the last ISR member."""
    (a, b), c = three.others(), three.controller
    await create_filled_topic(three, [a, b, c], 2)
    intact = read_log_file(b)
    await b.kill()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 30)
    await a.kill()
    await three.wait_until(lambda: partition_image(three).leader == c.node_id, 30)
    assert partition_image(three).elr == (a.node_id,)
    flip_record_bit(a, 5)
    await c.kill()
    await b.start()
    await a.start()
    await three.wait_until(lambda: is_registered(three, a), 60)
    await three.wait_until(lambda: partition_image(three).leader == NO_LEADER, 60)
    assert partition_image(three).elr == (c.node_id,), "the rotten one is not eligible"
    await c.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 3, 60)
    assert partition_image(three).loss is None
    for each in (a, b, c):
        assert read_log_file(each) == intact, f"{each.name} has all that was acknowledged"


def is_registered(three: ThreeBrokers, broker: SimBroker) -> bool:
    """True if a controller knows the new incarnation."""
    if not three.controller_ids():
        return False
    known = three.controller.node.image.brokers[broker.node_id]
    return known.live and known.incarnation == broker.node.incarnation


@run_by(run_scenario)
async def test_damaged_replica_stays_suspect_if_it_dies_after_its_cut(three: ThreeBrokers) -> None:
    """Otherwise its next start would find a log that looks whole."""
    a, b = three.others()
    await create_filled_topic(three, [a, b], 2)
    await kill_both(three, a, b)
    assert {*partition_image(three).elr} == {a.node_id, b.node_id}
    flip_record_bit(b, 5)
    size = len(read_log_file(b))
    before, starting = b.node, asyncio.create_task(b.start())
    while b.node is before or len(read_log_file(b)) == size:
        await asyncio.sleep(0.000_01)
    assert not is_registered(three, b), "it is cut, and nobody knows"
    starting.cancel()
    await b.kill()
    await b.start()
    await three.wait_until(lambda: is_registered(three, b), 30)
    assert (partition_image(three).leader, partition_image(three).elr) == (NO_LEADER, (a.node_id,))
    await a.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 60)
    assert partition_image(three).loss is None
    assert (
        a.node.leader_replica(*AT).log.end_offset == b.node.hosted_replicas.list_replicas()[0].log.end_offset == RECORDS
    )


@run_by(run_scenario)
async def test_damage_that_a_full_disk_cannot_note_is_reported(three: ThreeBrokers) -> None:
    """The log is not cut meanwhile. It is opened once the disk has room."""
    a, b = three.others()
    await create_filled_topic(three, [a, b], 2)
    await kill_both(three, a, b)
    flip_record_bit(b, 5)
    size, b.machine.disk.capacity = len(read_log_file(b)), 1
    await b.start()
    await three.wait_until(lambda: is_registered(three, b), 30)
    assert (partition_image(three).leader, partition_image(three).elr) == (NO_LEADER, (a.node_id,))
    assert len(read_log_file(b)) == size
    b.machine.disk.capacity = None
    await a.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 60)
    assert partition_image(three).loss is None
    assert read_log_file(a) == read_log_file(b)


@run_by(run_scenario)
async def test_damage_in_a_log_that_cannot_be_opened_after_its_cut_is_reported(three: ThreeBrokers) -> None:
    """The start has cut the log and noted the damage. Then it cannot read the topic id, and opens the log later."""
    a, b = three.others()
    await create_filled_topic(three, [a, b], 2)
    await kill_both(three, a, b)
    flip_record_bit(b, 5)
    size, metadata = len(read_log_file(b)), f"log/{AT}/{METADATA_FILE}"
    b.machine.disk.faults.append(DiskFault("pread", metadata, skip=1))
    await b.start()
    await three.wait_until(lambda: is_registered(three, b), 30)
    assert len(read_log_file(b)) < size
    assert (partition_image(three).leader, partition_image(three).elr) == (NO_LEADER, (a.node_id,))
    await a.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 60)
    assert partition_image(three).loss is None
    assert read_log_file(a) == read_log_file(b)


@run_by(run_scenario)
async def test_damaged_records_without_another_copy_are_reported(three: ThreeBrokers) -> None:
    """The records below the damage are kept."""
    a = three.others()[0]
    await create_filled_topic(three, [a], 1)
    intact = read_log_file(a)
    await a.kill()
    flip_record_bit(a, 5)
    await a.start()
    await three.wait_until(lambda: partition_image(three).loss is not None, 30)
    loss = partition_image(three).loss
    assert loss is not None and loss.from_offset == 5
    assert read_log_file(a) == intact[: len(intact) // RECORDS * 5]
    assert a.node.leader_replica(*AT).possible_loss is not None
    await a.kill()
    await a.start()
    await asyncio.sleep(5)
    assert partition_image(three).loss == loss, "once"


async def cut_power_after_damage(broker: SimBroker) -> None:
    """Flips a bit of a record below the recovery point, then cuts the power of this broker."""
    await broker.node.hosted_replicas.log_store.save_offsets()
    flip_record_bit(broker, 5)
    broker.machine.power_cut()
    await broker.clear()


@run_by(run_scenario)
async def test_damaged_replica_with_flush_ack_leads_not_before_an_intact_one(three: ThreeBrokers) -> None:
    """Both lose power. The damaged one is back first, and its log is noted as fsynced."""
    a, b = three.others()
    await create_filled_topic(three, [a, b], 2, "ack")
    intact = read_log_file(a)
    await cut_power_after_damage(b)
    await three.wait_until(lambda: len(partition_image(three).isr) == 1, 30)
    a.machine.power_cut()
    await a.clear()
    await three.wait_until(lambda: partition_image(three).leader == NO_LEADER, 30)
    await b.start()
    await three.wait_until(lambda: is_registered(three, b), 30)
    assert (partition_image(three).leader, partition_image(three).elr) == (NO_LEADER, (a.node_id,))
    await a.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 60)
    assert partition_image(three).loss is None
    assert read_log_file(a) == read_log_file(b) == intact


@run_by(run_scenario)
async def test_damaged_records_with_flush_ack_without_another_copy_are_reported(three: ThreeBrokers) -> None:
    a = three.others()[0]
    await create_filled_topic(three, [a], 1, "ack")
    await cut_power_after_damage(a)
    await a.start()
    await three.wait_until(lambda: partition_image(three).loss is not None, 30)
    loss = partition_image(three).loss
    assert loss is not None and loss.from_offset == 5


@pytest.mark.parametrize("seed", range(4))
@run_by(run_scenario, seed=GIVEN)
async def test_power_cut_in_a_truncation_is_taken_for_no_rot(three: ThreeBrokers) -> None:
    """The truncated records were fsynced, and noted so. The power cut may leave zeros in their place."""
    a, b = three.others()
    await create_filled_topic(three, [a, b], 1, tiered=False)  # the segment of an isolated leader is not closed
    isolate(three, a)
    for number in range(5):
        await a.node.leader_replica(*AT).append(batch([b"%04d" % number * 20]), acks=1)
    await a.node.leader_replica(*AT).flush()
    await a.node.hosted_replicas.save_offsets()
    await three.wait_until(lambda: b.node.hosted_replicas.find_leader(AT) is not None, 60)
    await b.node.leader_replica(*AT).append(batch([b"new"]), acks=1)
    cut = asyncio.Event()

    def look(op: Op) -> None:
        if op.verb == "truncate" and op.path.startswith(f"log/{AT}/") and op.path.endswith(".log") and not cut.is_set():
            cut.set()
            a.machine.power_cut()

    a.machine.disk.on_op = look
    three.network.heal()
    await asyncio.wait_for(cut.wait(), 60)
    await a.clear()
    await a.start()
    assert not a.node.hosted_replicas.log_store.is_suspect(AT)
    await three.wait_until(lambda: {*partition_image(three).isr} == {a.node_id, b.node_id}, 60)
    assert partition_image(three).loss is None
    replicas = [*a.node.hosted_replicas.list_replicas(), *b.node.hosted_replicas.list_replicas()]
    assert [each.log.end_offset for each in replicas] == [RECORDS + 1] * 2


@run_by(run_scenario)
async def test_loss_in_a_log_opened_late_is_reported_once(
    three: ThreeBrokers, *, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk kept the log closed. Once it is opened, the directory is trusted as if the start had opened all
    logs."""
    a = three.others()[0]
    await create_filled_topic(three, [a], 1)
    await a.kill()
    flip_record_bit(a, 5)
    a.machine.disk.capacity = 1
    await a.start()
    await asyncio.sleep(20)
    assert str(AT) in a.node.hosted_replicas.list_unserved() and partition_image(three).loss is None
    assert len([each for each in caplog.messages if "is not served" in each]) == 1
    a.machine.disk.capacity = None
    await three.wait_until(lambda: partition_image(three).loss is not None, 60)
    loss = partition_image(three).loss
    assert loss is not None and loss.from_offset == 5
    await asyncio.sleep(60)
    await a.stop()
    await a.clear()
    await a.start()
    await asyncio.sleep(20)
    assert partition_image(three).leader == a.node_id
    assert partition_image(three).loss == loss, "once"


@run_by(run_scenario)
async def test_follower_takes_no_damaged_batch_and_a_leader_restart_repairs_it(three: ThreeBrokers) -> None:
    """The leader does not notice the damage and serves the batch unchanged. Its CRC shows the damage to the follower,
    which reports it."""
    (a, b), c = three.others(), three.controller
    await create_filled_topic(three, [a, b, c], 2)
    intact = read_log_file(b)
    flip_record_bit(a, 5)
    b.machine.lose_disk()
    await b.clear()
    await b.start()
    await three.wait_until(lambda: b.node.hosted_replicas.find_follower(AT) is not None, 30)
    copy = b.node.hosted_replicas.find_follower(AT)
    assert copy is not None
    await three.wait_until(lambda: "crc mismatch" in copy.fetch_error, 30)
    assert read_log_file(b) == b"", "all of one answer is refused"
    assert b.node_id not in partition_image(three).isr
    await a.kill()
    await three.wait_until(lambda: partition_image(three).leader == c.node_id, 30)
    await a.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 3, 60)
    assert partition_image(three).loss is None
    assert read_log_file(a) == read_log_file(b) == read_log_file(c) == intact


def is_in_sync(three: ThreeBrokers, nodes: tuple[int, ...]) -> bool:
    """True if all these brokers are in sync and no reassignment runs."""
    return partition_image(three).isr == nodes and not partition_image(three).is_reassigning


@run_by(run_scenario)
async def test_move_off_and_back_repairs_a_damaged_leader(three: ThreeBrokers) -> None:
    """The procedure is that of docs/how-to/when-something-fails.md."""
    (a, b), c = three.others(), three.controller
    await create_filled_topic(three, [a, b, c], 2)
    intact, topic_id = read_log_file(b), c.node.image.topics[AT.topic].topic_id
    flip_record_bit(a, 5)
    for wanted in ((b, c), (a, b, c)):
        nodes = tuple(each.node_id for each in wanted)
        await c.node.submit(Reassign((Move(topic_id, 0, nodes),)))
        await three.wait_until(partial(is_in_sync, three, nodes), 60)
    assert partition_image(three).loss is None
    assert read_log_file(a) == read_log_file(b) == read_log_file(c) == intact


@run_by(run_scenario)
async def test_log_that_shrank_while_stopped_is_suspect_also_on_a_full_disk(three: ThreeBrokers) -> None:
    """The disk has no room for the note at first, and room later. The election waits for the other replica."""
    a, b = three.others()
    await create_filled_topic(three, [a, b], 2)
    intact = read_log_file(a)
    await b.stop()
    await b.clear()
    await three.wait_until(
        lambda: partition_image(three).leader == a.node_id and len(partition_image(three).isr) == 1, 30
    )
    await a.stop()
    await a.clear()
    await three.wait_until(lambda: partition_image(three).leader == NO_LEADER, 30)
    b.machine.disk.open(log_file(b)).truncate(len(intact) // RECORDS * 5)
    b.machine.disk.capacity = 1
    await b.start()
    await asyncio.sleep(5)
    b.machine.disk.capacity = None
    await asyncio.sleep(60)
    assert partition_image(three).leader == NO_LEADER
    await a.start()
    await three.wait_until(lambda: len(partition_image(three).isr) == 2, 60)
    assert partition_image(three).loss is None
    topic_id = a.node.image.topics["t"].topic_id
    assert [each.node.hosted_replicas.log_store.end_of(AT, topic_id)[1] for each in (a, b)] == [RECORDS, RECORDS]
