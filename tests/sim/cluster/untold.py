"""A death between a start that found something missing and the telling of it: the next start must doubt the same logs
again, and tell it. Such moments are short, so they are looked for."""

from __future__ import annotations

import asyncio
import random

from tests.sim.cluster.world import Host, World

SHARE = 0.25
"""Of the runs."""
MEAN_SECONDS = 5.0
LOOK_SECONDS = 0.005
LOOKS = 600
LATER_SECONDS = (0.0, 0.01, 0.1)
DOWN_SECONDS = (0.01, 0.5)


class Untold:
    """Cuts the power of brokers, and kills them when they have losses to tell, until it is cancelled. Draws apart from
    all other troubles; `count` says how many had."""

    def __init__(self, seed: int, world: World) -> None:
        self.count = 0
        self._draw = random.Random(f"{seed}/untold")
        self._world = world
        self.wanted = self._draw.random() < SHARE

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self._draw.expovariate(1 / MEAN_SECONDS))
            hosts = [host for host in self._world.hosts.values() if host.idle and not host.frozen and host.up]
            if hosts:
                await self._hurt(self._draw.choice(hosts), full=self._draw.random() < 0.6)

    async def _hurt(self, host: Host, *, full: bool) -> None:
        """Where the disk is full meanwhile, logs stay closed that the next start opens."""
        await host.end("power")
        if full:
            host.machine.disk.capacity = 1
        try:
            host.power_on()
            if await self._has_to_tell(host, full=full):
                await asyncio.sleep(self._draw.choice(LATER_SECONDS))
                await self._kill(host)
        finally:
            if full:
                host.machine.disk.capacity = None

    async def _has_to_tell(self, host: Host, *, full: bool) -> bool:
        """Whether it comes to that soon; where the disk is full, once it serves."""
        for _ in range(LOOKS):
            await asyncio.sleep(LOOK_SECONDS)
            if not host.idle or host.frozen:
                return False
            if host.latest is not None and (host.up or not full):
                parts = host.latest.hosted_replicas
                if parts.has_unchecked_logs or parts.suspect_partitions or parts.unreported_losses:
                    return True
        return False

    async def _kill(self, host: Host) -> None:
        if host.idle and not host.frozen:
            self.count += 1
            self._world.story.tell(f"{host.name} dies before it could tell what is lost")
            await host.end("kill")
            await asyncio.sleep(self._draw.choice(DOWN_SECONDS))
            host.power_on()
