"""The coordinators of one broker for one internal topic: one for each partition of it that the broker leads.

A coordinator begins when its partition is led, is loaded before it gets requests (R5), and ends with the leadership.
One task sleeps until the next deadline of any shard, one writes the snapshots. Neither sends a request to the bucket
while nothing changes. The host does not create the topic, and knows no request: `CoordinatorKind` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, Protocol

from tiered.coordinator.loader import load_shard
from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.routing import partition_of
from tiered.coordinator.runtime import NEVER_MS, CoordinatorRuntime, FindExpiryMs, Observer, ReplyT, RequestT, ShardT
from tiered.coordinator.snapshot import SnapshotName, choose_snapshot
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, PreviousSnapshot
from tiered.coordinator.snapshotter import CoordinatorSnapshotter
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.image import Image
from tiered.metrics import Histogram
from tiered.ports import Clock
from tiered.replication.leader_replica import LeaderReplica
from tiered.shard import ProducerIdAndEpoch

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 60.0
"""Time between two snapshots of one partition: changes of that time are lost if every disk is lost."""
RETRY_SECONDS = (0.5, 30.0)


VerifyPartition = Callable[[TopicPartition], Awaitable[Code]]
"""Asks the coordinator of a transaction about a partition of an internal topic. Returns NONE if it belongs to it."""


class CoordinatorKind(Protocol[ShardT, RequestT]):
    """The part of a host that knows the shards.

    `noun` names in log lines what they coordinate: "groups". The replies to `parked_requests` may wait for other
    requests.
    """

    @property
    def noun(self) -> str: ...

    @property
    def parked_requests(self) -> frozenset[type]: ...

    @property
    def observer(self) -> Observer[RequestT, Any]: ...

    def make_shard(self) -> ShardT:
        """Returns a shard without state."""

    async def find_corrections(
        self, shard: ShardT, partition: CoordinatorPartition[ShardT, RequestT, Any], *, is_part_lost: bool
    ) -> Sequence[RequestT]:
        """Returns requests that make the loaded shard of a partition agree with the cluster. They are decided before
        all others.

        `is_part_lost`: changes between its snapshot and its log may be gone. Raises `Refused` if the partition is led
        no more, and its log would have to take something.
        """


class ReplicaHost(Protocol):
    """The replicas of the broker. `unopened_leaders` are the partitions that it should lead but cannot open, `openings`
    those that it is about to lead."""

    @property
    def unopened_leaders(self) -> Container[TopicPartition]: ...

    @property
    def openings(self) -> Container[TopicPartition]: ...

    def has_clean_predecessor(self, partition_id: PartitionId, leader_epoch: int, /) -> bool:
        """True if the leader before was the last process of this broker, and stopped cleanly."""

    async def wait_applied(self) -> None:
        """Returns once the broker leads and follows what the image says. Leaders that lack nothing may come later."""


@dataclass(frozen=True)
class HostPorts:
    """The parts of a broker that its hosts use."""

    node_id: int
    clock: Clock
    replicas: ReplicaHost
    image: Callable[[], Image]
    has_controller_contact: Callable[[], bool]
    is_store_reachable: Callable[[], bool]
    find_expiry_ms: FindExpiryMs


class CoordinatorHost(Generic[ShardT, RequestT, ReplyT]):
    """The coordinators of one topic. `ensure_topic` creates the topic if it does not exist.

    `led_partitions` are the partitions that this broker leads, loaded or not.
    """

    def __init__(
        self,
        kind: CoordinatorKind[ShardT, RequestT],
        snapshot_store: CoordinatorSnapshotStore,
        ports: HostPorts,
        ensure_topic: Callable[[], Coroutine[Any, Any, None]],
        load_seconds: Histogram,
    ) -> None:
        self.topic = snapshot_store.topic
        self.led_partitions: dict[int, CoordinatorPartition[ShardT, RequestT, ReplyT]] = {}
        self.snapshotter = CoordinatorSnapshotter(snapshot_store)
        self._kind = kind
        self._parked_requests = kind.parked_requests
        self._snapshot_store = snapshot_store
        self._node_id = ports.node_id
        self._clock = ports.clock
        self._replicas = ports.replicas
        self._image = ports.image
        self._has_controller_contact = ports.has_controller_contact
        self._is_store_reachable = ports.is_store_reachable
        self._find_expiry_ms = ports.find_expiry_ms
        self._ensure_topic = ensure_topic
        self._load_seconds = load_seconds
        self._task_group: asyncio.TaskGroup | None = None
        self._unstarted_tasks: list[Coroutine[Any, Any, None]] = []
        self._stop_refusal: Refused | None = None
        self._deadline_advanced = asyncio.Event()
        self._next_deadline_ms = NEVER_MS

    # -- requests -----------------------------------------------------------------------------------------------------

    async def submit(self, key: str, request: RequestT, timeout: float) -> ReplyT:
        """Returns the reply to a request about `key`. A caller that is cancelled is forgotten.

        `timeout` in seconds is for requests that may be parked. All others wait for the log only, which takes them in
        time or ends the coordinator. Raises `Refused`: NOT_COORDINATOR,
        COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT.
        """
        coordinator = await self.find_coordinator(key)
        return await self._wait_reply(coordinator, coordinator.submit(request), request, timeout)

    def find_committing(self, key: str) -> CoordinatorRuntime[ShardT, RequestT, ReplyT] | None:
        """Returns the coordinator of `key` if its log commits on append, so that its `submit_now` may be called.
        Returns None if `submit` has to look.

        Raises `Refused` if another broker may coordinate the key by now.
        """
        topic = self._image().topics.get(self.topic)
        partition = self.led_partitions.get(partition_of(key, len(topic.partitions))) if topic is not None else None
        if partition is None or partition.coordinator is None or not partition.coordinator.commits_on_append:
            return None
        self._require_contact(partition)
        return partition.coordinator

    async def submit_in_transaction(
        self, key: str, request: RequestT, producer: ProducerIdAndEpoch, verify: VerifyPartition, *, moves_epoch: bool
    ) -> ReplyT:
        """Returns the reply to a request about `key` whose records belong to the transaction of a producer.

        `verify` queries the coordinator of the transaction if the partition belongs to it, where the transaction would
        begin. Raises `Refused` like `submit`, with the code of `verify`, and with INVALID_TXN_STATE or
        INVALID_PRODUCER_EPOCH.
        """
        coordinator, guard = await self.find_coordinator(key), None
        replica, (producer_id, epoch) = coordinator.replica, producer
        try:
            if not replica.log.producers.has_ongoing_txn(producer_id, epoch):
                guard = replica.transactions.begin_verification(producer_id, epoch, moves_epoch=moves_epoch)
                code = await verify(replica.tp)
                if code is not Code.NONE:
                    raise Refused(code, f"{replica.tp} does not belong to the transaction of producer {producer_id}")
                coordinator = await self.find_coordinator(key)  # another broker may lead by now
                if coordinator.replica is not replica:
                    raise Refused(Code.NOT_COORDINATOR, f"{replica.tp} got another leader meanwhile")
            submitted = coordinator.submit_in_transaction(request, producer, guard)
        finally:
            if guard is not None:
                replica.transactions.end_verification(guard)
        return await self._wait_reply(coordinator, submitted, request, NEVER_MS)

    async def _wait_reply(
        self,
        coordinator: CoordinatorRuntime[ShardT, RequestT, ReplyT],
        submitted: tuple[int, ReplyT | asyncio.Future[ReplyT]],
        request: RequestT,
        timeout: float,
    ) -> ReplyT:
        token, reply = submitted
        if not isinstance(reply, asyncio.Future):
            return reply
        try:
            if type(request) not in self._parked_requests:
                return await reply
            async with asyncio.timeout(timeout):
                return await reply
        except TimeoutError:
            raise Refused(Code.REQUEST_TIMED_OUT, f"no reply within {timeout:g} s") from None
        finally:
            coordinator.cancel_request(token)

    async def partition_for(self, key: str) -> int:
        """Returns the partition whose leader coordinates `key`. Creates the topic on first need."""
        await self._ensure_topic()
        return partition_of(key, len(self._image().topics[self.topic].partitions))

    async def find_coordinator(self, key: str) -> CoordinatorRuntime[ShardT, RequestT, ReplyT]:
        """Returns the coordinator of `key`. Raises `Refused` if this broker does not serve it."""
        topic = self._image().topics.get(self.topic)
        partition = self.led_partitions.get(partition_of(key, len(topic.partitions))) if topic is not None else None
        coordinator = partition.coordinator if partition is not None else None
        if partition is None or coordinator is None:
            return self.find_coordinator_of(await self.partition_for(key))
        self._require_contact(partition)
        return coordinator

    def find_coordinator_of(self, number: int) -> CoordinatorRuntime[ShardT, RequestT, ReplyT]:
        """Returns the coordinator of one partition. Raises `Refused` if this broker does not serve it."""
        if self._stop_refusal is not None:
            raise self._stop_refusal
        partition = self.led_partitions.get(number)
        if partition is None:
            tp = TopicPartition(self.topic, number)
            if tp in self._replicas.openings:
                raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, f"the log of {tp} is being read from the bucket")
            is_unopened = tp in self._replicas.unopened_leaders
            code = Code.COORDINATOR_NOT_AVAILABLE if is_unopened else Code.NOT_COORDINATOR
            raise Refused(code, f"this broker does not serve {tp}")
        coordinator = self._require_loaded(partition)
        self._require_contact(partition)
        return coordinator

    def _require_contact(self, partition: CoordinatorPartition[ShardT, RequestT, ReplyT]) -> None:
        if len(partition.replica.state.replicas) > 1 and not self._has_controller_contact():
            # Sessions of members may be over at the next coordinator, which then gives their partitions to others.
            why = f"no contact with the controller: another broker may coordinate the {self._kind.noun} by now"
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, why)

    def _require_loaded(
        self, partition: CoordinatorPartition[ShardT, RequestT, ReplyT]
    ) -> CoordinatorRuntime[ShardT, RequestT, ReplyT]:
        if partition.coordinator is None:
            why = f"{self._kind.noun} of {partition.replica.tp} are being loaded"
            raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, why)
        return partition.coordinator

    async def submit_to_each(
        self, request: RequestT, pause: Callable[[], Awaitable[None]] | None = None
    ) -> list[ReplyT]:
        """Returns the replies of all coordinators of this broker to a request. `pause` comes between two of them.

        Raises `Refused` with COORDINATOR_LOAD_IN_PROGRESS if one of them is not loaded yet. The same holds if the image
        gives this broker a partition whose coordinator has not replied: its log is being opened, or cannot be opened.
        """
        replies: list[ReplyT] = []
        asked = dict(self.led_partitions)
        for number, partition in asked.items():
            if pause is not None:
                await pause()
            if self.led_partitions.get(number) is partition:
                _, reply = self._require_loaded(partition).submit(request)
                replies.append(await reply if isinstance(reply, asyncio.Future) else reply)
        self._require_all(asked)
        return replies

    def _require_all(self, asked: Mapping[int, CoordinatorPartition[ShardT, RequestT, ReplyT]]) -> None:
        """Raises `Refused` if `asked` lacks a partition that this broker leads by the newest image."""
        topic = self._image().topics.get(self.topic)
        for number, newest in enumerate(topic.partitions if topic is not None else ()):
            if newest.leader != self._node_id:
                continue
            partition = self.led_partitions.get(number)
            if (
                partition is None
                or partition is not asked.get(number)
                or partition.replica.leader_epoch != newest.leader_epoch
            ):
                why = f"{self._kind.noun} of {TopicPartition(self.topic, number)} are not served yet"
                raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, why)

    def submit_unawaited(self, request: RequestT) -> None:
        """Decides a request in every partition, in this turn or once the partition is loaded. No caller waits."""
        for partition in self.led_partitions.values():
            partition.submit(request)

    def defer(self, request: RequestT) -> None:
        """Decides a request in every partition that is not loaded yet, once it is loaded."""
        for partition in self.led_partitions.values():
            partition.defer(request)

    # -- state --------------------------------------------------------------------------------------------------------

    def find_shard(self, key: str) -> ShardT | None:
        """Returns the loaded shard that coordinates a key; None if this broker has none."""
        topic = self._image().topics.get(self.topic)
        partition = self.led_partitions.get(partition_of(key, len(topic.partitions))) if topic is not None else None
        return partition.coordinator.shard if partition is not None and partition.coordinator is not None else None

    def shards(self) -> Iterator[ShardT]:
        """Yields the loaded shards."""
        for partition in self.led_partitions.values():
            if partition.coordinator is not None:
                yield partition.coordinator.shard

    def count_loading(self) -> int:
        """Returns the number of partitions that are not served yet."""
        return sum(partition.coordinator is None for partition in self.led_partitions.values())

    def snapshot_lag_seconds(self) -> float:
        """Returns the age of the oldest change that is not in the bucket."""
        coordinators = [each.coordinator for each in self.led_partitions.values() if each.coordinator is not None]
        since = [each.unsaved_since_ms for each in coordinators if each.unsaved_since_ms >= 0]
        return (self._clock.mono_ns() // 1_000_000 - min(since)) / 1000 if since else 0.0

    def list_unserved(self) -> dict[str, str]:
        """Returns the partitions that cannot be served, with the reason."""
        return {str(each.replica.tp): each.load_error for each in self.led_partitions.values() if each.load_error}

    # -- leading ------------------------------------------------------------------------------------------------------

    def on_lead(self, replica: LeaderReplica, decided_slot: int) -> None:
        """Begins a coordinator: this broker leads a partition from now on, as the metadata decided in `decided_slot`. A
        new partition has nothing to load."""
        if replica.topic != self.topic or self._stop_refusal is not None:
            return
        base = self._snapshot_store.take_base(replica.partition_id)
        partition = CoordinatorPartition[ShardT, RequestT, ReplyT](
            replica, snapshot_names=base.names, written_before_slot=decided_slot
        )
        self.led_partitions[replica.partition] = partition
        if replica.leader_epoch == 0 and replica.log.end_offset == 0:
            self._serve(partition, self._kind.make_shard())
        else:
            self._spawn(self._load(partition, lambda: base))

    def on_resign(self, replica: LeaderReplica) -> None:
        """Ends a coordinator: this broker leads its partition no more."""
        partition = self.led_partitions.get(replica.partition) if replica.topic == self.topic else None
        if partition is not None and partition.replica is replica:
            del self.led_partitions[replica.partition]
            if partition.coordinator is not None:
                partition.coordinator.end(Refused(Code.NOT_COORDINATOR, f"this broker leads {replica.tp} no more"))

    async def _load(
        self,
        partition: CoordinatorPartition[ShardT, RequestT, ReplyT],
        find_base: Callable[[], PreviousSnapshot],
        pause: float = 0.0,
    ) -> None:
        """Loads a shard until it is served, or led elsewhere. Repeats a failed load after a growing pause."""
        started, replica, noun = self._clock.mono_ns(), partition.replica, self._kind.noun
        while True:
            await self._clock.sleep(pause)
            await replica.admission.wait_loss_reported()  # its log takes nothing before that
            if not self._is_led(partition):
                return
            try:
                shard = self._kind.make_shard()
                loaded = await load_shard(replica, shard, self._snapshot_store, find_base, self._clock)
                is_part_lost = loaded.lost_below_offset >= 0
                if is_part_lost:
                    log.error(
                        "changes of %s may be gone partition=%s below_offset=%d",
                        noun, replica.tp, loaded.lost_below_offset,
                    )  # fmt: skip
                await self._replicas.wait_applied()
                corrections = await self._kind.find_corrections(shard, partition, is_part_lost=is_part_lost)
                if not self._is_led(partition):
                    return
                if self._can_be_deleted(replica, loaded.snapshot):
                    records = list(chain(*shard.snapshot()))
                    await self.snapshotter.write(partition, replica.log.end_offset, records)
                    # Losses may have been reported while the snapshot was written.
                    corrections = await self._kind.find_corrections(shard, partition, is_part_lost=is_part_lost)
            except (Unavailable, Corrupt, Refused) as error:
                pause = min(max(2 * pause, RETRY_SECONDS[0]), RETRY_SECONDS[1])
                find_base = partial(self._find_base, partition)
                partition.load_error = f"its {noun} cannot be loaded: {error}"
                log.warning("%s are loaded later partition=%s again_in=%.1f why=%s", noun, replica.tp, pause, error)
                continue
            if not self._is_led(partition):
                return
            coordinator = self._serve(partition, shard)
            if loaded.has_unsaved:  # the leader before may have saved none of that
                coordinator.unsaved_since_ms = self._clock.mono_ns() // 1_000_000
            for request in corrections:
                coordinator.submit_unawaited(request)
            partition.submit_deferred()
            self._load_seconds.observe((self._clock.mono_ns() - started) / 1e9)
            return

    def _is_led(self, partition: CoordinatorPartition[ShardT, RequestT, ReplyT]) -> bool:
        replica = partition.replica
        return self.led_partitions.get(replica.partition) is partition and not replica.is_stopped

    def _serve(
        self, partition: CoordinatorPartition[ShardT, RequestT, ReplyT], shard: ShardT
    ) -> CoordinatorRuntime[ShardT, RequestT, ReplyT]:
        coordinator = CoordinatorRuntime[ShardT, RequestT, ReplyT](
            partition.replica, shard, self._clock, self._kind.observer, self._find_expiry_ms,
            spawn=self._spawn, on_deadline_advanced=self._on_deadline_advanced,
            on_failed=lambda why: self._on_append_failed(partition, why),
        )  # fmt: skip
        partition.serve(coordinator)
        shard.on_loaded(coordinator.now())
        if shard.next_due_ms is not None:
            self._on_deadline_advanced(shard.next_due_ms)
        return coordinator

    def _on_append_failed(self, partition: CoordinatorPartition[ShardT, RequestT, ReplyT], why: Refused) -> None:
        """Loads the shard again: it ran ahead of a log that refused a change."""
        partition.coordinator, partition.written_before_slot = None, self._image().slot + 1
        log.error("%s are loaded anew partition=%s why=%s", self._kind.noun, partition.replica.tp, why)
        if self._is_led(partition):
            self._spawn(self._load(partition, partial(self._find_base, partition), RETRY_SECONDS[0]))

    def _can_be_deleted(self, replica: LeaderReplica, base: SnapshotName | None) -> bool:
        """True if an earlier leader, which does not know that it is replaced, may delete the snapshot at which the log
        begins."""
        own = base is not None and base.epoch == replica.leader_epoch
        is_stopped = self._replicas.has_clean_predecessor(replica.partition_id, replica.leader_epoch)
        return replica.log_start_offset > 0 and not own and not is_stopped

    @staticmethod
    def _find_base(partition: CoordinatorPartition[ShardT, RequestT, ReplyT]) -> PreviousSnapshot:
        """Returns the snapshot to load again from: the log may start at a newer one by now."""
        hot = partition.replica.log
        names = [name for name in partition.snapshot_names if name.offset <= hot.end_offset]
        base = choose_snapshot(names, partition.replica.log_start_offset, hot.end_offset, hot.epochs).base
        return PreviousSnapshot(base, None, partition.snapshot_names)

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the coordinators until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            self._task_group = group
            for each in self._unstarted_tasks:
                group.create_task(each)
            self._unstarted_tasks.clear()
            group.create_task(self._run_snapshots())
            await self._run_deadlines()

    def _spawn(self, task: Coroutine[Any, Any, None]) -> None:
        if self._stop_refusal is not None:
            task.close()
        elif self._task_group is None:
            self._unstarted_tasks.append(task)
        else:
            self._task_group.create_task(task)

    def _on_deadline_advanced(self, due_ms: int) -> None:
        if due_ms < self._next_deadline_ms:
            self._next_deadline_ms = due_ms
            self._deadline_advanced.set()

    async def _run_deadlines(self) -> None:
        """Sleeps until the next deadline of any shard. A deadline that moved to a later time costs one look."""
        while True:
            self._deadline_advanced.clear()
            self._next_deadline_ms = NEVER_MS
            for partition in list(self.led_partitions.values()):
                due = partition.coordinator.run_due() if partition.coordinator is not None else None
                if due is not None:
                    self._next_deadline_ms = min(self._next_deadline_ms, due)
            now_ms = self._clock.mono_ns() // 1_000_000
            # One more: a deadline in ms has passed when the clock, cut to ms, says so.
            seconds = None if self._next_deadline_ms == NEVER_MS else (self._next_deadline_ms - now_ms + 1) / 1000
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._deadline_advanced.wait()

    async def _run_snapshots(self) -> None:
        while True:
            await self._clock.sleep(SNAPSHOT_SECONDS)
            if self._is_store_reachable():
                await self.snapshotter.save_changed(list(self.led_partitions.values()))

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, why: str) -> None:
        """Refuses all requests from now on. Takes the state for the final snapshots."""
        if self._stop_refusal is None:
            self._stop_refusal = Refused(Code.NOT_COORDINATOR, why)
        for partition in self.led_partitions.values():
            self.snapshotter.prepare_final_snapshot(partition)
            if partition.coordinator is not None:
                partition.coordinator.end(self._stop_refusal)
        for task in self._unstarted_tasks:
            task.close()
        self._unstarted_tasks.clear()

    async def save_final_snapshots(self) -> None:
        """Writes the final snapshots of a clean stop, if the bucket can be reached."""
        if self._is_store_reachable():
            await self.snapshotter.save_final_snapshots()
