"""Tests of Kafka connections: order, corked replies, frames in pieces, back-pressure, and their end."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kafka_site import KafkaBroker, fetch, produce, run, values_of, wait_until
from tests.scenario import run_by
from tiered.ports import Buffer, Listener, Stream, World
from tiered.system.network import SocketNet, SocketStream
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.fetch import FetchResponse
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest, MetadataResponse
from tiered_api.kafka.protocol.messages.produce import ProduceResponse

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
LONG_MS = 20_000


class CountingNet:
    """Real sockets that count writes."""

    def __init__(self) -> None:
        self._net = SocketNet()
        self.sends: list[int] = []

    async def listen(self, host: str, port: int, on_accept: Callable[[Stream], None]) -> Listener:
        def counted(stream: Stream) -> None:
            assert isinstance(stream, SocketStream)
            stream.__class__ = type("Counted", (_Counted,), {"sends": self.sends})
            on_accept(stream)

        return await self._net.listen(host, port, counted)

    async def connect(self, host: str, port: int, timeout: float) -> Stream:
        return await self._net.connect(host, port, timeout)

    def call_after_streams(self, call: Callable[[], None]) -> None:
        self._net.call_after_streams(call)


class _Counted(SocketStream):
    sends: list[int]

    def sendmsg(self, parts: Sequence[Buffer], *, more: bool = False) -> int | None:
        self.sends.append(len(parts))
        return super().sendmsg(parts, more=more)


@run_by(run, "tmp_path")
async def test_replies_have_the_order_of_requests_even_if_the_first_is_slow(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client, other = await site.client(), await site.client()
    await client.send(
        client.frame(fetch((replica, 0), wait_ms=LONG_MS), 12),
        client.frame(MetadataRequest(topics=None), 9),
        client.frame(HELLO, 3),
    )
    await wait_until(lambda: site.server.pending_requests == 1)
    await other.ask(produce(replica, b"wakes it"), 9, ProduceResponse)
    fetched = await client.receive(FetchResponse, 12, 0)
    assert values_of(fetched.responses[0].partitions[0].records) == [b"wakes it"]
    assert [each.name for each in (await client.receive(MetadataResponse, 9, 1)).topics] == ["t"]
    assert (await client.receive(ApiVersionsResponse, 3, 2)).error_code == 0
    assert site.server.pending_requests == 0


def test_replies_to_requests_of_one_read_are_one_write(tmp_path: Path) -> None:
    net = CountingNet()

    def ports(world: World) -> World:
        return replace(world, net=net)

    async def scenario(site: KafkaBroker) -> None:
        replica = await site.create("t")
        client = await site.client()
        await client.send(*(client.frame(produce(replica, b"v%d" % n), 9) for n in range(50)))
        offsets = [
            (await client.receive(ProduceResponse, 9, n)).responses[0].partition_responses[0].base_offset
            for n in range(50)
        ]
        assert offsets == list(range(50))
        assert net.sends == [50]

    run(tmp_path, scenario, ports=ports)


@run_by(run, "tmp_path")
async def test_hundreds_of_pipelined_requests_all_get_replies(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    frames = [client.frame(produce(replica, b"%d" % n), 7 + n % 6) for n in range(1000)]
    sending = asyncio.create_task(client.send(*frames))
    for n in range(1000):
        answer = await client.receive(ProduceResponse, 7 + n % 6, n)
        assert answer.responses[0].partition_responses[0].base_offset == n
    await sending


@pytest.mark.parametrize("size", [10, 20_000, 40_000, 300_000, 3_000_000])
@run_by(run, "tmp_path")
async def test_frame_may_arrive_in_any_pieces(site: KafkaBroker, *, size: int) -> None:
    replica = await site.create("t", max_message_bytes="10000000")
    client = await site.client()
    value = bytes(range(256)) * (size // 256) + b"end"
    frames = b"".join([client.frame(produce(replica, value), 9), client.frame(HELLO, 3)] * 2)
    cuts = sorted({1, 3, 4, 5, 13, 60, 100, size // 2, size, *range(len(frames) - 30, len(frames))})
    for start, end in zip([0, *cuts], [*cuts, len(frames)], strict=True):
        await client.send(frames[start:end])
        await asyncio.sleep(0)
    for n in range(2):
        answer = await client.receive(ProduceResponse, 9, 0)
        assert answer.responses[0].partition_responses[0].base_offset == n
        await client.receive(ApiVersionsResponse, 3, 1)
    got = await client.ask(fetch((replica, 1), each_bytes=1), 12, FetchResponse)
    assert values_of(got.responses[0].partitions[0].records) == [value]
    assert site.server.buffers.free_bytes == site.broker.settings.queued_max_request_bytes


@run_by(run, "tmp_path")
async def test_no_request_is_read_behind_five_waiting_ones(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client, other = await site.client(), await site.client()
    await client.send(*(client.frame(fetch((replica, 0), wait_ms=LONG_MS), 4 + n) for n in range(8)))
    await wait_until(lambda: site.server.pending_requests == 5)
    for _ in range(3):  # a turn of the broker each, in which it would read on
        await other.ask(HELLO, 3, ApiVersionsResponse)
    assert site.server.pending_requests == 5
    await other.ask(produce(replica, b"v"), 9, ProduceResponse)
    for n in range(8):
        got = await client.receive(FetchResponse, 4 + n, n)
        assert values_of(got.responses[0].partitions[0].records) == [b"v"]


@run_by(run, "tmp_path", queued_max_requests=2)
async def test_connection_of_a_busy_broker_waits_for_each_reply(site: KafkaBroker) -> None:
    replica = await site.create("t")
    clients = [await site.client() for _ in range(3)]
    for client in clients:
        await client.send(*(client.frame(fetch((replica, 0), wait_ms=LONG_MS), 12) for _ in range(4)))
    await wait_until(lambda: site.server.pending_requests >= 4)
    last = await site.client()
    await last.ask(produce(replica, b"v"), 9, ProduceResponse)
    for client in clients:
        for n in range(4):
            await client.receive(FetchResponse, 12, n)
    assert site.server.pending_requests == 0


@run_by(run, "tmp_path")
async def test_client_that_does_not_read_is_served_when_it_reads_again(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    for _ in range(4):
        await client.ask(produce(replica, b"x" * 900_000), 9, ProduceResponse)
    taken = site.server.context.requests[1]
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    frames = [client.frame(fetch((replica, 0), each_bytes=4_000_000), 12) for _ in range(40)]
    sending = asyncio.create_task(client.send(*frames))
    await wait_until(lambda: site.server.context.requests[1] > taken)
    await asyncio.sleep(0.2)  # time in which nothing more must happen
    assert site.server.context.requests[1] - taken < 20
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for n in range(40):
        got = await client.receive(FetchResponse, 12, 4 + n)
        assert len(got.responses[0].partitions[0].records) > 3_600_000
    await sending


@pytest.mark.parametrize(
    "start",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", struct.pack(">i", 0), struct.pack(">i", -1), struct.pack(">i", 2**31 - 1)],
    ids=["http", "zero", "negative", "huge"],
)
@run_by(run, "tmp_path")
async def test_invalid_frame_ends_the_connection_at_once(site: KafkaBroker, *, start: bytes) -> None:
    client = await site.client()
    await client.send(start + b"x")
    assert await client.read_to_end() == b""
    assert site.count_refusals("frame_size") == 1
    assert site.server.buffers.pooled_bytes == 0


@pytest.mark.parametrize(
    ("key", "version", "body", "reason"),
    [
        (999, 0, b"", "unsupported"),
        (-1, 0, b"", "unsupported"),
        (3, 99, b"", "unsupported"),
        (0, 2, b"", "unsupported"),
        (1, 3, b"", "unsupported"),
        (1, 19, b"", "unsupported"),
        (0, 14, b"", "unsupported"),
        (0, 9, b"\0\0\xff", "malformed"),
        (0, 7, b"\xff\xff\0\0\0\0\0\0\x7f\xff\xff\xff", "malformed"),
        (1, 12, b"\0" * 9, "malformed"),
        (1, 4, b"\0" * 14, "malformed"),
        (3, 9, b"\0\xff\xff\xff\xff\x0f", "malformed"),
        (18, 3, b"\0\x05a", "malformed"),
        (42, 1, b"\0\xff\xff" + b"\0\1g" * 30_000, "malformed"),
    ],
)
@run_by(run, "tmp_path")
async def test_invalid_request_ends_its_connection(
    site: KafkaBroker, *, key: int, version: int, body: bytes, reason: str
) -> None:
    client = await site.client()
    frame = struct.pack(">hhih", key, version, 7, -1) + body
    await client.send(len(frame).to_bytes(4, "big") + frame)
    assert await client.read_to_end() == b""
    assert site.count_refusals(reason) == 1


@run_by(run, "tmp_path")
async def test_failed_handler_ends_only_its_connection(site: KafkaBroker) -> None:
    async def fail(site: Any, call: Any) -> Any:
        raise RuntimeError("a fault of the broker's own")

    site.server.dispatch.handlers[3] = fail
    client, other = await site.client(), await site.client()
    await client.send(client.frame(MetadataRequest(topics=None), 9))
    assert await client.read_to_end() == b""
    assert site.count_refusals("fault") == 1
    assert (await other.ask(HELLO, 3, ApiVersionsResponse)).error_code == 0


@run_by(run, "tmp_path")
async def test_clients_of_any_age_get_the_versions(site: KafkaBroker) -> None:
    client = await site.client()
    for version in range(5):
        told = await client.ask(HELLO, version, ApiVersionsResponse)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}
        assert (ranges[0], ranges[1], ranges[18]) == ((0, 13), (4, 18), (0, 4))
        assert told.error_code == 0
        # A feature whose lowest level is 0 is listed from version 4 on: older clients fail at it (KAFKA-17011).
        supported = [(each.name, each.min_version, each.max_version) for each in told.supported_features]
        known = [("transaction.version", 0, 2), ("group.version", 0, 1), ("tiered.metadata.version", 0, 6)]
        assert supported == (known if version >= 4 else [])
        finalized = [(each.name, each.max_version_level) for each in told.finalized_features]
        assert finalized == ([(name, level) for name, _, level in known] if version >= 3 else [])
    newer = struct.pack(">hhih", 18, 99, 70, -1) + b"whatever a later version has"
    await client.send(len(newer).to_bytes(4, "big") + newer)
    told = await client.receive(ApiVersionsResponse, 0, 70)
    assert told.error_code == 35 and 18 in {each.api_key for each in told.api_keys}
    for name in ("", "-x", "a b", "x" * 5 + "-"):
        odd = ApiVersionsRequest(client_software_name=name, client_software_version="1")
        assert (await client.ask(odd, 4, ApiVersionsResponse)).error_code == 42


@run_by(run, "tmp_path")
async def test_stopping_broker_replies_to_waiting_requests(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client, idle = await site.client(), await site.client()
    await idle.ask(HELLO, 3, ApiVersionsResponse)
    await client.send(client.frame(fetch((replica, 0), wait_ms=LONG_MS), 12))
    await wait_until(lambda: site.server.pending_requests == 1)
    closing = asyncio.create_task(site.server.close())
    answer = await client.receive(FetchResponse, 12, 0)
    assert answer.responses[0].partitions[0].error_code == 0
    assert await client.read_to_end() == await idle.read_to_end() == b""
    await closing
    with pytest.raises(ConnectionError):
        await site.client()


@run_by(run, "tmp_path")
async def test_concurrent_clients_all_get_replies_after_some_left(site: KafkaBroker) -> None:
    """There are more replies than fit into one write, so that some wait for the end of the turn; some clients are gone
    by then."""
    replica = await site.create("t")
    clients = [await site.client() for _ in range(40)]
    for round_ in range(3):
        for client in clients:
            await client.send(client.frame(produce(replica, b"%d" % round_), 9))
        for client in clients:
            answer = await client.receive(ProduceResponse, 9, round_)
            assert answer.responses[0].partition_responses[0].error_code == 0
    for client in clients:
        await client.send(client.frame(produce(replica, b"last"), 9))
    for client in clients[::2]:
        client.close()
    for client in clients[1::2]:
        await client.receive(ProduceResponse, 9, 3)
    assert replica.high_watermark >= 140
