"""Tests of the client's producer, consumer and group member against brokers that misbehave. They run in virtual
time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.scenario import run_by
from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import HANG_UP, SILENCE, Answer, Delayed, Scripted
from tiered.errors import Code, Corrupt, Refused, TooLarge, Unavailable
from tiered.ids import TopicPartition
from tiered.records.batch import decode_header, encode_batch
from tiered.records.model import OBJECTS_MAX, Codec
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.consumer import KafkaConsumer
from tiered_api.kafka.client.group_member import assign_range
from tiered_api.kafka.client.producer import PENDING_MAX, DeliveryReport, KafkaProducer
from tiered_api.kafka.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from tiered_api.kafka.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

TOPIC = "t"
HERE = TopicPartition(TOPIC, 0)
Test = Callable[[KafkaClient, Scripted], Awaitable[None]]


def simulate(test: Test, **options: float) -> None:
    """Runs a test with one broker that leads one partition, and a client of it."""

    async def main() -> None:
        net, clock = SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop)
        broker = Scripted()
        await broker.start(net, "127.0.0.1")
        broker.set_leaders(TOPIC, broker)
        broker.script[InitProducerIdRequest] = lambda *_: InitProducerIdResponse(producer_id=77, producer_epoch=3)
        client = KafkaClient(net, clock, [Address("127.0.0.1", broker.port)], **options)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(100_000):
                await test(client, broker)
        finally:
            await client.close()
            broker.stop()

    loop = SimLoop(1)
    loop.run(main())


def produce_reply(code: Code = Code.NONE, offset: int = 0) -> ProduceResponse:
    each = PartitionProduceResponse(index=0, error_code=code.number, base_offset=offset)
    return ProduceResponse(responses=[TopicProduceResponse(name=TOPIC, partition_responses=[each])])


def batches(broker: Scripted) -> list[bytes]:
    """Returns the batches that were sent to a broker."""
    received = [each.message for each in broker.received if isinstance(each.message, ProduceRequest)]
    return [bytes(each.topic_data[0].partition_data[0].records) for each in received]


def record(value: bytes, key: bytes | None = None) -> Any:
    return (1_700_000_000_000, key, value, [])


class Delivery(list[DeliveryReport]):
    """Collects delivery reports."""

    def producer(self, client: KafkaClient, **options: Any) -> KafkaProducer:
        return KafkaProducer(client, self.append, random.Random(1), **options)


@run_by(simulate)
async def test_batch_without_a_reply_is_sent_again_unchanged(client: KafkaClient, broker: Scripted) -> None:
    answers: Iterator[Answer] = iter(
        [HANG_UP, produce_reply(Code.NOT_LEADER_OR_FOLLOWER), produce_reply(Code.DUPLICATE_SEQUENCE_NUMBER, 40)]
    )
    broker.script[ProduceRequest] = lambda *_: next(answers, produce_reply(offset=50))
    told = Delivery()
    async with told.producer(client) as producer:
        await producer.add(TOPIC, None, record(b"a"))
        await producer.flush()
        await producer.add(TOPIC, None, record(b"b"))
    assert [each.base_offset for each in told] == [40, 50] and producer.written == 2
    sent = batches(broker)
    assert sent[0] == sent[1] == sent[2]
    heads = [decode_header(data) for data in sent]
    assert [(head.producer_id, head.producer_epoch, head.base_sequence) for head in heads[2:]] == [
        (77, 3, 0),
        (77, 3, 1),
    ]


@run_by(simulate)
async def test_batch_without_producer_id_is_not_sent_twice_after_a_lost_reply(
    client: KafkaClient, broker: Scripted
) -> None:
    broker.script[ProduceRequest] = lambda *_: HANG_UP
    told = Delivery()
    with pytest.raises(Unavailable, match="1 records for t-0 may be written or not"):
        async with told.producer(client, acks=1) as producer:
            await producer.add(TOPIC, None, record(b"a"))
    assert len(batches(broker)) == 1 and not told and producer.written == 0


@run_by(simulate, retry_seconds=15)
async def test_batch_without_producer_id_waits_for_a_broker_that_is_away(client: KafkaClient, broker: Scripted) -> None:
    broker.script[ProduceRequest] = lambda *_: produce_reply(offset=7)
    told = Delivery()
    async with told.producer(client, acks=1) as producer:
        await producer.add(TOPIC, 0, record(b"a"))
        await producer.flush()
        broker.stop()
        await client.clock.sleep(1)  # the client sees the end of its connection
        await producer.add(TOPIC, 0, record(b"b"))
        await client.clock.sleep(20)
        assert len(told) == 1
        await broker.start(client._net, broker.host, broker.port)
    assert len(told) == len(batches(broker)) == 2


@run_by(simulate)
async def test_batch_fails_at_its_deadline(client: KafkaClient, broker: Scripted) -> None:
    broker.script[ProduceRequest] = lambda *_: produce_reply(Code.NOT_ENOUGH_REPLICAS)
    began = client.clock.mono_ns()
    with pytest.raises(Refused, match="2 records were not written: t-0: fewer replicas are in sync"):
        async with Delivery().producer(client, delivery_seconds=20.0) as producer:
            await producer.add(TOPIC, None, record(b"a"))
            await producer.add(TOPIC, None, record(b"b"))
    assert 20 <= (client.clock.mono_ns() - began) / 1e9 < 25


@run_by(simulate)
async def test_batch_that_is_too_large_is_halved_until_it_fits(client: KafkaClient, broker: Scripted) -> None:
    written: list[int] = []

    def answer(request: ProduceRequest, version: int) -> ProduceResponse:
        head = decode_header(request.topic_data[0].partition_data[0].records)
        if head.count > 3:
            return produce_reply(Code.MESSAGE_TOO_LARGE)
        written.append(head.base_sequence)
        return produce_reply(offset=head.base_sequence)

    broker.script[ProduceRequest] = answer
    told = Delivery()
    async with told.producer(client) as producer:
        for number in range(10):
            await producer.add(TOPIC, 0, record(b"%d" % number))
    values = [value for each in told for _, _, value, _ in each.records]
    assert values == [b"%d" % number for number in range(10)]
    assert written == [0, 2, 5, 7] and [each.base_offset for each in told] == written


@run_by(simulate)
async def test_refused_record_ends_the_producer(client: KafkaClient, broker: Scripted) -> None:
    broker.script[ProduceRequest] = lambda *_: produce_reply(Code.INVALID_TIMESTAMP)
    with pytest.raises(Refused, match="a record was not written: t-0: a timestamp is out of bounds"):
        async with Delivery().producer(client) as producer:
            await producer.add(TOPIC, 0, record(b"a"))
            # A caller that waits for more input gets the error at once.
            await producer.wait_or_fail(asyncio.sleep(1e6))


@run_by(simulate)
async def test_caller_that_adds_records_faster_than_they_are_sent_waits(client: KafkaClient, broker: Scripted) -> None:
    broker.script[ProduceRequest] = lambda *_: SILENCE
    added = 0

    async def add_for_ever(producer: KafkaProducer) -> None:
        nonlocal added
        while True:
            await producer.add(TOPIC, 0, record(b"x" * 100_000))
            added += 1

    with pytest.raises(TimeoutError):
        async with Delivery().producer(client) as producer:
            async with asyncio.timeout(5):
                await add_for_ever(producer)
    assert PENDING_MAX - 200_000 < added * 100_000 < PENDING_MAX + 2_000_000


# -- reading ----------------------------------------------------------------------------------------------------------


def fetch_reply(data: bytes, code: Code = Code.NONE, aborted: list[AbortedTransaction] | None = None) -> FetchResponse:
    each = PartitionData(
        partition_index=0, error_code=code.number, high_watermark=100, records=data, aborted_transactions=aborted
    )
    return FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=[each])])


def batch(base: int, *values: bytes, **options: Any) -> bytes:
    return encode_batch([record(value) for value in values], base_offset=base, **options)


def marker(base: int, kind: int, producer_id: int) -> bytes:
    """Returns a control batch that ends a transaction: 0 aborts, 1 commits."""
    key = b"\0\0" + kind.to_bytes(2, "big")
    return encode_batch(
        [record(b"\0\0\0\0\0\0", key)],
        base_offset=base,
        producer_id=producer_id,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


async def read(consumer: KafkaConsumer) -> list[tuple[int, bytes | None]]:
    return [(each.offset, each.value) for one in await consumer.poll() for each in one.records]


@run_by(simulate)
async def test_read_begins_inside_a_batch_and_refetches_a_cut_batch(client: KafkaClient, broker: Scripted) -> None:
    log = batch(0, b"a", b"b", b"c", codec=Codec.LZ4)
    following = batch(3, b"d")
    answers = iter([fetch_reply(log + following[:-1]), fetch_reply(following)])
    broker.script[FetchRequest] = lambda *_: next(answers)
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 1})
    assert await read(consumer) == [(1, b"b"), (2, b"c")]
    assert await read(consumer) == [(3, b"d")]
    received = [each.message for each in broker.received if isinstance(each.message, FetchRequest)]
    assert [each.topics[0].partitions[0].fetch_offset for each in received] == [1, 3]


@run_by(simulate)
async def test_batch_with_a_wrong_crc_is_corrupt(client: KafkaClient, broker: Scripted) -> None:
    data = bytearray(batch(0, b"abc"))
    data[-2] ^= 1
    broker.script[FetchRequest] = lambda *_: fetch_reply(bytes(data))
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0})
    with pytest.raises(Corrupt, match="batch of t-0 at or after offset 0"):
        await consumer.poll()


@run_by(simulate)
async def test_record_beyond_the_bound_is_told_after_those_before_it(client: KafkaClient, broker: Scripted) -> None:
    large = (1_700_000_000_000, None, b"large", [("", None)] * OBJECTS_MAX)
    log = [batch(0, b"a"), encode_batch([large, record(b"c")], base_offset=1, codec=Codec.ZSTD)]

    def answer(request: FetchRequest, _: Any) -> FetchResponse:
        offset = request.topics[0].partitions[0].fetch_offset
        return fetch_reply(b"".join(log[min(offset, 1) :]))

    broker.script[FetchRequest] = answer
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0})
    [got] = await consumer.poll()
    assert [each.value for each in got.records] == [b"a"]
    for _ in range(2):
        with pytest.raises(TooLarge, match="go on at offset 2, or read its batch as bytes over HTTP") as caught:
            await consumer.poll()
        assert str(caught.value).endswith(" where=t-0 offset=1 next_offset=2")
    assert consumer.positions() == {HERE: 1}
    consumer.assign({HERE: 2})
    [got] = await consumer.poll()
    assert [each.value for each in got.records] == [b"c"]
    await consumer.close()


@pytest.mark.parametrize("control", [False, True])
@run_by(simulate)
async def test_only_records_of_aborted_transactions_are_left_out(
    client: KafkaClient, broker: Scripted, *, control: bool
) -> None:
    one = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    log = [
        batch(0, b"kept"),
        batch(1, b"gone", **one),
        batch(2, b"other", **{**one, "producer_id": 2}),
        marker(3, 0, 1),
        batch(4, b"again", **one),
        marker(5, 1, 1),
    ]
    aborted = [AbortedTransaction(producer_id=1, first_offset=1)]
    broker.script[FetchRequest] = lambda *_: fetch_reply(b"".join(log), aborted=aborted)
    consumer = KafkaConsumer(client, read_committed=True, include_control=control)
    consumer.assign({HERE: 0})
    got = await read(consumer)
    values = [value for offset, value in got if offset not in (3, 5)]
    assert values == [b"kept", b"other", b"again"]
    assert [offset for offset, _ in got if offset in (3, 5)] == ([3, 5] if control else [])
    assert consumer.positions() == {HERE: 6}


@run_by(simulate)
async def test_read_continues_when_the_broker_is_back(client: KafkaClient, broker: Scripted) -> None:
    answers: Iterator[Answer] = iter(
        [HANG_UP, HANG_UP, fetch_reply(b"", Code.NOT_LEADER_OR_FOLLOWER), fetch_reply(batch(0, b"a"))]
    )
    broker.script[FetchRequest] = lambda *_: next(answers)
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0})
    assert [await read(consumer) for _ in range(4)] == [[], [], [], [(0, b"a")]]


@run_by(simulate, timeout=10)
async def test_unreadable_partition_is_retried_with_pauses_until_the_deadline(
    client: KafkaClient, broker: Scripted
) -> None:
    """The example is a cold read that fails while the bucket is unreachable."""
    broker.script[FetchRequest] = lambda *_: fetch_reply(b"", Code.KAFKA_STORAGE_ERROR)
    said: list[str] = []
    consumer = KafkaConsumer(client, warn=said.append)
    consumer.assign({HERE: 0})
    with pytest.raises(Unavailable, match=r"t-0 could not be read for 10 s: the disk .*KAFKA_STORAGE_ERROR"):
        while True:
            await consumer.poll()
    assert 10e9 <= client.clock.mono_ns() <= 13e9
    assert broker.count(FetchRequest) <= 15
    assert len(said) == 1 and "t-0" in said[0] and "KAFKA_STORAGE_ERROR" in said[0]


@run_by(simulate, timeout=10)
async def test_empty_replies_between_failures_do_not_restart_the_deadline(
    client: KafkaClient, broker: Scripted
) -> None:
    """A broker that waits for the bucket replies without records when the longest wait of a fetch is over."""
    answers = itertools.cycle([*[fetch_reply(b"")] * 3, fetch_reply(b"", Code.KAFKA_STORAGE_ERROR)])
    broker.script[FetchRequest] = lambda *_: next(answers)
    said: list[str] = []
    consumer = KafkaConsumer(client, warn=said.append)
    consumer.assign({HERE: 0})
    async with asyncio.timeout(60):
        with pytest.raises(Unavailable, match=r"t-0 could not be read for 10 s: the disk .*KAFKA_STORAGE_ERROR"):
            while True:
                await consumer.poll()
    assert client.clock.mono_ns() <= 16e9 and len(said) == 1


@run_by(simulate, timeout=10)
async def test_partition_whose_broker_sends_nothing_is_given_up_at_the_deadline(
    client: KafkaClient, broker: Scripted
) -> None:
    broker.script[FetchRequest] = lambda *_: fetch_reply(b"")
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0})
    with pytest.raises(Unavailable, match="t-0 could not be read for 10 s: its broker sends no records below 100"):
        while client.clock.mono_ns() < 60e9:
            await consumer.poll()
            await client.clock.sleep(0.5)
    assert 10e9 <= client.clock.mono_ns() <= 12e9


@run_by(simulate, timeout=5)
async def test_reply_without_records_at_the_end_of_the_log_is_a_success(client: KafkaClient, broker: Scripted) -> None:
    answers = itertools.cycle([fetch_reply(b"", Code.KAFKA_STORAGE_ERROR), fetch_reply(b"")])
    broker.script[FetchRequest] = lambda *_: next(answers)
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 100})
    while client.clock.mono_ns() < 20e9:
        await consumer.poll()


@run_by(simulate, timeout=5)
async def test_successful_read_restarts_the_deadline_of_a_partition(client: KafkaClient, broker: Scripted) -> None:
    failing = [fetch_reply(b"", Code.KAFKA_STORAGE_ERROR)] * 5
    answers: Iterator[Answer] = iter([*failing, fetch_reply(batch(0, b"a")), *failing, fetch_reply(batch(1, b"b"))])
    broker.script[FetchRequest] = lambda *_: next(answers)
    said: list[str] = []
    consumer = KafkaConsumer(client, warn=said.append)
    consumer.assign({HERE: 0})
    got: list[tuple[int, bytes | None]] = []
    while len(got) < 2:
        got += await read(consumer)
    assert got == [(0, b"a"), (1, b"b")] and len(said) == 2


@run_by(simulate, timeout=10)
async def test_fault_of_one_partition_loses_no_batch_of_another(client: KafkaClient, broker: Scripted) -> None:
    broker.set_leaders(TOPIC, broker, broker)
    values = itertools.count()

    def answer(request: FetchRequest, _: int) -> Answer:
        parts = [
            fetch_reply(batch(each.fetch_offset, b"%d" % next(values))).responses[0].partitions[0]
            if each.partition == 0
            else PartitionData(partition_index=1, error_code=Code.KAFKA_STORAGE_ERROR.number)
            for each in request.topics[0].partitions
        ]
        return Delayed(FetchResponse(responses=[FetchableTopicResponse(topic=TOPIC, partitions=parts)]), 1.0)

    broker.script[FetchRequest] = answer
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0, TopicPartition(TOPIC, 1): 0})
    got = [each for _ in range(60) for each in await read(consumer)]
    assert got == [(number, b"%d" % number) for number in range(60)]


@run_by(simulate, timeout=10)
async def test_partition_without_a_leader_is_retried_with_pauses(client: KafkaClient, broker: Scripted) -> None:
    broker.script[FetchRequest] = lambda *_: fetch_reply(b"", Code.NOT_LEADER_OR_FOLLOWER)
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0})
    with pytest.raises(Unavailable, match="NOT_LEADER_OR_FOLLOWER"):
        while True:
            await consumer.poll()
    assert broker.count(FetchRequest) <= 15


@run_by(simulate, retry_seconds=10)
async def test_read_ends_at_its_retry_deadline(client: KafkaClient, broker: Scripted) -> None:
    await client.fetch_metadata([TOPIC])
    broker.stop()
    consumer = KafkaConsumer(client)
    consumer.assign({HERE: 0})
    with pytest.raises(Unavailable):
        while True:
            await consumer.poll()
    assert client.clock.mono_ns() >= 10e9


# -- groups -----------------------------------------------------------------------------------------------------------


def test_range_assignor_divides_each_topic_among_its_subscribers() -> None:
    subscriptions = {"c": ["x", "y"], "a": ["x", "y"], "b": ["x"]}
    assert assign_range(subscriptions, {"x": 4, "y": 3, "z": 9}) == {
        "a": [*_assign_ranges("x", 0, 1), *_assign_ranges("y", 0, 1)],
        "b": _assign_ranges("x", 2),
        "c": [*_assign_ranges("x", 3), *_assign_ranges("y", 2)],
    }
    assert assign_range({"a": ["x"], "b": ["x"]}, {"x": 1}) == {"a": _assign_ranges("x", 0), "b": []}


def _assign_ranges(topic: str, *numbers: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in numbers]
