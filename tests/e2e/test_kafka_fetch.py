"""Tests of Fetch in every version: which records, how many of them, when, and from where."""

from __future__ import annotations

import asyncio
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, batch, fetch, produce, run, values_of, wait_until
from tests.scenario import run_by
from tiered.controller.requests import DeleteTopic
from tiered.errors import Code
from tiered.ports import World
from tiered.records.batch import encode_batch
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.server.fetch.read_sources import ReadSources

VERSIONS = range(4, 19)
LONG_MS = 20_000


def parts(answer: FetchResponse) -> list[PartitionData]:
    """Returns all partitions of a reply, in order."""
    return [part for topic in answer.responses for part in topic.partitions]


async def read(client: RawClient, request: FetchRequest, version: int = 12) -> list[list[bytes]]:
    """Returns the values of each partition."""
    return [values_of(part.records) for part in parts(await client.ask(request, version, FetchResponse))]


async def fill(replica: LeaderReplica, *values: bytes) -> None:
    for value in values:
        await replica.append(batch([value]))


@pytest.mark.parametrize("version", VERSIONS)
@run_by(run, "tmp_path")
async def test_every_version_returns_records(site: KafkaBroker, *, version: int) -> None:
    replica = await site.create("t", 2)
    empty = site.broker.leader_replica("t", 1)
    await fill(replica, b"a", b"b", b"c")
    client = await site.client()
    request = fetch((replica, 1), (empty, 0))
    for isolation in (0, 1):
        request.isolation_level = isolation
        answer = await client.ask(request, version, FetchResponse)
        assert (answer.error_code, answer.session_id, answer.throttle_time_ms) == (0, 0, 0)
        full, none = parts(answer)
        assert values_of(full.records) == [b"b", b"c"]
        assert (full.partition_index, full.high_watermark, full.last_stable_offset) == (0, 3, 3)
        assert full.log_start_offset == (0 if version >= 5 else -1)
        assert full.aborted_transactions == ([] if isolation else None)
        assert full.preferred_read_replica == -1
        assert (none.partition_index, none.error_code, len(none.records), none.high_watermark) == (1, 0, 0, 0)


@run_by(run, "tmp_path")
async def test_error_of_a_partition_is_returned_at_once(site: KafkaBroker) -> None:
    replica = await site.create("t", 2)
    other = site.broker.leader_replica("t", 1)
    await fill(replica, b"a", b"b")
    client = await site.client()
    request = fetch((other, 0), (replica, 99), wait_ms=LONG_MS)
    quiet, beyond = parts(await client.ask(request, 12, FetchResponse))
    assert quiet.error_code == 0
    assert (beyond.error_code, beyond.high_watermark, beyond.log_start_offset) == (1, 2, 0)
    request = fetch((replica, -1), wait_ms=LONG_MS)
    assert [part.error_code for part in parts(await client.ask(request, 12, FetchResponse))] == [1]
    request = fetch((replica, 0), wait_ms=LONG_MS)
    request.topics[0].partitions[0].partition = 5
    assert parts(await client.ask(request, 12, FetchResponse))[0].error_code == 3
    request.topics[0].topic_id = "AAAAAAAAAAAAAAAAAAAAAQ"
    assert parts(await client.ask(request, 13, FetchResponse))[0].error_code == Code.UNKNOWN_TOPIC_ID.number
    for epoch, code in (
        (replica.leader_epoch - 1, Code.FENCED_LEADER_EPOCH),
        (replica.leader_epoch + 1, Code.UNKNOWN_LEADER_EPOCH),
    ):
        request = fetch((replica, 0), wait_ms=LONG_MS)
        request.topics[0].partitions[0].current_leader_epoch = epoch
        expected = code.number if epoch >= 0 else 0
        assert parts(await client.ask(request, 12, FetchResponse))[0].error_code == expected
    request = fetch((replica, 0))
    request.session_id, request.session_epoch = 77, 3
    answer = await client.ask(request, 12, FetchResponse)
    assert (answer.error_code, answer.responses) == (Code.FETCH_SESSION_ID_NOT_FOUND.number, [])


