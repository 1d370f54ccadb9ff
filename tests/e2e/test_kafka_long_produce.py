"""Tests of produce requests for so many partitions that they are handled in pieces: the same replies, and other
requests in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, batch, fetch, produce, run, values_of, wait_until
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.errors import Code
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tiered_api.kafka.protocol.schema import ZERO_ID
from tiered_api.kafka.server.handlers import produce as handler

COUNT = 24


@pytest.fixture(autouse=True)
def use_tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "PIECE_PARTITIONS", 1)
    monkeypatch.setattr(handler, "LARGE_REQUEST_PARTITIONS", 2)


async def create_replicas(site: KafkaBroker, topic: str = "t", **configs: str) -> list[LeaderReplica]:
    await site.create(topic, COUNT, **configs)
    return [site.broker.leader_replica(topic, p) for p in range(COUNT)]


def request(held: Sequence[LeaderReplica], value: bytes = b"v", acks: int = -1) -> ProduceRequest:
    """Returns a request with one batch for each of the partitions, all of one topic."""
    parts = [PartitionProduceData(index=each.partition, records=batch([value])) for each in held]
    topic = TopicProduceData(name=held[0].topic, topic_id=held[0].topic_id, partition_data=parts)
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[topic])


def codes(answer: ProduceResponse) -> list[int]:
    return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def keep_loop_busy(site: KafkaBroker) -> asyncio.Event:
    """Keeps the event loop so busy that a turn has time for one piece only, until the event is set. Its pieces and
    those of the first connection alternate."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    share = next(iter(site.server.connections)).turn_share

    def spin() -> None:
        if not ended.is_set():
            until_then = loop.time() + 0.011
            while loop.time() < until_then:
                pass
            site.server.context.turns.run_later(spin, share)

    spin()
    return ended


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@run_by(run, "tmp_path")
async def test_long_produce_has_the_replies_of_short_ones(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch, version: int, acks: int
) -> None:
    client = await site.client()
    answers: list[ProduceResponse] = []
    for long in (2, 1_000):
        monkeypatch.setattr(handler, "LARGE_REQUEST_PARTITIONS", long)
        held = await create_replicas(site, f"t{long}")
        wanted = request(held, acks=acks)
        parts = wanted.topic_data[0].partition_data
        parts[7].index = COUNT + 5
        parts[8].index = 0
        parts[9].records = None
        parts[10].records = bytearray(encode_batch([(1 << 50, None, b"late", ())]))
        other = produce(await site.create(f"other{long}"), b"o").topic_data
        answer = await client.ask(
            ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=[*wanted.topic_data, *other]),
            version, ProduceResponse,
        )  # fmt: skip
        for each in answer.responses:
            each.name, each.topic_id = "", ZERO_ID
            for part in each.partition_responses:
                part.error_message = part.error_message and part.error_message.partition(" ")[0]
                for error in part.record_errors or ():
                    error.batch_index_error_message = ""
        answers.append(answer)
        assert [each.high_watermark for each in held] == [int(p not in (7, 8, 9, 10)) for p in range(COUNT)]
    assert answers[0] == answers[1]
    assert codes(answers[0]).count(0) == COUNT - 3


