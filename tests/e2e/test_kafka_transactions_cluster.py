"""Tests of transactions on three brokers over real sockets: any broker leads, coordinates or describes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.e2e.http_cluster import HttpCluster, run
from tests.e2e.http_site import wait_until
from tests.e2e.kafka_site import RawClient
from tests.e2e.serving import SECONDS
from tests.e2e.transaction_calls import TransactionalClient
from tests.scenario import run_by
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)

PARTITIONS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
SETTINGS = {"transaction_state_log_num_partitions": 3, "offsets_topic_num_partitions": 3}


@asynccontextmanager
async def connected(cluster: HttpCluster, number: int) -> AsyncIterator[RawClient]:
    """Yields a raw connection to a broker."""
    host, port = address_of(cluster, number).rsplit(":", 1)
    client = RawClient(*await asyncio.open_connection(host, int(port)))
    try:
        yield client
    finally:
        client.close()
        await client.writer.wait_closed()


def address_of(cluster: HttpCluster, number: int) -> str:
    """Returns the Kafka address of a broker."""
    (listener,) = cluster[number].kafka.addresses.values()
    return listener.address


def write_transactions(address: str, name: str) -> None:
    """Commits two transactions over all partitions, with an aborted one in between."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": name})
    producer.init_transactions(SECONDS)
    for turn, commit in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in range(len(PARTITIONS)):
            producer.produce("t", f"{name}-{turn}".encode(), partition=partition)
        producer.flush(SECONDS)
        if commit:
            producer.commit_transaction(SECONDS)
        else:
            producer.abort_transaction(SECONDS)


def read_committed(address: str, count: int) -> list[bytes]:
    """Returns so many committed values, sorted."""
    settings = {"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.partition.eof": "false"})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(len(PARTITIONS))])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(SECONDS)
        assert message is not None and message.error() is None, found
        found.append(message.value() or b"")
    assert consumer.poll(0.5) is None
    consumer.close()
    return sorted(found)


@run_by(run, "tmp_path", **SETTINGS)
async def test_producers_commit_and_abort_over_partitions_of_all_brokers(cluster: HttpCluster) -> None:
    await cluster.create("t", *PARTITIONS)
    names = [f"producer-{number}" for number in range(4)]
    address = address_of(cluster, 2)
    await asyncio.gather(*(asyncio.to_thread(write_transactions, address, name) for name in names))
    expected = sorted(f"{name}-{turn}".encode() for name in names for turn in (0, 2) for _ in PARTITIONS)
    assert await asyncio.to_thread(read_committed, address, len(expected)) == expected


@run_by(run, "tmp_path", **SETTINGS)
async def test_every_replica_describes_the_producers_of_its_partition(cluster: HttpCluster) -> None:
    await cluster.create("t", *PARTITIONS)
    await asyncio.to_thread(write_transactions, address_of(cluster, 1), "producer")

    async def describe(number: int) -> list[tuple[int, int, int]]:
        request = DescribeProducersRequest([TopicRequest("t", [0])])
        async with connected(cluster, number) as client:
            got = await client.ask(request, 0, DescribeProducersResponse)
        (part,) = got.topics[0].partitions
        assert part.error_code == 0
        return [(each.producer_id, each.producer_epoch, each.coordinator_epoch) for each in part.active_producers]

    expected = await describe(1)
    assert len(expected) == 1
    for number in (2, 3):
        async with asyncio.timeout(120):
            while await describe(number) != expected:
                await asyncio.sleep(0.05)


@run_by(run, "tmp_path", **SETTINGS)
async def test_broker_that_does_not_coordinate_an_id_says_so(cluster: HttpCluster) -> None:
    codes = []
    for number in (1, 2, 3):
        async with connected(cluster, number) as client:
            codes.append(await TransactionalClient(client).init())
        await wait_until(lambda: cluster.is_known_by_all(lambda node: "__transaction_state" in node.image.topics))
    assert sorted(codes, key=str) == [Code.NONE, Code.NOT_COORDINATOR, Code.NOT_COORDINATOR]
