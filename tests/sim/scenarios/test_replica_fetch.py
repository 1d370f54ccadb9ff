"""Tests of a follower's fetches at a real leader over the simulated network: the records in replies, the recorded
progress, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from tests.e2e.kafka_site import produce, values_of
from tests.refusal import refuses
from tests.scenario import run_by
from tests.sim.harness.streams import SimStream
from tests.sim.rig.broker_rig import QUICK, SimBrokerRig, batch, run
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic, ElectLeaders, Move, Reassign, RegisterBroker
from tiered.errors import Code, Refused
from tiered.ids import TopicId, incarnation_number
from tiered.metadata.parts.brokers import BrokersImage
from tiered.peers import DivergingEpoch, FetchedPartition, PartitionFetch, ReplicaFetch
from tiered.ports import FileSlice
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.client.connection import open_connection
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.server.fetch.delayed_replica_fetch import LAST_REPLY_SECONDS
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

THERE = "one:9092"
INCARNATION, LATER = "B" * 21 + "A", "C" * 21 + "A"
KIB = 1 << 10


def make_peers(rig: SimBrokerRig, host: str) -> KafkaPeers:
    """Returns the client of another broker of the same cluster."""
    node = rig.broker
    return KafkaPeers(rig.network.host(host), cluster_id=node.cluster_id, credential=node.credential)


class ReplicaFetchRig:
    """Broker 2, which copies the partitions of topic `t` that broker 1 leads."""

    def __init__(self, rig: SimBrokerRig, server: KafkaServer, partitions: int) -> None:
        self.rig = rig
        self.server = server
        self.leaders = [rig.broker.leader_replica("t", number) for number in range(partitions)]
        self.peers = make_peers(rig, "two")
        self.incarnation = incarnation_number(INCARNATION)
        self.node_id = 2

    def ask(self, *offsets: int, wait_ms: int = 0, max_bytes: int = 10 << 20, epoch: int = 0) -> ReplicaFetch:
        """Returns a fetch of partition n from `offsets[n]` on, with at most 16 KiB."""
        wanted = [
            PartitionFetch(leader.topic_id, number, epoch, offset, 0 if offset else -1, 0, 0)
            for number, (leader, offset) in enumerate(zip(self.leaders, offsets, strict=False))
        ]
        return ReplicaFetch(self.node_id, self.incarnation, wait_ms, max_bytes, 16 * KIB, wanted)

    async def fetch(self, *offsets: int, wait_ms: int = 0, **more: int) -> list[FetchedPartition]:
        return list(await self.peers.fetch(THERE, self.ask(*offsets, wait_ms=wait_ms, **more), 5))


def run_with_rig(scenario: Callable[[ReplicaFetchRig], Awaitable[None]], partitions: int = 1) -> None:
    async def run_all(rig: SimBrokerRig) -> None:
        await rig.start(replace(QUICK, broker_session_timeout_ms=3_600_000))  # nobody hears broker 2
        await rig.broker.submit(RegisterBroker(2, INCARNATION, "d", "two:1", "", True, {"PLAINTEXT": "two:9092"}))
        await rig.broker.submit(
            CreateTopic(
                "t",
                assignments=[[1, 2]] * partitions,
            )
        )
        server = await serve_kafka(rig.broker, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", 9092)})
        it = ReplicaFetchRig(rig, server, partitions)
        await scenario(it)
        await it.peers.close()
        await rig.wait_until(lambda: not server.connections)
        copies = server.dispatch.fetch_handler.replica_fetches
        assert not copies.parked.fetches and copies.parked.partitions == 0 and server.pending_requests == 0
        assert server.context.refusals.count("fault") == 0
        await server.close()
        await rig.stop()

    run(run_all)


def append_locally(leader: LeaderReplica, *values: bytes) -> None:
    """Appends one batch per partition to the leader's log only."""
    for value in values:
        leader.append_now(batch([value]), 1)


