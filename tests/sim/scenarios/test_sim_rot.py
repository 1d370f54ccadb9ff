"""Bit rot in the log of one replica: intact replicas win, and who alone has what rotted says what is gone."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.e2e.site import batch
from tests.sim.scenarios.three import SimBroker, Three, told
from tiered.controller.requests import CreateTopic, Move, Reassign
from tiered.ids import TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import PartitionImage
from tiered.replication.leader_replica import ACKS_ALL

AT = TopicPartition("t", 0)
RECORDS = 20


def log_file(broker: SimBroker) -> str:
    disk = broker.machine.disk
    (name,) = (name for name in disk.list(f"log/{AT}") if name.endswith(".log"))
    return f"log/{AT}/{name}"


def log_of(broker: SimBroker) -> bytes:
    file = broker.machine.disk.open(log_file(broker), write=False)
    return file.pread(0, file.size())


def rot(broker: SimBroker, record: int) -> None:
    """Flips a bit in the middle of the batch of one record."""
    size = len(log_of(broker)) // RECORDS
    broker.machine.disk.flip(log_file(broker), 8 * (record * size + size // 2))


def now(three: Three) -> PartitionImage:
    return three.controller.node.image.topics[AT.topic].partitions[AT.partition]


async def written(three: Three, replicas: list[SimBroker], min_isr: int) -> None:
    """A topic on these brokers, the first of which leads it, with some acknowledged records."""
    configs = {"min.insync.replicas": str(min_isr)}
    nodes = [each.node_id for each in replicas]
    await three.controller.node.submit(CreateTopic(AT.topic, assignments=[nodes], configs=configs))
    leader = replicas[0]
    await three.until(lambda: leader.node.hosted_replicas.find_leader(AT) is not None, 5)
    await three.until(lambda: now(three).isr == tuple(nodes), 5)
    for number in range(RECORDS):
        await leader.node.leader_replica(*AT).append(batch([b"%04d" % number * 20]), acks=ACKS_ALL, timeout_ms=5000)


def test_one_rotten_replica_takes_no_acknowledged_record_from_the_others() -> None:
    """All are killed, none loses its power. The rotten one is back before the last that was in sync."""

    async def story(three: Three) -> None:
        (a, b), c = three.others(), three.controller
        await written(three, [a, b, c], 2)
        intact = log_of(b)
        await b.kill()
        await three.until(lambda: len(now(three).isr) == 2, 30)
        await a.kill()
        await three.until(lambda: now(three).leader == c.node_id, 30)
        assert now(three).elr == (a.node_id,)
        rot(a, 5)
        await c.kill()
        await b.start()
        await a.start()
        await three.until(lambda: registered(three, a), 60)
        await three.until(lambda: now(three).leader == NO_LEADER, 60)
        assert now(three).elr == (c.node_id,), "the rotten one is not eligible"
        await c.start()
        await three.until(lambda: len(now(three).isr) == 3, 60)
        assert now(three).loss is None
        for each in (a, b, c):
            assert log_of(each) == intact, f"{each.name} has all that was acknowledged"

    told(story)


def registered(three: Three, broker: SimBroker) -> bool:
    """Some controller knows its new life."""
    if not three.controllers():
        return False
    known = three.controller.node.image.brokers[broker.node_id]
    return known.live and known.incarnation == broker.node.incarnation


def test_a_rotten_replica_that_dies_after_its_cut_is_still_doubted() -> None:
    """Else its next start would find a log that looks well."""

    async def story(three: Three) -> None:
        a, b = three.others()
        await written(three, [a, b], 2)
        await b.kill()
        await three.until(lambda: now(three).leader == a.node_id and len(now(three).isr) == 1, 30)
        await a.kill()
        await three.until(lambda: now(three).leader == NO_LEADER, 30)
        assert {*now(three).elr} == {a.node_id, b.node_id}
        rot(b, 5)
        size = len(log_of(b))
        before, starting = b.node, asyncio.create_task(b.start())
        while b.node is before or len(log_of(b)) == size:
            await asyncio.sleep(0.000_01)
        assert not registered(three, b), "it is cut, and nobody knows"
        starting.cancel()
        await b.kill()
        await b.start()
        await three.until(lambda: registered(three, b), 30)
        assert (now(three).leader, now(three).elr) == (NO_LEADER, (a.node_id,))
        await a.start()
        await three.until(lambda: len(now(three).isr) == 2, 60)
        assert now(three).loss is None
        assert a.node.leader_replica(*AT).log.end_offset == b.node.hosted_replicas.list_replicas()[0].log.end_offset == RECORDS

    told(story)


def test_rot_that_a_full_disk_has_no_room_to_note_is_told_all_the_same() -> None:
    """Nothing is cut then; the log is opened once there is room."""

    async def story(three: Three) -> None:
        a, b = three.others()
        await written(three, [a, b], 2)
        await b.kill()
        await three.until(lambda: now(three).leader == a.node_id and len(now(three).isr) == 1, 30)
        await a.kill()
        await three.until(lambda: now(three).leader == NO_LEADER, 30)
        rot(b, 5)
        size, b.machine.disk.capacity = len(log_of(b)), 1
        await b.start()
        await three.until(lambda: registered(three, b), 30)
        assert (now(three).leader, now(three).elr) == (NO_LEADER, (a.node_id,))
        assert len(log_of(b)) == size
        b.machine.disk.capacity = None
        await a.start()
        await three.until(lambda: len(now(three).isr) == 2, 60)
        assert now(three).loss is None
        assert log_of(a) == log_of(b)

    told(story)


def test_what_rotted_where_nobody_else_has_it_is_told() -> None:
    """And what lies below the rot is kept."""

    async def story(three: Three) -> None:
        a = three.others()[0]
        await written(three, [a], 1)
        intact = log_of(a)
        await a.kill()
        rot(a, 5)
        await a.start()
        await three.until(lambda: now(three).loss is not None, 30)
        loss = now(three).loss
        assert loss is not None and loss.from_offset == 5
        assert log_of(a) == intact[: len(intact) // RECORDS * 5]
        assert a.node.leader_replica(*AT).possible_loss is not None
        await a.kill()
        await a.start()
        await asyncio.sleep(5)
        assert now(three).loss == loss, "once"

    told(story)


def test_what_a_full_disk_could_not_open_is_told_once_when_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    """From then on the directory is trusted as if the start had opened all of it."""

    async def story(three: Three) -> None:
        a = three.others()[0]
        await written(three, [a], 1)
        await a.kill()
        rot(a, 5)
        a.machine.disk.capacity = 1
        await a.start()
        await asyncio.sleep(20)
        assert str(AT) in a.node.hosted_replicas.list_unserved() and now(three).loss is None
        assert len([each for each in caplog.messages if "is not served" in each]) == 1
        a.machine.disk.capacity = None
        await three.until(lambda: now(three).loss is not None, 60)
        loss = now(three).loss
        assert loss is not None and loss.from_offset == 5
        await asyncio.sleep(60)
        await a.stop()
        await a.clear()
        await a.start()
        await asyncio.sleep(20)
        assert now(three).leader == a.node_id
        assert now(three).loss == loss, "once"

    told(story)


def test_a_follower_takes_nothing_that_rotted_and_a_restart_of_the_leader_heals_the_partition() -> None:
    """The rotten batch is served as it is, with the CRC that shows it. Who leads does not know; who copies says so."""

    async def story(three: Three) -> None:
        (a, b), c = three.others(), three.controller
        await written(three, [a, b, c], 2)
        intact = log_of(b)
        rot(a, 5)
        b.machine.lose_disk()
        await b.clear()
        await b.start()
        await three.until(lambda: b.node.hosted_replicas.find_follower(AT) is not None, 30)
        copy = b.node.hosted_replicas.find_follower(AT)
        assert copy is not None
        await three.until(lambda: "crc mismatch" in copy.fetch_error, 30)
        assert log_of(b) == b"", "all of one answer is refused"
        assert b.node_id not in now(three).isr
        await a.kill()
        await three.until(lambda: now(three).leader == c.node_id, 30)
        await a.start()
        await three.until(lambda: len(now(three).isr) == 3, 60)
        assert now(three).loss is None
        assert log_of(a) == log_of(b) == log_of(c) == intact

    told(story)


def arrived(three: Three, nodes: tuple[int, ...]) -> bool:
    """All of these are in sync, and nothing moves."""
    return now(three).isr == nodes and not now(three).is_reassigning


def test_a_leader_that_rotted_unread_is_healed_by_a_move_off_and_back() -> None:
    """What docs/OPERATIONS.md says."""

    async def story(three: Three) -> None:
        (a, b), c = three.others(), three.controller
        await written(three, [a, b, c], 2)
        intact, topic_id = log_of(b), c.node.image.topics[AT.topic].topic_id
        rot(a, 5)
        for wanted in ((b, c), (a, b, c)):
            nodes = tuple(each.node_id for each in wanted)
            await c.node.submit(Reassign((Move(topic_id, 0, nodes),)))
            await three.until(partial(arrived, three, nodes), 60)
        assert now(three).loss is None
        assert log_of(a) == log_of(b) == log_of(c) == intact

    told(story)


def test_a_log_that_got_shorter_while_its_broker_was_stopped_is_doubted_also_by_a_full_disk() -> None:
    """There is no room to note it, and room again later: the other one is waited for."""

    async def story(three: Three) -> None:
        a, b = three.others()
        await written(three, [a, b], 2)
        intact = log_of(a)
        await b.stop()
        await b.clear()
        await three.until(lambda: now(three).leader == a.node_id and len(now(three).isr) == 1, 30)
        await a.stop()
        await a.clear()
        await three.until(lambda: now(three).leader == NO_LEADER, 30)
        b.machine.disk.open(log_file(b)).truncate(len(intact) // RECORDS * 5)
        b.machine.disk.capacity = 1
        await b.start()
        await asyncio.sleep(5)
        b.machine.disk.capacity = None
        await asyncio.sleep(60)
        assert now(three).leader == NO_LEADER
        await a.start()
        await three.until(lambda: len(now(three).isr) == 2, 60)
        assert now(three).loss is None
        topic_id = a.node.image.topics["t"].topic_id
        assert [each.node.hosted_replicas.end_of(AT, topic_id)[1] for each in (a, b)] == [RECORDS, RECORDS]

    told(story)
