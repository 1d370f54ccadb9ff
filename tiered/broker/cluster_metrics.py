"""What the cluster's state comes to in figures, under the names that Kafka's have behind the usual JMX exporter.

Gauges are worked out when somebody looks, once for each image; only what must not be missed in between is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tiered.controller.partition_health import PartitionHealth, unacknowledged_losses, count_isr_changes, assess_partitions
from tiered.metadata.changes import Change
from tiered.metadata.image import Image
from tiered.metrics import Metrics, by_topic

LOST_TOPICS = 100
"""Topics that are named by a metric of losses."""


class ClusterMetrics:
    """Of one broker. `reigns` says whether it is the controller."""

    def __init__(self, metrics: Metrics, node_id: int, image: Callable[[], Image], reigns: Callable[[], bool]) -> None:
        self._node_id = node_id
        self._image = image
        self._known: tuple[Image, PartitionHealth] | None = None
        self._shrinks = metrics.counter(
            "kafka_server_replicamanager_isrshrinks_total", "In-sync sets of led partitions that lost a member."
        )
        self._expands = metrics.counter(
            "kafka_server_replicamanager_isrexpands_total", "In-sync sets of led partitions that won a member."
        )
        self._of_broker(metrics)
        self._of_cluster(metrics, reigns)

    @property
    def standing(self) -> PartitionHealth:
        """How the partitions stand now."""
        image = self._image()
        if self._known is None or self._known[0] is not image:
            self._known = image, assess_partitions(image, self._node_id)
        return self._known[1]

    def count(self, changes: Sequence[Change], before: Image, after: Image) -> None:
        """These changes are committed."""
        shrunk, grown = count_isr_changes(changes, before, after, self._node_id)
        self._shrinks.inc(shrunk)
        self._expands.inc(grown)

    def _of_broker(self, metrics: Metrics) -> None:
        def gauge(name: str, help: str, read: Callable[[PartitionHealth], int]) -> None:
            metrics.gauge(name, help).read(lambda: float(read(self.standing)))

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
            "kafka_server_replicamanager_partitioncount", "Partitions that have a replica here.", lambda now: now.replica_count
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

    def _of_cluster(self, metrics: Metrics, reigns: Callable[[], bool]) -> None:
        def gauge(name: str, help: str, read: Callable[[Image], int]) -> None:
            metrics.gauge(name, help).read(lambda: float(read(self._image())))

        gauge(
            "kafka_controller_kafkacontroller_activecontrollercount",
            "1 where the controller is, else 0.",
            lambda _: reigns(),
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
            "Brokers of the cluster that are not heard.",
            lambda image: sum(broker.alive and broker.fenced for broker in image.brokers.values()),
        )
        gauge(
            "tiered_possible_loss_partitions",
            "Partitions of the cluster of which acknowledged records may be gone, and nobody has acknowledged that.",
            lambda image: len(image.losses),
        )
        metrics.gauge("tiered_topic_possible_loss_partitions", "The same of each topic that has any.", ("topic",)).read(
            lambda: by_topic(Counter(at.topic for at in unacknowledged_losses(self._image())), LOST_TOPICS)
        )