@run_by(run_with_rig)
async def test_fetch_offset_of_a_follower_commits_the_records_below(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    append_locally(leader, b"a", b"b", b"c")
    assert leader.high_watermark == 0
    (part,) = await it.fetch(0)
    assert (part.topic_id, part.partition, part.code, part.diverging_epoch) == (leader.topic_id, 0, 0, None)
    assert values_of(part.records) == [b"a", b"b", b"c"]
    assert (part.high_watermark, part.log_start_offset, part.local_start_offset, part.cold_end_offset) == (0,) * 4
    assert leader.high_watermark == 0, "it has nothing yet"
    (part,) = await it.fetch(2)
    assert leader.high_watermark == part.high_watermark == 2
    assert values_of(part.records) == [b"c"]
    (part,) = await it.fetch(3)
    assert leader.high_watermark == part.high_watermark == 3 and part.records == b""


@run_by(run_with_rig)
async def test_records_are_acknowledged_once_a_follower_has_all_of_their_batch(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    link = await open_connection(it.rig.network.host("far"), "one", 9092, "far", 5)
    asked = produce(leader, b"a", b"b", b"c")
    produced = asyncio.create_task(link.send(asked, ProduceResponse, 30, 11))
    await it.rig.wait_until(lambda: leader.log.end_offset == 3)
    await it.fetch(0)
    await asyncio.sleep(1)
    assert not produced.done()
    await it.fetch(3)
    answer = await produced
    assert answer.responses[0].partition_responses[0].error_code == 0
    link.close()


@run_by(run_with_rig)
async def test_records_that_no_follower_fetches_are_not_acknowledged(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    link = await open_connection(it.rig.network.host("far"), "one", 9092, "far", 5)
    asked = produce(leader, b"a")
    asked.timeout_ms = 1_000  # much less than it takes until the follower leaves the in-sync set
    for _ in range(2):  # the second one is like the first, and need not be parsed
        answer = await link.send(asked, ProduceResponse, 30, 11)
        assert answer.responses[0].partition_responses[0].error_code == Code.REQUEST_TIMED_OUT.number
    link.close()


@run_by(run_with_rig, partitions=2)
async def test_fetch_at_the_log_end_waits_for_the_next_append(it: ReplicaFetchRig) -> None:
    leader, other = it.leaders
    loop = it.rig.loop
    began = loop.time()
    (nothing, _) = await it.fetch(0, 0, wait_ms=500)
    assert 0.5 <= loop.time() - began < 0.6 and nothing.records == b""
    waiting = asyncio.create_task(it.fetch(0, 0, wait_ms=60_000))
    await it.rig.wait_until(lambda: bool(it.server.dispatch.fetch_handler.replica_fetches.parked.fetches))
    began = loop.time()
    append_locally(other, b"x", b"y")
    (part,) = await waiting
    assert loop.time() - began < 0.1
    assert part.partition == 1 and values_of(part.records) == [b"x", b"y"]
    assert not leader.reads.end_listeners and not other.reads.end_listeners


@run_by(run_with_rig, partitions=2)
async def test_reply_has_only_partitions_with_news(it: ReplicaFetchRig) -> None:
    leader, _ = it.leaders
    append_locally(leader, b"a", b"b")
    assert len(await it.fetch(2, 0)) == 2
    for _ in range(3):
        assert await it.fetch(2, 0) == []
    await asyncio.sleep(LAST_REPLY_SECONDS + 0.1)
    assert len(await it.fetch(2, 0)) == 2, "an answer may have been lost"
    assert await it.fetch(2, 0) == []
    append_locally(leader, b"c")
    (part,) = await it.fetch(2, 0)
    assert values_of(part.records) == [b"c"] and part.high_watermark == 2
    (part,) = await it.fetch(3, 0)
    assert part.high_watermark == 3 and part.records == b""
    append_locally(leader, b"d")
    leader.log.advance_start(2)
    await it.fetch(3, 0)
    (part,) = await it.fetch(4, 0)
    assert (part.high_watermark, part.log_start_offset) == (4, 2)


@run_by(run_with_rig)
async def test_repeated_fetch_keeps_a_follower_caught_up(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    append_locally(leader, b"a")
    for _ in range(20):
        await it.fetch(1)
        await asyncio.sleep(1)
    append_locally(leader, b"b")
    lag_ns = int(3e9)
    assert not leader.state.is_lagging(2, it.rig.broker.world.clock.mono_ns(), lag_ns)
    await asyncio.sleep(4)
    assert leader.state.is_lagging(2, it.rig.broker.world.clock.mono_ns(), lag_ns)
    it.incarnation = incarnation_number(LATER)
    with pytest.raises(Refused):
        await it.fetch(1)


@run_by(run_with_rig)
async def test_resigning_leader_replies_to_parked_fetches(it: ReplicaFetchRig) -> None:
    waiting = asyncio.create_task(it.fetch(0, wait_ms=60_000))
    await it.rig.wait_until(lambda: bool(it.server.dispatch.fetch_handler.replica_fetches.parked.fetches))
    it.rig.broker.hosted_replicas.refuse(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another one leads it"))
    (part,) = await waiting
    assert part.code == Code.NOT_LEADER_OR_FOLLOWER.number


@run_by(run_with_rig)
async def test_diverged_logs_and_wrong_epochs_are_reported_per_partition(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    append_locally(leader, b"a", b"b")
    (part,) = await it.fetch(5)
    assert (part.code, part.diverging_epoch, part.records) == (0, DivergingEpoch(0, 2), b"")
    (part,) = await it.fetch(0, epoch=-1)
    assert part.code == Code.FENCED_LEADER_EPOCH.number
    (part,) = await it.fetch(0, epoch=3)
    assert part.code == Code.UNKNOWN_LEADER_EPOCH.number
    unknown = it.ask(0)._replace(
        partitions=[
            it.ask(0).partitions[0]._replace(partition=7),
            it.ask(0).partitions[0]._replace(topic_id=TopicId("A" * 21 + "Q")),
        ]
    )
    codes = {part.code for part in await it.peers.fetch(THERE, unknown, 5)}
    assert codes == {Code.UNKNOWN_TOPIC_OR_PARTITION.number, Code.UNKNOWN_TOPIC_ID.number}
    assert leader.high_watermark == 0 and leader.state.follower_offset(2) is None


@run_by(run_with_rig)
async def test_only_the_registered_incarnation_may_fetch(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    append_locally(leader, b"a")

    async def refuse() -> Code:
        with pytest.raises(Refused) as caught:
            await it.fetch(1)
        assert leader.high_watermark == 0 and leader.state.follower_offset(2) is None
        return caught.value.code

    it.incarnation = incarnation_number(LATER)
    assert await refuse() is Code.STALE_BROKER_EPOCH
    it.incarnation, it.node_id = incarnation_number(INCARNATION), 3
    assert await refuse() is Code.BROKER_ID_NOT_REGISTERED
    it.node_id = 1
    assert await refuse() is Code.STALE_BROKER_EPOCH
    it.node_id = 2
    await it.fetch(1)
    assert leader.high_watermark == 1


@run_by(run_with_rig)
async def test_fetch_of_a_stopped_broker_is_refused(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    append_locally(leader, b"a")
    image = it.rig.broker.image
    stopped = dict(image.brokers) | {2: replace(image.brokers[2], alive=False)}
    it.rig.broker.cluster.loader.image = replace(image, brokers_image=BrokersImage(stopped))
    with refuses(Code.STALE_BROKER_EPOCH):
        await it.fetch(1)
    assert leader.state.follower_offset(2) is None


@run_by(run_with_rig)
async def test_next_fetch_finds_a_partition_that_is_led_here_again(it: ReplicaFetchRig) -> None:
    node, topic_id = it.rig.broker, it.leaders[0].topic_id
    append_locally(it.leaders[0], b"a")
    await it.fetch(1)
    for preferred, other in ((2, 1), (1, 2)):
        await node.submit(Reassign((Move(topic_id, 0, (preferred, other)),)))
        await node.submit(ElectLeaders(preferred=True))
        await it.rig.wait_until(partial(is_leading_as, it.rig, preferred == 1))
    assert it.leaders[0].is_stopped
    again = node.leader_replica("t", 0)
    (part,) = await it.fetch(1, epoch=again.leader_epoch)
    assert (part.code, part.high_watermark) == (0, 1)


def is_leading_as(rig: SimBrokerRig, expected: bool) -> bool:
    """True if broker 1 leads a partition, or leads none, as `expected` states."""
    return bool(rig.broker.hosted_replicas.list_leaders()) is expected


@run_by(run_with_rig, partitions=2)
async def test_new_process_of_a_follower_gets_a_full_reply(it: ReplicaFetchRig) -> None:
    leader, _ = it.leaders
    append_locally(leader, b"a")
    for incarnation in (LATER, "D" * 21 + "A"):  # the second one finds the in-sync set as it is
        await it.fetch(1, 0)
        assert await it.fetch(1, 0) == []
        await it.rig.broker.submit(RegisterBroker(2, incarnation, "d", "", "", True, {"PLAINTEXT": "two:9092"}))
        it.incarnation = incarnation_number(incarnation)
    assert [(part.partition, part.high_watermark) for part in await it.fetch(1, 0)] == [(0, 1), (1, 0)]
    assert await it.fetch(1, 0) == []


@run_by(run_with_rig, partitions=2)
async def test_reply_to_an_earlier_process_does_not_shorten_the_new_ones(it: ReplicaFetchRig) -> None:
    """The machine of the earlier process failed, and its request is still parked here."""
    leader, _ = it.leaders
    append_locally(leader, b"a")
    copies = it.server.dispatch.fetch_handler.replica_fetches
    await it.fetch(1, 0)
    for incarnation in (LATER, "D" * 21 + "A"):  # the second one finds the in-sync set as it is
        early = asyncio.create_task(it.fetch(1, 0, wait_ms=2_000))
        await it.rig.wait_until(lambda: len(copies.parked.fetches) == 1)
        await it.rig.broker.submit(RegisterBroker(2, incarnation, "d", "", "", True, {"PLAINTEXT": "two:9092"}))
        it.incarnation = incarnation_number(incarnation)
        later = asyncio.create_task(it.fetch(1, 0, wait_ms=4_000))
        with suppress(Refused):
            await early
        told = await later
    assert [(part.partition, part.high_watermark) for part in told] == [(0, 1), (1, 0)]


@run_by(run_with_rig)
async def test_parked_fetch_of_a_replaced_incarnation_counts_no_more(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    waiting = asyncio.create_task(it.fetch(0, wait_ms=60_000))
    await it.rig.wait_until(lambda: bool(it.server.dispatch.fetch_handler.replica_fetches.parked.fetches))
    image = it.rig.broker.image
    later = dict(image.brokers) | {2: replace(image.brokers[2], incarnation=LATER)}
    it.rig.broker.cluster.loader.image = replace(image, brokers_image=BrokersImage(later))
    append_locally(leader, b"a")
    with refuses(Code.STALE_BROKER_EPOCH):
        await waiting


@run_by(run_with_rig)
async def test_forged_replica_fetch_is_refused_in_every_version(it: ReplicaFetchRig) -> None:
    (leader,) = it.leaders
    append_locally(leader, b"a", b"b")
    await it.fetch(1)
    link = await open_connection(it.rig.network.host("far"), "one", 9092, "far", 5)
    for version in range(4, 19):
        where = FetchPartition(0, fetch_offset=2, partition_max_bytes=KIB)
        request = FetchRequest(topics=[FetchTopic(leader.topic, leader.topic_id, [where])])
        if version < 15:
            request.replica_id = 2
        else:
            request.replica_state, request.rack_id = ReplicaState(2, it.incarnation), "r"
        answer = await link.send(request, FetchResponse, 5, version)
        refused = Code.CLUSTER_AUTHORIZATION_FAILED.number
        assert answer.error_code == (refused if version >= 7 else 0)
        assert answer.responses[0].partitions[0].error_code == refused
    assert leader.state.follower_offset(2) == 1 and leader.high_watermark == 1
    link.close()


@run_by(run_with_rig, partitions=4)
async def test_reply_has_a_batch_of_any_size_and_partitions_take_turns(it: ReplicaFetchRig) -> None:
    for leader in it.leaders:
        append_locally(leader, b"x" * 3_000, b"y" * 3_000)
    (alone,) = (part for part in await it.fetch(0, 0, 0, 0, max_bytes=0) if part.records)
    assert [value[:1] for value in values_of(alone.records)] == [b"x"]
    served = []
    for _ in range(8):
        full = [part for part in await it.fetch(0, 0, 0, 0, max_bytes=4_000) if part.records]
        assert sum(len(part.records) for part in full) <= 4_000
        served += [part.partition for part in full]
    assert sorted(served) == [0, 0, 1, 1, 2, 2, 3, 3], "each has its turn"
    assert [leader.state.follower_offset(2) for leader in it.leaders] == [0] * 4


def test_records_are_sent_as_slices_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[FileSlice] = []
    send_file = SimStream.send_file

    def noted(stream: SimStream, slice: FileSlice) -> int | None:
        sent.append(slice)
        return send_file(stream, slice)

    monkeypatch.setattr(SimStream, "send_file", noted)

    async def scenario(it: ReplicaFetchRig) -> None:
        (leader,) = it.leaders
        append_locally(leader, *(bytes((n,)) * 3_000 for n in range(8)))
        (part,) = await it.fetch(0)
        assert values_of(part.records) == [bytes((n,)) * 3_000 for n in range(5)]
        assert sent and sent[0].length == len(part.records) > 8 * KIB
        assert it.server.context.replicated_bytes == len(part.records) and it.server.context.fetched_bytes == 0

    run_with_rig(scenario)
