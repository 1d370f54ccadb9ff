"""Tests of frames that are announced and never sent, and of idle connections."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.e2e.kafka_site import batch
from tests.hostile.target import AttackedBroker, attacked_broker, scale
from tests.hostile.test_records import produce
from tiered_api.kafka.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic

PRODUCE_HEAD = bytes.fromhex("0000 0009 00000001 ffff")


def test_announced_frames_do_not_take_the_memory_of_others(tmp_path: Path) -> None:
    async def scenario(to: AttackedBroker) -> None:
        await to.create(CreatableTopic("t", 1, 1))
        async with to.attack("announced frames", memory=280):
            for host in range(2, 5):
                for _ in range(scale(40, 480)):
                    client = await to.client(f"127.0.0.{host}")
                    client.writer.write((100_000_000).to_bytes(4, "big") + PRODUCE_HEAD + bytes(41_000))
            honest = await to.client("127.0.0.9")
            begun = time.monotonic()
            assert await produce(honest, "t", (0, batch([bytes(200_000)]))) == [0]
            assert time.monotonic() - begun < scale(60, 10)

    with attacked_broker(tmp_path / "data") as to:
        asyncio.run(scenario(to))


def test_idle_connections_leave_room_for_others(tmp_path: Path) -> None:
    async def scenario(to: AttackedBroker) -> None:
        places = scale(60, 1_000)
        async with to.attack("idle connections", memory=80):
            for n in range(places + 20):
                await to.client(f"127.0.0.{2 + n % 4}")
            await asyncio.sleep(1.5)  # only who idles for a second gives way
            for host in range(20, 25):
                late = await to.client(f"127.0.0.{host}")
                answer = await late.ask(ApiVersionsRequest("a", "1"), 3, ApiVersionsResponse)
                assert answer.error_code == 0
            streams = [await asyncio.open_connection(*_http(to)) for _ in range(scale(60, 1_100))]
            assert to.served.ask("GET", "/healthz")[0] == 200
            for _, writer in streams:
                writer.close()

    places = scale(60, 1_000)
    settings = {"max_connections": places, "max_connections_per_ip": places, "tiered_http_connections_max": places}
    with attacked_broker(tmp_path / "data", **settings) as to:
        asyncio.run(scenario(to))


def _http(to: AttackedBroker) -> tuple[str, int]:
    host, port = to.served.url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)