@run_by(run, "tmp_path")
async def test_other_requests_are_served_between_the_pieces_of_a_produce(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    long, small = await site.client(), await site.client()
    ended = keep_loop_busy(site)
    await long.send(long.frame(request(held), 9))
    await wait_until(lambda: held[0].high_watermark == 1)
    await small.ask(ApiVersionsRequest("a", "1"), 3, ApiVersionsResponse)
    assert held[-1].high_watermark == 0, "the long one is not done yet"
    assert set(codes(await long.receive(ProduceResponse, 9))) == {0}
    ended.set()


@pytest.mark.parametrize("size", [1, 5_000], ids=["small frames", "large frames"])
@run_by(run, "tmp_path")
async def test_frames_received_between_the_pieces_change_no_records(site: KafkaBroker, *, size: int) -> None:
    held, others = await create_replicas(site), await create_replicas(site, "others")
    long, other = await site.client(), await site.client()
    ended = keep_loop_busy(site)
    await long.send(long.frame(request(held, b"v" * size), 9))
    await wait_until(lambda: held[0].high_watermark == 1)
    await other.send(other.frame(request(others, b"w" * size), 9))
    await wait_until(lambda: others[0].high_watermark == 1)
    assert held[-1].high_watermark == 0, "the long one is not done yet"
    ended.set()
    assert set(codes(await long.receive(ProduceResponse, 9))) == {0}
    assert set(codes(await other.receive(ProduceResponse, 9))) == {0}
    got = await long.ask(fetch((held[-1], 0)), 12, FetchResponse)
    assert values_of(got.responses[0].partitions[0].records) == [b"v" * size]


@pytest.mark.parametrize("size", [1, 5_000], ids=["small frames", "large frames"])
@pytest.mark.parametrize("acks", [0, 1, -1])
@run_by(run, "tmp_path")
async def test_requests_of_a_connection_are_appended_in_their_order(site: KafkaBroker, *, acks: int, size: int) -> None:
    held = await create_replicas(site)
    client = await site.client()
    ended = keep_loop_busy(site)
    sent = [
        client.frame(request(held if n % 2 == 0 else held[-1:], b"%d" % n + bytes(size), acks), 9) for n in range(4)
    ]
    await client.send(*sent, client.frame(ApiVersionsRequest("a", "1"), 3))
    for n in range(4 if acks else 0):
        assert set(codes(await client.receive(ProduceResponse, 9, n))) == {0}
    await client.receive(ApiVersionsResponse, 3, 4)
    ended.set()
    got = await client.ask(fetch((held[-1], 0)), 12, FetchResponse)
    values = values_of(got.responses[0].partitions[0].records)
    assert [value[:1] for value in values] == [b"0", b"1", b"2", b"3"]
    assert site.server.buffers.free_bytes == site.broker.settings.queued_max_request_bytes


@run_by(run, "tmp_path")
async def test_sequences_of_a_producer_hold_over_long_requests(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    client = await site.client()

    def part(replica: LeaderReplica, sequence: int) -> PartitionProduceData:
        data = encode_batch([(site.broker.world.clock.wall_ms(), None, b"v", ())], producer_id=7, producer_epoch=0,
                      base_sequence=sequence)  # fmt: skip
        return PartitionProduceData(index=replica.partition, records=bytearray(data))

    for first in (0, 3, 3):  # the last three are sent again
        frames = []
        for sequence in range(first, first + 3):
            parts = [part(each, sequence) for each in held]
            topic = TopicProduceData(name="t", partition_data=parts)
            frames.append(client.frame(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 9))
        await client.send(*frames)
        for sequence in range(first, first + 3):
            answer = await client.receive(ProduceResponse, 9)
            assert set(codes(answer)) == {0}
            assert {each.base_offset for each in answer.responses[0].partition_responses} == {sequence}
    assert {each.high_watermark for each in held} == {6}


@pytest.mark.parametrize("size", [1, 5_000], ids=["small frame", "large frame"])
@run_by(run, "tmp_path")
async def test_long_produce_ends_with_its_client(site: KafkaBroker, *, size: int) -> None:
    held = await create_replicas(site)
    gone, other = await site.client(), await site.client()
    ended = keep_loop_busy(site)
    await gone.send(gone.frame(request(held, bytes(size)), 9))
    await wait_until(lambda: held[0].high_watermark == 1)
    assert site.server.pending_requests == 1
    [connection] = [each for each in site.server.connections if each.pending]
    connection.close()  # as it does with who does not take its answers
    await wait_until(lambda: not site.server.dispatch._tasks)
    assert held[-1].high_watermark == 0
    assert (site.server.pending_requests, site.server.buffers.free_bytes) == (
        0,
        site.broker.settings.queued_max_request_bytes,
    )
    ended.set()
    assert set(codes(await other.ask(request(held), 9, ProduceResponse))) == {0}


@run_by(run, "tmp_path")
async def test_failed_part_of_an_acks_0_request_ends_the_connection_last(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    client = await site.client()
    wanted = request(held, acks=0)
    wanted.topic_data[0].partition_data[3].index = COUNT
    await client.send(client.frame(wanted, 9))
    assert await client.read_to_end() == b""
    assert site.count_refusals("acks_0") == 1
    assert [each.high_watermark for each in held].count(1) == COUNT - 1


@run_by(run, "tmp_path")
async def test_topic_deleted_between_the_pieces_takes_no_more_records(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    client = await site.client()
    ended = keep_loop_busy(site)
    await client.send(client.frame(request(held), 13))
    await wait_until(lambda: held[0].high_watermark == 1)
    await site.broker.submit(DeleteTopic("t"))
    ended.set()
    got = codes(await client.receive(ProduceResponse, 13))
    assert got[0] == 0 and got[-1] == Code.UNKNOWN_TOPIC_ID.number


@run_by(run, "tmp_path")
async def test_stopping_broker_completes_a_long_produce(site: KafkaBroker) -> None:
    held = await create_replicas(site)
    client: RawClient = await site.client()
    ended = keep_loop_busy(site)
    await client.send(client.frame(request(held), 9))
    await wait_until(lambda: held[0].high_watermark == 1)
    stopping = asyncio.create_task(site.server.close())
    await asyncio.sleep(0)
    ended.set()
    assert set(codes(await client.receive(ProduceResponse, 9))) == {0}
    await stopping
