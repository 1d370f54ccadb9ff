"""Tests of members with large metadata, and of very many groups."""

from __future__ import annotations

import asyncio

from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, rounds, scale
from tests.hostile.test_records import read
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from tiered_api.kafka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

BYTES = scale(16, 32) << 20
"""Maximum bytes of all groups."""


@attack(tiered_groups_max_bytes=BYTES)
async def test_member_metadata_is_bounded_over_all_groups(to: AttackedBroker) -> None:
    protocol = [JoinGroupRequestProtocol("range", bytes(900_000))]
    codes: list[int] = []

    async def join(group: str) -> None:
        client = await to.client(f"127.0.0.{2 + hash(group) % 8}")
        request = JoinGroupRequest(group, 1_800_000, 1_800_000, "", None, "consumer", protocol)
        codes.append((await client.ask(request, 3, JoinGroupResponse)).error_code)

    async with to.attack("members that say much", memory=160):
        await join("first")
        for start in range(0, scale(40, 600), 20):
            await asyncio.gather(*(join(f"g{start + n}") for n in range(20)))
        assert set(codes) == {0, Code.COORDINATOR_NOT_AVAILABLE.number}
        assert codes.count(0) * 900_000 <= BYTES


@attack()
async def test_empty_groups_are_bounded_and_their_list_delays_nobody(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    count = scale(500, 40_000)
    async with to.attack("groups by commits", memory=scale(60, 250)):
        clients = [await to.client() for _ in range(4)]
        codes: set[int] = set()

        async def commit(start: int) -> None:
            topics = [OffsetCommitRequestTopic(to.name("t"), "", [OffsetCommitRequestPartition(0, 1)])]
            for n in range(start, count, len(clients)):
                request = OffsetCommitRequest(f"g{n}", topics=topics)
                got = await clients[start].ask(request, 8, OffsetCommitResponse)
                codes.add(got.topics[0].partitions[0].error_code)

        await asyncio.gather(*(commit(start) for start in range(len(clients))))
        assert codes == {0}
        cluster = to.ask("GET", "/tiered/v1/node")[1]["cluster_id"]
        for _ in rounds(1, 5):
            status, size = await read(to, f"/v3/clusters/{cluster}/consumer-groups")
            assert status == 200 and size > 100 * count
