"""Members of our client by the protocol of KIP-848: they share partitions, hand them over, and commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.kafka_site import KafkaBroker, run
from tests.scenario import run_by
from tiered.ids import TopicPartition
from tiered.system.clock import SystemClock
from tiered.system.network import SocketNet
from tiered_api.kafka.client.client import Address, KafkaClient
from tiered_api.kafka.client.consumer_member import ServerAssignedMember
from tiered_api.kafka.client.group_offsets import fetch_committed_offsets

QUICK = {"group_consumer_min_heartbeat_interval_ms": 100, "group_consumer_heartbeat_interval_ms": 100}
ALL = [TopicPartition("t", n) for n in range(4)]


@asynccontextmanager
async def client_of(site: KafkaBroker) -> AsyncIterator[KafkaClient]:
    host, port = site.address.rsplit(":", 1)
    client = KafkaClient(SocketNet(), SystemClock(), [Address(host, int(port))])
    try:
        yield client
    finally:
        await client.close()


async def follow(members: list[ServerAssignedMember], held: dict[int, list[TopicPartition]], counts: list[int]) -> None:
    """Lets members join again whenever they must, until they hold so many partitions. No partition is ever held by
    two."""
    while sorted(len(each) for each in held.values()) != counts:
        for number, member in enumerate(members):
            if member.must_rejoin.is_set():
                held[number] = []
                held[number] = sorted(await member.join())
        held_by_any = [tp for each in held.values() for tp in each]
        assert len(held_by_any) == len(set(held_by_any)), held
        await asyncio.sleep(0.01)


@run_by(run, "tmp_path", **QUICK)
async def test_partitions_are_given_up_before_another_member_has_them(site: KafkaBroker) -> None:
    await site.create("t", 4)
    async with client_of(site) as one, client_of(site) as two:
        members = [ServerAssignedMember(one, "g", ["t"]), ServerAssignedMember(two, "g", ["t"])]
        held = {0: sorted(await members[0].join()), 1: []}
        await follow(members[:1], held, [0, 4])
        assert held[0] == ALL
        held[1] = await members[1].join()
        await follow(members, held, [2, 2])
        await members[0].commit({held[0][0]: 5})
        await members[1].commit({held[1][0]: 6})
        assert await fetch_committed_offsets(one, "g") == {held[0][0]: 5, held[1][0]: 6}
        await members[0].leave()
        held[0] = []
        await members[0].commit({ALL[0]: 9})
        await follow(members[1:], held_of_second := {0: held[1]}, [4])
        assert held_of_second[0] == ALL
        assert 9 not in (await fetch_committed_offsets(one, "g")).values(), "a member that left commits nothing"
        await members[1].leave()


@run_by(run, "tmp_path", **QUICK)
async def test_member_that_was_fenced_joins_again(site: KafkaBroker) -> None:
    await site.create("t", 4)
    async with client_of(site) as one, client_of(site) as two:
        member = ServerAssignedMember(one, "g", ["t"])
        held = {0: sorted(await member.join())}
        await follow([member], held, [4])
        thief = ServerAssignedMember(two, "g", ["t"])
        thief._id, thief._epoch = member._id, 1
        await thief.leave()  # the group forgets the member
        async with asyncio.timeout(120):
            await member.must_rejoin.wait()
        held = {0: sorted(await member.join())}
        await follow([member], held, [4])
        await member.leave()
