"""The brokers, topics and groups of a cluster as replies told them, one after the other, with rates and lags. Pure.

A number that no reply has told yet is None. A rate needs two replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tiered.ids import TopicPartition
from tiered_api.health.view import BrokerReport
from tiered_api.kafka.protocol.messages.list_groups import ListedGroup
from tiered_api.kafka.protocol.messages.metadata import MetadataResponse

SAMPLES_MAX = 30
"""Samples that a course has."""
IN, OUT = "kafka_server_brokertopicmetrics_bytesin_total", "kafka_server_brokertopicmetrics_bytesout_total"
WAITING = "tiered_upload_waiting_segments"


@dataclass(slots=True)
class Course:
    """A number over time: samples of seconds and values."""

    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def add(self, seconds: float, value: float) -> None:
        """Adds a sample. A number that fell below the last one has begun anew."""
        self.samples.append((seconds, value))

    @property
    def rate(self) -> float | None:
        """Returns the growth in a second between the last two samples, None without them. A restart is no growth."""
        if len(self.samples) < 2 or self.samples[-1][0] <= self.samples[-2][0]:
            return None
        (before, low), (now, high) = self.samples[-2], self.samples[-1]
        return max(high - low, 0.0) / (now - before)


@dataclass(slots=True)
class TopBroker:
    """One broker. `fault` is why it did not reply, "" if it did."""

    node_id: int
    address: str
    leaders: int = 0
    replicas: int = 0
    bytes_in: Course = field(default_factory=Course)
    bytes_out: Course = field(default_factory=Course)
    waiting_segments: int | None = None
    problems: tuple[str, ...] = ()
    fault: str = ""


@dataclass(slots=True)
class TopTopic:
    """One topic. `ends` is the sum of the ends of its partitions."""

    name: str
    partitions: int
    lacking: int = 0
    """Partitions without a leader, or with fewer in-sync replicas than replicas."""
    ends: Course = field(default_factory=Course)


@dataclass(slots=True)
class TopGroup:
    """One group, and the broker that coordinates it."""

    name: str
    state: str
    coordinator: int
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    lags: Course = field(default_factory=Course)


class TopState:
    """All that replies have told so far."""

    def __init__(self) -> None:
        self.controller = -1
        self.brokers: dict[int, TopBroker] = {}
        self.topics: dict[str, TopTopic] = {}
        self.groups: dict[str, TopGroup] = {}
        self.leaders: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    def on_metadata(self, got: MetadataResponse) -> None:
        """Takes the brokers, topics and leaders of the cluster."""
        self.controller = got.controller_id
        here = {each.node_id: each for each in got.brokers}
        for node, each in here.items():
            known = self.brokers.setdefault(node, TopBroker(node, ""))
            known.address, known.leaders, known.replicas = f"{each.host}:{each.port}", 0, 0
        self.brokers = {node: self.brokers[node] for node in sorted(here)}
        self.leaders.clear()
        found: dict[str, TopTopic] = {}
        for topic in got.topics:
            name = topic.name or ""
            kept = found[name] = self.topics.get(name, TopTopic(name, 0))
            kept.partitions, kept.lacking = len(topic.partitions), 0
            for part in topic.partitions:
                if part.leader_id >= 0:
                    self.leaders[TopicPartition(name, part.partition_index)] = part.leader_id
                kept.lacking += part.leader_id < 0 or len(part.isr_nodes) < len(part.replica_nodes)
                for node in part.replica_nodes:
                    if node in self.brokers:
                        self.brokers[node].replicas += 1
                        self.brokers[node].leaders += node == part.leader_id
        self.topics = found
        self._ends = {tp: end for tp, end in self._ends.items() if tp in self.leaders}

    def on_report(self, now: float, report: BrokerReport) -> None:
        """Takes the report of a broker on itself."""
        if (known := self.brokers.get(report.node_id)) is None:
            return
        figures = {each.name: each.value for each in report.figures if not each.label}
        for name, course in ((IN, known.bytes_in), (OUT, known.bytes_out)):
            if name in figures:
                course.add(now, figures[name])
        known.waiting_segments = int(figures[WAITING]) if WAITING in figures else None
        known.problems, known.fault = report.problems, ""

    def on_fault(self, node: int, why: str) -> None:
        """Takes that a broker did not reply."""
        if node in self.brokers:
            self.brokers[node].fault = why

    def on_reply(self, node: int) -> None:
        """Takes that a broker replied."""
        if node in self.brokers:
            self.brokers[node].fault = ""

    def on_ends(self, now: float, ends: Mapping[TopicPartition, int]) -> None:
        """Takes the ends of partitions. A topic has a sample once the ends of all of its partitions are known."""
        self._ends.update(ends)
        for name in {tp.topic for tp in ends}:
            topic = self.topics.get(name)
            known = [self._ends.get(TopicPartition(name, number)) for number in range(topic.partitions if topic else 0)]
            if topic is not None and known and None not in known:
                topic.ends.add(now, sum(end for end in known if end is not None))

    def on_groups(self, node: int, listed: Iterable[ListedGroup]) -> None:
        """Takes the groups that a broker coordinates."""
        here = {each.group_id: each for each in listed}
        for name in [name for name, each in self.groups.items() if each.coordinator == node and name not in here]:
            del self.groups[name]
        for name, each in here.items():
            known = self.groups.setdefault(name, TopGroup(name, "", node))
            known.state, known.coordinator = each.group_state, node

    def on_commits(self, now: float, group: str, committed: Mapping[TopicPartition, int]) -> None:
        """Takes the committed offsets of a group."""
        if (known := self.groups.get(group)) is not None:
            known.committed = dict(committed)
            lags = [self._ends[tp] - offset for tp, offset in committed.items() if tp in self._ends]
            if lags or not committed:
                known.lags.add(now, sum(max(lag, 0) for lag in lags))
