"""Tests of the limits of one client, and of all clients together, over the Kafka protocol; and of hostile frames."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.kafka_site import KafkaBroker, RawClient, batch, fetch, produce, run, wait_until
from tests.scenario import run_by
from tests.seeds import first_seeds
from tiered.controller.requests import CreateTopic, CreateTopics
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tiered_api.kafka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tiered_api.kafka.protocol.messages.metadata import MetadataRequest
from tiered_api.kafka.protocol.messages.produce import ProduceResponse
from tiered_api.kafka.server import server
from tiered_api.kafka.server.fetch import parking
from tiered_api.kafka.server.slots.latencies import FOLLOWER_FETCH

HELLO = ApiVersionsRequest(client_software_name="test", client_software_version="1.0")
MIB = 1 << 20


async def hello(client: RawClient) -> int:
    return (await client.ask(HELLO, 3, ApiVersionsResponse)).error_code


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"max_connections": 3}, "too_many"), ({"max_connections_per_ip": 3}, "too_many_of_one")],
    ids=["in all", "of one address"],
)
def test_connections_are_bounded_and_closed_ones_make_room(
    tmp_path: Path, settings: dict[str, int], reason: str
) -> None:
    async def scenario(site: KafkaBroker) -> None:
        clients = [await site.client() for _ in range(3)]
        assert [await hello(client) for client in clients] == [0, 0, 0]
        turned_away = await site.client()
        assert await turned_away.read_to_end() == b""
        assert site.count_refusals(reason) == 1
        clients[0].close()
        await wait_until(lambda: len(site.server.connections) == 2)
        assert await hello(await site.client()) == 0

    run(tmp_path, scenario, ports=None, **settings)


@run_by(run, "tmp_path", max_connections=6)
async def test_address_with_few_connections_replaces_an_idle_one(
    site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise idle connections of a few addresses would shut out clients, brokers and operators."""
    replica = await site.create("t")
    crowd = [await site.client() for _ in range(6)]
    assert [await hello(client) for client in crowd] == [0] * 6
    await crowd[0].send(crowd[0].frame(fetch((replica, 0), wait_ms=60_000), 12))
    early = await site.client("127.0.0.2")
    assert await early.read_to_end() == b"", "nobody is idle yet"
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.0)
    await wait_until(
        lambda: all(site.server.now - each.last_activity > 0 for each in site.server.connections if not each.pending)
    )
    for number in range(3):
        assert await hello(await site.client(f"127.0.0.{3 + number}")) == 0
    assert site.count_refusals("crowded_out") == 3 and site.count_refusals("too_many") == 1
    assert site.server.pending_requests == 1, "who waits for an answer is not idle"
    turned_away = await site.client()
    assert await turned_away.read_to_end() == b"", "it has as many as anybody"


