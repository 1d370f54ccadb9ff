"""Tests of the HTTP side of one broker that reads and writes partitions of another, in virtual time: leaders die,
freeze and are cut off, and no record is written twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SESSION, SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic, DeleteTopic
from tiered.errors import Code, Refused
from tiered.ids import TopicPartition
from tiered.records.batch import decode_records, encode_batch
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.exchange.remote_brokers import LeaderNotFound
from tiered_api.http.partitions.reads import load_bytes
from tiered_api.http.partitions.remote_partition import RemotePartition

AT = TopicPartition("t", 0)


class RemoteReader:
    """The HTTP side of a broker, without its sockets."""

    def __init__(self, broker: SimBroker) -> None:
        node = broker.node
        self.site = HttpContext(node, HttpLimits())
        self.remote_partition = RemotePartition(self.site, AT, node.image.topics["t"].topic_id)

    async def write(self, *values: bytes, timeout_ms: int = 15_000) -> int:
        """Writes records; returns the offset of the first."""
        return (await self.remote_partition.append(batch(list(values)), timeout_ms=timeout_ms)).base_offset

    async def values(self) -> list[bytes | None]:
        found: list[bytes | None] = []
        offset, end = await self.remote_partition.fetch_bounds()
        while offset < end:
            data = load_bytes(await self.remote_partition.read(offset, 1 << 20))
            read = decode_records(data)
            found += [each.value for each in read]
            offset = read[-1].offset + 1
        return found


def isr_size(broker: SimBroker) -> int:
    """Returns the number of in-sync replicas of the topic in this broker's image."""
    topic = broker.node.image.topics.get("t")
    return len(topic.partitions[0].isr) if topic else 0


def run_with_reader(
    replicas: Callable[[SimBroker, SimBroker, SimBroker], list[SimBroker]],
    scenario: Callable[[ThreeBrokers, RemoteReader, list[SimBroker]], Awaitable[None]],
) -> None:
    """Runs a scenario on a topic with the replicas that `replicas` chooses of (controller, one, other). The first
    broker without a replica reads and writes it."""

    async def run_all(three: ThreeBrokers) -> None:
        held = replicas(three.controller, *three.others())
        await three.controller.node.submit(CreateTopic("t", assignments=[[each.node_id for each in held]]))
        [asker] = [each for each in three.brokers.values() if each not in held][:1]
        await three.wait_until(lambda: isr_size(asker) == len(held), 10)
        reader = RemoteReader(asker)
        await scenario(three, reader, held)
        await reader.site.close()

    run_scenario(run_all)


def test_partition_of_another_broker_is_written_and_read() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        assert await reader.remote_partition.fetch_bounds() == (0, 0)
        assert [await reader.write(b"a", b"b"), await reader.write(b"c")] == [0, 2]
        assert await reader.values() == [b"a", b"b", b"c"]
        found = await reader.remote_partition.offset_for_timestamp(0)
        assert found is not None and found[0] == 0
        assert await reader.remote_partition.offset_for_timestamp(1 << 60) is None
        with refuses(Code.OFFSET_OUT_OF_RANGE):
            await reader.remote_partition.read(9, 100)

    run_with_reader(lambda controller, one, other: [one], scenario)


def test_time_before_1970_skips_no_record_of_another_broker() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        for timestamp in (-9, -4, 5):
            await reader.remote_partition.append(
                bytearray(encode_batch([(timestamp, b"k", b"v", ())])), timeout_ms=15_000
            )
        leader = held[0].node.hosted_replicas.find_leader(AT)
        assert leader is not None and await leader.reads.offset_for_timestamp(-5) == (1, -4, 0)
        found = await reader.remote_partition.offset_for_timestamp(-5)
        assert found is not None and found[0] <= 1

    run_with_reader(lambda controller, one, other: [one], scenario)


