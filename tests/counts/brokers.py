"""Whole brokers on a `HeldLoop`, with real sockets and files, and a bucket in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.counts.clients import HttpConnection, KafkaConnection, codes
from tests.counts.held_loop import HeldClock, HeldLoop
from tests.counts.meter import NoMeter
from tests.sim.harness.clock import SimRng
from tiered.broker.broker import Broker
from tiered.config.listeners import Endpoint
from tiered.config.settings import Settings
from tiered.controller.requests import CreateTopic
from tiered.errors import Code
from tiered.metrics import Metrics
from tiered.ports import ObjectStore, World
from tiered.replication.leader_replica import LeaderReplica
from tiered.system.local_disk import LocalDisk
from tiered.system.network import SocketNet
from tiered_api.http.server.server import HttpServer, serve_http
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.schema import Message
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

AGAIN = {
    Code.CONCURRENT_TRANSACTIONS, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE,
    Code.NOT_COORDINATOR,
}  # fmt: skip
"""Errors after which a client repeats its request."""
LISTENER = "PLAINTEXT"


@dataclass
class HeldBroker:
    """One broker, its servers and its loop."""

    loop: HeldLoop
    broker: Broker
    kafka: KafkaServer
    http: HttpServer

    def connect(self) -> KafkaConnection:
        return KafkaConnection(self.kafka.address)

    def connect_http(self) -> HttpConnection:
        return HttpConnection(self.http.url.removeprefix("http://"))

    def create(self, topic: str, *assignments: Sequence[int]) -> LeaderReplica:
        """Creates a topic of one partition, on these brokers if any are named, the leader first."""
        self.loop.run_until_complete(
            self.broker.submit(CreateTopic(topic, assignments=assignments or ((self.broker.settings.node_id,),)))
        )
        return self.broker.leader_replica(topic, 0)

    def ask(self, connection: KafkaConnection, request: Message, reply: type[Message], version: int) -> Any:
        """Returns the reply to a request that only prepares."""
        while True:
            connection.send(connection.frame(request, reply, version))
            while not connection.take_reply():
                self.loop.run_turn(NoMeter())
            if not codes(connection.reply) & AGAIN:
                return connection.reply

    async def close(self) -> None:
        await self.kafka.close()
        await self.http.close()
        await self.broker.stop()


def start_broker(loop: HeldLoop, directory: Path, store: ObjectStore, **settings: Any) -> HeldBroker:
    """Returns a broker that serves."""

    async def start() -> HeldBroker:
        chosen = Settings(data_dir=str(directory), group_initial_rebalance_delay_ms=0, **settings)
        world = World(HeldClock(loop), SimRng(1), LocalDisk(str(directory)), store, SocketNet())
        broker = Broker(chosen, world, Metrics(), peers=KafkaPeers(world.net))
        await broker.start()
        kafka = await serve_kafka(broker, {LISTENER: Endpoint(LISTENER, "127.0.0.1", 0)})
        http = await serve_http(broker, "127.0.0.1", 0)
        await broker.announce(http.url.removeprefix("http://"), {LISTENER: kafka.address})
        return HeldBroker(loop, broker, kafka, http)

    return loop.run_until_complete(start())
