"""A coordinator of named counters: the smallest shard that parks requests, has deadlines and takes several records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.unit.replication.rig import INCARNATIONS, TOPIC_ID, TP, ReplicationRig
from tiered.config.settings import TopicConfig
from tiered.coordinator.host import CoordinatorHost, HostPorts
from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.runtime import CoordinatorRuntime
from tiered.coordinator.snapshot import SnapshotKind
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, SnapshotMetrics
from tiered.errors import Code, Refused
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.changes import TopicCreated
from tiered.metadata.image import Image
from tiered.metrics import Metrics
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import UNAWAITED, CoordinatorRecord, CoordinatorResult, Now, ProducerIdAndEpoch

LEADER, FOLLOWER = 1, 2
SNAPSHOTS = SnapshotKind("counters/", b"COUNTERS")


class Add(NamedTuple):
    """Adds to a counter; the reply is its new value. Nothing is logged for an amount of 0.

    In a transaction, the counter has the new value once the marker commits it.
    """

    counter: str
    amount: int
    producer: ProducerIdAndEpoch | None = None


class Read(NamedTuple):
    """The reply is the value of a counter."""

    counter: str


class WaitFor(NamedTuple):
    """Parked until a counter has at least `value`; the reply is what it has then, or -1 after `timeout_ms`."""

    counter: str
    value: int
    timeout_ms: int = 60_000


class Raised(NamedTuple):
    """A counter was raised to `value`."""

    counter: str
    value: int


Request = Add | Read | WaitFor
Result = CoordinatorResult[int, Raised]


class CounterShard:
    """Counters by name, as a `CoordinatorShard`."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.is_loaded = False
        self.pending: dict[ProducerIdAndEpoch, list[CoordinatorRecord]] = {}
        self.parked: dict[int, tuple[WaitFor, int]] = {}
        """Parked requests by token, each with its deadline."""

    def apply(self, changes: Sequence[CoordinatorRecord]) -> None:
        for key, value, producer in changes:
            if producer is not None:
                self.pending.setdefault(producer, []).append(CoordinatorRecord(key, value))
            else:
                self.values[key.decode()] = int(value or b"0")

    def end_transaction(self, marker: ProducerIdAndEpoch, is_commit: bool) -> None:
        for producer in [each for each in self.pending if each.producer_id == marker.producer_id]:
            records = self.pending.pop(producer)
            if is_commit:
                self.apply(records)

    def on_loaded(self, now: Now) -> None:
        self.is_loaded = True

    def snapshot(self) -> Iterator[Sequence[CoordinatorRecord]]:
        for name in list(self.values):
            yield [CoordinatorRecord(name.encode(), b"%d" % self.values[name])]
        for producer, records in list(self.pending.items()):
            yield [CoordinatorRecord(key, value, producer) for key, value, _ in records]

    @property
    def next_due_ms(self) -> int | None:
        return min((due for _, due in self.parked.values()), default=None)

    def decide(self, request: Request, now: Now, token: int = UNAWAITED) -> Result:
        match request:
            case Add(name, amount, producer):
                value = self.values.get(name, 0) + amount
                records = (CoordinatorRecord(name.encode(), b"%d" % value, producer),) if amount else ()
                self.apply(records)
                woken = [
                    (each, value)
                    for each, (wait, _) in self.parked.items()
                    if wait.counter == name and wait.value <= value
                ]
                for each, _ in woken:
                    del self.parked[each]
                return CoordinatorResult(records, ((token, value), *woken), (Raised(name, value),))
            case Read(name):
                return CoordinatorResult((), ((token, self.values.get(name, 0)),))
            case WaitFor():
                self.parked[token] = request, now.mono_ms + request.timeout_ms
                return CoordinatorResult()

    def due(self, now: Now) -> Result:
        late = [token for token, (_, due) in self.parked.items() if due <= now.mono_ms]
        for token in late:
            del self.parked[token]
        return CoordinatorResult((), tuple((token, -1) for token in late))

    def cancel_request(self, token: int) -> None:
        self.parked.pop(token, None)


@dataclass
class CounterObserver:
    """Notes all that it gets."""

    requests: list[Request] = field(default_factory=list)
    events: list[Raised] = field(default_factory=list)

    def on_request(self, request: Request) -> None:
        self.requests.append(request)

    def on_event(self, event: Raised) -> None:
        self.events.append(event)


