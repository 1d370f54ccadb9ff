"""The group coordinators of one broker: one for each partition of `__consumer_offsets` that it leads.

Wiring and order: a coordinator begins when its partition is led, is loaded before it is asked, and ends with the
leadership. One task sleeps until the next deadline of any group, one writes the images; neither asks the bucket for
anything while nothing changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tiered.controller.requests import CreateTopic
from tiered.coordinator.loader import correct_offsets, load_shard
from tiered.coordinator.runtime import CoordinatorCounters, CoordinatorRuntime
from tiered.coordinator.snapshot import SnapshotName, choose_snapshot
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore, PreviousSnapshot
from tiered.coordinator.snapshotter import CoordinatorPartition, CoordinatorSnapshotter
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.groups.limits import GroupSettings
from tiered.groups.requests import JoinGroup, ListedGroup, ListGroups, ListGroupsReply, Request, SyncGroup
from tiered.groups.shard import GroupShard
from tiered.ids import TopicPartition
from tiered.metadata.image import Image
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.replication.leader_replica import LeaderReplica

if TYPE_CHECKING:
    from tiered.broker.broker import Broker

log = logging.getLogger(__name__)

R = TypeVar("R")

ASK_SECONDS = 30.0
CREATE_SECONDS = 5.0
"""How long a caller waits for `__consumer_offsets` to be made, those before it included; then it asks again."""
SNAPSHOT_SECONDS = 60.0
"""Between two images of one partition, and what is lost at most of the groups when every disk is."""
RETRY_SECONDS = (0.5, 30.0)
NEVER_MS = 1 << 62
PARKED = frozenset({JoinGroup, SyncGroup})
"""Requests whose answer waits for other members."""


class GroupCoordinators:
    """What the faces of the broker ask about groups. `images` is also how a log of the topic begins."""

    def __init__(self, node: Broker) -> None:
        self._node = node
        self._clock = node.world.clock
        self._rng = node.world.rng.stream("groups")
        self.snapshot_store = CoordinatorSnapshotStore(node.store, node.world.clock, node.metrics)
        self.counts = CoordinatorCounters()
        self._snapshotter = CoordinatorSnapshotter(self.snapshot_store)
        self._led_partitions: dict[int, CoordinatorPartition] = {}
        self._create_lock = asyncio.Lock()
        self._task_group: asyncio.TaskGroup | None = None
        self._unstarted_tasks: list[Coroutine[Any, Any, None]] = []
        self._stop_refusal: Refused | None = None
        self._deadline_advanced = asyncio.Event()
        self._next_deadline_ms = NEVER_MS
        self._load_seconds = node.metrics.histogram(
            "tiered_group_load_seconds", "From leading a partition of groups to serving them.", (0.01, 0.1, 1, 10, 60)
        )
        self._add_metrics()

    def _add_metrics(self) -> None:
        metrics = self._node.metrics
        metrics.gauge("tiered_groups", "Groups that this broker coordinates, by state.", ("state",)).set_function(
            self._count_by_state
        )
        metrics.counter("tiered_group_offset_commits_total", "Offsets that were to be committed.").set_function(
            lambda: self.counts.commits
        )
        metrics.counter("tiered_group_rebalances_total", "Generations that began with members.").set_function(
            lambda: self.counts.rebalances
        )
        metrics.gauge("tiered_group_bytes", "Memory that all groups hold here, about.").set_function(
            lambda: float(self.memory_bytes)
        )
        metrics.gauge(
            "tiered_group_image_lag_seconds", "Age of the oldest change of groups that is not in the bucket."
        ).set_function(self._snapshot_lag_seconds)
        metrics.gauge("tiered_group_partitions_loading", "Partitions of groups that are not served yet.").set_function(
            lambda: float(sum(place.coordinator is None for place in self._led_partitions.values()))
        )

    # -- asking -------------------------------------------------------------------------------------------------------

    async def ask(self, group: str, request: Request, timeout: float = ASK_SECONDS) -> Any:
        """The reply that the request names. `Refused`: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE, REQUEST_TIMED_OUT. A caller that is cancelled is forgotten."""
        topic = self._node.image.topics.get(OFFSETS_TOPIC)
        place = self._led_partitions.get(partition_of(group, len(topic.partitions))) if topic is not None else None
        coordinator = place.coordinator if place is not None else None
        if coordinator is None:
            coordinator = await self._get_coordinator(group)
        if (
            place is not None
            and len(place.replica.state.replicas) > 1
            and not self._node.cluster.has_controller_contact
        ):
            # Its members' sessions may be over at the next one, which has their partitions given to others.
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, "no controller is heard: another broker may keep the groups")
        token, answer = coordinator.submit(request)
        if not isinstance(answer, asyncio.Future):
            return answer
        try:
            if type(request) not in PARKED:  # the log takes it in time, or the coordinator ends
                return await answer
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise Refused(Code.REQUEST_TIMED_OUT, f"no answer within {timeout:g} s") from None
        finally:
            coordinator.cancel_request(token)

    async def partition_for(self, group: str) -> int:
        """The partition of `__consumer_offsets` whose leader coordinates a group; the topic is made on first need."""
        await self.ensure_topic()
        return partition_of(group, len(self._node.image.topics[OFFSETS_TOPIC].partitions))

    async def _get_coordinator(self, group: str) -> CoordinatorRuntime:
        partition = await self.partition_for(group)
        if self._stop_refusal is not None:
            raise self._stop_refusal
        place = self._led_partitions.get(partition)
        if place is None:
            tp = TopicPartition(OFFSETS_TOPIC, partition)
            code = (
                Code.COORDINATOR_NOT_AVAILABLE
                if tp in self._node.hosted_replicas.unopened_leaders
                else Code.NOT_COORDINATOR
            )
            raise Refused(code, f"this broker does not serve {tp}")
        if place.coordinator is None:
            raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, f"groups of {place.replica.tp} are being loaded")
        return place.coordinator

    async def list_groups(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> list[ListedGroup]:
        """The groups that this broker coordinates. `Refused(COORDINATOR_LOAD_IN_PROGRESS)` while not all are known."""
        request = ListGroups(frozenset(states), frozenset(types))
        found: list[ListedGroup] = []
        for place in list(self._led_partitions.values()):
            if place.coordinator is None:
                raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, f"groups of {place.replica.tp} are being loaded")
            _, answer = place.coordinator.submit(request)
            listed = await answer if isinstance(answer, asyncio.Future) else answer
            found += cast(ListGroupsReply, listed).groups
        return found

    async def ensure_topic(self) -> None:
        """`__consumer_offsets` is there, and led. `Refused(COORDINATOR_NOT_AVAILABLE)` when it cannot be made."""
        if OFFSETS_TOPIC in self._node.image.topics and not self._create_lock.locked():
            return
        try:
            async with asyncio.timeout(CREATE_SECONDS), self._create_lock:
                if OFFSETS_TOPIC not in self._node.image.topics:
                    await self._create_topic()
        except TimeoutError:
            why = f"{OFFSETS_TOPIC} was not made within {CREATE_SECONDS:g} s"
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, why) from None

    async def _create_topic(self) -> None:
        settings, image = self._node.settings, self._node.image
        # A first broker alone makes what it can; Kafka would refuse until there are enough.
        copies = min(settings.offsets_topic_replication_factor, sum(each.live for each in image.brokers.values()))
        try:
            await self._node.submit(CreateTopic(OFFSETS_TOPIC, settings.offsets_topic_num_partitions, copies))
        except Refused as refused:
            # That it exists already means: who asked for it went away, and it is not committed yet.
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}: {refused.why}") from None

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that all groups hold here, about."""
        shards = (place.coordinator.shard for place in self._led_partitions.values() if place.coordinator is not None)
        return sum(shard.state.memory_bytes for shard in shards)

    def iter_committed_offsets(self) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Offsets of all groups that are coordinated here: group, topic, offset by partition."""
        for place in self._led_partitions.values():
            if place.coordinator is not None:
                for group, topics in place.coordinator.shard.state.log_state.offsets.items():
                    for topic, offsets in topics.items():
                        yield group, topic, {partition: each.offset for partition, each in offsets.items()}

    def list_unserved(self) -> dict[str, str]:
        """Partitions whose groups cannot be served, with the reason."""
        return {str(place.replica.tp): place.load_error for place in self._led_partitions.values() if place.load_error}

    # -- leading ------------------------------------------------------------------------------------------------------

    def on_lead(self, replica: LeaderReplica) -> None:
        """This broker leads a partition from now on. One that is new has nothing to load."""
        if replica.topic != OFFSETS_TOPIC or self._stop_refusal is not None:
            return
        base = self.snapshot_store.take_base(replica.partition_id)
        place = self._led_partitions[replica.partition] = CoordinatorPartition(replica, snapshot_names=base.names)
        if replica.leader_epoch == 0 and replica.log.end_offset == 0:
            self._serve(place, self._make_shard())
        else:
            self._spawn(self._load(place, base))

    def on_resign(self, replica: LeaderReplica) -> None:
        """It is led here no more."""
        place = self._led_partitions.get(replica.partition) if replica.topic == OFFSETS_TOPIC else None
        if place is not None and place.replica is replica:
            del self._led_partitions[replica.partition]
            if place.coordinator is not None:
                place.coordinator.end(Refused(Code.NOT_COORDINATOR, f"this broker leads {replica.tp} no more"))

    def on_topics_deleted(self, names: Iterable[str]) -> None:
        """Offsets of these topics go, in the turn in which their deletion is heard: what is committed after that is
        meant for the topics that have their names then."""
        for place in self._led_partitions.values():
            if place.coordinator is not None:
                place.coordinator.on_topics_deleted(tuple(names))
            else:
                place.deleted_topics.update(dict.fromkeys(names))

    def on_image(self, old: Image, new: Image) -> None:
        """The same for partitions that are led since."""
        deleted = old.topics_by_id.keys() - new.topics_by_id.keys()
        for place in self._led_partitions.values() if deleted else ():
            if place.coordinator is None:
                place.deleted_topics.update(
                    (name, None) for name in sorted(old.topics_by_id[each].name for each in deleted)
                )

    async def _load(self, place: CoordinatorPartition, base: PreviousSnapshot, pause: float = 0.0) -> None:
        """Until it is served or led elsewhere; what fails is tried again after a growing pause."""
        started, replica = self._clock.mono_ns(), place.replica
        while True:
            await self._clock.sleep(pause)
            await replica.wait_loss_reported()  # its log takes nothing before that
            if self._led_partitions.get(replica.partition) is not place or replica.is_stopped:
                return
            try:
                shard = self._make_shard()
                loaded = await load_shard(replica, shard, self.snapshot_store, base, self._clock)
                if loaded.lost_below_offset >= 0:
                    log.error(
                        "changes of groups may be gone partition=%s below_offset=%d",
                        replica.tp,
                        loaded.lost_below_offset,
                    )
                await self._node.hosted_replicas.wait_applied()
                amended = await correct_offsets(shard, self._find_end_after_loss, self._clock)
                if self._can_be_deleted(replica, loaded.snapshot):
                    await self._snapshotter.write(place, replica.log.end_offset, shard.snapshot())
            except (Unavailable, Corrupt, Refused) as error:
                pause = min(max(2 * pause, RETRY_SECONDS[0]), RETRY_SECONDS[1])
                base = self._find_base(place)
                place.load_error = f"its groups cannot be loaded: {error}"
                log.warning("groups are loaded later partition=%s again_in=%.1f why=%s", replica.tp, pause, error)
                continue
            if self._led_partitions.get(replica.partition) is not place or replica.is_stopped:
                return
            place.load_error = ""
            coordinator = self._serve(place, shard)
            if loaded.has_unsaved:  # whoever led it before may have saved none of that
                coordinator.unsaved_since_ms = self._clock.mono_ns() // 1_000_000
            for key, offset, end in amended.lowered:
                log.warning("committed offset is cut back key=%s offset=%d end=%d", key, offset, end)
            if amended.records:
                coordinator.append_corrections(amended.records)
            place.deleted_topics.update(dict.fromkeys(amended.deleted_topics))
            if place.deleted_topics:
                coordinator.on_topics_deleted(tuple(place.deleted_topics))
                place.deleted_topics.clear()
            self._load_seconds.observe((self._clock.mono_ns() - started) / 1e9)
            return

    def _serve(self, place: CoordinatorPartition, shard: GroupShard) -> CoordinatorRuntime:
        place.coordinator = coordinator = CoordinatorRuntime(
            place.replica, shard, self._clock, self.counts,
            spawn=self._spawn, on_deadline_changed=self._on_deadline_moved,
            on_failed=lambda why: self._on_write_failed(place, why),
        )  # fmt: skip
        shard.on_loaded(coordinator.now())
        if shard.next_due_ms is not None:
            self._on_deadline_moved(shard.next_due_ms)
        return coordinator

    def _make_shard(self) -> GroupShard:
        settings = self._node.settings
        shard = GroupShard(
            GroupSettings(
                session_timeout_min_ms=settings.group_min_session_timeout_ms,
                session_timeout_max_ms=settings.group_max_session_timeout_ms,
                initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
                size_max=settings.group_max_size,
                metadata_bytes_max=settings.offset_metadata_max_bytes,
                retention_ms=settings.offsets_retention_minutes * 60_000,
                retention_check_ms=settings.offsets_retention_check_interval_ms,
                bytes_max=settings.tiered_groups_max_bytes,
            ),
            lambda: str(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            lambda: self.memory_bytes - shard.state.memory_bytes,
        )
        return shard

    def _on_write_failed(self, place: CoordinatorPartition, why: Refused) -> None:
        """The log did not take a change: what it holds is loaded anew."""
        place.coordinator = None
        log.error("groups are loaded anew partition=%s why=%s", place.replica.tp, why)
        if self._led_partitions.get(place.replica.partition) is place and not place.replica.is_stopped:
            self._spawn(self._load(place, self._find_base(place), RETRY_SECONDS[0]))

    def _can_be_deleted(self, replica: LeaderReplica, base: SnapshotName | None) -> bool:
        """Whether somebody who led before, and does not know that this is over, may delete what this log begins at."""
        own = base is not None and base.epoch == replica.leader_epoch
        settled = self._node.hosted_replicas.has_clean_predecessor(replica.tp, replica.leader_epoch)
        return replica.log_start_offset > 0 and not own and not settled

    @staticmethod
    def _find_base(place: CoordinatorPartition) -> PreviousSnapshot:
        """What to load again from: the log may have been cut since, at an image that was not there before."""
        hot = place.replica.log
        names = [name for name in place.snapshot_names if name.offset <= hot.end_offset]
        base = choose_snapshot(names, place.replica.log_start_offset, hot.end_offset, hot.epochs).base
        return PreviousSnapshot(base, None, place.snapshot_names)

    def _find_end_after_loss(self, topic: str, partition: int) -> int | None:
        """Where a partition ends that lost records when this broker began to lead it; -1 for a topic that is gone."""
        if topic not in self._node.image.topics:
            return -1
        try:
            replica = self._node.leader_replica(topic, partition)
        except Refused:
            return None
        loss = replica.possible_loss
        return replica.log.end_offset if loss is not None and loss["leader_epoch"] == replica.leader_epoch else None

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
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

    def _on_deadline_moved(self, due_ms: int) -> None:
        if due_ms < self._next_deadline_ms:
            self._next_deadline_ms = due_ms
            self._deadline_advanced.set()

    async def _run_deadlines(self) -> None:
        """Sleeps until the next deadline of any group. A deadline that moved away costs one look."""
        while True:
            self._deadline_advanced.clear()
            self._next_deadline_ms = NEVER_MS
            for place in list(self._led_partitions.values()):
                due = place.coordinator.run_due() if place.coordinator is not None else None
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
            if self._node.store.outage is None:
                await self._snapshotter.save_changed(list(self._led_partitions.values()))

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, why: str) -> None:
        """Nobody is served any more; what the last images are to hold is set aside for `save_final_snapshots`."""
        if self._stop_refusal is None:
            self._stop_refusal = Refused(Code.NOT_COORDINATOR, why)
        for place in self._led_partitions.values():
            self._snapshotter.prepare_final_snapshot(place)
            if place.coordinator is not None:
                place.coordinator.end(self._stop_refusal)
        for task in self._unstarted_tasks:
            task.close()
        self._unstarted_tasks.clear()

    async def save_final_snapshots(self) -> None:
        """Of a clean stop; not while the bucket is away."""
        if self._node.store.outage is None:
            await self._snapshotter.save_final_snapshots()

    # -- figures ------------------------------------------------------------------------------------------------------

    def _count_by_state(self) -> Mapping[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for place in self._led_partitions.values():
            if place.coordinator is not None:
                for state, count in place.coordinator.count_states().items():
                    found[(state,)] = found.get((state,), 0) + count
        return found

    def _snapshot_lag_seconds(self) -> float:
        since = [
            p.coordinator.unsaved_since_ms
            for p in self._led_partitions.values()
            if p.coordinator and p.coordinator.unsaved_since_ms >= 0
        ]
        return (self._clock.mono_ns() // 1_000_000 - min(since)) / 1000 if since else 0.0


@lru_cache(maxsize=10_000)
def partition_of(group: str, partitions: int) -> int:
    """Kafka's place of a group: Java's hash of its name."""
    units = group.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    code = code - (1 << 32) if code >= 1 << 31 else code
    return (0 if code == -(1 << 31) else abs(code)) % partitions
