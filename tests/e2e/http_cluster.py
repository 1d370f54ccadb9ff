"""Three brokers on one bucket with HTTP and Kafka listeners, in this process and over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.http_site import TEST_SECONDS, HttpBroker, HttpReply, wait_until
from tests.sim.settings import SETTINGS
from tiered.broker.broker import Broker
from tiered.broker.real_world import real_world
from tiered.config.listeners import Endpoint
from tiered.controller.requests import CreateTopic
from tiered.metrics import Metrics
from tiered_api.http.exchange.limits import HttpLimits
from tiered_api.http.server.server import serve_http
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

PLAINTEXT = "PLAINTEXT"


class ClusterBroker(HttpBroker):
    """One of the three brokers, as a client sees it."""

    kafka: KafkaServer

    @property
    def number(self) -> int:
        return self.broker.settings.node_id

    async def end(self, *, clean: bool) -> None:
        """Stops the broker cleanly, or ends it without a message to the others."""
        if clean:
            await self.broker.hand_over()
        await self.kafka.close()
        await self.http.close()
        await self.broker.stop(clean=clean)


class HttpCluster:
    """The brokers by their numbers."""

    def __init__(self) -> None:
        self.brokers: dict[int, ClusterBroker] = {}

    def __getitem__(self, number: int) -> ClusterBroker:
        return self.brokers[number]

    @property
    def url(self) -> str:
        """Returns the base URL of REST v3 at any broker."""
        return self.brokers[1].cluster

    async def end(self, number: int, *, clean: bool = False) -> None:
        await self.brokers.pop(number).end(clean=clean)

    async def create(self, topic: str, *assignments: Sequence[int], **configs: str) -> None:
        """Creates a topic with its partitions on these brokers; the first of each list leads."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        await self.brokers[1].broker.submit(CreateTopic(topic, assignments=assignments, configs=named))

    async def get_from_all(self, path: str, accept: str = "") -> HttpReply:
        """Returns the reply that all brokers give; it may differ in their own address in links only."""
        answers = {}
        for number, broker in self.brokers.items():
            got = await broker.get(path, accept)
            own = broker.url.removeprefix("http://").encode()
            answers[number] = got._replace(body=got.body.replace(own, b"HOST"))
        [first, *others] = answers.values()
        for other in others:
            assert (other.status, other.body) == (first.status, first.body), (path, answers)
        return first

    def is_known_by_all(self, condition: Callable[[Broker], bool]) -> bool:
        """True if the condition holds at every broker."""
        return all(condition(each.broker) for each in self.brokers.values())


@asynccontextmanager
async def http_cluster(
    directory: Path, numbers: Sequence[int] = (1, 2, 3), **settings: Any
) -> AsyncIterator[HttpCluster]:
    """Yields three ready brokers that know each other. Stops the remaining ones at the end."""
    (directory / "bucket").mkdir(parents=True)
    made = HttpCluster()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        for number in numbers:
            made.brokers[number] = await _broker(directory, number, session, settings)
            stack.push_async_callback(_end, made, number)
        await wait_until(lambda: made.is_known_by_all(lambda node: _count_addresses(node) == len(numbers)))
        yield made


def _count_addresses(node: Broker) -> int:
    return sum(each.live and bool(each.http) for each in node.image.brokers.values())


async def _end(made: HttpCluster, number: int) -> None:
    if number in made.brokers:
        await made.end(number)


async def _broker(
    directory: Path, number: int, session: aiohttp.ClientSession, settings: dict[str, Any]
) -> ClusterBroker:
    home = directory / f"broker-{number}"
    home.mkdir()
    chosen = replace(
        SETTINGS, node_id=number, data_dir=str(home), store=f"file://{directory}/bucket", http="127.0.0.1:0", **settings
    )
    world = real_world(chosen)
    node = Broker(chosen, world, Metrics(), peers=KafkaPeers(world.net))
    await node.start()
    http = await serve_http(node, "127.0.0.1", 0, limits=HttpLimits(append_ms=15_000, leader_lookup_seconds=3))
    broker = ClusterBroker(node, http, session)
    broker.kafka = await serve_kafka(node, {PLAINTEXT: Endpoint(PLAINTEXT, "127.0.0.1", 0)})
    told = {name: each.address for name, each in broker.kafka.addresses.items()}
    await node.announce(http.url.removeprefix("http://"), told)
    return broker


def run(directory: Path, scenario: Callable[[HttpCluster], Awaitable[None]], **settings: Any) -> None:
    """Runs a scenario on a new cluster."""

    async def run_all() -> None:
        async with asyncio.timeout(TEST_SECONDS), http_cluster(directory, **settings) as running:
            await scenario(running)

    asyncio.run(run_all())
