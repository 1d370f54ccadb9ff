"""Tests of consumers that name their rack and read from the in-sync replica there (KIP-392), with three brokers over
the wire."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.e2e.kafka_site import values_of
from tests.scenario import GIVEN, run_by
from tests.sim.rig.broker_rig import batch
from tests.sim.scenarios.test_reassignments import AT, is_leading, partition_image, write
from tests.sim.scenarios.three import SimBroker, ThreeBrokers, run_scenario
from tiered.config.kafka_aliases import LEADERS_ONLY
from tiered.controller.requests import AlterTopicConfigs, CreateTopic
from tiered.errors import Code, Refused, Unavailable
from tiered.ids import TopicId
from tiered.metadata.parts.brokers import BrokersImage
from tiered.records.batch import decode_records
from tiered.records.native import walk
from tiered.replication.leader_replica import ACKS_ALL
from tiered_api.kafka.client.connection import BrokerConnection, open_connection
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

RACKS = {1: "a", 2: "b", 3: "c"}
LARGE = b"x" * 3_000


class RackReader:
    """A consumer that follows every hint: it fetches from the broker that the last reply named."""

    def __init__(self, three: ThreeBrokers, rack: str, topic_id: TopicId | None = None) -> None:
        self.three = three
        self.rack = rack
        self._topic_id = topic_id
        self._links: dict[int, BrokerConnection] = {}

    async def ask(
        self, node: int, offset: int, *, wait_ms: int = 0, version: int = 17, epoch: int = -1
    ) -> PartitionData:
        if node not in self._links:
            self._links[node] = await open_connection(self.three.network.host("far"), f"b{node}", 9092, "far", 5)
        topic_id = self._topic_id or self.three.controller.node.image.topics["t"].topic_id
        where = FetchPartition(0, epoch, offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic("t", topic_id, [where])])
        if version >= 11:
            request.rack_id = self.rack
        answer = await self._links[node].send(request, FetchResponse, 5 + wait_ms / 1000, version)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]


async def create_led_topic(three: ThreeBrokers, *replicas: int) -> SimBroker:
    """Creates a topic that the first of `replicas` leads, with all in sync; returns the leader."""
    await three.controller.node.submit(CreateTopic("t", assignments=[list(replicas)]))
    await three.wait_until(
        lambda: set(partition_image(three).isr) == set(replicas) and is_leading(three.brokers[replicas[0]]), 10
    )
    return three.brokers[replicas[0]]


def set_racks(three: ThreeBrokers) -> None:
    for node, each in three.brokers.items():
        each.overrides["broker_rack"] = RACKS[node]


async def restart_with_racks(three: ThreeBrokers) -> None:
    """Restarts all brokers with their racks."""
    set_racks(three)
    for each in list(three.brokers.values()):
        await each.stop()
        await each.clear()
    for each in three.brokers.values():
        await each.start()
    await three.wait_until(three.is_everyone_known, 20)
    await three.wait_until(lambda: len(three.controller_ids()) == 1, 20)


@run_by(run_scenario)
async def test_consumer_is_sent_to_its_rack_and_reads_all_committed_records(three: ThreeBrokers) -> None:
    await restart_with_racks(three)
    leader = await create_led_topic(three, 1, 2)
    acked = await write(three, 5)
    near, at_home, abroad = RackReader(three, "b"), RackReader(three, "a"), RackReader(three, "c")
    part = await near.ask(1, 0)
    assert (part.error_code, part.preferred_read_replica, part.records) == (0, 2, b"")
    assert part.high_watermark == 5
    for one in (at_home, abroad, RackReader(three, "")):
        part = await one.ask(1, 0)
        assert part.preferred_read_replica == -1 and values_of(part.records or b"") == acked
    await asyncio.sleep(0.01)
    part = await near.ask(2, 0, epoch=leader.node.leader_replica("t", 0).leader_epoch)
    assert (part.preferred_read_replica, part.high_watermark) == (-1, 5)
    assert values_of(part.records or b"") == acked
    for version in (11, 12, 18):
        assert values_of((await near.ask(2, 3, version=version)).records or b"") == acked[3:]
    waiting = asyncio.create_task(near.ask(2, 5, wait_ms=10_000))
    await asyncio.sleep(1)
    began = three.now
    await leader.node.leader_replica("t", 0).append(batch([b"new"]), acks=ACKS_ALL)
    assert values_of((await waiting).records or b"") == [b"new"]
    assert three.now - began < 0.1, "a follower that is read from hears of the high watermark at once"


@run_by(run_scenario)
async def test_replica_out_of_sync_sends_consumers_back_to_the_leader(three: ThreeBrokers) -> None:
    await restart_with_racks(three)
    leader = await create_led_topic(three, 1, 2, 3)
    await write(three, 3)
    near = RackReader(three, "b")
    assert (await near.ask(1, 0)).preferred_read_replica == 2
    waiting = asyncio.create_task(near.ask(2, 3, wait_ms=2_000))
    three.network.cut("b1", "b2")
    three.network.cut("b3", "b2")
    await three.wait_until(lambda: 2 not in partition_image(three).isr, 30)
    assert (await waiting).error_code in (0, Code.NOT_LEADER_OR_FOLLOWER.number)
    assert (await near.ask(2, 0)).error_code == Code.NOT_LEADER_OR_FOLLOWER.number
    part = await near.ask(1, 0)
    assert part.preferred_read_replica == -1 and len(values_of(part.records or b"")) == 3
    await leader.node.leader_replica("t", 0).append(batch([b"x"]), acks=ACKS_ALL)
    three.network.heal()
    await three.wait_until(lambda: 2 in partition_image(three).isr, 30)
    assert (await near.ask(1, 4)).preferred_read_replica == 2
    assert (await near.ask(2, 4)).error_code == 0


@run_by(run_scenario)
async def test_no_consumer_is_sent_to_a_fenced_broker(three: ThreeBrokers) -> None:
    await restart_with_racks(three)
    leader = await create_led_topic(three, 1, 2)
    await write(three, 3)
    near = RackReader(three, "b")
    assert (await near.ask(1, 0)).preferred_read_replica == 2
    committed = leader.node.cluster.loader
    fenced = dict(committed.image.brokers) | {2: replace(committed.image.brokers[2], fenced=True)}
    committed.image = replace(committed.image, brokers_image=BrokersImage(fenced))  # the leader has not acted on it yet
    part = await near.ask(1, 0)
    assert part.preferred_read_replica == -1 and len(values_of(part.records or b"")) == 3


@run_by(run_scenario)
async def test_elected_follower_refuses_consumers_before_it_leads(three: ThreeBrokers) -> None:
    """Its consumers take it for the leader. After an out-of-range error they would reset their offsets."""
    await restart_with_racks(three)
    leader = await create_led_topic(three, 1, 2)
    await write(three, 3)
    near, next_one = RackReader(three, "b"), three.brokers[2].node
    assert (await near.ask(2, 4)).error_code == Code.OFFSET_OUT_OF_RANGE.number
    await next_one.hosted_replicas._role_change_lock.acquire()  # it opens some other log meanwhile
    await leader.kill()
    await three.wait_until(lambda: next_one.image.topics["t"].partitions[0].leader == 2, 30)
    for offset in (0, 4):
        assert (await near.ask(2, offset)).error_code == Code.NOT_LEADER_OR_FOLLOWER.number
    next_one.hosted_replicas._role_change_lock.release()
    await three.wait_until(lambda: is_leading(three.brokers[2]), 10)
    assert len(values_of((await near.ask(2, 0)).records or b"")) == 3


@run_by(run_scenario)
async def test_follower_without_a_record_sends_consumers_to_the_leader(three: ThreeBrokers) -> None:
    await restart_with_racks(three)
    leader = await create_led_topic(three, 1, 2)
    await write(three, 3)
    near, follower = RackReader(three, "b"), three.brokers[2].node
    copy = follower.hosted_replicas.find_follower(AT)
    assert copy is not None
    copy.leader_high_watermark = 7  # it has heard that there is more
    for offset in (5, 7):
        assert (await near.ask(2, offset)).error_code == Code.OFFSET_NOT_AVAILABLE.number
    assert (await near.ask(2, 8)).error_code == Code.OFFSET_OUT_OF_RANGE.number
    await three.wait_until(lambda: copy.leader_high_watermark == 3, 5)
    assert (await near.ask(2, 0, epoch=0)).error_code == Code.NONE.number
    assert (await near.ask(2, 0, epoch=5)).error_code == Code.UNKNOWN_LEADER_EPOCH.number
    assert (await near.ask(2, 0, version=10)).error_code == Code.NOT_LEADER_OR_FOLLOWER.number, "it cannot know"
    assert (await near.ask(3, 0)).error_code == Code.NOT_LEADER_OR_FOLLOWER.number
    stale = RackReader(three, "")
    for offset in (0, 1, 8):
        assert (await stale.ask(2, offset)).error_code == Code.NOT_LEADER_OR_FOLLOWER.number, "it asks for a leader"
    settings: dict[str, str | None] = {"internal.segment.bytes": "4096", "local.retention.bytes": "1"}
    await three.controller.node.submit(AlterTopicConfigs("t", {**settings}))
    for _ in range(8):
        await leader.node.leader_replica("t", 0).append(batch([LARGE]), acks=ACKS_ALL)
    await three.wait_until(lambda: copy.log.local_start_offset > 3, 200)
    await asyncio.sleep(1)
    assert (await near.ask(2, 1)).error_code == Code.OFFSET_OUT_OF_RANGE.number
    assert (await stale.ask(2, 1)).error_code == Code.NOT_LEADER_OR_FOLLOWER.number, "the leader has it"
    assert (await near.ask(1, 1)).preferred_read_replica == -1, "the leader knows that it was dropped there"
    assert (await near.ask(1, 11)).preferred_read_replica == 2
    copy.high_watermark = 10  # as in the moment in which records are here, and not known to be committed
    part = await near.ask(2, 11)
    assert (part.error_code, part.records) == (0, b"")


@run_by(run_scenario)
async def test_follower_does_not_serve_records_that_are_not_on_all_of_the_isr(three: ThreeBrokers) -> None:
    """Such a record is gone when the replica without it leads."""
    leader = await create_led_topic(three, 1, 2, 3)
    reader = RackReader(three, "z", three.controller.node.image.topics["t"].topic_id)
    copy = three.brokers[2].node.hosted_replicas.find_follower(AT)
    assert copy is not None
    (first,) = await write(three, 1)
    three.network.cut("b1", "b3")
    leader.node.leader_replica("t", 0).append_now(batch([b"lost"]), 1)
    await three.wait_until(lambda: copy.log.end_offset == 2, 5)
    assert offsets_and_values(await reader.ask(2, 0)) == [(0, first)]
    for node in (1, 2):
        await three.brokers[node].kill()
    three.network.heal()
    await three.wait_until(lambda: is_leading(three.brokers[3]), 30)
    for node in (1, 2):
        await three.brokers[node].start()
    await three.wait_until(
        lambda: len(three.controller_ids()) == 1 and set(partition_image(three).isr) == {1, 2, 3}, 60
    )
    (kept,) = await write(three, 1)
    await asyncio.sleep(1)
    for node in (1, 2, 3):
        assert offsets_and_values(await RackReader(three, "z").ask(node, 0)) == [(0, first), (1, kept)]


@pytest.mark.parametrize("seed", range(2))
@run_by(run_scenario, seed=GIVEN)
async def test_reads_at_any_replica_match_the_final_log(three: ThreeBrokers, *, seed: int) -> None:
    """Brokers are killed, frozen and cut off during the reads."""
    chance = random.Random(seed)
    await three.controller.node.submit(CreateTopic("t", assignments=[[1, 2, 3]], configs={"min.insync.replicas": "2"}))
    topic_id = three.controller.node.image.topics["t"].topic_id
    seen: dict[int, bytes] = {}
    served: Counter[int] = Counter()
    acked: list[bytes] = []
    writing = asyncio.create_task(write(three, 60))

    async def reads(node: int) -> None:
        reader = RackReader(three, "z", topic_id)
        while not writing.done():
            offset = chance.randrange(max(seen, default=0) + 2)
            try:
                part = await reader.ask(node, offset, wait_ms=50)
            except (Refused, Unavailable):
                reader = RackReader(three, "z", topic_id)
                await asyncio.sleep(0.1)
                continue
            if part.error_code:
                await asyncio.sleep(0.02)
            for at, value in offsets_and_values(part):
                assert seen.setdefault(at, value) == value, at
                served[node] += 1

    reading = [asyncio.create_task(reads(node)) for node in (1, 2, 3)]
    while not writing.done():
        await asyncio.sleep(chance.uniform(0.2, 1.5))
        hit = chance.choice(list(three.brokers.values()))
        if chance.random() < 0.5:
            await hit.kill()
            await asyncio.sleep(chance.uniform(0, 1))
            await hit.start()
        else:
            other = chance.choice([each for each in three.brokers.values() if each is not hit])
            three.network.cut(hit.name, other.name)
            await asyncio.sleep(chance.uniform(0, 3))
            three.network.heal()
    acked += await writing
    await asyncio.gather(*reading)
    await three.wait_until(lambda: bool(three.controller_ids()) and len(partition_image(three).isr) == 3, 60)
    (leader,) = (each for each in three.brokers.values() if is_leading(each))
    log = leader.node.leader_replica("t", 0)
    last = dict(enumerate(await read_all_values(three, leader.node_id, topic_id)))
    assert len(last) == log.high_watermark >= len(acked)
    assert {at: last[at] for at in seen} == seen and set(acked) <= set(last.values())
    assert len(served) == 3 and min(served.values()) > 20, served


def offsets_and_values(part: PartitionData) -> list[tuple[int, bytes]]:
    """Returns the offsets and values of a reply."""
    data = part.records or b""
    walked = walk(data)
    assert walked.why == "", walked
    return [(each.offset, each.value or b"") for one in walked.batches for each in decode_records(data, one.position)]


async def read_all_values(three: ThreeBrokers, node: int, topic_id: TopicId) -> list[bytes]:
    """Returns all values, read from the leader."""
    reader, values = RackReader(three, "z", topic_id), list[bytes]()
    while some := [value for at, value in offsets_and_values(await reader.ask(node, len(values))) if at >= len(values)]:
        values += some
    return values


@run_by(run_scenario)
async def test_cluster_without_followers_names_no_preferred_replica(three: ThreeBrokers) -> None:
    for each in three.brokers.values():
        each.overrides["replica_selector_class"] = LEADERS_ONLY
    await restart_with_racks(three)
    await create_led_topic(three, 1, 2)
    acked = await write(three, 2)
    part = await RackReader(three, "b").ask(1, 0)
    assert part.preferred_read_replica == -1 and values_of(part.records or b"") == acked
