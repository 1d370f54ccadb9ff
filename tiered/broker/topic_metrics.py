"""Metrics by topic: bytes and records that clients wrote and read, and the size of a topic on disk and in the bucket.

The names are those of Kafka's MBeans behind the usual JMX exporter. The first `tiered.metrics.max.topics` topics have
labels of their own; all others share one. Nothing is counted here: a scrape adds up the numbers of the logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from tiered.controller.member_view import MemberView
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.hot.disk_log import DiskLog
from tiered.hot.traffic import Traffic
from tiered.metadata.image import Image
from tiered.metrics import OTHERS, Labels, Metrics
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica

TOPIC = ("topic",)


class TopicLabels:
    """The topics that have labels of their own, at most `topics_max`. A deleted topic leaves its place to another."""

    def __init__(self, topics_max: int, view: MemberView) -> None:
        self._topics_max = topics_max
        self._view = view
        self._labelled_topics: dict[str, None] = {}
        self._pruned_for: Image | None = None
        """The image for which the labels of deleted topics were given up: a scan for each topic would be quadratic."""

    def get_label(self, topic: str) -> str:
        """Returns the label of a topic: its name, or `OTHERS`."""
        if topic in self._labelled_topics:
            return topic
        if len(self._labelled_topics) >= self._topics_max and self._pruned_for is not self._view.image:
            self._pruned_for = self._view.image
            known = self._pruned_for.topics
            self._labelled_topics = {each: None for each in self._labelled_topics if each in known}
        if len(self._labelled_topics) >= self._topics_max:
            return OTHERS
        self._labelled_topics[topic] = None
        return topic


class TopicMetrics:
    """The metrics of one broker, over its leader and follower replicas."""

    def __init__(
        self, metrics: Metrics, labels: TopicLabels, hosted_replicas: HostedReplicas, view: MemberView
    ) -> None:
        self._labels = labels
        self._hosted_replicas = hosted_replicas
        self._view = view

        def counter(name: str, help: str, of: Callable[[Traffic], int]) -> None:
            total = _Total(self, of)
            metrics.counter(name, help, TOPIC).set_function(total.read)

        counter(
            "kafka_server_brokertopicmetrics_bytesin_total",
            "Bytes of record batches that clients wrote here.",
            lambda traffic: traffic.bytes_in,
        )
        counter(
            "kafka_server_brokertopicmetrics_messagesin_total",
            "Records that clients wrote here.",
            lambda traffic: traffic.records_in,
        )
        counter(
            "kafka_server_brokertopicmetrics_bytesout_total",
            "Bytes of record batches that clients read here.",
            lambda traffic: traffic.bytes_out,
        )

        def gauge(name: str, help: str, of: Callable[[LeaderReplica | FollowerReplica], int]) -> None:
            metrics.gauge(name, help, TOPIC).set_function(lambda: self._sum_by_topic(of))

        gauge(
            "kafka_log_log_size",
            "Bytes of the topic's logs on this broker's disk.",
            lambda one: one.log.segments.size_bytes,
        )
        gauge(
            "kafka_server_brokertopicmetrics_remotelogsizebytes",
            "Bytes in the bucket, of partitions led here.",
            lambda one: one.unified_log.cold_bytes if isinstance(one, LeaderReplica) else 0,
        )

    def labels_by_log(self) -> dict[DiskLog, str]:
        """Returns the logs of this broker, each with the label of its topic."""
        return {each.log: self._labels.get_label(each.tp.topic) for each in self._hosted_replicas.list_replicas()}

    def has_topic(self, label: str) -> bool:
        """True if the label names a topic that is not deleted."""
        return label == OTHERS or label in self._view.image.topics

    def _sum_by_topic(self, size_of: Callable[[LeaderReplica | FollowerReplica], int]) -> dict[Labels, float]:
        found: dict[Labels, float] = defaultdict(float)
        for each in self._hosted_replicas.list_replicas():
            found[self._labels.get_label(each.tp.topic),] += size_of(each)
        return found


class _Total:
    """A number by topic that only grows, even if a log leaves this broker."""

    def __init__(self, topics: TopicMetrics, value_of: Callable[[Traffic], int]) -> None:
        self._topics = topics
        self._value_of = value_of
        self._totals: dict[str, int] = {}
        self._counted: dict[DiskLog, int] = {}
        """By log: the part of its number that is in the totals."""

    def read(self) -> Mapping[Labels, float]:
        """Returns the totals of now."""
        seen: dict[DiskLog, int] = {}
        for log, label in self._topics.labels_by_log().items():
            seen[log] = now = self._value_of(log.traffic)
            self._totals[label] = self._totals.get(label, 0) + now - self._counted.get(log, 0)
        self._counted = seen
        self._totals = {label: each for label, each in self._totals.items() if self._topics.has_topic(label)}
        return {(label,): total for label, total in self._totals.items()}
