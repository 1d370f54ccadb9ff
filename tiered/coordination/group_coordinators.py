"""The group coordinators of one broker: group shards, run by a coordinator host over `__consumer_offsets`.

The host loads, runs and ends the coordinators. This file adds what is of groups: their requests, the corrections of
their offsets after a load, their log lines and their metrics.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from tiered.config.group_config import GroupConfig
from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.coordination.internal_topic import InternalTopic, InternalTopicSize
from tiered.coordination.offset_corrections import OffsetCorrections, OffsetLimits
from tiered.coordination.topic_regexes import make_matcher
from tiered.coordinator.host import CoordinatorHost, HostPorts, VerifyPartition
from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.runtime import CoordinatorRuntime, FindExpiryMs
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.durability.loss_rules import LedSinceLoss, find_new_losses
from tiered.errors import Code, Refused
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.limits import MIGRATION_POLICIES, ConsumerTimeouts, GroupSettings, MigrationPolicy
from tiered.groups.records import OffsetKey
from tiered.groups.requests import (
    CommitOffsets,
    CommitOffsetsReply,
    CommitTransactionalOffsets,
    Event,
    GenerationStarted,
    JoinGroup,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
    OffsetLowered,
    Reply,
    Request,
    SyncGroup,
    TargetComputed,
    TopicsDeleted,
)
from tiered.groups.shard import GroupShard
from tiered.groups.subscription import CONSUMER
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.features import MIXED_GROUPS
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss
from tiered.metadata.topic_names import OFFSETS_TOPIC
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.ports import Clock, Rng
from tiered.quotas.shares import GROUP_BYTES, Holdings
from tiered.records.marker import TransactionMarker
from tiered.replication.leader_replica import LeaderReplica

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0
SLICE_OFFSETS = 500
"""Offsets that one turn compares with the cluster, or a few more."""


class GroupObserver:
    """Logs and counts what group coordinators do. The counts are plain numbers: metrics read them on each scrape."""

    def __init__(self) -> None:
        self.commits = 0
        self.rebalances = 0

    def on_request(self, request: Request) -> None:
        """Counts committed offsets."""
        if isinstance(request, CommitOffsets | CommitTransactionalOffsets):
            self.commits += len(request.offsets)

    def on_event(self, event: Event) -> None:
        """Counts and logs generations and new assignments, and logs offsets that were lowered."""
        match event:
            case GenerationStarted():
                self.rebalances += 1
                log.info(
                    "group starts a generation group=%s generation=%d members=%d assignor=%s",
                    event.group, event.generation, event.members, event.assignor,
                )  # fmt: skip
            case TargetComputed():
                self.rebalances += 1
                log.info(
                    "consumer group gets a new assignment group=%s epoch=%d members=%d assignor=%s",
                    event.group, event.epoch, event.members, event.assignor,
                )  # fmt: skip
            case OffsetLowered(group, topic, partition, offset, end):
                key = OffsetKey(group, topic, partition)
                log.warning("committed offset is cut back key=%s offset=%d end=%d", key, offset, end)


@dataclass(frozen=True)
class GroupPorts:
    """The parts of a broker that its group coordinators use."""

    view: MemberView
    channel: RequestChannel
    replicas: HostedReplicas
    store: MeteredStore
    snapshot_store: CoordinatorSnapshotStore
    clock: Clock
    rng: Rng
    has_controller_contact: Callable[[], bool]
    find_expiry_ms: FindExpiryMs


class GroupCoordinators:
    """Serves all requests about groups, for the Kafka listener and for HTTP."""

    noun = "groups"
    parked_requests = frozenset[type]({JoinGroup, SyncGroup})
    """Requests whose reply waits for other members."""

    def __init__(self, ports: GroupPorts, metrics: Metrics) -> None:
        self.observer = GroupObserver()
        self._clock = ports.clock
        self._rng = ports.rng.stream("groups")
        self._replicas = ports.replicas
        self._view = ports.view
        self._new_losses: dict[LeaderReplica, list[tuple[PartitionId, Loss]]] = {}
        """By replica of `__consumer_offsets`: losses that became known while this broker led it, and whose lowered
        offsets are not in its log yet. Offsets without a leader epoch need them; the others go by the image alone."""
        self._match_topics = make_matcher(lambda: ports.view.image.topics)
        self._loss_entered = asyncio.Event()
        self._long_marker = asyncio.Lock()
        """Held by the marker of many offsets that waits for its turn of the event loop."""
        self._topic = InternalTopic(OFFSETS_TOPIC, self._topic_size, ports.view, ports.channel)
        loader, store = ports.view.loader, ports.store
        self.host: CoordinatorHost[GroupShard, Request, Reply] = CoordinatorHost(
            self,
            ports.snapshot_store,
            HostPorts(
                ports.view.node_id, ports.clock, ports.replicas, lambda: loader.image, ports.has_controller_contact,
                lambda: store.takes_writes, ports.find_expiry_ms,
            ),
            self._topic.ensure,
            metrics.histogram(
                "tiered_group_load_seconds", "From leading a partition of groups to serving them.",
                (0.01, 0.1, 1, 10, 60),
            ),
        )  # fmt: skip
        self.holdings = Holdings(
            GROUP_BYTES,
            lambda: self._view.settings.tiered_groups_max_bytes,
            lambda: self.memory_bytes,
            lambda: (shard.state.holders.by_holder for shard in self.host.shards()),
        )
        self._add_metrics(metrics)

    def _topic_size(self) -> InternalTopicSize:
        settings = self._view.settings
        return InternalTopicSize(settings.offsets_topic_num_partitions, settings.offsets_topic_replication_factor)

    def _add_metrics(self, metrics: Metrics) -> None:
        metrics.gauge("tiered_groups", "Groups that this broker coordinates, by state.", ("state",)).set_function(
            self._count_by_state
        )
        metrics.counter("tiered_group_offset_commits_total", "Offsets that were to be committed.").set_function(
            lambda: self.observer.commits
        )
        metrics.counter("tiered_group_rebalances_total", "Generations that began with members.").set_function(
            lambda: self.observer.rebalances
        )
        metrics.gauge("tiered_group_bytes", "Memory that all groups hold here, about.").set_function(
            lambda: float(self.memory_bytes)
        )
        metrics.gauge(
            "tiered_group_image_lag_seconds", "Age of the oldest change of groups that is not in the bucket."
        ).set_function(self.host.snapshot_lag_seconds)
        metrics.gauge("tiered_group_partitions_loading", "Partitions of groups that are not served yet.").set_function(
            lambda: float(self.host.count_loading())
        )

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, group: str, request: Request, timeout: float = SUBMIT_SECONDS) -> Coroutine[Any, Any, Any]:
        """Returns the reply that the request names. Raises `Refused` like `CoordinatorHost.submit`."""
        return self.host.submit(group, request, timeout)

    async def commit_transactional_offsets(
        self, request: CommitTransactionalOffsets, verify: VerifyPartition, *, adds_partition: bool
    ) -> CommitOffsetsReply:
        """Writes offsets that the marker of a transaction commits or drops.

        `verify` asks the coordinator of the transaction where it would begin in this partition. `adds_partition`: the
        question also adds the partition to the transaction (KIP-890). Raises `Refused` like
        `CoordinatorHost.submit_in_transaction`.
        """
        reply = await self.host.submit_in_transaction(
            request.group, request, request.producer, verify, moves_epoch=adds_partition
        )
        return cast("CommitOffsetsReply", reply)

    async def write_marker(self, partition: int, marker: TransactionMarker, *, may_wait: bool = True) -> None:
        """Ends a transaction in a partition of `__consumer_offsets`, and returns once the marker is committed.

        The offsets of the transaction become visible, or vanish, with the marker. A repeated call changes nothing. Of
        transactions with many offsets, one ends in a turn of the event loop. `may_wait`: waits for that.

        Raises `Refused`: the codes of `LeaderReplica.append_marker`, and INVALID_PRODUCER_EPOCH for a marker that is
        older than the pending offsets.
        """
        if may_wait:
            pending = self.host.find_coordinator_of(partition).shard.log_state.pending
            if pending.count_of(marker.producer_id) > SLICE_OFFSETS:
                async with self._long_marker:
                    await self._clock.sleep(0)  # the lock lets one long marker into each turn
        epoch = self.pending_epoch_of(partition, marker.producer_id)
        if epoch >= 0 and marker.producer_epoch < epoch + marker.moves_epoch:
            # The log says so too, but not one that was restored from a snapshot: it knows no producers.
            why = f"marker of producer {marker.producer_id} epoch {marker.producer_epoch}"
            raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{why}: the pending offsets have epoch {epoch}")
        await self.host.find_coordinator_of(partition).write_marker(marker)

    def pending_epoch_of(self, partition: int, producer_id: int) -> int:
        """Returns the epoch in which an open transaction of the producer has written offsets in a partition of
        `__consumer_offsets`; -1 if there is none.

        Raises `Refused` if this broker does not serve the partition.
        """
        epoch = self.host.find_coordinator_of(partition).shard.log_state.pending.epoch_of(producer_id)
        return epoch if epoch is not None else -1

    async def ensure_topic(self) -> None:
        """Creates `__consumer_offsets` if it does not exist. Raises `Refused` with COORDINATOR_NOT_AVAILABLE."""
        await self._topic.ensure()

    async def list_groups(
        self,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        pause: Callable[[], Awaitable[None]] | None = None,
    ) -> list[ListedGroup]:
        """Returns the groups that this broker coordinates.

        Raises `Refused` with COORDINATOR_LOAD_IN_PROGRESS while not all are known.
        """
        replies = await self.host.submit_to_each(ListGroups(frozenset(states), frozenset(types)), pause)
        return [group for reply in replies for group in cast("ListGroupsReply", reply).groups]

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory all groups of this broker take."""
        return sum(shard.state.memory_bytes for shard in self.host.shards())

    def iter_committed_offsets(self, only: Set[str] | None = None) -> Iterator[tuple[str, str, dict[int, int]]]:
        """Yields the committed offsets of all groups of this broker: group, topic, offset by partition. `only` are the
        topics, None for all."""
        for shard in self.host.shards():
            for group, topics in shard.log_state.offsets.items():
                for topic, offsets in topics.items():
                    if only is not None and topic not in only:
                        continue
                    yield group, topic, {partition: each.offset for partition, each in offsets.items()}

    def iter_assignments(self) -> Iterator[tuple[str, list[bytes]]]:
        """Yields the last assignments of the members of each group of consumers, of the classic protocol."""
        for shard in self.host.shards():
            for name, group in shard.state.groups.items():
                if group.protocol_type == CONSUMER and group.members:
                    yield name, [member.assignment for member in group.members.values()]

    def iter_owned(self) -> Iterator[tuple[str, Assignment]]:
        """Yields the partitions that each member of each consumer group has (KIP-848)."""
        for shard in self.host.shards():
            for name, group in shard.log_state.consumer_groups.items():
                for member in group.members.values():
                    yield name, member.current.assigned

    # -- the cluster --------------------------------------------------------------------------------------------------

    def on_lead(self, replica: LeaderReplica, decided: Image, applied: Image) -> None:
        """Begins a coordinator. Its offsets were committed before the image `decided`, so losses of later images are
        new to them."""
        if replica.topic == self.host.topic and (found := _find_new_losses(decided, applied)):
            self._new_losses.setdefault(replica, []).extend(found)
        self.host.on_lead(replica, decided.slot)

    def on_resign(self, replica: LeaderReplica) -> None:
        """Ends the coordinator of a partition."""
        self._new_losses.pop(replica, None)
        self.host.on_resign(replica)

    def on_topics_deleted(self, names: Iterable[str]) -> None:
        """Removes the offsets of deleted topics.

        This happens in the turn in which the deletion is committed. A shard that loads removes them after its load, and
        keeps those that carry the id of a topic that has such a name by then.
        """
        self.host.submit_unawaited(TopicsDeleted(tuple(names)))

    def on_image(self, old: Image, new: Image) -> None:
        """Defers the removal of deleted topics for partitions that are still loading, and notes new losses."""
        deleted = old.topics_by_id.keys() - new.topics_by_id.keys()
        if deleted:
            self.host.defer(TopicsDeleted(tuple(sorted(old.topics_by_id[each].name for each in deleted))))
        if new.losses != old.losses:
            found = _find_new_losses(old, new)
            for led in self.host.led_partitions.values():
                if led.replica.led_since_slot <= old.slot:  # a later leader compares all losses at its load
                    self._new_losses.setdefault(led.replica, []).extend(found)
            self._loss_entered.set()

    # -- shards -------------------------------------------------------------------------------------------------------

    def make_shard(self) -> GroupShard:
        """Returns a shard without groups."""
        settings = self._view.settings
        return GroupShard(
            GroupSettings(
                session_timeout_min_ms=settings.group_min_session_timeout_ms,
                session_timeout_max_ms=settings.group_max_session_timeout_ms,
                initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
                size_max=settings.group_max_size,
                metadata_bytes_max=settings.offset_metadata_max_bytes,
                retention_ms=settings.offsets_retention_minutes * 60_000,
                retention_check_ms=settings.offsets_retention_check_interval_ms,
                bytes_max=settings.tiered_groups_max_bytes,
                consumer_session_timeout_ms=settings.group_consumer_session_timeout_ms,
                consumer_heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
                regex_refresh_ms=settings.group_consumer_regex_refresh_interval_ms,
                consumer_size_max=settings.group_consumer_max_size,
            ),
            lambda: str(uuid.UUID(int=self._rng.getrandbits(128), version=4)),
            self._find_topic_id,
            self.holdings,
            self._find_topic,
            lambda: self._view.image.slot,
            self._match_topics,
            self._find_own_timeouts,
            self._find_migration_policy,
        )

    async def find_corrections(
        self,
        shard: GroupShard,
        partition: CoordinatorPartition[GroupShard, Request, Reply],
        *,
        is_part_lost: bool = False,
    ) -> Sequence[Request]:
        """Compares the committed offsets of a loaded shard with the cluster, in slices (R5).

        `is_part_lost` needs no correction: the older offsets are lower, so consumers read records twice and lose none.
        The comparison is repeated until no loss has come meanwhile.
        """
        if shard.log_state.skipped_records:
            log.error(
                "records of groups cannot be read, the next snapshot lacks them partition=%s count=%d",
                partition.replica.tp, shard.log_state.skipped_records,
            )  # fmt: skip
        while True:
            image, new_losses = self._view.image, tuple(self._new_losses.get(partition.replica, ()))
            limits = OffsetLimits(image, new_losses, self._find_led, partition.written_before_slot)
            found = [request async for requests in self._correct(shard, limits) for request in requests]
            is_newest = len(new_losses) == len(self._new_losses.get(partition.replica, ()))
            if is_newest and image.losses == self._view.image.losses:
                if new_losses:  # they are done with once the log has the corrections
                    self._loss_entered.set()
                return found

    async def _correct(self, shard: GroupShard, limits: OffsetLimits) -> AsyncIterator[Sequence[Request]]:
        """Yields the corrections of one slice of the offsets after the other, with a turn for others in between."""
        log_state = shard.log_state
        corrections, looked_at = OffsetCorrections(log_state, limits.find), 0
        for group in dict.fromkeys((*log_state.offsets, *log_state.pending.groups())):
            looked_at += corrections.check_group(group)
            if looked_at > SLICE_OFFSETS:
                yield corrections.requests()
                corrections, looked_at = OffsetCorrections(log_state, limits.find), 0
                await self._clock.sleep(0)  # the caller may decide them without a wait
        yield corrections.requests()

    def _find_topic_id(self, topic: str) -> TopicId:
        found = self._view.image.topics.get(topic)
        return found.topic_id if found is not None else TopicId("")

    def _find_topic(self, topic: str) -> SubscribedTopic | None:
        found = self._view.image.topics.get(topic)
        return SubscribedTopic(found.topic_id, len(found.partitions)) if found is not None else None

    def _find_own_timeouts(self, group: str) -> ConsumerTimeouts | None:
        own = self._view.image.group_configs.get(group)
        if own is None:
            return None
        config = GroupConfig.from_strings(own, GroupConfig.of_broker(self._view.settings))
        return ConsumerTimeouts(config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms)

    def _find_migration_policy(self) -> MigrationPolicy:
        """Returns the policy of the settings, once no broker of an earlier program may become the coordinator."""
        if self._view.image.metadata_version < MIXED_GROUPS:
            return MIGRATION_POLICIES["disabled"]
        return MIGRATION_POLICIES[self._view.settings.group_consumer_migration_policy]

    def _find_led(self, topic: str, partition_id: PartitionId) -> LedSinceLoss | None:
        replica = self._replicas.find_leader(TopicPartition(topic, partition_id.partition))
        loss = replica.possible_loss if replica is not None and replica.partition_id == partition_id else None
        if replica is None or loss is None or loss["leader_epoch"] != replica.leader_epoch:
            return None
        return LedSinceLoss(replica.leader_epoch, replica.epoch_start, replica.log.end_offset, replica.led_since_slot)

    async def _lower_offsets_of_losses(self) -> None:
        """Lowers the offsets of loaded groups whenever the metadata log gets losses."""
        while True:
            await self._loss_entered.wait()
            self._loss_entered.clear()
            for led in list(self.host.led_partitions.values()):
                if led.coordinator is not None:
                    await self._lower_offsets(led.coordinator)

    async def _lower_offsets(self, coordinator: CoordinatorRuntime[GroupShard, Request, Reply]) -> None:
        """Lowers the offsets of records that are lost. If the log refuses that, the next load does it."""
        new_losses = self._new_losses.get(coordinator.replica, [])
        known = tuple(new_losses)
        if known:
            limits = OffsetLimits(self._view.image, known, self._find_led)
            async for requests in self._correct(coordinator.shard, limits):
                for request in requests:
                    coordinator.submit_unawaited(request)
            with suppress(Refused):
                coordinator.flush()
                del new_losses[: len(known)]

    # -- running ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs the coordinators until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lower_offsets_of_losses())
            await self.host.run()

    def _count_by_state(self) -> Mapping[tuple[str, ...], float]:
        states = Counter(group.state.value for shard in self.host.shards() for group in shard.state.groups.values())
        states.update(
            group.state.value for shard in self.host.shards() for group in shard.log_state.consumer_groups.values()
        )
        return {(state,): count for state, count in states.items()}


def _find_new_losses(old: Image, new: Image) -> list[tuple[PartitionId, Loss]]:
    """Returns the losses that a later image has and an earlier one lacks, each with its partition."""
    if new.losses == old.losses:
        return []
    return [(at, loss) for at, losses in new.losses.items() for loss in find_new_losses(old.losses.get(at, ()), losses)]
