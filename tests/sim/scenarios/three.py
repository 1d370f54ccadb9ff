"""Rig of three brokers on one bucket that start together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tests.sim.harness.durable_logs import judged_disks
from tests.sim.harness.loop import SimLoop, process_context
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tests.sim.settings import SETTINGS
from tiered.broker.broker import Broker
from tiered.config.listeners import Endpoint
from tiered.errors import Refused, Unavailable
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.object_store.encrypted import EncryptedStore
from tiered.object_store.key_file import KeyFile
from tiered_api.kafka.client.peers import KafkaPeers
from tiered_api.kafka.server.server import KafkaServer, serve_kafka

PORT = 9092
SESSION = SETTINGS.broker_session_timeout_ms / 1000
SUSPECT = SESSION / 3
"""The suspect timeout, which is a third of the session timeout by default."""


QUIET: dict[str, Any] = {
    "replica_fetch_wait_max_ms": 5_000,
    "tiered_broker_suspect_timeout_ms": SETTINGS.broker_session_timeout_ms,
}
"""Settings of scenarios that pass minutes of virtual time, in which brokers then ask each other less often: a second
costs a fifth. How soon brokers suspect others has scenarios of its own, in `test_hanging_brokers.py`."""


class SimBroker:
    """One machine, and the process on it."""

    def __init__(self, loop: SimLoop, node_id: int, bucket: SimBucket, network: SimNetwork) -> None:
        self.loop = loop
        self.node_id = node_id
        self.name = f"b{node_id}"
        self.advertised = f"{self.name}:{PORT}"
        self.machine = SimMachine(loop, self.name, bucket, network)
        self.lives = 0
        self.overrides: dict[str, Any] = {}
        self.key_file = ""
        """Path of the keys of the bucket; "" without encryption."""
        self.node: Broker
        self.server: KafkaServer

    @property
    def process(self) -> str:
        return f"{self.name}.{self.lives}"

    async def start(self) -> None:
        self.lives += 1
        await self.loop.create_task(self._start(), name=self.process, context=process_context(self.process))

    async def _start(self) -> None:
        world = self.machine.process()
        if self.key_file:
            world = replace(world, store=EncryptedStore(world.store, KeyFile(self.key_file, world.clock)))
        self.node = Broker(
            replace(SETTINGS, node_id=self.node_id, **self.overrides), world, Metrics(), peers=KafkaPeers(world.net)
        )
        await self.node.start()
        self.server = await serve_kafka(self.node, {"PLAINTEXT": Endpoint("PLAINTEXT", "0.0.0.0", PORT)})
        await self.node.announce("", {"PLAINTEXT": self.advertised})

    async def kill(self) -> None:
        self.machine.kill()
        await self.clear()

    async def clear(self) -> None:
        """Removes the rest of a process that has ended."""
        for task in self.loop.tasks_of(self.process):
            task.cancel()
        await asyncio.sleep(0)
        with suppress(Refused, Unavailable):
            await self.node.stop(clean=False)
        self.loop.end_process(self.process)

    async def stop(self) -> None:
        await self.node.hand_over()
        await self.server.close()
        await self.node.stop()
        self.machine.kill()


class ThreeBrokers:
    """Three brokers and their shared `bucket`."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.bucket = SimBucket(loop)
        self.network = SimNetwork(loop, random.Random(f"{loop.seed}/net"))
        self.brokers = {i: SimBroker(loop, i, self.bucket, self.network) for i in (1, 2, 3)}

    @property
    def now(self) -> float:
        return self.loop.now_ns / 1e9

    def controller_ids(self) -> list[int]:
        """Returns the brokers that consider themselves the controller."""
        return [i for i, each in self.brokers.items() if each.node.cluster.active_controller is not None]

    def newest_image(self) -> Image:
        """Returns the newest image that any broker has."""
        return max((each.node.image for each in self.brokers.values()), key=lambda image: image.slot)

    @property
    def controller(self) -> SimBroker:
        (one,) = self.controller_ids()
        return self.brokers[one]

    def others(self) -> list[SimBroker]:
        return [each for each in self.brokers.values() if each.node.cluster.active_controller is None]

    async def wait_until(self, condition: Callable[[], bool], seconds: float) -> float:
        """Waits until the condition holds; returns the seconds."""
        start = self.now
        while not condition():
            assert self.now - start < seconds, "not in time"
            await asyncio.sleep(0.01)
        return self.now - start

    async def start(self) -> None:
        await asyncio.gather(*(each.start() for each in self.brokers.values()))
        await self.wait_until(self.is_everyone_known, 5)

    def is_everyone_known(self) -> bool:
        """True if every broker knows the address of every other broker."""
        return all(
            len([known for known in each.node.image.brokers.values() if known.live and known.listeners]) == 3
            for each in self.brokers.values()
        )


def run_scenario(scenario: Callable[[ThreeBrokers], Awaitable[None]], seed: int = 1, **settings: Any) -> None:
    def prepare(each: SimBroker) -> None:
        each.overrides |= settings

    run_prepared(scenario, prepare, seed)


def run_prepared(
    scenario: Callable[[ThreeBrokers], Awaitable[None]], prepare: Callable[[SimBroker], None], seed: int = 1
) -> None:
    """Runs a scenario after `prepare` was called with each broker, which has not started."""
    loop = SimLoop(seed, seconds_max=10_000)

    async def run_all() -> None:
        three = ThreeBrokers(loop)
        for each in three.brokers.values():
            prepare(each)
        await three.start()
        await scenario(three)
        for each in three.brokers.values():
            each.machine.kill()
            await each.clear()

    with judged_disks():
        loop.run(run_all())
