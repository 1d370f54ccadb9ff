"""Brokers that share a bucket in virtual time, each with a log of one partition that it leads or follows."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from tests.sim.harness.clock import SimClock, SimRng
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.loop import SimLoop
from tests.sim.harness.network import SimNetwork
from tests.sim.harness.store import SimBucket
from tests.unit.hot.fixtures import batch
from tiered.cold.manifest import FAN
from tiered.config.settings import TopicConfig
from tiered.errors import Code, Fenced, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_recovery import LogRecovery
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.object_store.faulty import Faults
from tiered.peers import (
    ControllerView,
    FetchedPartition,
    ForwardReply,
    FoundTransaction,
    MarkerRequest,
    MetadataFetch,
    MetadataFetchReply,
    PartitionCodes,
    PartitionFetch,
    QuotaUse,
    ReplicaFetch,
    TransactionPartitions,
)
from tiered.ports import FileSlice
from tiered.replication.become_leader import LeaderStart, PreviousLeader, prepare_leader_log
from tiered.replication.chain_history import ChainHistory
from tiered.replication.cold_tier import ColdTier
from tiered.replication.disk_state import DiskState
from tiered.replication.follower_replica import FollowerPorts, FollowerReplica
from tiered.replication.leader_replica import LeaderPorts, LeaderReplica
from tiered.replication.leader_state import LeaderState
from tiered.replication.replica_fetcher import FetcherPorts, FetcherSettings, ReplicaFetchers
from tiered.wal.chain_writer import ChainWriter

T = TypeVar("T")

TP = TopicPartition("t", 0)
TOPIC_ID = TopicId("AAAAAAAAQACAAAAAAAAAAQ")
INCARNATIONS = {1: 11, 2: 22, 3: 33}


class RecordedEvents:
    """Replica events that record replicas with a follower that has caught up, and ignore all others."""

    def __init__(self) -> None:
        self.with_caught_up_followers: list[LeaderReplica] = []
        self.fenced: list[LeaderReplica] = []

    def on_lead(self, replica: LeaderReplica, decided: Image, applied: Image) -> None: ...

    def on_resign(self, replica: LeaderReplica) -> None: ...

    def on_config_changed(self, replica: LeaderReplica) -> None: ...

    def on_segment_closed(self, replica: LeaderReplica) -> None: ...

    def on_follower_caught_up(self, replica: LeaderReplica) -> None:
        self.with_caught_up_followers.append(replica)

    def on_chain_fenced(self, replica: LeaderReplica) -> None:
        self.fenced.append(replica)


class LeaderList:
    """The partitions that a broker leads, as a test names them; notes those that a newer leader has fenced."""

    def __init__(self, *leaders: LeaderReplica) -> None:
        self._leaders = leaders
        self.fenced: list[LeaderReplica] = []

    def list_leaders(self) -> tuple[LeaderReplica, ...]:
        return self._leaders

    def on_fenced(self, replica: LeaderReplica, _: Fenced) -> None:
        self.fenced.append(replica)


class BrokerRig:
    """One broker's disk, its connection to the bucket, and its log of the partition."""

    def __init__(self, rig: ReplicationRig, node_id: int, config: TopicConfig) -> None:
        self.node_id = node_id
        self.clock = rig.clock
        self.faults = Faults(reply_seconds=0.05)
        self.rng = SimRng(f"{rig.loop.seed}/{node_id}")
        self.disk = SimDisk(self.rng.stream("disk"))
        self.disk_failures: list[str] = []
        self._bucket = rig.bucket
        self._fan = rig.fan
        self.config = config
        self.logs: dict[TopicPartition, DiskLog] = {}
        self.restart(self.disk)
        self.events = RecordedEvents()

    def restart(self, disk: SimDisk) -> None:
        """Starts another process on the disk that the last one left."""
        self.disk = disk
        self.disk_failures.clear()
        self.metrics = Metrics()
        self.state = DiskState(disk, self.clock, self.metrics, self.disk_failures.append)
        self.store = self._bucket.store(self.faults, self.clock)

        async def admit() -> None:
            return None

        self.cold = ColdTier.build(
            self.store, self.clock, self.rng, self.metrics, admit, fan=self._fan, grace_ms=1000, clean_object_bytes=600
        )

    async def open_log(self, tp: TopicPartition = TP, *, same_boot: bool = True) -> DiskLog:
        """Opens the log, once."""
        if tp not in self.logs:
            self.logs[tp] = await DiskLog.open(
                self.disk,
                self.clock,
                f"log/{tp}",
                self.config,
                LogRecovery(same_boot=same_boot, clean=False),
                metrics=self.metrics,
                topic_id=TOPIC_ID,
                name=str(tp),
            )  # fmt: skip
        return self.logs[tp]

    async def save_offsets(self) -> None:
        """Saves offsets as the data directory does."""
        for hot in self.logs.values():
            hot.truncations.mark_checkpointed(hot.truncations.made, hot.recovery_point)
            hot.checkpointed_start_offset = hot.start_offset

    async def lead(
        self, epoch: int, isr: list[int], replicas: list[int] | None = None, *, tp: TopicPartition = TP,
        high_watermark: int = 0, previous_leader: PreviousLeader = PreviousLeader.NONE,
        is_loss_unreported: bool = False, chain: ChainWriter | None = None, chains: ChainHistory | None = None,
    ) -> LeaderReplica:  # fmt: skip
        hot, partition_id = await self.open_log(tp), PartitionId(TOPIC_ID, tp.partition)
        start = (
            LeaderStart(None, None)
            if previous_leader is PreviousLeader.NONE
            else await prepare_leader_log(
                hot, self.cold, partition_id, tp.topic, epoch, previous_leader, chains, self.save_offsets
            )
        )
        state = LeaderState(
            self.node_id, epoch, isr, replicas=replicas or isr, epoch_start=hot.end_offset, partition_epoch=epoch,
            high_watermark=high_watermark, began_ns=self.clock.mono_ns(),
        )  # fmt: skip
        leader = LeaderReplica(
            tp, TOPIC_ID, hot, state, start,
            LeaderPorts(self.cold, self.clock, self.state, self.events, lambda: True, self.save_offsets, chain),
        )  # fmt: skip
        if is_loss_unreported:
            leader.admission.block_appends()
        await leader.transactions.write_lost_markers()
        return leader


