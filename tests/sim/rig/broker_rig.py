"""Rig of a bucket, a machine and its broker, in virtual time, with records to send through it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.sim.harness.clock import SimRng
from tests.sim.harness.durable_logs import judged_disks
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tiered.broker.broker import Broker
from tiered.cold.manifest import FAN
from tiered.config.settings import Settings
from tiered.controller.requests import CreateTopic
from tiered.metrics import Metrics
from tiered.ports import FileSlice
from tiered.records.batch import decode_records, encode_batch
from tiered.records.native import walk
from tiered.replication.leader_replica import LeaderReplica

QUICK = Settings(
    num_partitions=1,
    tiered_internal_configs_enable=True,
    log_retention_check_interval_ms=1_000,
    remote_log_manager_task_interval_ms=2_000,
    tiered_object_delete_delay_ms=5_000,
    tiered_topic_delete_delay_ms=60_000,
)
SMALL = {"internal.segment.bytes": "4096", "retention.ms": "-1"}


class SimBrokerRig:
    """A bucket, a machine, and the broker that runs there now."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.bucket = SimBucket(loop)
        self.network = SimNetwork(loop, SimRng(f"{loop.seed}/net").stream("net"))
        self.machine = SimMachine(loop, "one", self.bucket, self.network)
        self.broker = self._ended = self._new_broker(QUICK)

    def _new_broker(self, settings: Settings, fan: int = FAN) -> Broker:
        return Broker(settings, self.machine.process(), Metrics(), manifest_fan=fan)

    async def start(self, settings: Settings = QUICK, *, fan: int = FAN) -> Broker:
        self.broker = self._new_broker(settings, fan)
        await self.broker.start()
        return self.broker

    @property
    def is_up(self) -> bool:
        """True if the broker was not stopped, and did not crash."""
        return self.broker is not self._ended

    async def stop(self) -> None:
        self._ended = self.broker
        await self.broker.stop()

    async def crash(self, how: Callable[[], None]) -> None:
        """Crashes the broker by a method `how` of the machine: its ports are revoked before its tasks end."""
        how()
        self._ended = self.broker
        await self.broker.stop(clean=False)

    async def create(self, name: str = "t", partitions: int = 1, **configs: str) -> LeaderReplica:
        dotted = {key.replace("_", "."): value for key, value in configs.items()}
        await self.broker.submit(CreateTopic(name, partitions, configs=dotted or SMALL))
        return self.broker.leader_replica(name, 0)

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Lets virtual time pass until the condition holds."""
        deadline = self.loop.now_ns + int(seconds * 1e9)
        while not condition():
            assert self.loop.now_ns < deadline, f"not within {seconds} s: {self.broker.health()}"
            await asyncio.sleep(0.1)


def run(scenario: Callable[[SimBrokerRig], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Runs a scenario on a new rig. A broker that is up at its end is stopped."""
    loop = SimLoop(seed, seconds_max=100_000)

    async def main() -> None:
        rig = SimBrokerRig(loop)
        await scenario(rig)
        if rig.is_up:
            await rig.stop()

    with judged_disks():
        loop.run(main())


def batch(values: list[bytes], timestamp: int = 1_700_000_000_000) -> bytearray:
    return bytearray(encode_batch([(timestamp + i, b"k", value, ()) for i, value in enumerate(values)]))


async def fill(replica: LeaderReplica, count: int, start: int = 0) -> None:
    """Appends `count` records of about 1 KiB in one batch each; the value begins with the number of the record."""
    for number in range(start, start + count):
        await replica.append(batch([b"%06d" % number + b"x" * 1000]))


async def read_values(replica: LeaderReplica, start: int, *, max_bytes: int = 3000) -> list[bytes]:
    """Returns the first bytes of every record from `start` to the end, read as a consumer does."""
    found: list[bytes] = []
    offset = start
    while offset < replica.high_watermark:
        fetched = await replica.reads.read(offset, max_bytes)
        data = fetched.data
        if isinstance(data, FileSlice):
            data = data.file.pread(data.start, data.length)
        walked = walk(data)
        assert walked.why == "" and walked.batches, (offset, walked)
        for each in walked.batches:
            found += [
                (record.value or b"")[:6] for record in decode_records(data, each.position) if record.offset >= offset
            ]
        offset = walked.batches[-1].last_offset + 1
    return found


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, end)]