def test_address_with_few_connections_replaces_the_longest_waiting_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting fetches of a few addresses excluded all other clients."""
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.0)

    async def scenario(site: KafkaBroker) -> None:
        replica = await site.create("t")
        crowd: list[RawClient] = []
        for number in range(8):
            crowd.append(await site.client(f"127.0.0.{2 + number % 2}"))
            await crowd[-1].send(crowd[-1].frame(fetch((replica, 0), wait_ms=60_000), 12))
            await wait_until(lambda: site.server.pending_requests == len(crowd))
        others = []
        for number in range(4):
            others.append(await site.client(f"127.0.0.{10 + number}"))
            assert await hello(others[-1]) == 0
            await others[-1].send(others[-1].frame(fetch((replica, 0), wait_ms=60_000), 12))
            await wait_until(lambda: site.server.pending_requests == 8)
        assert [await client.read_to_end() for client in crowd[:4]] == [b""] * 4, "these waited longest"
        assert site.count_refusals("crowded_out") == 4 and site.count_refusals("too_many") == 0
        turned_away = await site.client("127.0.0.10")
        assert await turned_away.read_to_end() == b"", "no address has two connections more"
        assert site.count_refusals("too_many") == 1

    run(tmp_path, scenario, max_connections=8)


def test_waiting_connection_of_a_broker_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.0)

    async def scenario(site: KafkaBroker) -> None:
        replica = await site.create("t")
        crowd = [await site.client() for _ in range(3)]
        for client in crowd:
            await client.send(client.frame(fetch((replica, 0), wait_ms=60_000), 12))
        await wait_until(lambda: site.server.pending_requests == 3)
        for connection in site.server.connections:
            connection.oldest_slot.api_key = FOLLOWER_FETCH
        late = await site.client("127.0.0.2")
        assert await late.read_to_end() == b""
        assert site.count_refusals("too_many") == 1 and site.server.pending_requests == 3

    run(tmp_path, scenario, max_connections=3)


def test_connection_without_a_request_is_closed_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(server, "SWEEP_SECONDS", 0.05)

    async def scenario(site: KafkaBroker) -> None:
        silent, asks = await site.client(), await site.client()
        assert await hello(asks) == 0
        assert await silent.read_to_end() == b""
        assert site.count_refusals("idle") == 1
        assert await hello(asks) == 0

    run(tmp_path, scenario)


@run_by(run, "tmp_path", queued_max_request_bytes=4 * MIB)
async def test_stalled_frames_make_room_for_others(site: KafkaBroker, *, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, clients that announced much and sent little held all memory of frames for half a minute."""
    replica = await site.create("t")
    for number in range(40):
        client = await site.client(f"127.0.0.{2 + number % 4}")
        await client.send(struct.pack(">ihhih", 8 * MIB, 0, 9, 1, -1) + bytes(70_000))
    await wait_until(lambda: site.server.buffers.free_bytes < 0 and site.server.buffers.has_waiting)
    honest = await site.client()
    answer = await honest.ask(produce(replica, b"x" * 900_000), 9, ProduceResponse)
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert site.count_refusals("stalled_frame") > 0


@run_by(run, "tmp_path", max_connection_creation_rate=2, tiered_frame_timeout_ms=400)
async def test_too_fast_connections_are_served_later(site: KafkaBroker) -> None:
    clients = [await site.client() for _ in range(6)]
    assert [await hello(client) for client in clients] == [0] * 6
    assert site.count_refusals("delayed") >= 2


@run_by(run, "tmp_path", connections_max_idle_ms=200)
async def test_idle_connection_is_closed_and_a_waiting_one_is_not(
    site: KafkaBroker, *, caplog: pytest.LogCaptureFixture
) -> None:
    replica = await site.create("t")
    idle, waiting = await site.client(), await site.client()
    await waiting.send(waiting.frame(fetch((replica, 0), wait_ms=20_000), 12))
    await hello(idle)
    assert await idle.read_to_end() == b""
    assert site.count_refusals("idle") == 1 and site.server.pending_requests == 1
    assert "idle" not in caplog.text, "that is no refusal"


@pytest.mark.parametrize("sent", [1, 3, 4, 9, 20, 40_000, 400_000])
@run_by(run, "tmp_path", tiered_frame_timeout_ms=200)
async def test_unfinished_frame_times_out(site: KafkaBroker, *, sent: int) -> None:
    replica = await site.create("t")
    client, other = await site.client(), await site.client()
    value = b"x" * (900_000 if sent > 1000 else 10)
    await client.send(client.frame(produce(replica, value), 9)[:sent])
    assert await client.read_to_end() == b""
    assert site.count_refusals("slow_frame") == 1
    assert site.server.buffers.free_bytes == site.broker.settings.queued_max_request_bytes
    assert await hello(other) == 0


