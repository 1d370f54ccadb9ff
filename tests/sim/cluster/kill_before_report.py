"""Kills a broker between a start that found missing records and its report of them: the next start must suspect the
same logs again, and report the loss. Such moments are short, so the run looks for them."""

from __future__ import annotations

import asyncio
import random

from tests.sim.cluster.world import SimHost, SimWorld

ENABLED_SHARE = 0.25
"""Share of the runs in which this happens."""
MEAN_SECONDS = 5.0
LOOK_SECONDS = 0.005
LOOKS_MAX = 600
KILL_DELAY_SECONDS = (0.0, 0.01, 0.1)
DOWN_SECONDS = (0.01, 0.5)


class KillBeforeReport:
    """Cuts the power of brokers, and kills them while they have losses to report, until it is cancelled. It draws from
    its own random stream; `count` has the number of kills."""

    def __init__(self, seed: int, world: SimWorld) -> None:
        self.count = 0
        self._rng = random.Random(f"{seed}/untold")
        self._world = world
        self.is_enabled = self._rng.random() < ENABLED_SHARE

    async def work(self) -> None:
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / MEAN_SECONDS))
            hosts = [host for host in self._world.hosts.values() if host.idle and not host.frozen and host.up]
            if hosts:
                await self._cut_power(self._rng.choice(hosts), full=self._rng.random() < 0.6)

    async def _cut_power(self, host: SimHost, *, full: bool) -> None:
        """Cuts the power of a broker. If its disk is full meanwhile, the next start leaves logs closed."""
        await host.end("power")
        if full:
            host.limit_disk(1)
        try:
            host.power_on()
            if await self._has_losses_to_report(host, full=full):
                await asyncio.sleep(self._rng.choice(KILL_DELAY_SECONDS))
                await self._kill(host)
        finally:
            if full:
                host.limit_disk(None)

    async def _has_losses_to_report(self, host: SimHost, *, full: bool) -> bool:
        """True if the broker soon has losses to report; with a full disk, once it serves."""
        for _ in range(LOOKS_MAX):
            await asyncio.sleep(LOOK_SECONDS)
            if not host.idle or host.frozen:
                return False
            if host.latest_node is not None and (host.up or not full):
                losses = host.latest_node.losses
                has_unchecked_logs = host.latest_node.hosted_replicas.log_store.has_unchecked_logs
                if has_unchecked_logs or losses.suspect_partitions or losses.unreported:
                    return True
        return False

    async def _kill(self, host: SimHost) -> None:
        if host.idle and not host.frozen:
            self.count += 1
            self._world.events.add(f"{host.name} dies before it could tell what is lost")
            await host.end("kill")
            await asyncio.sleep(self._rng.choice(DOWN_SECONDS))
            host.power_on()