class CounterKind:
    """Makes counters for a host. `corrections` are the requests that correct the next shard that is loaded."""

    noun = "counters"
    parked_requests = frozenset[type]({WaitFor})

    def __init__(self) -> None:
        self.observer = CounterObserver()
        self.corrections: list[Request] = []
        self.may_correct = asyncio.Event()
        self.may_correct.set()

    def make_shard(self) -> CounterShard:
        return CounterShard()

    async def find_corrections(
        self, shard: CounterShard, partition: CoordinatorPartition[CounterShard, Request, int], *, is_part_lost: bool
    ) -> Sequence[Request]:
        await self.may_correct.wait()
        return self.corrections


class Replicas:
    """The replicas of a broker. `applied` is set while no image is being applied."""

    def __init__(self) -> None:
        self.unopened_leaders: set[TopicPartition] = set()
        self.openings: set[TopicPartition] = set()
        self.applied = asyncio.Event()
        self.applied.set()
        self.has_clean_stop = True

    def has_clean_predecessor(self, partition_id: PartitionId, leader_epoch: int) -> bool:
        return self.has_clean_stop

    async def wait_applied(self) -> None:
        await self.applied.wait()


Host = CoordinatorHost[CounterShard, Request, int]
Runtime = CoordinatorRuntime[CounterShard, Request, int]


class CounterRig:
    """A host of counters on broker 1. Broker 2 follows the partition, and both are in sync."""

    def __init__(self) -> None:
        self.rig = ReplicationRig(config=TopicConfig(remote_storage_enable=False, segment_bytes=1 << 20))
        broker, metrics = self.rig.brokers[LEADER], Metrics()
        self.kind = CounterKind()
        self.replicas = Replicas()
        self.has_contact = True
        self.image = Image().apply([TopicCreated(TP.topic, TOPIC_ID, ((LEADER, FOLLOWER),), {}, 0)])
        counters = SnapshotMetrics(metrics.counter("written", "", ("outcome",)), metrics.counter("bytes", ""))
        self.store = CoordinatorSnapshotStore(TP.topic, SNAPSHOTS, broker.store, self.rig.clock, counters)
        self.host: Host = CoordinatorHost(
            self.kind, self.store,
            HostPorts(
                LEADER, self.rig.clock, self.replicas, lambda: self.image, lambda: self.has_contact, lambda: True,
                lambda mono_ms, wall_ms: wall_ms,
            ),
            self._ensure_topic, metrics.histogram("load_seconds", "", (1,)),
        )  # fmt: skip
        self.epoch = -1
        self.replica: LeaderReplica

    async def _ensure_topic(self) -> None: ...

    async def lead(self, isr: Sequence[int] = (LEADER, FOLLOWER)) -> LeaderReplica:
        """Leads the partition under the next epoch."""
        self.epoch += 1
        self.replica = await self.rig.brokers[LEADER].lead(self.epoch, list(isr))
        self.host.on_lead(self.replica, self.image.slot)
        return self.replica

    def resign(self) -> None:
        """Ends the leadership, as `HostedReplicas` does."""
        self.replica.resign(Refused(Code.NOT_LEADER_OR_FOLLOWER, "another broker leads"))
        self.host.on_resign(self.replica)

    def replicate(self) -> None:
        """Fetches as the follower at the leader's log end: the follower has all records."""
        end = self.replica.log.end_offset
        epoch, written = self.replica.leader_epoch, self.replica.log.epochs.latest
        fetch = PartitionFetch(TOPIC_ID, TP.partition, epoch, end, written, 0, 0)
        self.replica.handle_follower_fetch(FOLLOWER, INCARNATIONS[FOLLOWER], fetch, 0)

    @property
    def coordinator(self) -> Runtime:
        """The loaded coordinator of the partition."""
        coordinator = self.host.led_partitions[TP.partition].coordinator
        assert coordinator is not None
        return coordinator

    def submit(self, request: Request, timeout: float = 30.0) -> asyncio.Future[int]:
        """Sends a request as a caller that waits."""
        return asyncio.ensure_future(self.host.submit("key", request, timeout))

    async def settle(self) -> None:
        """Lets all tasks run that wait for no time."""
        await asyncio.sleep(0.01)

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a scenario while the host runs."""

        async def run() -> None:
            task = asyncio.ensure_future(self.host.run())
            await scenario()
            self.host.refuse("the test is over")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        self.rig.run(run)