@run_by(run, "tmp_path", tiered_frame_timeout_ms=300)
async def test_client_that_reads_nothing_is_disconnected(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    for _ in range(8):
        await client.ask(produce(replica, b"x" * 900_000), 9, ProduceResponse)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(*(client.frame(fetch((replica, 0), each_bytes=8_000_000), 12) for _ in range(3)))
    await wait_until(lambda: site.count_refusals("slow_reader") == 1)
    await wait_until(lambda: not site.server.connections)


@run_by(run, "tmp_path", queued_max_request_bytes=100_000)
async def test_unread_replies_are_bounded_over_all_connections(site: KafkaBroker) -> None:
    # Long names make a long answer: 100 KB of 400 partitions, which are made soon on a busy machine too.
    await site.broker.submit(CreateTopics(tuple(CreateTopic("a" * 240 + str(n), 1) for n in range(400))))
    clients = [await site.client() for _ in range(30)]
    for client in clients:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(b"".join(client.frame(MetadataRequest(topics=None), 9) for _ in range(60)))
    await wait_until(lambda: site.count_refusals("unsent") > 0)
    assert site.server.unsent_bytes <= 100_000
    for client in clients:
        client.close()
    await wait_until(lambda: site.server.unsent_bytes == 0 == len(site.server.connections))


def fetch_absent(partitions: int) -> FetchRequest:
    """Returns a fetch of a topic that is not there. Its reply comes at once, with an error for each partition."""
    return FetchRequest(
        max_wait_ms=0, topics=[FetchTopic("absent", partitions=list(map(FetchPartition, range(partitions))))]
    )


@run_by(run, "tmp_path", queued_max_request_bytes=100_000)
async def test_replies_behind_a_waiting_fetch_are_bounded_over_all_connections(site: KafkaBroker) -> None:
    """Once, only the replies that the socket did not take counted. Only a Fetch is served behind a waiting one."""
    replica = await site.create("t")
    clients = [await site.client() for _ in range(10)]
    for client in clients:
        await client.send(
            client.frame(fetch((replica, 0), wait_ms=60_000), 12),
            *(client.frame(fetch_absent(500), 12) for _ in range(4)),
        )
    await wait_until(lambda: site.count_refusals("unsent") > 0)
    assert site.server.unsent_bytes <= 100_000
    for client in clients:
        client.close()
    await wait_until(lambda: site.server.unsent_bytes == 0 == len(site.server.connections))


@run_by(run, "tmp_path")
async def test_replies_behind_a_waiting_fetch_leave_in_order_and_count_no_more(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client, writer = await site.client(), await site.client()
    waiting = client.frame(fetch((replica, 0), wait_ms=60_000), 12)
    await client.send(waiting, *(client.frame(fetch_absent(1), 12) for _ in range(4)))
    await wait_until(lambda: site.server.unsent_bytes > 0 and site.server.pending_requests == 5)
    await writer.ask(produce(replica, b"x"), 9, ProduceResponse)
    assert len((await client.receive(FetchResponse, 12, 0)).responses) == 1
    for number in range(1, 5):
        assert len((await client.receive(FetchResponse, 12, number)).responses) == 1
    assert site.server.unsent_bytes == site.server.pending_requests == 0
    assert await hello(client) == 0


@run_by(run, "tmp_path")
async def test_unread_replies_of_one_client_end_no_connection_of_another(site: KafkaBroker) -> None:
    """Once, the connection whose reply came last was closed, whoever held the memory."""

    async def ask_unread(address: str, topics: int, times: int) -> RawClient:
        """Asks for the settings of topics that are not made, a KB for each, and reads no reply."""
        client = await site.client(address)
        named = [CreatableTopic(f"t{number}", 1, 1) for number in range(topics)]
        request = CreateTopicsRequest(named, 60_000, validate_only=True)
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.writer.write(b"".join(client.frame(request, 7) for _ in range(times)))
        return client

    for _ in range(3):
        await ask_unread("127.0.0.2", 300, 50)
    await wait_until(lambda: site.server.unsent_bytes > 10_000)
    site.server.unsent_bytes_max = site.server.unsent_bytes
    other = await ask_unread("127.0.0.1", 5, 2500)
    await wait_until(lambda: site.count_refusals("unsent") > 0)
    other.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(2500):
        assert len(await other.read_reply()) > 5_000


@run_by(run, "tmp_path", tiered_frame_timeout_ms=200)
async def test_half_a_frame_behind_a_waiting_fetch_times_out(site: KafkaBroker) -> None:
    replica = await site.create("t")
    client = await site.client()
    await client.send(client.frame(fetch((replica, 0), wait_ms=20_000), 12), client.frame(HELLO, 3)[:9])
    assert await client.read_to_end() == b""
    assert site.count_refusals("slow_frame") == 1 and site.server.dispatch.fetch_handler.fetches.parked.partitions == 0


@run_by(run, "tmp_path", queued_max_request_bytes=2 * MIB)
async def test_large_frames_share_a_budget_and_all_complete(site: KafkaBroker) -> None:
    replica = await site.create("t")
    clients = [await site.client() for _ in range(8)]
    frames = [client.frame(produce(replica, b"%d" % n + b"x" * 900_000), 9) for n, client in enumerate(clients)]
    for part in range(10):  # all of them in turn, so that each holds what the others lack
        size = len(frames[0]) // 10 + 1
        for client, frame in zip(clients, frames, strict=True):
            client.writer.write(frame[part * size : (part + 1) * size])
        await asyncio.sleep(0.01)
    for client in clients:
        assert (await client.receive(ProduceResponse, 9)).responses[0].partition_responses[0].error_code == 0
    assert site.server.buffers.free_bytes == 2 * MIB


@run_by(run, "tmp_path")
async def test_announced_frame_takes_no_memory_before_its_bytes(site: KafkaBroker) -> None:
    clients = [await site.client() for _ in range(100)]
    before = resident()
    for client in clients:
        await client.send(struct.pack(">ihhih", 100 * MIB, 0, 9, 1, -1))
    await hello(await site.client())
    assert resident() - before < 60 * MIB


@run_by(run, "tmp_path")
async def test_large_request_of_another_api_is_refused(site: KafkaBroker) -> None:
    client = await site.client()
    topics = MetadataRequest(topics=None)
    frame = client.frame(topics, 9)[4:] + bytes(3 * MIB)
    await client.send(len(frame).to_bytes(4, "big") + frame)
    assert await client.read_to_end() == b""
    assert site.count_refusals("frame_size") == 1


def resident() -> int:
    """Returns the resident bytes of this process, after freed memory went back to the system."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@run_by(run, "tmp_path", max_connections_per_ip=3000, max_connection_creation_rate=10_000)
async def test_two_thousand_idle_connections_cost_little(site: KafkaBroker) -> None:
    """A measured connection takes 1.3 KiB besides the client's socket. The bound leaves room for the allocator."""
    host, port = site.address.rsplit(":", 1)
    before = resident()
    sockets: list[socket.socket] = []
    try:
        for n in range(2000):
            sockets.append(socket.create_connection((host, int(port))))
            if n % 50 == 49:
                await wait_until(lambda n=n: len(site.server.connections) == n + 1)  # type: ignore[misc]
        for each in sockets:
            each.sendall(RawClient(None, None).frame(HELLO, 3))  # type: ignore[arg-type]
        await wait_until(lambda: site.server.context.requests[18] == 2000)
        assert resident() - before < 40 * MIB
    finally:
        for each in sockets:
            each.close()
    await wait_until(lambda: not site.server.connections)


def mutate_frame(frame: bytes, rng: random.Random) -> bytes:
    """Returns a frame with some bytes changed, and mostly a right length."""
    body = bytearray(frame[4:])
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(body))
        how = rng.randrange(4)
        if how == 0:
            body[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif how == 1:
            del body[at : at + rng.randint(1, 8)]
            body = body or bytearray(1)
        elif how == 2:
            body[at:at] = rng.randbytes(rng.randint(1, 8))
        else:
            body[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0"))
    size = len(body) if rng.random() < 0.9 else rng.choice((0, 1, len(body) + 1, 2**31 - 1))
    return struct.pack(">i", size) + bytes(body)


async def outcome(client: RawClient, frames: Sequence[bytes]) -> None:
    """Returns the outcome: the broker replies, ends the connection, or waits for the rest of a frame with a wrong
    length."""
    try:
        await client.send(*frames)
        client.writer.write_eof()
        await client.read_to_end()
    except ConnectionError:
        pass
    finally:
        client.close()


@pytest.mark.parametrize("seed", first_seeds(2, 8))
@run_by(run, "tmp_path", tiered_frame_timeout_ms=1000)
async def test_hostile_frame_gets_a_reply_or_a_closed_connection(site: KafkaBroker, *, seed: int) -> None:
    chance = random.Random(seed)
    replica = await site.create("t", 2)
    honest = await site.client()
    maker = await site.client()
    good = [maker.frame(produce(replica, b"v" * 50), version) for version in range(3, 14)]
    good += [maker.frame(fetch((replica, 0), wait_ms=chance.choice((0, 5))), version) for version in range(4, 19)]
    good += [maker.frame(HELLO, 3), maker.frame(MetadataRequest(topics=None), 9)]
    before = resident()
    for round_ in range(12):
        batch_ = [
            outcome(
                await site.client(),
                [mutate_frame(chance.choice(good), chance) for _ in range(chance.randint(1, 5))],
            )
            for _ in range(20)
        ]
        await asyncio.gather(*batch_)
        assert await hello(honest) == 0, round_
    assert site.count_refusals("fault") == 0
    assert resident() - before < 30 * MIB
    await wait_until(lambda: len(site.server.connections) == 2)
    assert site.server.pending_requests == 0
    end = replica.log.end_offset
    answer = await honest.ask(produce(replica, raw=batch([b"after all"])), 9, ProduceResponse)
    assert answer.responses[0].partition_responses[0].base_offset == end


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\0\0\0\0", "a frame of 0 bytes"),
        (b"\xff\xff\xff\xff", "a frame of -1 bytes"),
        (b"\x7f\xff\xff\xff", "a frame of 2147483647 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", "it speaks TLS"),
    ],
)
def test_client_of_another_protocol_is_disconnected_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, words: str
) -> None:
    """The four bytes of the length are enough."""
    caplog.set_level("INFO")

    async def scenario(site: KafkaBroker) -> None:
        client = await site.client()
        await client.send(sent)
        assert await client.read_to_end() == b""

    run(tmp_path, scenario)
    assert words in caplog.text


