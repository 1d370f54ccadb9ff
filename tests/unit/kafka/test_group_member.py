"""Tests of a group member whose coordinator goes and comes back, on the simulated network."""

from __future__ import annotations

import asyncio
import random

from tests.sim.harness.clock import SimClock
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.unit.kafka.scripted import Scripted
from tiered.errors import Code
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.group_member import HEARTBEAT_SECONDS, ConsumerGroupMember
from tiered_api.kafka.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tiered_api.kafka.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tiered_api.kafka.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from tiered_api.kafka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

HOST = "127.0.0.1"


def test_heartbeats_continue_while_a_group_has_no_coordinator() -> None:
    loop = SimLoop(1)
    net, clock = SimNetwork(loop, random.Random(1)).host("a"), SimClock(loop)
    codes = [Code.NOT_COORDINATOR, Code.NONE, Code.REBALANCE_IN_PROGRESS]

    async def test() -> None:
        broker = Scripted()
        await broker.start(net, HOST)
        client = KafkaClient(net, clock, [Address(HOST, broker.port)], retry_seconds=0.0)
        found = [Code.NONE, Code.COORDINATOR_NOT_AVAILABLE, Code.COORDINATOR_NOT_AVAILABLE]

        def find(request: FindCoordinatorRequest, version: int) -> FindCoordinatorResponse:
            code = found.pop(0) if found else Code.NONE
            return FindCoordinatorResponse(coordinators=[Coordinator("g", 1, HOST, broker.port, code.number)])

        broker.script[FindCoordinatorRequest] = find
        broker.script[JoinGroupRequest] = lambda request, version: JoinGroupResponse(
            generation_id=1, protocol_type="consumer", protocol_name="range", leader="other", member_id="me"
        )
        broker.script[SyncGroupRequest] = lambda request, version: SyncGroupResponse(assignment=b"")
        broker.script[HeartbeatRequest] = lambda request, version: HeartbeatResponse(error_code=codes.pop(0).number)
        broker.script[LeaveGroupRequest] = lambda request, version: LeaveGroupResponse()
        broker.set_leaders("t", broker)
        await client.fetch_metadata([])
        member = ConsumerGroupMember(client, "g", ["t"])
        await member.join()
        client.coordinators.clear()  # another one is to be found, and there is none for a while
        async with asyncio.timeout(10 * HEARTBEAT_SECONDS):
            await member.must_rejoin.wait()
        assert not codes and not found
        await member.leave()
        await client.close()
        broker.stop()

    loop.run(test())
