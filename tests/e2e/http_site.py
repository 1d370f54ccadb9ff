"""A whole broker with its HTTP listener in this process, and clients over real sockets."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from tests.passwords import check_reply
from tests.sim.settings import FEW_LOGS
from tiered.broker.broker import Broker
from tiered.broker.real_world import real_world
from tiered.config.settings import Settings
from tiered.controller.requests import CreateTopic
from tiered.metrics import Metrics
from tiered.ports import World
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.server.server import HttpServer, serve_http

JSON = "application/json"
RAW = "application/octet-stream"
TEST_SECONDS = 240.0
"""Deadline of a test. A test waits for events, so that the deadline only ends one that hangs, also on a busy
machine."""


class HttpReply(NamedTuple):
    """Status, headers and body of a reply."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpBroker:
    """A running broker as a client sees it."""

    def __init__(self, broker: Broker, http: HttpServer, session: aiohttp.ClientSession) -> None:
        self.broker = broker
        self.http = http
        self.url = http.url
        self.session = session
        self.cluster = f"/v3/clusters/{broker.cluster_id}"

    async def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = JSON, accept: str = "", **headers: str
    ) -> HttpReply:
        """Sends one request. `body` is bytes or a value for JSON. Only a POST has a content type without a body,
        too."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if accept:
            sent["Accept"] = accept
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if kind and (data is not None or method == "POST"):
            sent["Content-Type"] = kind
        stream = io.BytesIO(data) if data is not None and len(data) > 1 << 20 else data
        async with self.session.request(method, self.url + path, data=stream, headers=sent) as response:
            reply = HttpReply(response.status, dict(response.headers), await response.read())
        check_reply(reply.body)
        return reply

    async def get(self, path: str, accept: str = "") -> HttpReply:
        return await self.ask("GET", path, accept=accept)

    async def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """Creates a topic, without HTTP."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        await self.broker.submit(CreateTopic(topic, partitions, configs=named))

    async def produce(self, topic: str, *values: str, partition: int = 0) -> None:
        """Produces text records in one batch."""
        entries = [
            {"id": str(n), "partition_id": partition, "value": {"type": "STRING", "data": value}}
            for n, value in enumerate(values)
        ]
        answer = await self.ask("POST", f"{self.cluster}/topics/{topic}/records:batch", {"entries": entries})
        assert answer.status == 207 and not answer.json["failures"], answer

    async def raw(self, data: bytes) -> bytes:
        """Sends bytes on a connection of their own; returns all bytes until the broker closes it."""
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            await writer.drain()
            async with asyncio.timeout(TEST_SECONDS):
                return await reader.read()
        finally:
            writer.close()


@asynccontextmanager
async def http_broker(
    directory: Path, limits: HttpLimits | None = None, ports: Callable[[World], World] | None = None, **settings: Any
) -> AsyncIterator[HttpBroker]:
    """Yields a broker on `directory`, and stops it cleanly at the end. `ports` may replace the real ports."""
    directory.mkdir(parents=True, exist_ok=True)
    given = {"data_dir": str(directory), "http": "127.0.0.1:0", "tiered_internal_configs_enable": True}
    chosen = Settings(**{**FEW_LOGS, **given, **settings})
    world = real_world(chosen)
    node = Broker(chosen, ports(world) if ports else world, Metrics())
    try:
        await node.start()
        server = await serve_http(node, "127.0.0.1", 0, limits=limits)
        try:
            async with aiohttp.ClientSession(auto_decompress=False) as session:
                yield HttpBroker(node, server, session)
        finally:
            await server.close()
    finally:
        await node.stop()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until the condition holds; the test's own deadline ends the wait."""
    while not condition():
        await asyncio.sleep(0.002)


def run(
    directory: Path, scenario: Callable[[HttpBroker], Awaitable[None]], limits: HttpLimits | None = None, **given: Any
) -> None:
    """Runs a scenario on a new broker."""

    async def run_all() -> None:
        async with asyncio.timeout(TEST_SECONDS), http_broker(directory, limits, **given) as running:
            await scenario(running)

    asyncio.run(run_all())
