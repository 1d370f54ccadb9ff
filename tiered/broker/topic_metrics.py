"""Metrics by topic: what clients wrote and read, and how large a topic is on disk and in the bucket.

Names are those of Kafka's MBeans behind the usual JMX exporter. `tiered.metrics.max.topics` topics have labels of their
own, those that came first; all others share one. Nothing is counted here: each look adds up what the logs have.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from tiered.hot.disk_log import DiskLog
from tiered.hot.traffic import Traffic
from tiered.metadata.image import Image
from tiered.metrics import OTHERS, Labels, Metrics
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica

TOPIC = ("topic",)


class TopicLabels:
    """Which topics have labels of their own, at most `most`. A topic that was deleted leaves its place to another."""

    def __init__(self, most: int, image: Callable[[], Image]) -> None:
        self._most = most
        self._image = image
        self._known: dict[str, None] = {}

    def of(self, topic: str) -> str:
        """The topic, or `OTHERS`."""
        if topic in self._known:
            return topic
        if len(self._known) >= self._most:
            there = self._image().topics
            self._known = {each: None for each in self._known if each in there}
        if len(self._known) >= self._most:
            return OTHERS
        self._known[topic] = None
        return topic


class TopicMetrics:
    """Of one broker. `held` gives its replicas, led or followed."""

    def __init__(
        self,
        metrics: Metrics,
        labels: TopicLabels,
        held: Callable[[], Iterable[LeaderReplica | FollowerReplica]],
        image: Callable[[], Image],
    ) -> None:
        self._labels = labels
        self._held = held
        self._image = image

        def counter(name: str, help: str, of: Callable[[Traffic], int]) -> None:
            total = _Total(self, of)
            metrics.counter(name, help, TOPIC).read(total.read)

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
            metrics.gauge(name, help, TOPIC).read(lambda: self._sizes(of))

        gauge("kafka_log_log_size", "Bytes of the topic's logs on this broker's disk.", lambda one: one.log.size_bytes)
        gauge(
            "kafka_server_brokertopicmetrics_remotelogsizebytes",
            "Bytes in the bucket, of partitions led here.",
            lambda one: one.cold_bytes if isinstance(one, LeaderReplica) else 0,
        )

    def logs(self) -> dict[DiskLog, str]:
        """The logs that are held here, each with the label of its topic."""
        return {each.log: self._labels.of(each.at.topic) for each in self._held()}

    def is_there(self, label: str) -> bool:
        """True if a label is that of a topic that was not deleted."""
        return label == OTHERS or label in self._image().topics

    def _sizes(self, of: Callable[[LeaderReplica | FollowerReplica], int]) -> dict[Labels, float]:
        found: dict[Labels, float] = defaultdict(float)
        for each in self._held():
            found[self._labels.of(each.at.topic),] += of(each)
        return found


class _Total:
    """A number by topic that only grows, also where a log is held here no more."""

    def __init__(self, topics: TopicMetrics, of: Callable[[Traffic], int]) -> None:
        self._topics = topics
        self._of = of
        self._totals: dict[str, int] = {}
        self._seen: dict[DiskLog, int] = {}
        """The part of each log's number that is in the totals."""

    def read(self) -> Mapping[Labels, float]:
        """The totals as of now."""
        seen: dict[DiskLog, int] = {}
        for log, label in self._topics.logs().items():
            seen[log] = now = self._of(log.traffic)
            self._totals[label] = self._totals.get(label, 0) + now - self._seen.get(log, 0)
        self._seen = seen
        self._totals = {label: each for label, each in self._totals.items() if self._topics.is_there(label)}
        return {(label,): total for label, total in self._totals.items()}