@run_by(run, "tmp_path")
async def test_closed_connections_remove_listeners_in_turns_of_their_client(site: KafkaBroker) -> None:
    """Once, sixty connections with a fetch of 2,900 partitions each took 139 ms of one callback when they closed."""
    replica = await site.create("t")
    parked, listeners = site.server.dispatch.fetch_handler.fetches.parked, replica.reads._listeners
    for partitions in (parking.CLOSE_LISTENERS, 800, 2_900):
        client = await site.client()
        await client.send(client.frame(fetch(*[(replica, 0)] * partitions, wait_ms=60_000), 12))
    everything = parking.CLOSE_LISTENERS + 800 + 2_900
    await wait_until(lambda: len(listeners) == everything == parked.partitions)
    connections = list(site.server.connections)
    shares = [each.turn_share for each in connections]
    now = asyncio.get_running_loop().time()
    used = [share.used_seconds(now) for share in shares]
    for connection in connections:
        connection.close()
    assert everything - len(listeners) <= len(connections) * parking.CLOSE_LISTENERS
    assert not parked.fetches and parked.partitions == 800 + 2_900, "listeners take room until they are removed"
    await wait_until(lambda: not listeners and not parked.partitions)
    assert sum(share.used_seconds(now) > before for share, before in zip(shares, used, strict=True)) == 2


@run_by(run, "tmp_path")
async def test_reply_to_a_large_fetch_removes_its_listeners_in_pieces(site: KafkaBroker) -> None:
    replica = await site.create("t")
    parked, listeners = site.server.dispatch.fetch_handler.fetches.parked, replica.reads._listeners
    client = await site.client()
    await client.send(client.frame(fetch(*[(replica, 0)] * 2_900, wait_ms=60_000), 12))
    await wait_until(lambda: len(listeners) == 2_900)
    (delayed,) = parked.fetches
    slot = delayed.unpark()  # type: ignore[attr-defined]
    assert slot is not None and len(listeners) == 2_900 - parking.PIECE_LISTENERS
    await wait_until(lambda: not listeners and not parked.partitions)
