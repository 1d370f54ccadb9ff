"""Rig of a topic that is recreated under its name while its leader acts late, and of a client of that leader."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tests.e2e.kafka_site import values_of
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.controller.requests import CreateTopic, DeleteTopic
from tiered.errors import Code
from tiered.ids import TopicId, TopicPartition
from tiered.replication.leader_replica import ACKS_ALL, LeaderReplica
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

AT = TopicPartition("t", 0)
OLD = 5
SECONDS = 30.0


class RecreatedTopic:
    """The topic `t` on `slow`, which leads it, and on `quick`; the steps that recreate it; and a client of `slow`."""

    def __init__(self, three: ThreeBrokers, replicas: int, configs: Mapping[str, str] | None = None) -> None:
        self.three = three
        self.slow, self.quick = three.others()
        self.old_replica: LeaderReplica
        self.new_id = TopicId("")
        self._assignments = [[self.slow.node_id, self.quick.node_id][:replicas]]
        self._configs = {"retention.ms": "-1", "min.insync.replicas": str(replicas), **(configs or {})}
        self._links: dict[int, BrokerConnection] = {}
        self._creation: asyncio.Task[TopicId] | None = None

    async def _create_topic(self) -> TopicId:
        made = await self.three.controller.node.submit(
            CreateTopic("t", assignments=self._assignments, configs=self._configs)
        )
        return TopicId(made.topic_id)

    async def create_first(self) -> None:
        """Creates the first topic, with a leader and records."""
        await self._create_topic()
        await self.three.wait_until(lambda: self.slow.node.hosted_replicas.find_leader(AT) is not None, SECONDS)
        self.old_replica = self.slow.node.leader_replica(*AT)
        for number in range(OLD):
            await self.old_replica.append(batch([b"old-%d" % number]), acks=ACKS_ALL)

    async def recreate(self) -> None:
        """Recreates the topic. `slow` has not acted on it: it opens some other log meanwhile."""
        await self.slow.node.hosted_replicas._role_change_lock.acquire()
        await self.three.controller.node.submit(DeleteTopic("t", self.old_replica.topic_id))
        self.new_id = await self._create_topic()
        await self.three.wait_until(lambda: self.slow.node.image.topics["t"].topic_id == self.new_id, SECONDS)

    async def recreate_without_slow(self) -> None:
        """The second topic is there, and `slow` knows nothing of it: the controller cannot reach it. `quick` knows."""
        slow, controller = self.slow.name, self.three.controller.name
        self.three.network.cut(slow, controller)
        self.three.network.cut(controller, slow)
        await self.three.controller.node.submit(DeleteTopic("t", self.old_replica.topic_id))
        self._creation = asyncio.create_task(self._create_topic())
        await self.three.wait_until(self._is_known_to_quick, SECONDS)
        self.new_id = self.quick.node.image.topics["t"].topic_id
        assert self.slow.node.image.topics["t"].topic_id == self.old_replica.topic_id

    def _is_known_to_quick(self) -> bool:
        topic = self.quick.node.image.topics.get("t")
        return topic is not None and topic.topic_id != self.old_replica.topic_id

    async def reconnect_slow(self) -> LeaderReplica:
        """Heals the network. Returns the second topic's replica on `slow`."""
        self.three.network.heal()
        assert self._creation is not None
        await self._creation
        await self.three.wait_until(self.is_led, SECONDS)
        return self.slow.node.leader_replica(*AT)

    async def release_slow(self) -> LeaderReplica:
        """Lets `slow` act. Returns the replica of the second topic there."""
        self.slow.node.hosted_replicas._role_change_lock.release()
        await self.three.wait_until(self.is_led, SECONDS)
        return self.slow.node.leader_replica(*AT)

    def is_led(self) -> bool:
        replica = self.slow.node.hosted_replicas.find_leader(AT)
        return replica is not None and replica.topic_id == self.new_id

    async def link(self, broker: SimBroker) -> BrokerConnection:
        if broker.node_id not in self._links:
            self._links[broker.node_id] = await open_connection(
                self.three.network.host("far"), broker.name, 9092, "far", SECONDS
            )
        return self._links[broker.node_id]

    async def produce(self, topic_id: str, *, acks: int = ACKS_ALL, timeout_ms: int = 3_000) -> tuple[Code, int]:
        """Writes one record, by the topic id, or by its name if the id is empty. Returns the error code and the
        offset."""
        rows = [TopicProduceData("t", topic_id, [PartitionProduceData(0, bytes(batch([b"precious"])))])]
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=rows)
        got = await (await self.link(self.slow)).send(request, ProduceResponse, SECONDS, 13 if topic_id else 12)
        part = got.responses[0].partition_responses[0]
        return code_of(part.error_code), part.base_offset

    async def fetch(
        self, topic_id: str, offset: int, *, wait_ms: int = 0, broker: SimBroker | None = None
    ) -> tuple[Code, list[bytes]]:
        """Reads records from `offset` on, by id or name as `produce` does."""
        where = FetchPartition(0, -1, offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic("t", topic_id, [where])])
        request.rack_id = "far"  # a follower answers only who names a rack
        link = await self.link(broker or self.slow)
        got = await link.send(request, FetchResponse, SECONDS + wait_ms / 1000, 17 if topic_id else 12)
        part = got.responses[0].partitions[0]
        return code_of(part.error_code), values_of(part.records or b"")

    async def end(self) -> None:
        for each in self._links.values():
            each.close()


def code_of(number: int) -> Code:
    return next(code for code in Code if code.number == number)


def run_recreated(scenario: Callable[[RecreatedTopic], Awaitable[None]], replicas: int = 1) -> None:
    async def run_all(three: ThreeBrokers) -> None:
        again = RecreatedTopic(three, replicas)
        await again.create_first()
        await scenario(again)
        await again.end()

    run_scenario(run_all)