def test_waiting_read_ends_with_a_record_or_at_its_deadline() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        start = three.now
        await reader.remote_partition.wait_for_more(0, 12_000)
        assert 12 <= three.now - start < 13
        waiting = asyncio.create_task(reader.remote_partition.wait_for_more(0, 60_000))
        await asyncio.sleep(7)
        await reader.write(b"a")
        await asyncio.sleep(0.1)
        assert waiting.done()

    run_with_reader(lambda controller, one, other: [one], scenario)


def test_reader_continues_at_the_next_leader_after_a_death() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        await reader.write(b"a")
        waiting = asyncio.create_task(reader.remote_partition.wait_for_more(1, 60_000))
        await asyncio.sleep(1)
        await held[0].kill()
        start = three.now
        assert await reader.write(b"b") == 1
        assert three.now - start < 2
        assert await reader.values() == [b"a", b"b"]
        await asyncio.sleep(0.1)
        assert waiting.done()

    run_with_reader(lambda controller, one, other: [one, controller], scenario)


def test_frozen_leader_delays_reads_for_a_bounded_time() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        await reader.write(b"a")
        three.loop.freeze(held[0].process)
        start = three.now
        assert await reader.values() == [b"a"]
        assert three.now - start < SESSION + 7
        three.loop.resume(held[0].process)
        await three.wait_until(three.is_everyone_known, 30)

    run_with_reader(lambda controller, one, other: [one, controller], scenario)


def test_write_of_unknown_outcome_is_not_repeated() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        leader, successor = held
        await reader.write(b"a")
        three.network.cut(leader.name, successor.name)
        three.network.cut(successor.name, leader.name)
        with pytest.raises(Refused) as caught:
            await reader.write(b"parked", timeout_ms=int(5 * SESSION * 1000))
        assert not isinstance(caught.value, LeaderNotFound), "its leader has appended it"
        three.network.heal()
        await three.wait_until(lambda: successor.node.hosted_replicas.find_leader(AT) is not None, 5 * SESSION)
        assert await reader.values() == [b"a"], "nor is it sent to the next one"

    run_with_reader(lambda controller, one, other: [one, controller], scenario)


def test_request_waits_for_a_partition_without_a_leader() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        await reader.write(b"a")
        await held[0].kill()
        image = three.controller.node.image
        await three.wait_until(lambda: three.controller.node.image.topics["t"].partitions[0].leader < 0, 5)
        assert image is not three.controller.node.image
        start = three.now
        with pytest.raises(LeaderNotFound, match="no broker leads t-0 now"):
            await reader.remote_partition.fetch_bounds()
        assert 20 <= three.now - start < 22
        writing = asyncio.create_task(reader.write(b"b"))
        await asyncio.sleep(1)
        await held[0].start()
        assert await writing == 1

    run_with_reader(lambda controller, one, other: [one], scenario)


def test_recreated_topic_is_another_partition() -> None:
    async def scenario(three: ThreeBrokers, reader: RemoteReader, held: list[SimBroker]) -> None:
        await reader.write(b"a")
        again = CreateTopic("t", assignments=[[held[0].node_id]])
        await three.controller.node.submit(DeleteTopic("t"))
        await three.controller.node.submit(again)
        for wrong in (reader.write(b"b"), reader.remote_partition.fetch_bounds(), reader.remote_partition.read(0, 100)):
            with refuses(Code.UNKNOWN_TOPIC_OR_PARTITION):
                await wrong
        assert held[0].node.leader_replica("t", 0).high_watermark == 0

    run_with_reader(lambda controller, one, other: [one], scenario)


@run_by(run_scenario)
async def test_new_leader_reads_and_writes_locally(three: ThreeBrokers) -> None:
    [one, other] = three.others()
    await three.controller.node.submit(CreateTopic("t", assignments=[[one.node_id, other.node_id]]))
    await three.wait_until(lambda: isr_size(other) == 2, 10)
    reader = RemoteReader(other)
    await reader.write(b"a")
    await one.kill()
    assert await reader.write(b"b") == 1
    assert reader.remote_partition.local_replica() is other.node.leader_replica("t", 0)
    assert await reader.values() == [b"a", b"b"]
    with suppress(Refused):
        await reader.site.close()
