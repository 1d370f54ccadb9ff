"""The share coordinators of one broker: shards of share state, run by a coordinator host over `__share_group_state`.

The host loads, runs and ends the coordinators. This file adds what is of share partitions: the end of those whose topic
is deleted, log lines and metrics (I39). The shards themselves (`tiered/share`) are imported with the first partition:
most brokers never lead one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Never

from tiered.controller.channel import RequestChannel
from tiered.controller.member_view import MemberView
from tiered.coordination.internal_topic import InternalTopic, InternalTopicSize
from tiered.coordinator.host import CoordinatorHost, HostPorts
from tiered.coordinator.partition import CoordinatorPartition
from tiered.coordinator.runtime import FindExpiryMs
from tiered.coordinator.snapshot_store import CoordinatorSnapshotStore
from tiered.errors import Code, Refused
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.ids import TopicId
from tiered.metadata.features import METADATA_VERSION, SHARE_GROUPS
from tiered.metadata.image import Image
from tiered.metadata.topic_names import SHARE_STATE_TOPIC
from tiered.metrics import Metrics
from tiered.object_store.metered import MeteredStore
from tiered.ports import Clock

if TYPE_CHECKING:
    from tiered.share.coordinator_shard import ShareCoordinatorShard
    from tiered.share.requests import KeyedRequest, Reply, Request

log = logging.getLogger(__name__)

SUBMIT_SECONDS = 30.0


@dataclass(frozen=True)
class SharePorts:
    """The parts of a broker that its share coordinators use."""

    view: MemberView
    channel: RequestChannel
    replicas: HostedReplicas
    store: MeteredStore
    snapshot_store: CoordinatorSnapshotStore
    clock: Clock
    has_controller_contact: Callable[[], bool]
    find_expiry_ms: FindExpiryMs


class ShareCoordinators:
    """Serves all requests about share partitions that this broker coordinates."""

    noun = "share partitions"
    parked_requests = frozenset[type]()

    def __init__(self, ports: SharePorts, metrics: Metrics) -> None:
        self._view = ports.view
        self._topic = InternalTopic(SHARE_STATE_TOPIC, self._topic_size, ports.view, ports.channel)
        loader, store = ports.view.loader, ports.store
        self.host: CoordinatorHost[ShareCoordinatorShard, Request, Reply] = CoordinatorHost(
            self,
            ports.snapshot_store,
            HostPorts(
                ports.view.node_id, ports.clock, ports.replicas, lambda: loader.image, ports.has_controller_contact,
                lambda: store.takes_writes, ports.find_expiry_ms,
            ),
            self.ensure_topic,
            metrics.histogram(
                "tiered_share_load_seconds", "From leading a partition of share state to serving it.",
                (0.01, 0.1, 1, 10, 60),
            ),
        )  # fmt: skip
        self._add_metrics(metrics)

    def _topic_size(self) -> InternalTopicSize:
        settings = self._view.settings
        return InternalTopicSize(
            settings.share_coordinator_state_topic_num_partitions,
            settings.share_coordinator_state_topic_replication_factor,
        )

    def _add_metrics(self, metrics: Metrics) -> None:
        metrics.gauge("tiered_share_partitions", "Share partitions whose state this broker coordinates.").set_function(
            lambda: float(sum(len(shard.state.partitions) for shard in self.host.shards()))
        )
        metrics.gauge(
            "tiered_share_state_bytes", "Memory that the state of all share partitions holds here, about."
        ).set_function(lambda: float(self.memory_bytes))
        metrics.gauge(
            "tiered_share_image_lag_seconds", "Age of the oldest change of share state not in the bucket."
        ).set_function(self.host.snapshot_lag_seconds)
        metrics.gauge(
            "tiered_share_state_partitions_loading", "Partitions of share state that are not served yet."
        ).set_function(lambda: float(self.host.count_loading()))

    # -- requests -----------------------------------------------------------------------------------------------------

    async def ensure_topic(self) -> None:
        """Creates `__share_group_state` if it does not exist. Raises `Refused` with COORDINATOR_NOT_AVAILABLE.

        Brokers of an earlier program know nothing of this topic: they would delete its records by age.
        """
        if SHARE_STATE_TOPIC not in self._view.image.topics and self._view.image.metadata_version < SHARE_GROUPS:
            why = f"share groups are served from {METADATA_VERSION}={SHARE_GROUPS} on (docs/how-to/upgrade.md)"
            raise Refused(Code.COORDINATOR_NOT_AVAILABLE, why)
        await self._topic.ensure()

    async def submit(self, request: KeyedRequest, timeout: float = SUBMIT_SECONDS) -> Reply:
        """Returns the reply to a request about one share partition. Raises `Refused` like `CoordinatorHost.submit`."""
        return await self.host.submit(request.key.coordinator_key, request, timeout)

    @property
    def memory_bytes(self) -> int:
        """About how many bytes of memory all share partitions of this broker take."""
        return sum(shard.state.memory_bytes for shard in self.host.shards())

    # -- the cluster --------------------------------------------------------------------------------------------------

    def on_topics_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        """Removes the share partitions of deleted topics. A shard that loads removes them after its load."""
        if self.host.led_partitions:
            from tiered.share.requests import TopicsDeleted

            self.host.submit_unawaited(TopicsDeleted(frozenset(topic_ids)))

    def on_image(self, old: Image, new: Image) -> None:
        """Defers the removal of deleted topics for partitions that are still loading."""
        deleted = old.topics_by_id.keys() - new.topics_by_id.keys()
        if deleted and self.host.led_partitions:
            from tiered.share.requests import TopicsDeleted

            self.host.defer(TopicsDeleted(frozenset(deleted)))

    # -- shards -------------------------------------------------------------------------------------------------------

    @property
    def observer(self) -> ShareCoordinators:
        """Takes the events of the shards, which have none."""
        return self

    def make_shard(self) -> ShareCoordinatorShard:
        """Returns a shard without share partitions."""
        from tiered.share.coordinator_shard import ShareCoordinatorShard
        from tiered.share.limits import ShareCoordinatorSettings

        settings = self._view.settings
        shard = ShareCoordinatorShard(
            ShareCoordinatorSettings(
                updates_per_snapshot=settings.share_coordinator_snapshot_update_records_per_snapshot,
                bytes_max=settings.tiered_share_state_max_bytes,
            ),
            self._has_partition,
            lambda: self.memory_bytes - shard.state.memory_bytes,
        )
        return shard

    def _has_partition(self, topic_id: TopicId, partition: int) -> bool:
        topic = self._view.image.topics_by_id.get(topic_id)
        return topic is not None and 0 <= partition < len(topic.partitions)

    async def find_corrections(
        self,
        shard: ShareCoordinatorShard,
        partition: CoordinatorPartition[ShareCoordinatorShard, Request, Reply],
        *,
        is_part_lost: bool,
    ) -> Sequence[Request]:
        """Removes the share partitions of topics that were deleted while nobody led the log.

        `is_part_lost` needs no correction: the older state gives records again, and skips none.
        """
        from tiered.share.requests import TopicsDeleted

        if shard.state.skipped_records:
            log.error(
                "records of share state cannot be read, the next snapshot lacks them partition=%s count=%d",
                partition.replica.tp, shard.state.skipped_records,
            )  # fmt: skip
        gone = {key.topic_id for key in shard.state.partitions} - self._view.image.topics_by_id.keys()
        return (TopicsDeleted(frozenset(gone)),) if gone else ()

    def on_request(self, request: Request) -> None:
        """Notes nothing."""

    def on_event(self, event: Never) -> None:
        """Is never called: the shards have no events."""

    async def run(self) -> None:
        """Runs the coordinators until it is cancelled."""
        await self.host.run()
