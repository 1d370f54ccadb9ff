"""A whole broker with its Kafka listener in this process, and a raw client that writes its own frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.e2e.http_site import TEST_SECONDS, wait_until
from tests.passwords import check_reply
from tests.sim.rig.broker_rig import batch
from tests.sim.settings import FEW_LOGS
from tiered.broker.broker import Broker
from tiered.broker.real_world import real_world
from tiered.config.settings import Settings
from tiered.controller.requests import CreateTopic
from tiered.metrics import Metrics
from tiered.ports import Buffer, World
from tiered.records.batch import decode_records
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.apis import ALL_APIS, Api
from tiered_api.kafka.protocol.codec import decode, encode
from tiered_api.kafka.protocol.headers import decode_response_header, encode_request_header
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tiered_api.kafka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

__all__ = [
    "TEST_SECONDS",
    "RawClient",
    "KafkaBroker",
    "batch",
    "fetch",
    "kafka_broker",
    "produce",
    "run",
    "wait_until",
    "values_of",
]

T = TypeVar("T", bound=Message)
LISTENER = "PLAINTEXT"


class RawClient:
    """One raw connection. `ask` sends a request and reads its reply; `send` and `receive` are its halves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def frame(self, message: Message, version: int) -> bytes:
        """Returns a whole request; its correlation id is the number of frames before it."""
        api = _api(message)
        head = encode_request_header(api, version, self._correlation_id, "test")
        self._correlation_id += 1
        body = encode(message, version)
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    async def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))
        await self.writer.drain()

    async def read_reply(self) -> bytes:
        """Returns the next reply without its length."""
        async with asyncio.timeout(TEST_SECONDS):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            reply = await self.reader.readexactly(size)
        check_reply(reply)
        return reply

    async def receive(self, table: type[T], version: int, correlation_id: int | None = None) -> T:
        """Returns the next reply, which must be of this type."""
        frame = await self.read_reply()
        key = table.spec.key
        found, position = decode_response_header(ALL_APIS[key], version, frame)
        assert correlation_id is None or found == correlation_id, (found, correlation_id)
        return decode(table, version, frame, position)

    async def ask(self, message: Message, version: int, table: type[T]) -> T:
        await self.send(self.frame(message, version))
        return await self.receive(table, version, self._correlation_id - 1)

    async def read_to_end(self) -> bytes:
        """Returns all remaining bytes until the broker closes the connection."""
        async with asyncio.timeout(TEST_SECONDS):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    def close(self) -> None:
        self.writer.close()


def _api(message: Message) -> Api:
    return ALL_APIS[type(message).spec.key]


class KafkaBroker:
    """A running broker as a client of the Kafka protocol sees it."""

    def __init__(self, broker: Broker, server: KafkaServer) -> None:
        self.broker = broker
        self.server = server
        self.address = server.address
        self._clients: list[RawClient] = []

    async def client(self, address: str = "127.0.0.1", listener: str = "") -> RawClient:
        """Opens a connection from one of this machine's addresses, to the first listener if none is named."""
        reached = self.server.addresses[listener].address if listener else self.address
        host, port = reached.rsplit(":", 1)
        own = (address, 0) if host == "127.0.0.1" else None
        client = RawClient(*await asyncio.open_connection(host, int(port), limit=1 << 27, local_addr=own))
        self._clients.append(client)
        return client

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> LeaderReplica:
        """Creates a topic without the protocol; returns its first partition."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        await self.broker.submit(CreateTopic(topic, partitions, configs=named))
        return self.broker.leader_replica(topic, 0)

    def count_refusals(self, reason: str) -> int:
        """Returns how many connections were closed for that reason."""
        return self.server.context.refusals.count(reason)

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()


@asynccontextmanager
async def kafka_broker(
    directory: Path, ports: Callable[[World], World] | None = None, **settings: Any
) -> AsyncIterator[KafkaBroker]:
    """Yields a broker on `directory`, and stops it cleanly at the end. `ports` may replace the real ports."""
    directory.mkdir(parents=True, exist_ok=True)
    given = {"data_dir": str(directory), "kafka": "127.0.0.1:0", "tiered_internal_configs_enable": True}
    chosen = Settings(**{**FEW_LOGS, **given, **settings})
    world = real_world(chosen)
    broker = Broker(chosen, ports(world) if ports else world, Metrics())
    try:
        await broker.start()
        server = await serve_kafka(broker)
        await broker.announce("127.0.0.1:1", {LISTENER: server.address})
        site = KafkaBroker(broker, server)
        try:
            yield site
        finally:
            site.close_clients()
            await server.close()
    finally:
        await broker.stop()


def run(directory: Path, scenario: Callable[[KafkaBroker], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario on a new broker with the `settings` of `kafka_broker`."""

    async def run_all() -> None:
        async with asyncio.timeout(TEST_SECONDS), kafka_broker(directory, **settings) as site:
            await scenario(site)

    asyncio.run(run_all())


def produce(replica: LeaderReplica, *values: bytes, acks: int = -1, raw: Any = None) -> ProduceRequest:
    """Returns a produce request with one batch for one partition."""
    data = raw if raw is not None else batch(list(values))
    part = PartitionProduceData(index=replica.partition, records=data)
    topic = TopicProduceData(name=replica.topic, topic_id=replica.topic_id, partition_data=[part])
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic])


def fetch(
    *wanted: tuple[LeaderReplica, int],
    wait_ms: int = 0,
    min_bytes: int = 1,
    each_bytes: int = 1 << 20,
    max_bytes: int = 1 << 24,
) -> FetchRequest:
    """Returns a fetch request for partitions, each from an offset on."""
    topics: dict[str, FetchTopic] = {}
    for replica, offset in wanted:
        topic = topics.setdefault(replica.topic, FetchTopic(topic=replica.topic, topic_id=replica.topic_id))
        topic.partitions.append(
            FetchPartition(partition=replica.partition, fetch_offset=offset, partition_max_bytes=each_bytes)
        )
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=list(topics.values()))


def values_of(data: Buffer) -> list[bytes]:
    """Returns the values of all records of a reply with whole batches."""
    walked = walk(data)
    assert walked.why == "", walked
    return [record.value or b"" for each in walked.batches for record in decode_records(data, each.position)]
