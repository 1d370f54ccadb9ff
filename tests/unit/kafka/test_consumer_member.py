"""Tests of a member of a consumer group (KIP-848) against a coordinator with given replies."""

from __future__ import annotations

import random

import pytest

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import Scripted
from tiered.errors import Code, Refused
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.consumer_member import ServerAssignedMember
from tiered_api.kafka.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tiered_api.kafka.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

HOST = "127.0.0.1"


def test_refused_join_has_the_sentence_of_the_broker() -> None:
    loop = SimLoop(1)
    net, clock = SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop)

    async def test() -> None:
        broker = Scripted()
        await broker.start(net, HOST)
        client = KafkaClient(net, clock, [Address(HOST, broker.port)], retry_seconds=0.0)
        broker.script[FindCoordinatorRequest] = lambda request, version: FindCoordinatorResponse(
            coordinators=[Coordinator("g", 1, HOST, broker.port)]
        )
        broker.script[ConsumerGroupHeartbeatRequest] = lambda request, version: ConsumerGroupHeartbeatResponse(
            error_code=Code.GROUP_MAX_SIZE_REACHED.number, error_message="the group has 200 members already"
        )
        broker.set_leaders("t", broker)
        await client.fetch_metadata([])
        with pytest.raises(Refused) as refused:
            await ServerAssignedMember(client, "g", ["t"]).join()
        assert refused.value.why == "group g: the group has 200 members already (GROUP_MAX_SIZE_REACHED)"
        await client.close()
        broker.stop()

    loop.run(test())
