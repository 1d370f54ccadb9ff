"""One broker, its clients and its bucket under all faults that a seed draws: faults first, then healing, then the
audit.

A run has topics of many shapes, producers (half of them idempotent), readers, small segments that roll, are uploaded
and lose their local copies, and retention; topics that are created, grow, change, lose old records and are deleted;
kills, power cuts, lost disks, a full disk, a failing disk, and a bucket that fails, loses replies, applies late or is
unreachable. Then all faults end. Everything must become cold within a deadline, every acknowledged record is looked
for, and a broker with an empty disk recovers from the bucket alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine

from tests.sim.admin import TopicAdmin
from tests.sim.clients import Clients
from tests.sim.harness.bucket_rules import BucketRules
from tests.sim.harness.disk import DiskFault
from tests.sim.harness.durable_logs import judged_disks
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.machine import SimMachine
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket, draw_faults
from tests.sim.ledger import Ledger
from tests.sim.options import SETTINGS, SingleOptions
from tiered.broker.broker import Broker
from tiered.controller.requests import CreateTopic
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hot.checkpoints import CLEAN_MARK
from tiered.ids import PartitionId
from tiered.metrics import Metrics
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.partition_report import explain

CHAOS_SECONDS = 40.0
SETTLE_SECONDS = 240.0
EVENTS = 200
EVENT_CHARS = 160


class SingleRun:
    """One seed. `main` raises if a rule is broken."""

    def __init__(self, options: SingleOptions, loop: SimLoop) -> None:
        seed = options.seed
        self.options = options
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.ledger = Ledger()
        self.bucket = SimBucket(loop)
        self.rules = BucketRules(self.bucket)
        self.machine = SimMachine(loop, "a", self.bucket, SimNetwork(loop, random.Random(f"{seed}/net")))
        self.node: Broker | None = None
        self.clients = Clients(self.options, self.ledger, self.machine.clock, lambda: self.node, self._log_event)
        self.admin = TopicAdmin(self.options, self.ledger, self.clients, lambda: self.node, self._log_event)
        self.crashes = 0
        self.disk_failures = 0
        self.clean_stops = 0
        self._loop = loop
        self._rng = random.Random(f"{seed}/run")
        self._flushed_ends: dict[PartitionId, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Counts of events of the run, so that a test can tell if the run proves anything."""
        own = {"crashes": self.crashes, "disk_ends": self.disk_failures, "clean_stops": self.clean_stops}
        return {**self.clients.counts, **self.admin.counts, **self.rules.counts, **own}

    @property
    def trace(self) -> tuple[int, int]:
        """Steps taken and a digest of them: equal for equal runs."""
        return self._loop.steps, self._loop.digest

    # -- the run ------------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        await self._start()
        await self._create_topics()
        await self._chaos_phase()
        await self._heal()
        await self._wait_all_cold()
        await self._audit_all()
        await self._rebuild()
        await self._check_sweep()
        await self._stop()

    async def _chaos_phase(self) -> None:
        options = self.options
        if options.worst_fault:
            faults = draw_faults(self._rng, options.worst_fault)
            self.machine.faults.rules[:] = faults.rules
            self.machine.faults.reply_seconds = faults.reply_seconds
        clients = [
            self._loop.create_task(self.clients.produce(i), name=f"producer-{i}") for i in range(options.producers)
        ]
        clients += [self._loop.create_task(self.clients.consume(i), name=f"reader-{i}") for i in range(2)]
        if options.admin:
            clients.append(self._loop.create_task(self.admin.work(), name="admin"))
        end_ns = self._loop.now_ns + round(CHAOS_SECONDS * 1e9)
        while self._loop.now_ns < end_ns:
            await asyncio.sleep(self._rng.uniform(0.5, 6.0))
            await self._inject_fault()
        self.clients.working = False
        await asyncio.gather(*clients)

    async def _inject_fault(self) -> None:
        """Injects one fault of those that the seed allows."""
        options = self.options
        kinds = [
            name
            for name in ("kills", "power_cuts", "lost_disks", "full_disk", "outages", "disk_errors", "clean_stops")
            if getattr(options, name)
        ]
        kind = self._rng.choice([*kinds, "peace"])
        self._log_event(kind)
        match kind:
            case "kills":
                await self._crash("kill")
            case "power_cuts":
                await self._crash("power")
            case "lost_disks" if self._rng.random() < 0.4:
                await self._crash("disk")
            case "full_disk":
                self.machine.disk.capacity = 1
                await asyncio.sleep(self._rng.uniform(0.1, 5))
                self.machine.disk.capacity = 1 << 40
            case "disk_errors":
                await self._disk_error()
            case "clean_stops":
                await self._clean_stop()
            case "outages":
                self.machine.faults.outage = True
                await asyncio.sleep(self._rng.uniform(1, 12))
                self.machine.faults.outage = False

    async def _disk_error(self) -> None:
        """Fails a call of the disk. The broker may end only if the error is final, and a supervisor starts it again."""
        verbs = ("append", "append", "truncate", "rename", "sync", "sync", "sync_dir", "open", "pread")
        verb = self._rng.choice(verbs)
        error = "EMFILE" if verb == "open" else "EIO"
        fault = DiskFault(verb, self._rng.choice(("", ".log", "/")), error, skip=self._rng.randint(0, 20))
        self._log_event(f"disk will fail verb={verb} path={fault.path!r} skip={fault.skip}")
        self.machine.disk.faults.append(fault)
        await asyncio.sleep(self._rng.uniform(1, 8))
        self.machine.disk.faults.clear()
        if self.node is not None and self.node.ended.is_set():
            self.disk_failures += 1
            assert self.machine.disk.failed, f"the broker ended by itself: {self.node.health().problems[0]}"
            await self._crash("kill")

    async def _heal(self) -> None:
        self._log_event("heal")
        self.machine.faults.rules.clear()
        self.machine.faults.reply_seconds = 0.1
        self.machine.disk.capacity = 1 << 40
        if self.node is None:
            await self._start()
        elif self.node.ended.is_set() and self.machine.disk.failed:
            await self._crash("kill")
        await asyncio.sleep(10)  # what is under way may still fail
        await self._wait_until(
            lambda: self._running_broker().health().details["pending_metadata"] == 0, "metadata is decided"
        )

    # -- the broker ---------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        """Starts the broker again until it runs, like a supervisor. A bucket that refuses requests for now accepts them
        later."""
        for attempt in range(60):
            node = self._new_broker()
            try:
                await node.start()
            except (Unavailable, Corrupt) as error:  # the bucket is away, or sent rotten bytes
                self._log_event(f"start failed attempt={attempt} why={error}")
                await node.stop(clean=False)
                await asyncio.sleep(1.0)
                continue
            self.node = node
            self._log_event(f"started epoch={node.image.controller_epoch}")
            self._check_loss_reported(node)
            self.admin.check(node.image)
            return
        raise AssertionError("liveness: the broker did not start within 60 tries")

    def _new_broker(self) -> Broker:
        return Broker(
            SETTINGS, self.machine.process(), Metrics(),
            manifest_fan=self.options.manifest_fan, snapshot_slots=self.options.snapshot_slots,
        )  # fmt: skip

    async def _stop(self) -> None:
        if self.node is not None:
            self._check_alive(self.node)
            await self.node.stop()
            self.node = None

    async def _crash(self, kind: str) -> None:
        """Ends the process at once; `stop` only clears tasks whose ports are revoked already."""
        self.crashes += 1
        node, self.node = self.node, None
        if node is not None:
            if not self.machine.disk.failed:
                self._check_alive(node)
            for partition_id, replica in self._replicas_by_id(node).items():
                self._flushed_ends[partition_id] = replica.log.flushed_offset
                self.ledger.allow_expiry(partition_id, replica.log_start_offset)
        match kind:
            case "kill":
                self.machine.kill()
            case "power":
                self.machine.power_cut()
            case "disk":
                self.machine.lose_disk()
        if kind != "kill":
            self._allow_losses(everything_local=kind == "disk")
        if node is not None:
            await node.stop(clean=False)
        await asyncio.sleep(self._rng.uniform(0.01, 3.0))
        await self._start()

    async def _clean_stop(self) -> None:
        """Stops the broker. The stop and the following starts may be interrupted; a clean stop keeps all records."""
        node, self.node = self._running_broker(), None
        self._check_alive(node)
        await self._interrupt(node, node.stop(), self._rng.choice((0.0, 0.05, 60.0, 60.0)))
        while self._rng.random() < 0.4:
            node = self._new_broker()
            await self._interrupt(node, node.start(), self._rng.uniform(0.0, 1.0))
        await self._start()

    async def _interrupt(self, node: Broker, step: Coroutine[None, None, None], seconds: float) -> None:
        """Starts or stops a broker for some time; then ends the process, or cuts the power."""
        task = self._loop.create_task(step, name="cut short")
        await asyncio.wait([task], timeout=seconds)
        self._log_event(f"cut short done={task.done()}")
        clean = self.machine.disk.exists(f"log/{CLEAN_MARK}")
        self.clean_stops += clean and task.done()
        for partition_id, replica in self._replicas_by_id(node).items():
            kept = replica.log.end_offset if clean else replica.log.flushed_offset
            self._flushed_ends[partition_id] = kept
            self.ledger.allow_expiry(partition_id, replica.log_start_offset)
        if self.options.power_cuts and self._rng.random() < 0.5:
            self.machine.power_cut()
            self._allow_losses(everything_local=False)
        else:
            self.machine.kill()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await node.stop(clean=False)

    def _allow_losses(self, *, everything_local: bool) -> None:
        """Permits the loss of records that neither an fsync nor the bucket holds."""
        cold = {manifest.partition_id: manifest.cold_end_offset for manifest in self.rules.manifests()}
        for partition_id in self.ledger.partitions:
            kept = 0 if everything_local else self._flushed_ends.get(partition_id, 0)
            self.ledger.allow_loss(partition_id, max(kept, cold.get(partition_id, 0)))
            if everything_local:
                self._flushed_ends[partition_id] = 0

    def _check_loss_reported(self, node: Broker) -> None:
        """Checks that the broker reports a loss if acknowledged records are gone, and from which offset on."""
        for partition_id, replica in self._replicas_by_id(node).items():
            missing = [
                offset for offset in self.ledger.partition(partition_id).acked if offset >= replica.high_watermark
            ]
            if missing:
                loss = replica.possible_loss
                assert loss is not None, f"{partition_id}: {min(missing)} is gone, and nobody says so"
                assert loss["from_offset"] <= min(missing), f"{partition_id}: {min(missing)} is gone, told is {loss}"
                for offset in missing:
                    assert self.ledger.partition(partition_id).acked[offset].may_be_lost, (
                        f"I1: {partition_id} {offset} is gone"
                    )

    def _check_alive(self, node: Broker) -> None:
        assert not node.ended.is_set(), f"the broker ended by itself: {node.health().problems[0]}"

    def _replicas_by_id(self, node: Broker) -> dict[PartitionId, LeaderReplica]:
        return {PartitionId(replica.topic_id, replica.partition): replica for replica in node.leader_replicas()}

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        for i in range(self.options.topics):
            request = CreateTopic(f"t{i}", self.options.partitions, configs=self.options.topic_configs)
            await self._running_broker().submit(request)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def _wait_all_cold(self) -> None:
        """Liveness: after all faults every closed segment is cold, and local copies that may go are gone."""
        assert self.node is not None
        for replica in self.node.leader_replicas():
            if replica.log.active_view.size:
                replica.roll()
        await self._wait_until(self._is_all_cold, "everything is cold")

    def _is_all_cold(self) -> bool:
        assert self.node is not None
        self._check_alive(self.node)
        replicas = list(self.node.leader_replicas())
        count = sum(len(topic.partitions) for topic in self.node.image.topics.values())
        return len(replicas) == count and all(map(self._is_cold, replicas))

    def _is_cold(self, replica: LeaderReplica) -> bool:
        """True if all records are in the bucket, and the disk has only what the topic keeps locally."""
        local_max = 1 if self.options.local_retention_bytes == 1 else replica.log.segment_count
        return replica.cold_end_offset == replica.high_watermark and replica.log.segment_count <= local_max

    async def _wait_until(self, condition: Callable[[], bool], what: str) -> None:
        end_ns = self._loop.now_ns + round(SETTLE_SECONDS * 1e9)
        while not condition():
            assert self._loop.now_ns < end_ns, f"liveness: not within {SETTLE_SECONDS} s: {what}; {self._state()}"
            await asyncio.sleep(0.5)

    def _state(self) -> str:
        assert self.node is not None
        return "; ".join(str(explain(replica)) for replica in self.node.leader_replicas() if not self._is_cold(replica))

    async def _read_all(self, replica: LeaderReplica) -> dict[int, bytes]:
        """Returns all readable records. Retention may still move the start: then the rest counts."""
        dump: dict[int, bytes] = {}
        offset = replica.log_start_offset
        while offset < replica.high_watermark:
            try:
                rows = await self.clients.fetch(replica, offset)
            except Refused:
                assert replica.log_start_offset > offset, f"{replica.tp} {offset} is refused, start {explain(replica)}"
                offset = replica.log_start_offset
                continue
            dump.update(rows)
            offset = rows[-1][0] + 1
        return {at: value for at, value in dump.items() if at >= replica.log_start_offset}

    async def _audit_all(self) -> None:
        assert self.node is not None
        for partition_id, replica in self._replicas_by_id(self.node).items():
            dump = await self._read_all(replica)
            start = replica.log_start_offset
            asked, done = (
                self.admin.delete_requested.get(partition_id, 0),
                self.admin.delete_answered.get(partition_id, 0),
            )
            if start > asked:
                self.ledger.check_expiry(
                    partition_id, start, self.clients.held_bytes(partition_id, start), self.options.retention_bytes
                )
            assert start >= done, f"{partition_id} starts at {start}, deleted was everything below {done}"
            self.ledger.allow_expiry(partition_id, start)
            self.ledger.audit(partition_id, dump, start, replica.high_watermark)
            twice = len(dump) - len(set(dump.values()))
            assert twice == 0, f"I11: {partition_id} holds {twice} values twice"

    async def _rebuild(self) -> None:
        """I31: with nothing but the bucket, every topic and every cold record comes back, and offsets continue
        above."""
        before = {
            partition_id: replica.cold_end_offset
            for partition_id, replica in self._replicas_by_id(self._running_broker()).items()
        }
        epochs = {
            partition_id: replica.leader_epoch
            for partition_id, replica in self._replicas_by_id(self._running_broker()).items()
        }
        await self._crash("disk")
        after = self._replicas_by_id(self._running_broker())
        assert after.keys() == before.keys(), "I31: a topic did not come back"
        for partition_id, replica in after.items():
            assert replica.high_watermark == before[partition_id], (
                f"I31: {partition_id} ends at {replica.high_watermark}, not {before[partition_id]}"
            )
            assert replica.leader_epoch > epochs[partition_id]
        await self._audit_all()

    async def _check_sweep(self) -> None:
        """I23: after one more segment under the new epoch, no unnamed object is in the bucket."""
        rng = random.Random(f"{self.options.seed}/last")
        for partition_id, replica in self._replicas_by_id(self._running_broker()).items():
            for _ in range(10):  # a batch may be larger than a segment, which is refused rightly
                body, values = self.clients.make_batch(rng, partition_id, -1, -1)
                if await self.clients.send(replica.tp, partition_id, body, values, retry=False):
                    break
            else:
                raise AssertionError(f"liveness: {replica.tp} takes no records")
        await self._wait_all_cold()
        await self._wait_until(lambda: not self.rules.unreferenced(), "the bucket holds only what is named")
        await self._wait_until(self._are_deleted_topics_gone, "deleted topics leave nothing behind")
        await self._audit_all()

    def _are_deleted_topics_gone(self) -> bool:
        image = self._running_broker().image
        return not image.deleted_topics and self.rules.topics() <= set(image.topics_by_id)

    def _running_broker(self) -> Broker:
        assert self.node is not None
        return self.node

    def _log_event(self, what: str) -> None:
        self.events.append(f"{self._loop.now_ns / 1e9:9.3f} {what[:EVENT_CHARS]}")


def run(seed: int, adjust: Callable[[SingleOptions], SingleOptions] = lambda drawn: drawn) -> SingleRun:
    """Runs one seed to its end. An error has the options, the last events and the command that reruns the seed.
    `adjust` changes the drawn options."""
    loop = SimLoop(seed, seconds_max=3600)
    made: list[SingleRun] = []

    async def main() -> None:
        made.append(SingleRun(adjust(SingleOptions.for_seed(seed)), loop))
        await made[0].main()

    try:
        with judged_disks():
            loop.run(main())
    except BaseException as error:
        if made:
            lines = "\n".join(made[0].events)
            error.add_note(f"{made[0].options}\n{lines}\nagain with: make sim OF=single SEED={seed}")
        raise
    return made[0]
