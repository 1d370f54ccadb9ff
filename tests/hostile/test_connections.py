"""Tests of frames that are announced and never sent, of replies that wait for earlier ones, and of idle connections."""

from __future__ import annotations

import asyncio
import time

from tests.e2e.kafka_site import batch
from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, scale
from tests.hostile.test_records import produce
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tiered_api.kafka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse

PLACES = scale(60, 1_000)
"""Most connections of the broker."""
PRODUCE_HEAD = bytes.fromhex("0000 0009 00000001 ffff")


@attack()
async def test_announced_frames_do_not_take_the_memory_of_others(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    async with to.attack("announced frames", memory=280):
        for host in range(2, 5):
            for _ in range(scale(40, 480)):
                client = await to.client(f"127.0.0.{host}")
                client.writer.write((100_000_000).to_bytes(4, "big") + PRODUCE_HEAD + bytes(41_000))
        honest = await to.client("127.0.0.9", to.leader_port(to.name("t")))
        begun = time.monotonic()
        assert await produce(honest, to.name("t"), (0, batch([bytes(200_000)]))) == [0]
        assert time.monotonic() - begun < scale(60, 10)


@attack()
async def test_replies_that_wait_for_a_fetch_are_bounded_in_memory(to: AttackedBroker) -> None:
    """The leader of a group that gathers gets the metadata of all members, and asks for it again and again."""

    def join(member_id: str, size: int) -> JoinGroupRequest:
        protocol = [JoinGroupRequestProtocol("range", bytes(size))]
        return JoinGroupRequest(to.name("g"), 1_800_000, 1_800_000, member_id, None, "consumer", protocol)

    await to.create(CreatableTopic(to.name("t"), 1, 1))
    wanted = [FetchTopic(topic=to.name("t"), partitions=[FetchPartition(partition=0, fetch_offset=0)])]
    waiting = FetchRequest(max_wait_ms=290_000, min_bytes=1, max_bytes=100, topics=wanted)
    members = [await to.client() for _ in range(16)]
    async with to.attack("replies behind a waiting fetch", memory=280):
        joined = await asyncio.gather(
            *(each.ask(join("", 900_000 if number else 1), 3, JoinGroupResponse) for number, each in enumerate(members))
        )
        leader = next(each.member_id for each in joined if len(each.members) == len(members))
        own = next(number for number, each in enumerate(joined) if each.member_id == leader)
        again = join(leader, 900_000 if own else 1)
        for number in range(scale(20, 200)):
            client = await to.client(f"127.0.0.{2 + number % 4}")
            await client.send(client.frame(waiting, 11), *(client.frame(again, 3) for _ in range(4)))
            assert (await members[own].ask(again, 3, JoinGroupResponse)).error_code == 0  # the broker takes its time


@attack(max_connections=PLACES, max_connections_per_ip=PLACES, tiered_http_connections_max=PLACES)
async def test_idle_connections_leave_room_for_others(to: AttackedBroker) -> None:
    async with to.attack("idle connections", memory=80):
        for n in range(PLACES + 20):
            await to.client(f"127.0.0.{2 + n % 4}")
        await asyncio.sleep(1.5)  # only who idles for a second gives way
        for host in range(20, 25):
            late = await to.client(f"127.0.0.{host}")
            answer = await late.ask(ApiVersionsRequest("a", "1"), 3, ApiVersionsResponse)
            assert answer.error_code == 0
        streams = [to.http() for _ in range(scale(60, 1_100))]
        for each in streams:
            each.connect()
        assert to.ask("GET", "/healthz")[0] == 200
        for each in streams:
            each.close()


@attack(max_connections=PLACES, max_connections_per_ip=PLACES)
async def test_connections_waiting_in_a_fetch_leave_room_for_others(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    wanted = [FetchTopic(topic=to.name("t"), partitions=[FetchPartition(partition=0, fetch_offset=0)])]
    request = FetchRequest(max_wait_ms=290_000, min_bytes=1, max_bytes=100, topics=wanted)
    async with to.attack("waiting connections", memory=80):
        for n in range(PLACES):
            client = await to.client(f"127.0.0.{2 + n % 4}")
            await client.send(client.frame(request, 11))
        await asyncio.sleep(1.5)  # only who waits for a second gives way
        for host in range(20, 25):
            late = await to.client(f"127.0.0.{host}")
            answer = await late.ask(ApiVersionsRequest("a", "1"), 3, ApiVersionsResponse)
            assert answer.error_code == 0
