"""Tests of Kafka connections over the simulated network, which splits bytes anywhere and breaks connections."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.e2e.kafka_site import fetch, produce, values_of
from tests.scenario import GIVEN, run_by
from tests.sim.rig.broker_rig import QUICK, SMALL, SimBrokerRig, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic
from tiered.errors import Unavailable
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

RECORDS = 60
SECONDS = 20.0


class RemoteClient:
    """A client on another host that reconnects whenever its connection breaks."""

    def __init__(self, rig: SimBrokerRig, server: KafkaServer) -> None:
        self._net = rig.network.host("far")
        self._port = server.addresses["PLAINTEXT"].port
        self._link: BrokerConnection | None = None
        self.broken_links = 0

    async def link(self) -> BrokerConnection:
        if self._link is None or self._link.closed:
            self._link = await open_connection(self._net, "one", self._port, "far", SECONDS)
        return self._link

    async def produce(self, replica: LeaderReplica, number: int) -> None:
        """Sends one record of an idempotent producer until it is acknowledged."""
        value = b"%d" % number * (20_000 if number % 7 == 0 else 50)
        raw = bytearray(encode_batch([(1, None, value, ())], producer_id=9, producer_epoch=0, base_sequence=number))
        while True:
            try:
                answer = await (await self.link()).send(produce(replica, raw=bytearray(raw)), ProduceResponse, SECONDS)
            except Unavailable:
                self.broken_links += 1
                continue
            part = answer.responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, number)
            return

    async def fetch(self, replica: LeaderReplica, offset: int) -> list[bytes]:
        while True:
            try:
                ask = fetch((replica, offset), wait_ms=500, each_bytes=30_000)
                answer = await (await self.link()).send(ask, FetchResponse, SECONDS)
            except Unavailable:
                self.broken_links += 1
                continue
            part = answer.responses[0].partitions[0]
            assert part.error_code == 0
            return values_of(part.records)


@pytest.mark.parametrize("seed", range(5))
@run_by(run, seed=GIVEN)
async def test_records_arrive_once_and_in_order_over_a_faulty_network(rig: SimBrokerRig, *, seed: int) -> None:
    await rig.start(QUICK)
    await rig.broker.submit(
        CreateTopic("t", 1, configs=SMALL | {"max.message.bytes": "300000", "internal.segment.bytes": "400000"})
    )
    replica = rig.broker.leader_replica("t", 0)
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
    chance = random.Random(seed)
    writer, reader = RemoteClient(rig, server), RemoteClient(rig, server)
    rig.network.chunk_bytes_max = 700

    async def write() -> None:
        for number in range(RECORDS):
            await writer.produce(replica, number)

    async def read() -> None:
        found: list[bytes] = []
        while len(found) < RECORDS:
            found += await reader.fetch(replica, len(found))
        assert [int(value[:2] if n > 9 else value[:1]) for n, value in enumerate(found)] == list(range(RECORDS))

    async def harm() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.005, 0.06))
            rig.network.reset("far")

    harming = asyncio.create_task(harm())
    await asyncio.gather(write(), read())
    harming.cancel()
    assert writer.broken_links + reader.broken_links, "the network did no harm: this proves less than it seems to"
    rig.network.reset("far")
    await rig.wait_until(lambda: not server.connections)
    assert server.pending_requests == 0 and server.context.refusals.count("fault") == 0
    await server.close()
    await rig.stop()


@run_by(run)
async def test_client_waits_until_the_cluster_knows_the_brokers_address(rig: SimBrokerRig) -> None:
    """Otherwise the client would get metadata without brokers, and some clients retry only after minutes."""
    await rig.start(QUICK)
    server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)}, paused=True)
    client = KafkaClient(rig.network.host("client"), rig.machine.clock, [Address("one", 9092)])
    asked = asyncio.create_task(client.fetch_metadata([]))
    await asyncio.sleep(1)
    assert not asked.done() and len(server.connections) == 1
    await rig.broker.announce("", {"PLAINTEXT": "one:9092"})
    server.start_serving()
    assert [broker.host for broker in (await asked).brokers] == ["one"]
    await client.close()
    await rig.wait_until(lambda: not server.connections)
    await server.close()
