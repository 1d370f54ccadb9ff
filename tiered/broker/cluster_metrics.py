"""Gauges and counters of the cluster's state, under the names that Kafka's metrics have behind the usual JMX exporter.

A scrape computes the gauges, at most once for each image. Only events between two scrapes are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from tiered.controller.member_view import MemberView
from tiered.controller.partition_health import (
    PartitionHealth,
    assess_partitions,
    count_isr_changes,
    unacknowledged_losses,
)
from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.metrics import Metrics, limit_topics
from tiered.peers import ClockComparison

LOSS_TOPICS_MAX = 100
"""Most topics with a label of their own in the metric of losses."""


class ClusterMetrics:
    """The metrics of one broker. `is_controller` is True if this broker is the active controller. `compare_clocks`
    returns how far clocks are ahead of the controller's."""

    def __init__(
        self,
        metrics: Metrics,
        view: MemberView,
        is_controller: Callable[[], bool],
        compare_clocks: Callable[[], Mapping[int, ClockComparison]],
    ) -> None:
        self._view = view
        self._cached_health: tuple[Image, PartitionHealth] | None = None
        self._shrinks = metrics.counter(
            "kafka_server_replicamanager_isrshrinks_total", "In-sync sets of led partitions that lost a member."
        )
        self._expands = metrics.counter(
            "kafka_server_replicamanager_isrexpands_total", "In-sync sets of led partitions that won a member."
        )
        self._add_broker_gauges(metrics)
        self._add_cluster_gauges(metrics, is_controller)
        metrics.gauge(
            "tiered_clock_ahead_seconds",
            "Time by which the clock of a broker is ahead of the controller's; the controller has all other brokers.",
            ("broker",),
        ).set_function(lambda: {(str(node_id),): each.ahead_ms / 1000 for node_id, each in compare_clocks().items()})

    @property
    def partition_health(self) -> PartitionHealth:
        """Health of all partitions in the newest image."""
        image = self._view.image
        if self._cached_health is None or self._cached_health[0] is not image:
            self._cached_health = image, assess_partitions(image, self._view.node_id)
        return self._cached_health[1]

    def count_isr_changes(self, changes: Sequence[Change], before: Image, after: Image) -> None:
        """Counts the ISR changes among committed changes."""
        shrunk, grown = count_isr_changes(changes, before, after, self._view.node_id)
        self._shrinks.inc(shrunk)
        self._expands.inc(grown)

    def _add_broker_gauges(self, metrics: Metrics) -> None:
        def gauge(name: str, help: str, read: Callable[[PartitionHealth], int]) -> None:
            metrics.gauge(name, help).set_function(lambda: float(read(self.partition_health)))

        gauge(
            "kafka_server_replicamanager_underreplicatedpartitions",
            "Partitions led here that have a replica which is not in sync.",
            lambda now: len(now.under_replicated),
        )
        gauge(
            "kafka_server_replicamanager_underminisrpartitioncount",
            "Partitions led here that have fewer in sync than min.insync.replicas: acks=all is refused.",
            lambda now: len(now.under_min_isr),
        )
        gauge(
            "kafka_server_replicamanager_atminisrpartitioncount",
            "Partitions led here that have just as many in sync as min.insync.replicas.",
            lambda now: now.at_min_isr_count,
        )
        gauge("kafka_server_replicamanager_leadercount", "Partitions led here.", lambda now: now.leader_count)
        gauge(
            "kafka_server_replicamanager_partitioncount",
            "Partitions that have a replica here.",
            lambda now: now.replica_count,
        )
        gauge(
            "kafka_controller_kafkacontroller_offlinepartitionscount",
            "Partitions of the cluster that have no leader.",
            lambda now: len(now.leaderless),
        )
        gauge(
            "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
            "Partitions of the cluster that their first replica does not lead.",
            lambda now: now.not_preferred_count,
        )
        gauge(
            "kafka_controller_kafkacontroller_globalpartitioncount",
            "Partitions of the cluster.",
            lambda now: now.partition_count,
        )

    def _add_cluster_gauges(self, metrics: Metrics, is_controller: Callable[[], bool]) -> None:
        def gauge(name: str, help: str, read: Callable[[Image], int]) -> None:
            metrics.gauge(name, help).set_function(lambda: float(read(self._view.image)))

        gauge(
            "kafka_controller_kafkacontroller_activecontrollercount",
            "1 where the controller is, else 0.",
            lambda _: is_controller(),
        )
        gauge(
            "kafka_controller_kafkacontroller_globaltopiccount",
            "Topics of the cluster.",
            lambda image: len(image.topics),
        )
        gauge(
            "kafka_controller_kafkacontroller_activebrokercount",
            "Brokers of the cluster that serve.",
            lambda image: sum(broker.live for broker in image.brokers.values()),
        )
        gauge(
            "kafka_controller_kafkacontroller_fencedbrokercount",
            "Brokers of the cluster without contact to the controller.",
            lambda image: sum(broker.alive and broker.fenced for broker in image.brokers.values()),
        )
        gauge(
            "tiered_possible_loss_partitions",
            "Partitions of the cluster of which acknowledged records may be gone, and nobody has acknowledged that.",
            lambda image: len(image.losses),
        )
        metrics.gauge(
            "tiered_topic_possible_loss_partitions", "The same of each topic that has any.", ("topic",)
        ).set_function(
            lambda: limit_topics(Counter(tp.topic for tp in unacknowledged_losses(self._view.image)), LOSS_TOPICS_MAX)
        )
