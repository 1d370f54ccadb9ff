"""Tests of floods of changes of metadata by a client with quotas: it waits, on however many connections."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from pathlib import Path

from tests.hostile.attacks import attack
from tests.hostile.target import AttackedBroker, scale, write_measured
from tiered.errors import Code
from tiered_api.kafka.protocol.messages.create_topics import CreatableTopic
from tiered_api.kafka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SECONDS = scale(2, 15)
RATE = 5
BURST = 11 * RATE
OWED = 100
CONNECTIONS = 16


class Flood:
    """Changes of a setting, as fast as the broker takes them."""

    def __init__(self, to: AttackedBroker, *, reconnects: bool) -> None:
        self._to = to
        self._reconnects = reconnects
        self._numbers = count(10**9)
        self.codes: list[int] = []
        self.pauses_ms = 0

    async def run(self, seconds: float) -> None:
        """Sends changes over sixteen connections for so long."""
        await asyncio.gather(*(self._send(time.monotonic() + seconds) for _ in range(CONNECTIONS)))

    async def _send(self, end: float) -> None:
        client = await self._to.client()
        while (left := end - time.monotonic()) > 0:
            resource = AlterConfigsResource(
                2, self._to.name("t"), [AlterableConfig("retention.ms", 0, str(next(self._numbers)))]
            )
            try:
                async with asyncio.timeout(left):
                    request = IncrementalAlterConfigsRequest([resource])
                    answer = await client.ask(request, 1, IncrementalAlterConfigsResponse)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                return  # an address has too many connections, whose pauses last
            self.codes.append(answer.responses[0].error_code)
            self.pauses_ms += answer.throttle_time_ms
            if self._reconnects and answer.throttle_time_ms:
                client.close()
                client = await self._to.client()


def cpu_seconds(pid: int) -> float:
    """Returns the time of all threads of a process."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / 100


async def flood_settings(to: AttackedBroker, name: str, *, reconnects: bool) -> Flood:
    flood, before = Flood(to, reconnects=reconnects), cpu_seconds(to.pid)
    async with to.attack(name, memory=40):
        await flood.run(SECONDS)
        while not (reconnects or flood.pauses_ms):  # a busy machine sends few changes in that time
            await flood.run(SECONDS)
    spent, made = cpu_seconds(to.pid) - before, flood.codes.count(0)
    write_measured({"attack": name, "changes": made, "pauses_ms": flood.pauses_ms, "cpu_seconds": round(spent, 2)})
    return flood


@attack()
async def test_flood_of_settings_is_slowed_to_the_rate_of_changes(to: AttackedBroker) -> None:
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    await to.limit("controller_mutation_rate", RATE)
    begun = time.monotonic()
    flood = await flood_settings(to, "settings on a few connections", reconnects=False)
    most = BURST + CONNECTIONS + RATE * (time.monotonic() - begun + 1)
    assert 0 < flood.codes.count(0) <= most and flood.pauses_ms > 0
    again = await flood_settings(to, "settings on many connections", reconnects=True)
    most = OWED + BURST + CONNECTIONS + RATE * (time.monotonic() - begun + 1)
    assert flood.codes.count(0) + again.codes.count(0) <= most
    assert set(again.codes) <= {0, Code.THROTTLING_QUOTA_EXCEEDED.number}


@attack()
async def test_flood_of_settings_pays_for_commits_and_images(to: AttackedBroker) -> None:
    """Without the time of commits, the flood would pay for the time of its requests alone.

    Three quarters of the CPU of a change are charged. The metadata log takes so few changes in a second that one client
    of this kind stays below larger shares, and `controller_mutation_rate` is what limits it.
    """
    await to.create(CreatableTopic(to.name("t"), 1, 1))
    await to.limit("request_percentage", 3)
    flood = await flood_settings(to, "settings by time", reconnects=False)
    assert flood.pauses_ms > 0