@run_by(run, "tmp_path")
async def test_reply_has_at_least_one_batch_and_at_most_the_limit(site: KafkaBroker) -> None:
    first = await site.create("t", 3)
    second, third = site.broker.leader_replica("t", 1), site.broker.leader_replica("t", 2)
    for replica in (first, second, third):
        await fill(replica, *(b"%d" % n * 1000 for n in range(4)))
    client = await site.client()
    size = len(parts(await client.ask(fetch((first, 0), each_bytes=1), 12, FetchResponse))[0].records)
    assert 1000 < size < 1100
    assert [len(each) for each in await read(client, fetch((first, 0), each_bytes=size * 3 - 1))] == [2]
    both = fetch((first, 0), (second, 0), each_bytes=size * 2, max_bytes=size * 3)
    assert [len(each) for each in await read(client, both)] == [2, 1]
    tiny = fetch((first, 0), (second, 0), (third, 0), each_bytes=1, max_bytes=1)
    given = {[len(each) for each in await read(client, tiny)].index(1) for _ in range(6)}
    assert given == {0, 1, 2}, "each partition has its turn"


@run_by(run, "tmp_path")
async def test_fetch_waits_for_enough_bytes_or_its_deadline(site: KafkaBroker) -> None:
    replica = await site.create("t", 2)
    client, other = await site.client(), await site.client()
    assert await read(client, fetch((replica, 0), wait_ms=1)) == [[]]
    await client.send(client.frame(fetch((replica, 0), wait_ms=LONG_MS, min_bytes=250), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    for n in range(3):
        assert site.server.pending_requests == 1
        await other.ask(produce(replica, b"v" * 50 + b"%d" % n), 9, ProduceResponse)
    answer = await client.receive(FetchResponse, 12)
    assert len(values_of(parts(answer)[0].records)) == 3
    assert len(replica.reads._listeners) == 0


@run_by(run, "tmp_path")
async def test_produce_to_many_partitions_ends_a_fetch_with_all_of_them(site: KafkaBroker) -> None:
    await site.create("t", 10)
    replicas = [site.broker.leader_replica("t", n) for n in range(10)]
    client, other = await site.client(), await site.client()
    await client.send(client.frame(fetch(*((each, 0) for each in replicas), wait_ms=LONG_MS), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    request = produce(replicas[0], b"v0")
    for replica in replicas[1:]:
        request.topic_data[0].partition_data += (
            produce(replica, b"v%d" % replica.partition).topic_data[0].partition_data
        )
    await other.ask(request, 9, ProduceResponse)
    answer = await client.receive(FetchResponse, 12)
    assert [values_of(part.records) for part in parts(answer)] == [[b"v%d" % n] for n in range(10)]


@run_by(run, "tmp_path")
async def test_waiting_fetch_fails_when_its_topic_is_gone(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    for version in (12, 13):
        await client.send(client.frame(fetch((replica, 0), wait_ms=LONG_MS), version))
    await wait_until(lambda: site.server.pending_requests == 2)
    await site.broker.submit(DeleteTopic("t"))
    codes = [parts(await client.receive(FetchResponse, version))[0].error_code for version in (12, 13)]
    assert codes == [Code.UNKNOWN_TOPIC_OR_PARTITION.number, Code.UNKNOWN_TOPIC_ID.number]


@run_by(run, "tmp_path")
async def test_closed_connection_ends_its_waiting_fetch(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    await client.send(client.frame(fetch((replica, 0), wait_ms=LONG_MS), 12))
    await wait_until(lambda: len(replica.reads._listeners) == 1)
    client.close()
    await wait_until(lambda: len(replica.reads._listeners) == 0)
    assert site.server.pending_requests == 0


SMALL = {"internal_segment_bytes": "4096", "local_retention_bytes": "1", "retention_ms": "-1"}
QUICK = {"log_retention_check_interval_ms": 50, "remote_log_manager_task_interval_ms": 50}


async def create_cold_topic(site: KafkaBroker, name: str, count: int = 20) -> LeaderReplica:
    """Creates a topic whose first records are in the bucket only."""
    replica = await site.create(name, 1, **SMALL)
    await fill(replica, *(b"%03d" % n * 300 for n in range(count)))
    await wait_until(lambda: replica.local_start_offset >= count - 8)
    return replica


@run_by(run, "tmp_path", **QUICK)
async def test_reader_continues_from_the_bucket_to_the_disk(site: KafkaBroker) -> None:
    replica = await create_cold_topic(site, "t")
    client = await site.client()
    found: list[bytes] = []
    while len(found) < 20:
        (some,) = await read(client, fetch((replica, len(found)), wait_ms=LONG_MS, each_bytes=3000))
        assert some
        found += some
    assert [value[:3] for value in found] == [b"%03d" % n for n in range(20)]


class SlowBucket:
    """A bucket whose reads wait until the test releases them."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.gets = 0

    def ports(self, world: World) -> World:
        inner = world.store
        slow = self

        class Slow(type(inner)):  # type: ignore[misc]
            async def get(self, key: str, start: int = 0, length: int | None = None) -> object:
                if key.endswith(".log") or "/data/" in key or start or length is not None:
                    slow.gets += 1
                    await slow.open.wait()
                return await super().get(key, start, length)

        inner.__class__ = Slow
        return world


def test_hot_partitions_do_not_wait_for_cold_ones(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        replica = await create_cold_topic(site, "cold")
        hot = await site.create("hot")
        await fill(hot, b"hot")
        client = await site.client()
        bucket.open.clear()
        request = fetch((replica, 0), (hot, 0), wait_ms=LONG_MS, each_bytes=1000)
        assert await read(client, request) == [[], [b"hot"]]
        bucket.open.set()
        await wait_until(lambda: all(load.done for load in site.server.dispatch.fetch_handler.fetches.cold_reads.all()))
        both = await read(client, request)
        assert [each[0][:3] for each in both] == [b"000", b"hot"]

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, ports=bucket.ports, **QUICK)


def test_fetch_of_cold_records_waits_for_the_first_of_them(tmp_path: Path) -> None:
    async def scenario(site: KafkaBroker) -> None:
        replica = await create_cold_topic(site, "t")
        client = await site.client()
        bucket.open.clear()
        await client.send(client.frame(fetch((replica, 0), wait_ms=LONG_MS, each_bytes=1000), 12))
        await wait_until(lambda: bucket.gets > 0 and site.server.pending_requests == 1)
        bucket.open.set()
        answer = await client.receive(FetchResponse, 12)
        assert values_of(parts(answer)[0].records)[0][:3] == b"000"
        assert site.server.dispatch.fetch_handler.fetches.cold_reads.all() == []

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, ports=bucket.ports, **QUICK)


def test_client_that_never_waits_reads_all_cold_records_once(tmp_path: Path) -> None:
    """No request of the bucket is for nothing: each reply has what its fetch has read there."""

    async def scenario(site: KafkaBroker) -> None:
        replica = await create_cold_topic(site, "t")
        bucket.gets = 0
        client, found, fetches = await site.client(), list[bytes](), 0
        while len(found) < 12:
            request = fetch((replica, len(found)), wait_ms=0, each_bytes=1000)
            request.min_bytes = 0
            (some,) = await read(client, request)
            found, fetches = found + some, fetches + 1
        assert [value[:3] for value in found] == [b"%03d" % n for n in range(12)]
        assert fetches == 12 and bucket.gets <= 4, "a request of the bucket for each segment"
        assert site.server.dispatch.fetch_handler.fetches.cold_reads.all() == []

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, ports=bucket.ports, **QUICK)


def test_fetches_of_the_same_cold_records_share_one_read(tmp_path: Path) -> None:
    """The first of them that gets the batches leaves them to the others that wait."""

    async def scenario(site: KafkaBroker) -> None:
        replica = await create_cold_topic(site, "t")
        clients = [await site.client() for _ in range(5)]
        bucket.gets = 0
        bucket.open.clear()
        for each in clients:
            await each.send(each.frame(fetch((replica, 0), wait_ms=LONG_MS, each_bytes=1000), 12))
        await wait_until(lambda: site.server.pending_requests == len(clients))
        bucket.open.set()
        for each in clients:
            reply = await each.receive(FetchResponse, 12)
            assert values_of(parts(reply)[0].records)[0][:3] == b"000"
        assert bucket.gets == 1
        assert site.server.dispatch.fetch_handler.fetches.cold_reads.all() == []

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, ports=bucket.ports, **QUICK)


def test_fetch_waits_for_the_bucket_no_longer_than_the_setting_says(tmp_path: Path) -> None:
    """Its read goes on, and the next fetch has it."""

    async def scenario(site: KafkaBroker) -> None:
        replica = await create_cold_topic(site, "t")
        client = await site.client()
        bucket.open.clear()
        for min_bytes in (0, 1):
            request = fetch((replica, 0), wait_ms=0, each_bytes=1000)
            request.min_bytes = min_bytes
            assert await read(client, request) == [[]]
        cold_reads, started = site.server.dispatch.fetch_handler.fetches.cold_reads, bucket.gets
        assert len(cold_reads.all()) == 1
        bucket.open.set()
        await wait_until(lambda: all(load.done for load in cold_reads.all()))
        assert (await read(client, request))[0][0][:3] == b"000"
        assert bucket.gets <= started + 1

    bucket = SlowBucket()
    bucket.open.set()
    run(tmp_path, scenario, ports=bucket.ports, remote_fetch_max_wait_ms=20, **QUICK)


@run_by(run, "tmp_path")
async def test_fast_path_returns_what_the_slow_path_returns(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.create("t", 4)
    replicas = [site.broker.leader_replica("t", n) for n in range(4)]
    for n, size in enumerate((10, 9_000, 40_000)):
        await fill(replicas[n], *(b"%d" % each * size for each in range(5)))
    fetches = site.server.dispatch.fetch_handler
    usual, short = ReadSources.find_cached, fetches._try_fast_response
    taken: list[bool] = []

    def count_fast(*arguments: Any) -> Any:
        answer = short(*arguments)
        taken.append(answer is not None)
        return answer

    def fail(*_: Any) -> Any:
        return None

    monkeypatch.setattr(fetches, "_try_fast_response", count_fast)
    client = await site.client()
    for version in VERSIONS:
        limits = (1, 20_000, 1 << 20), (1, 100_000, 1 << 24)
        for each_bytes, max_bytes, count, start in product(*limits, (1, 4), (0, 3, 5)):
            wanted = [(replica, start if n < 3 else 0) for n, replica in enumerate(replicas[:count])]
            request = fetch(*wanted, each_bytes=each_bytes, max_bytes=max_bytes)
            answers = []
            for way in (fail, usual, usual):
                monkeypatch.setattr(ReadSources, "find_cached", way)
                for connection in site.server.connections:
                    connection.fetch_rotation = 0
                await client.send(client.frame(request, version))
                answers.append((await client.read_reply())[4:])
            assert answers[0] == answers[1] == answers[2], (version, each_bytes, max_bytes, count, start)
    assert True in taken
    assert False in taken


@run_by(run, "tmp_path")
async def test_fast_path_hides_open_transactions_too(site: KafkaBroker) -> None:
    replica = await site.create("t", 1)
    await fill(replica, b"a")
    begun = encode_batch(
        [(1_700_000_000_000, None, b"open", ())], base_offset=1, leader_epoch=replica.leader_epoch,
        producer_id=1, producer_epoch=0, base_sequence=0, transactional=True,
    )  # fmt: skip
    replica.log.append_as_follower(begun, now_ms=1_700_000_000_000)
    await fill(replica, b"c")
    client = await site.client()
    request = fetch((replica, 0))
    for isolation, given in ((0, [b"a", b"open", b"c"]), (1, [b"a"])):
        request.isolation_level = isolation
        for _ in range(3):
            assert await read(client, request) == [given]
            (part,) = parts(await client.ask(request, 12, FetchResponse))
            assert (part.high_watermark, part.last_stable_offset) == (3, 1)


@run_by(run, "tmp_path")
async def test_appends_in_a_row_make_one_reply_for_all_waiting_fetches(site: KafkaBroker) -> None:
    await site.create("t", 6)
    replicas = [site.broker.leader_replica("t", n) for n in range(6)]
    tailing = [await site.client() for _ in range(3)]
    for client in tailing:
        await client.send(client.frame(fetch(*((each, 0) for each in replicas), wait_ms=LONG_MS), 12))
    await wait_until(lambda: site.server.pending_requests == 3)
    producer = await site.client()
    values = [b"%d" % n * size for n, size in enumerate((10, 9_000, 90_000, 300_000, 40_000, 1))]
    await producer.send(
        *(producer.frame(produce(each, value), 9) for each, value in zip(replicas, values, strict=True))
    )
    found: list[dict[int, bytes]] = [{} for _ in tailing]
    answers = 0
    for client, mine in zip(tailing, found, strict=True):
        while len(mine) < 6:
            for part in parts(await client.receive(FetchResponse, 12)):
                mine.update((part.partition_index, value) for value in values_of(part.records))
            answers += 1
            if len(mine) < 6:
                offsets = ((each, int(each.partition in mine)) for each in replicas)
                await client.send(client.frame(fetch(*offsets, wait_ms=LONG_MS), 12))
    assert found == [dict(enumerate(values))] * 3
    assert answers <= 9, "a few of the six make one answer"