class ReplicationRig:
    """Everything that one test needs: clock, loop, bucket and brokers."""

    def __init__(self, seed: int = 1, config: TopicConfig | None = None, *, fan: int = FAN) -> None:
        self.fan = fan
        self.loop = SimLoop(seed)
        self.clock = SimClock(self.loop)
        self.bucket = SimBucket(self.loop)
        self.network = SimNetwork(self.loop, random.Random(f"{seed}/net"))
        settings = config or TopicConfig(segment_bytes=2000, index_interval_bytes=200)
        self.brokers = {node: BrokerRig(self, node, settings) for node in INCARNATIONS}

    def run(self, scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the scenario in virtual time."""
        return self.loop.run(scenario())


def append_batch(replica: LeaderReplica, first: int, count: int = 1, *, acks: int = 1) -> int:
    """Appends one batch of `count` records; returns the log end."""
    return replica.append_now(batch(first, count), acks).last_offset + 1


def read_bytes(data: bytes | FileSlice) -> bytes:
    return data if isinstance(data, bytes) else data.file.pread(data.start, data.length)


def read_log(log: DiskLog, start: int | None = None) -> bytes:
    """Returns all bytes of a log."""
    out, offset = b"", log.local_start_offset if start is None else start
    while (found := log.read(offset, 1, end_offset=log.end_offset)) is not None:
        one = read_bytes(found)
        offset = int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big") + 1
        out += one
    return out


class DirectPeers:
    """Passes requests straight to the replicas of other brokers, each at the address "NODE:0", with a delay each way.
    `unreachable` has the addresses that do not reply."""

    cluster_id = ""
    credential = b""

    def __init__(self, rig: ReplicationRig) -> None:
        self._rig = rig
        self.replicas: dict[str, dict[tuple[TopicId, int], LeaderReplica]] = {}
        self.unreachable: set[str] = set()
        self.requests: list[ReplicaFetch] = []
        self.latency_seconds = 0.001

    def add_leader(self, replica: LeaderReplica) -> None:
        """Makes the replica's broker its leader."""
        for replicas in self.replicas.values():
            replicas.pop((replica.topic_id, replica.partition), None)
        self.replicas.setdefault(f"{replica.state.node_id}:0", {})[replica.topic_id, replica.partition] = replica

    async def find_transactions(
        self, address: str, states: Collection[str], producer_ids: Collection[int], timeout: float
    ) -> Sequence[FoundTransaction]:
        raise NotImplementedError

    async def fetch(self, address: str, request: ReplicaFetch, timeout: float) -> Sequence[FetchedPartition]:
        self.requests.append(request)
        await asyncio.sleep(self.latency_seconds)
        if address in self.unreachable:
            await asyncio.sleep(timeout)
            raise Unavailable(f"{address} does not answer")
        progress = _ProgressEvent()
        replicas = [
            found for each in request.partitions if (found := self.find_replica(address, request, each)) is not None
        ]
        for replica in replicas:
            if not replica.is_stopped:
                replica.reads.add_end_listener(progress, 0)
        try:
            async with asyncio.timeout(request.max_wait_ms / 1000):
                while not any(
                    part.records or part.code or part.diverging_epoch for part in self._parts(address, request)
                ):
                    progress.event.clear()
                    await progress.event.wait()
        except TimeoutError:
            pass
        finally:
            for replica in replicas:
                replica.reads.remove_end_listener(progress, 0)
        parts = self._parts(address, request)
        await asyncio.sleep(self.latency_seconds)
        return parts

    def find_replica(self, address: str, request: ReplicaFetch, partition: PartitionFetch) -> LeaderReplica | None:
        """Returns the leader replica at that address."""
        return self.replicas.get(address, {}).get((partition.topic_id, partition.partition))

    def _parts(self, address: str, request: ReplicaFetch) -> list[FetchedPartition]:
        return [self._part(address, request, each) for each in request.partitions]

    def _part(self, address: str, request: ReplicaFetch, partition: PartitionFetch) -> FetchedPartition:
        replica = self.find_replica(address, request, partition)
        nothing = FetchedPartition(
            partition.topic_id, partition.partition, Code.NOT_LEADER_OR_FOLLOWER.number, -1, -1, -1, -1, None, b""
        )
        if replica is None:
            return nothing
        try:
            found = replica.handle_follower_fetch(
                request.node_id, request.incarnation, partition, request.partition_max_bytes
            )
        except Refused as refused:
            return nothing._replace(code=refused.code.number)
        return FetchedPartition(
            partition.topic_id, partition.partition, found.code.number, found.high_watermark, found.log_start_offset,
            found.local_start_offset, found.cold_end_offset, found.diverging, read_bytes(found.data),
        )  # fmt: skip

    async def fetch_metadata(self, address: str, ask: MetadataFetch, timeout: float) -> MetadataFetchReply:
        raise AssertionError("not asked here")

    async def forward(
        self, address: str, request: bytes, timeout: float, on_send: Callable[[], None] = lambda: None
    ) -> ForwardReply:
        raise AssertionError("not asked here")

    async def get_controller_view(self, address: str, timeout: float) -> ControllerView:
        raise AssertionError("not asked here")

    async def write_txn_markers(
        self, address: str, markers: Sequence[MarkerRequest], timeout: float
    ) -> Sequence[PartitionCodes]:
        raise AssertionError("not asked here")

    async def add_partitions_to_txn(
        self, address: str, transactions: Sequence[TransactionPartitions], timeout: float
    ) -> Sequence[PartitionCodes]:
        raise AssertionError("not asked here")

    async def report_quota_use(self, address: str, uses: Sequence[QuotaUse], timeout: float) -> None:
        raise AssertionError("not asked here")

    async def check_listening(self, address: str, timeout: float) -> None:
        raise AssertionError("not asked here")

    async def is_gone(self, address: str, timeout: float) -> bool:
        raise AssertionError("not asked here")

    async def close(self) -> None: ...


class _ProgressEvent:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def on_progress(self, index: int) -> None:
        self.event.set()


class RunningFetchers:
    """The running fetchers of one broker, and the replicas that it follows."""

    def __init__(self, rig: ReplicationRig, broker: BrokerRig, peers: DirectPeers, **settings: int) -> None:
        self._broker = broker
        self.broken_logs: list[tuple[FollowerReplica, bool]] = []
        self.contact_events: list[tuple[str, int]] = []
        ports = FetcherPorts(
            peers, lambda node: f"{node}:0", broker.cold, rig.clock, lambda *broken: self.broken_logs.append(broken),
            lambda node: self.contact_events.append(("lost", node)),
            lambda node: self.contact_events.append(("heard", node)),
        )  # fmt: skip
        made = FetcherSettings(broker.node_id, INCARNATIONS[broker.node_id], **settings)
        self._fetchers = ReplicaFetchers(lambda: made, ports, broker.rng, broker.metrics)
        self._task = rig.loop.create_task(self._fetchers.run(), name=f"fetchers-of-{broker.node_id}")

    async def follow(
        self, leader: int, epoch: int, tp: TopicPartition = TP, *, high_watermark: int = 0
    ) -> FollowerReplica:
        hot = await self._broker.open_log(tp)
        replica = FollowerReplica(
            tp, TOPIC_ID, hot, leader, epoch,
            FollowerPorts(self._broker.clock, self._broker.state, self._broker.save_offsets),
            high_watermark=high_watermark,
        )  # fmt: skip
        self._fetchers.follow(replica)
        return replica

    async def stop(self) -> None:
        """Stops the fetchers; raises the error that ended them earlier."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def follow_leader(
    rig: ReplicationRig, replica: LeaderReplica, **settings: int
) -> tuple[DirectPeers, FollowerReplica]:
    """Lets broker 2 follow a replica that another broker leads. Returns the peers that take its requests, and its
    copy."""
    peers = DirectPeers(rig)
    peers.add_leader(replica)
    fetchers = RunningFetchers(rig, rig.brokers[2], peers, **settings)
    return peers, await fetchers.follow(replica.state.node_id, replica.leader_epoch)
