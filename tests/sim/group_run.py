"""One broker that coordinates groups, under all faults that a seed draws: deaths, lost disks, a faulty bucket, full
disks.

After each start the run reads the offset of every group, and compares it with the acknowledged ones (I18).
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter, deque
from dataclasses import dataclass, replace

from tests.e2e.site import batch
from tests.sim.group_clients import TOPIC, GroupClients
from tests.sim.harness.clock import EPOCH_MS
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket, draw_faults, tolerable_rules
from tests.sim.options import SETTINGS
from tiered.broker.broker import Broker
from tiered.controller.requests import CreateTopic
from tiered.coordination.group_snapshots import GROUP_SNAPSHOTS
from tiered.coordinator.routing import partition_of
from tiered.coordinator.snapshot import SnapshotName
from tiered.errors import Corrupt, Unavailable
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.object_store.faulty import FaultRule, RequestThrottle

PARTITIONS = 3
GROUPS = 6
RECORDS = 5_000
"""Records in the bucket from the beginning. They are more than any commit, so that no offset is cut back."""
SECONDS = 600.0
EVENTS = 200
_TIME = struct.Struct(">q")
_TIME_AT = 56


@dataclass(frozen=True)
class GroupOptions:
    """Options of the bucket that a seed draws; printed with a failing run."""

    seed: int
    rules: tuple[FaultRule, ...] = ()
    reply_seconds: float = 1.0
    list_keys: int = 0
    burst: int = 0
    """Calls at a time that the bucket takes before it refuses; 0 means no limit. A start may need more calls, and
    begins again after a refusal."""

    @classmethod
    def for_seed(cls, seed: int, rng: random.Random) -> GroupOptions:
        """Returns the options of a seed. `rng` is the random stream of the run, which continues with it."""
        if rng.random() >= 0.7:
            return cls(seed)
        faults, bucket = draw_faults(rng, 0.15), random.Random(f"{seed}/bucket")
        return cls(
            seed=seed,
            rules=tuple(tolerable_rules(faults.rules, bucket)),
            reply_seconds=faults.reply_seconds,
            list_keys=bucket.choice((0, 2, 3)),
            burst=bucket.randint(60, 100) if bucket.random() < 0.3 else 0,
        )


class GroupRun:
    """One seed."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.counts: Counter[str] = Counter()
        self.bucket = SimBucket(loop)
        self.machine = SimMachine(loop, "a", self.bucket, SimNetwork(loop, random.Random(f"{seed}/net")))
        self.node: Broker | None = None
        self.clients = GroupClients(seed, GROUPS, lambda: self.node, self._now_seconds)
        self._rng = random.Random(f"{seed}/run")
        self.options = GroupOptions.for_seed(seed, self._rng)
        self._loop = loop
        self._settings = replace(SETTINGS, offsets_topic_num_partitions=PARTITIONS)

    async def main(self) -> None:
        self.node = await self._start_until_up()
        await self._prepare(self.node)
        self.machine.faults.rules[:] = self.options.rules
        self.machine.faults.reply_seconds = self.options.reply_seconds
        self.machine.faults.list_keys = self.options.list_keys
        if self.options.burst:
            self.machine.faults.throttle = RequestThrottle(10.0, self.options.burst, 1.0)
        tasks = [self._loop.create_task(self.clients.work(group), name=group) for group in self.clients.histories]
        end_ns = self._loop.now_ns + round(SECONDS * 1e9)
        while self._loop.now_ns < end_ns:
            await asyncio.sleep(self._rng.uniform(1.0, 90.0))
            await self._inject_fault()
        self.clients.working = False
        await asyncio.gather(*tasks)
        self.machine.faults.rules.clear()
        throttle, self.machine.faults.throttle = self.machine.faults.throttle, None
        await self._restart("kill")
        assert self.node is not None
        await self.node.stop()
        self.counts["acked"] = self.clients.acked
        self.counts["refused"] = throttle.refused_count if throttle else 0

    async def _prepare(self, node: Broker) -> None:
        await node.submit(CreateTopic(TOPIC, 1, configs={"segment.bytes": str(1 << 20), "retention.ms": "-1"}))
        replica = node.leader_replica(TOPIC, 0)
        await replica.append(batch([b""] * RECORDS))
        replica.roll()
        while replica.cold_end_offset < RECORDS:
            await asyncio.sleep(0.1)
        await node.group_coordinators.ensure_topic()

    async def _inject_fault(self) -> None:
        kind = self._rng.choice(("kill", "kill", "power", "disk", "stop", "stop_and_disk", "full", "outage", "peace"))
        self.counts[kind] += 1
        self.events.append(f"{self._now_seconds():9.3f} {kind}")
        match kind:
            case "full":
                self.machine.disk.capacity = 1
                await asyncio.sleep(self._rng.uniform(0.1, 20))
                self.machine.disk.capacity = 1 << 40
            case "outage":
                self.machine.faults.outage = True
                await asyncio.sleep(self._rng.uniform(1, 150))
                self.machine.faults.outage = False
            case "peace":
                return
            case _:
                await self._restart(kind)

    async def _restart(self, kind: str) -> None:
        """Ends the broker in this way and starts it again; then checks all groups."""
        node, self.node = self.node, None
        assert node is not None
        if kind in ("stop", "stop_and_disk"):
            await node.stop()
        match kind:
            case "kill":
                self.machine.kill()
            case "power":
                self.machine.power_cut()
            case "disk" | "stop_and_disk":
                self.machine.lose_disk()
        newest = self._newest_snapshots()
        sure = {name.partition_id.partition: self._snapshot_seconds(name) for name in newest}
        if kind not in ("stop", "stop_and_disk"):
            await node.stop(clean=False)
        fresh = await self._start_until_up()

        def safe_until(group: str) -> float:
            if kind in ("kill", "stop"):
                return float("inf")
            return sure.get(partition_of(group, PARTITIONS), -1.0)

        await self.clients.check(fresh, safe_until)
        for name in newest:
            end = fresh.leader_replica(OFFSETS_TOPIC, name.partition_id.partition).log.end_offset
            assert end >= name.offset, f"offsets of the topic went back: {end} is below {name}"
        self.node = fresh

    async def _start_until_up(self) -> Broker:
        """Starts the broker again until it runs, like a supervisor."""
        for _ in range(100):
            node = Broker(self._settings, self.machine.process(), Metrics())
            try:
                await node.start()
            except (Unavailable, Corrupt) as error:
                self.events.append(f"{self._now_seconds():9.3f} start failed {error}")
                await node.stop(clean=False)
                await asyncio.sleep(1)
                continue
            return node
        raise AssertionError("liveness: the broker did not start within 100 tries")

    def _newest_snapshots(self) -> list[SnapshotName]:
        """Returns the newest image of each partition."""
        newest: dict[int, SnapshotName] = {}
        for key in self.bucket.objects:
            name = GROUP_SNAPSHOTS.parse_key(key)
            if name is not None:
                newest[name.partition_id.partition] = max(name, newest.get(name.partition_id.partition, name))
        self.counts["images"] = max(self.counts["images"], len(newest))
        return list(newest.values())

    def _snapshot_seconds(self, name: SnapshotName) -> float:
        """Returns the time (seconds of the run) at which an image was complete."""
        (written_ms,) = _TIME.unpack_from(self.bucket.objects[name.key].data, _TIME_AT)
        return float((written_ms - EPOCH_MS) / 1000 - 0.001)

    def _now_seconds(self) -> float:
        return self._loop.now_ns / 1e9


def run(seed: int) -> GroupRun:
    """Runs one seed to its end. An error has the options, the last events and the command that reruns the seed."""
    loop = SimLoop(seed, seconds_max=20_000)
    made: list[GroupRun] = []

    async def main() -> None:
        made.append(GroupRun(seed, loop))
        await made[0].main()

    try:
        loop.run(main())
    except BaseException as error:
        if made:
            lines = "\n".join(made[0].events)
            error.add_note(f"{made[0].options}\n{lines}\nagain with: make sim OF=groups SEED={seed}")
        raise
    return made[0]
