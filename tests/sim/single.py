"""One broker, its clients and its bucket under all that a seed draws: faults first, then healing, then the audit.

A run is: topics of many shapes, producers (half of them idempotent), readers, small segments that roll, go up and lose
their local copies, retention; kills, power cuts, lost disks, a full disk, a bucket that errs, loses replies, applies
late or is away. Then all heals, everything must become cold within a deadline, every acknowledged record is looked for,
and a broker with an empty disk comes back from the bucket alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.sim.bucket_rules import BucketRules
from tests.sim.ledger import Ledger
from tests.sim.loop import SimLoop
from tests.sim.net import SimNetwork
from tests.sim.store import SimBucket, drawn_faults
from tests.sim.world import SimMachine
from tiered.config import Settings
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.requests import CreateTopic
from tiered.metrics import Metrics
from tiered.node import Node
from tiered.ports import FileSlice
from tiered.records.batch import Codec, encode, records
from tiered.records.native import walk
from tiered.replication.replica import Replica

CHAOS_SECONDS = 40.0
SETTLE_SECONDS = 240.0
READ_BYTES = 8192
ANSWERS_LOST = 0.2
"""Share of answers that an idempotent producer acts as if it never got: it sends the batch again."""
EVENTS = 200
EVENT_CHARS = 160


@dataclass(frozen=True)
class Options:
    """What a seed draws; printed with a failing run."""

    seed: int
    topics: int
    partitions: int
    segment_bytes: int
    flush: str
    local_retention_bytes: int
    retention_bytes: int
    producers: int
    kills: bool
    power_cuts: bool
    lost_disks: bool
    full_disk: bool
    outages: bool
    worst_fault: float

    @classmethod
    def drawn(cls, seed: int) -> Options:
        draw = random.Random(f"{seed}/options")
        return cls(
            seed=seed,
            topics=draw.randint(1, 2),
            partitions=draw.randint(1, 3),
            segment_bytes=draw.choice((1024, 2048, 8192)),
            flush=draw.choice(("none", "none", "ack")),
            local_retention_bytes=draw.choice((1, 4096, -2)),
            retention_bytes=draw.choice((-1, -1, 16384)),
            producers=draw.randint(2, 4),
            kills=draw.random() < 0.7,
            power_cuts=draw.random() < 0.5,
            lost_disks=draw.random() < 0.3,
            full_disk=draw.random() < 0.3,
            outages=draw.random() < 0.3,
            worst_fault=draw.choice((0.0, 0.03, 0.1)),
        )

    @property
    def topic_configs(self) -> dict[str, str]:
        return {
            "segment.bytes": str(self.segment_bytes),
            "segment.ms": "5000",
            "flush": self.flush,
            "local.retention.bytes": str(self.local_retention_bytes),
            "retention.bytes": str(self.retention_bytes),
            "retention.ms": "-1",
            "file.delete.delay.ms": "2000",
        }


SETTINGS = replace(
    Settings(),
    log_retention_check_interval_ms=1000,
    remote_log_manager_task_interval_ms=1000,
    log_flush_offset_checkpoint_interval_ms=3000,
    log_flush_scheduler_interval_ms=1000,
    tiered_upload_max_lag_ms=5000,
    tiered_object_delete_delay_ms=2000,
)


class Run:
    """One seed. `main` raises when a predicate does not hold."""

    def __init__(self, seed: int, loop: SimLoop) -> None:
        self.options = Options.drawn(seed)
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.ledger = Ledger()
        self.bucket = SimBucket(loop)
        self.rules = BucketRules(self.bucket)
        self.machine = SimMachine(loop, "a", self.bucket, SimNetwork(loop, random.Random(f"{seed}/net")))
        self.node: Node | None = None
        self.counts = {"acked": 0, "read": 0, "cold_read": 0, "crashes": 0, "duplicates": 0}
        self._loop = loop
        self._draw = random.Random(f"{seed}/run")
        self._values = 0
        self._producers = 1000
        self._durable: dict[PartitionId, int] = {}
        self._chaos = True

    @property
    def trace(self) -> tuple[int, int]:
        """Steps taken and a digest of them: equal for equal runs."""
        return self._loop.steps, self._loop.digest

    # -- the story ----------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        await self._start()
        await self._create_topics()
        await self._chaos_phase()
        await self._heal()
        await self._all_cold()
        await self._audit_all()
        await self._rebuild()
        await self._swept()
        await self._stop()

    async def _chaos_phase(self) -> None:
        options = self.options
        if options.worst_fault:
            faults = drawn_faults(self._draw, options.worst_fault)
            self.machine.faults.rules[:] = faults.rules
            self.machine.faults.reply_seconds = faults.reply_seconds
        clients = [self._loop.create_task(self._produce(i), name=f"producer-{i}") for i in range(options.producers)]
        clients += [self._loop.create_task(self._consume(), name="reader") for _ in range(2)]
        end_ns = self._loop.now_ns + round(CHAOS_SECONDS * 1e9)
        while self._loop.now_ns < end_ns:
            await asyncio.sleep(self._draw.uniform(0.5, 6.0))
            await self._trouble()
        self._chaos = False
        await asyncio.gather(*clients)

    async def _trouble(self) -> None:
        """One thing that goes wrong, of those that the seed allows."""
        options = self.options
        kinds = [
            name for name in ("kills", "power_cuts", "lost_disks", "full_disk", "outages") if getattr(options, name)
        ]
        kind = self._draw.choice([*kinds, "peace"])
        self._event(kind)
        match kind:
            case "kills":
                await self._crash("kill")
            case "power_cuts":
                await self._crash("power")
            case "lost_disks" if self._draw.random() < 0.4:
                await self._crash("disk")
            case "full_disk":
                self.machine.disk.capacity = 1
                await asyncio.sleep(self._draw.uniform(0.1, 5))
                self.machine.disk.capacity = 1 << 40
            case "outages":
                self.machine.faults.outage = True
                await asyncio.sleep(self._draw.uniform(1, 12))
                self.machine.faults.outage = False

    async def _heal(self) -> None:
        self._event("heal")
        self.machine.faults.rules.clear()
        self.machine.faults.reply_seconds = 0.1
        self.machine.disk.capacity = 1 << 40
        if self.node is None:
            await self._start()

    # -- the broker ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """As a supervisor does: again until it runs. What the bucket refuses for now, it refuses no longer later."""
        for attempt in range(60):
            node = Node(SETTINGS, self.machine.process(), Metrics())
            try:
                await node.start()
            except (Unavailable, Corrupt) as error:  # the bucket is away, or sent rotten bytes
                self._event(f"start failed attempt={attempt} why={error}")
                await node.stop(clean=False)
                await asyncio.sleep(1.0)
                continue
            self.node = node
            self._event(f"started epoch={node.image.controller_epoch}")
            self._check_loss_is_told(node)
            return
        raise AssertionError("liveness: the broker did not start within 60 tries")

    async def _stop(self) -> None:
        if self.node is not None:
            self._check_alive(self.node)
            await self.node.stop()
            self.node = None

    async def _crash(self, kind: str) -> None:
        """The process is gone at once; `stop` only clears away tasks whose ports are revoked already."""
        self.counts["crashes"] += 1
        node, self.node = self.node, None
        if node is not None:
            self._check_alive(node)
            for pid, replica in self._pids(node).items():
                self._durable[pid] = replica.log.flushed_offset
                self.ledger.may_expire(pid, replica.log_start_offset)
        match kind:
            case "kill":
                self.machine.kill()
            case "power":
                self.machine.power_cut()
            case "disk":
                self.machine.lose_disk()
        if kind != "kill":
            self._forgive(everything_local=kind == "disk")
        if node is not None:
            await node.stop(clean=False)
        await asyncio.sleep(self._draw.uniform(0.01, 3.0))
        await self._start()

    def _forgive(self, *, everything_local: bool) -> None:
        """What neither an fsync nor the bucket holds may be gone."""
        cold = {manifest.pid: manifest.cold_end_offset for manifest in self.rules.manifests()}
        for pid in self.ledger.told:
            kept = 0 if everything_local else self._durable.get(pid, 0)
            self.ledger.may_lose(pid, max(kept, cold.get(pid, 0)))
            if everything_local:
                self._durable[pid] = 0

    def _check_loss_is_told(self, node: Node) -> None:
        """Where acknowledged records are gone, the broker says so, and from which offset on."""
        for pid, replica in self._pids(node).items():
            missing = [offset for offset in self.ledger.of(pid).acked if offset >= replica.high_watermark]
            if missing:
                loss = replica.possible_loss
                assert loss is not None, f"{pid}: {min(missing)} is gone, and nobody says so"
                assert loss["from_offset"] <= min(missing), f"{pid}: {min(missing)} is gone, told is {loss}"
                for offset in missing:
                    assert self.ledger.of(pid).acked[offset].forgivable, f"I1: {pid} {offset} is gone"

    def _check_alive(self, node: Node) -> None:
        assert not node.ended.is_set(), f"the broker ended by itself: {node.health().problems[0]}"

    def _pids(self, node: Node) -> dict[PartitionId, Replica]:
        return {PartitionId(replica.topic_id, replica.partition): replica for replica in node.replicas()}

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        for i in range(self.options.topics):
            request = CreateTopic(f"t{i}", self.options.partitions, configs=self.options.topic_configs)
            await self._running().submit(request)

    def _replica(self, at: TopicPartition) -> Replica | None:
        """None while the broker is down or does not lead it yet."""
        try:
            return self.node.replica(*at) if self.node is not None else None
        except Refused:
            return None

    def _some_partition(self, draw: random.Random) -> TopicPartition:
        return TopicPartition(f"t{draw.randrange(self.options.topics)}", draw.randrange(self.options.partitions))

    def _batch(self, draw: random.Random, pid: PartitionId, producer: int, sequence: int) -> tuple[bytes, list[bytes]]:
        values = []
        for _ in range(draw.randint(1, 5)):
            self._values += 1
            values.append(b"%d:" % self._values + b"x" * draw.choice((0, 10, 200)))
            self.ledger.send(pid, values[-1])
        now = self.machine.clock.wall_ms()
        codec = draw.choice((Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4))
        rows = [(now, None, value, ()) for value in values]
        epoch = 0 if producer >= 0 else -1
        return encode(rows, codec=codec, producer_id=producer, producer_epoch=epoch, base_sequence=sequence), values

    async def _produce(self, number: int) -> None:
        """One partition; an idempotent producer sends the same batch again until it knows what became of it."""
        draw = random.Random(f"{self.options.seed}/producer/{number}")
        at, idempotent = self._some_partition(draw), draw.random() < 0.5
        producer, sequence = self._new_producer() if idempotent else -1, 0 if idempotent else -1
        while self._chaos:
            await asyncio.sleep(draw.expovariate(4.0))
            replica = self._replica(at)
            if replica is None:
                continue
            pid = PartitionId(replica.topic_id, replica.partition)
            body, values = self._batch(draw, pid, producer, sequence)
            fate = await self._send(at, pid, body, values, again=idempotent)
            if fate and idempotent and draw.random() < ANSWERS_LOST:
                await self._send(at, pid, body, values, again=True)
            if idempotent:
                sequence = sequence + len(values) if fate else 0
                producer = producer if fate else self._new_producer()

    def _new_producer(self) -> int:
        self._producers += 1
        return self._producers

    async def _send(
        self, at: TopicPartition, pid: PartitionId, body: bytes, values: list[bytes], *, again: bool
    ) -> bool:
        """Whether it was acknowledged; an idempotent producer gives up only when the broker lost its sequence."""
        for _ in range(100):
            replica = self._replica(at)
            if replica is not None:
                try:
                    appended = await replica.append(bytearray(body), timeout_ms=5000)
                except (Refused, Unavailable) as error:
                    self._event(f"produce {at} refused why={error}")
                    if isinstance(error, Refused) and error.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
                        return False
                else:
                    self.counts["acked"] += len(values)
                    self.counts["duplicates"] += appended.duplicate
                    for i, value in enumerate(values):
                        self.ledger.ack(pid, appended.base_offset + i, value)
                    return True
            if not again:
                return False
            await asyncio.sleep(0.5)
        return False

    async def _consume(self) -> None:
        draw = random.Random(f"{self.options.seed}/reader/{self._draw.random()}")
        while self._chaos:
            await asyncio.sleep(draw.expovariate(3.0))
            replica = self._replica(self._some_partition(draw))
            if replica is None:
                continue
            start, end = replica.log_start_offset, replica.high_watermark
            if start < end:
                await self._read(replica, draw.randint(start, end - 1))

    async def _read(self, replica: Replica, offset: int) -> None:
        """One fetch; during chaos the bucket may not answer, and a start that moved is no error."""
        pid = PartitionId(replica.topic_id, replica.partition)
        cold = offset < replica.local_start_offset
        try:
            rows = await self._fetch(replica, offset)
        except (Refused, Unavailable, Corrupt) as error:
            self._event(f"read {replica.at} {offset} failed why={error}")
            return
        self.counts["read"] += len(rows)
        self.counts["cold_read"] += len(rows) if cold else 0
        if self.node is not None and replica in self.node.replicas():
            for at, value in rows:
                self.ledger.see(pid, at, value)

    async def _fetch(self, replica: Replica, offset: int) -> list[tuple[int, bytes]]:
        fetched = await replica.read(offset, READ_BYTES)
        data = fetched.data
        body = data.file.pread(data.start, data.length) if isinstance(data, FileSlice) else data
        walked = walk(body)
        assert walked.why == "", f"{replica.at} {offset}: {walked.why}"
        rows = [record for batch in walked.batches for record in records(body, batch.at)]
        assert not rows or rows[0].offset <= offset <= rows[-1].offset, f"{replica.at} {offset}: {rows[0].offset}"
        assert not rows or rows[-1].offset < fetched.high_watermark
        return [(row.offset, row.value or b"") for row in rows if row.offset >= offset]

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _all_cold(self) -> None:
        """Liveness: once nothing fails any more, every closed segment is cold and what may go locally is gone."""
        assert self.node is not None
        for replica in self.node.replicas():
            if replica.log.active_view.size:
                replica.roll()
        await self._until(self._cold_now, "everything is cold")

    def _cold_now(self) -> bool:
        assert self.node is not None
        self._check_alive(self.node)
        replicas = list(self.node.replicas())
        return len(replicas) == self.options.topics * self.options.partitions and all(map(self._is_cold, replicas))

    def _is_cold(self, replica: Replica) -> bool:
        """All of it is in the bucket, and locally only what the topic asks to keep."""
        local_max = 1 if self.options.local_retention_bytes == 1 else replica.local_segments
        return replica.cold_end_offset == replica.high_watermark and replica.local_segments <= local_max

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        end_ns = self._loop.now_ns + round(SETTLE_SECONDS * 1e9)
        while not holds():
            assert self._loop.now_ns < end_ns, f"liveness: not within {SETTLE_SECONDS} s: {what}; {self._state()}"
            await asyncio.sleep(0.5)

    def _state(self) -> str:
        assert self.node is not None
        return "; ".join(str(replica.explain()) for replica in self.node.replicas() if not self._is_cold(replica))

    async def _dump(self, replica: Replica) -> dict[int, bytes]:
        """All that can be read. Retention may still move the start: then the rest is what there is."""
        dump: dict[int, bytes] = {}
        offset = replica.log_start_offset
        while offset < replica.high_watermark:
            try:
                rows = await self._fetch(replica, offset)
            except Refused:
                assert replica.log_start_offset > offset, f"{replica.at} {offset} is refused, start {replica.explain()}"
                offset = replica.log_start_offset
                continue
            dump.update(rows)
            offset = rows[-1][0] + 1
        return {at: value for at, value in dump.items() if at >= replica.log_start_offset}

    async def _audit_all(self) -> None:
        assert self.node is not None
        for pid, replica in self._pids(self.node).items():
            dump = await self._dump(replica)
            start = replica.log_start_offset
            assert self.options.retention_bytes >= 0 or start == 0, f"I22: {pid} starts at {start}, nothing may expire"
            self.ledger.may_expire(pid, start)
            self.ledger.audit(pid, dump, start, replica.high_watermark)
            twice = len(dump) - len(set(dump.values()))
            assert twice == 0, f"I11: {pid} holds {twice} values twice"

    async def _rebuild(self) -> None:
        """I31: with nothing but the bucket, every topic and every cold record is back, and offsets go on above."""
        before = {pid: replica.cold_end_offset for pid, replica in self._pids(self._running()).items()}
        epochs = {pid: replica.leader_epoch for pid, replica in self._pids(self._running()).items()}
        await self._crash("disk")
        after = self._pids(self._running())
        assert after.keys() == before.keys(), "I31: a topic did not come back"
        for pid, replica in after.items():
            assert replica.high_watermark == before[pid], (
                f"I31: {pid} ends at {replica.high_watermark}, not {before[pid]}"
            )
            assert replica.leader_epoch > epochs[pid]
        await self._audit_all()

    async def _swept(self) -> None:
        """I23: after one more segment under the new epoch, nothing unnamed is left in the bucket."""
        draw = random.Random(f"{self.options.seed}/last")
        for pid, replica in self._pids(self._running()).items():
            body, values = self._batch(draw, pid, -1, -1)
            assert await self._send(replica.at, pid, body, values, again=False)
        await self._all_cold()
        await self._until(lambda: not self.rules.unreferenced(), "the bucket holds only what is named")
        await self._audit_all()

    def _running(self) -> Node:
        assert self.node is not None
        return self.node

    def _event(self, what: str) -> None:
        self.events.append(f"{self._loop.now_ns / 1e9:9.3f} {what[:EVENT_CHARS]}")


def run(seed: int) -> Run:
    """Runs one seed to its end. What fails carries the options, the last events and the command that reruns it."""
    loop = SimLoop(seed, seconds_max=3600)
    made: list[Run] = []

    async def main() -> None:
        made.append(Run(seed, loop))
        await made[0].main()

    try:
        loop.run(main())
    except BaseException as error:
        if made:
            lines = "\n".join(made[0].events)
            error.add_note(f"{made[0].options}\n{lines}\nagain with: make sim SEED={seed}")
        raise
    return made[0]
