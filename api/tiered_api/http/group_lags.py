"""The lag of consumer groups, as metrics under the names of kafka_exporter. Computed at each scrape, for the groups
that this broker coordinates, over all their partitions: those with a committed offset, and those that a member has. A
partition without a committed offset counts from its log start.

The first `tiered.metrics.max.group.topics` pairs of a group and a topic have labels of their own. All others share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.metrics import OTHERS, Labels
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.remote_brokers import Leader, OffsetQuery
from tiered_api.http.partitions.end_history import EndHistory
from tiered_api.kafka.client.group_member import read_assignment
from tiered_api.kafka.client.leader_routing import EARLIEST, LATEST

REFRESH_INTERVAL_MS = 2_000
"""Lags that are younger are not computed again."""
REFRESH_SECONDS = 2.0
"""Time that other brokers have for their end offsets. If a broker does not reply in time, its last known ends are
used."""
PARTITIONS_MAX = 100_000
"""Most partitions of which end offsets are fetched."""
LABELS = ("consumergroup", "topic")
CommittedOffsets = tuple[str, str, dict[int, int]]
"""A group, a topic, and the committed offset of each partition."""


class GroupTopicLag(NamedTuple):
    """The lag of one group in one topic: records that are not committed, their greatest age in seconds, and the sum of
    the committed offsets."""

    records: int = 0
    seconds: float = 0.0
    committed: int = 0

    def add(self, other: GroupTopicLag) -> GroupTopicLag:
        """Returns both lags together."""
        seconds = max(self.seconds, other.seconds)
        return GroupTopicLag(self.records + other.records, seconds, self.committed + other.committed)


class GroupLags:
    """The lags of all groups that one broker coordinates."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._lags: dict[Labels, GroupTopicLag] = {}
        self._labelled: dict[Labels, None] = {}
        """Pairs that have labels of their own."""
        self._histories: dict[TopicPartition, EndHistory] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._assigned: dict[str, tuple[list[bytes], list[TopicPartition]]] = {}
        self._refreshed_ms = -REFRESH_INTERVAL_MS
        self._refresh_lock = asyncio.Lock()
        metrics = context.broker.metrics
        metrics.refresh = self.refresh_if_served
        metrics.gauge(
            "kafka_consumergroup_lag_sum", "Records of a topic that a group has not committed.", LABELS
        ).set_function(lambda: {labels: lag.records for labels, lag in self._lags.items()})
        metrics.gauge(
            "kafka_consumergroup_lag_seconds", "How long the oldest of these records is there.", LABELS
        ).set_function(lambda: {labels: lag.seconds for labels, lag in self._lags.items()})
        metrics.gauge(
            "kafka_consumergroup_current_offset_sum",
            "Sum of the offsets of a topic that a group has committed.",
            LABELS,
        ).set_function(lambda: {labels: lag.committed for labels, lag in self._lags.items()})

    async def refresh_if_served(self) -> None:
        """Updates the lags once the broker serves."""
        if self._context.broker.served.is_set():
            await self.refresh()

    async def refresh(self) -> None:
        """Updates the lags. Concurrent callers share one update."""
        async with self._refresh_lock:
            now_ms = self._context.clock.mono_ns() // 1_000_000
            if now_ms - self._refreshed_ms >= REFRESH_INTERVAL_MS:
                self._refreshed_ms = now_ms
                await self._collect(now_ms)

    async def _collect(self, now_ms: int) -> None:
        topics = self._context.broker.image.topics
        committed = [
            each for each in self._context.broker.group_coordinators.iter_committed_offsets() if each[1] in topics
        ]
        wanted = dict.fromkeys(TopicPartition(topic, p) for _, topic, offsets in committed for p in offsets)
        uncommitted = self._find_uncommitted(committed)
        wanted |= dict.fromkeys(tp for _, tp in uncommitted)
        partitions = list(wanted)[:PARTITIONS_MAX]
        self._ends = await self._end_offsets(partitions)
        self._starts = await self._log_starts(dict.fromkeys(tp for _, tp in uncommitted if tp in self._ends))
        self._histories = {tp: self._histories.get(tp) or EndHistory() for tp in self._ends}
        for tp, end in self._ends.items():
            self._histories[tp].record_end(end, now_ms)
        lags: dict[Labels, GroupTopicLag] = {}
        self._forget_others(
            {(group, topic) for group, topic, _ in committed} | {(group, tp.topic) for group, tp in uncommitted}
        )
        for group, topic, offsets in committed:
            labels = self._labels(group, topic)
            for p, offset in offsets.items():
                lag = self._lag(TopicPartition(topic, p), offset, now_ms)
                lags[labels] = lags.get(labels, GroupTopicLag()).add(lag)
        for group, tp in uncommitted:
            if tp in self._starts:
                labels, lag = self._labels(group, tp.topic), self._lag(tp, self._starts[tp], now_ms)
                lags[labels] = lags.get(labels, GroupTopicLag()).add(lag._replace(committed=0))
        self._lags = lags

    def _find_uncommitted(self, committed: list[CommittedOffsets]) -> list[tuple[str, TopicPartition]]:
        """Returns the partitions that a member has and that its group has not committed, of topics that exist."""
        offsets = {(group, topic): partitions for group, topic, partitions in committed}
        topics = self._context.broker.image.topics
        return [
            (group, tp)
            for group, tp in self._iter_assigned()
            if tp.topic in topics and tp.partition not in offsets.get((group, tp.topic), ())
        ]

    def _iter_assigned(self) -> Iterator[tuple[str, TopicPartition]]:
        """Yields the partitions of all members. Reads an assignment of the classic protocol once."""
        coordinators, by_id = self._context.broker.group_coordinators, self._context.broker.image.topics_by_id
        known, self._assigned = self._assigned, {}
        for group, assignments in coordinators.iter_assignments():
            before = known.get(group)
            if before is None or before[0] != assignments:
                before = assignments, [tp for each in assignments for tp in read_assignment(each)]
            self._assigned[group] = before
            for tp in before[1]:
                yield group, tp
        for group, owned in coordinators.iter_owned():
            for topic_id, partitions in owned.items():
                if (topic := by_id.get(TopicId(topic_id))) is not None:
                    for partition in partitions:
                        yield group, TopicPartition(topic.name, partition)

    def _lag(self, tp: TopicPartition, offset: int, now_ms: int) -> GroupTopicLag:
        end = self._ends.get(tp)
        if end is None or offset >= end:
            return GroupTopicLag(committed=offset)
        since_ms, is_known = self._histories[tp].behind_since_ms(offset)
        seconds = (now_ms - since_ms) / 1000
        if not is_known:  # The offset is older than the history: use the age of its segment, if there is one here.
            seconds = max(seconds, self._local_age(tp, offset))
        return GroupTopicLag(end - offset, seconds, offset)

    def _local_age(self, tp: TopicPartition, offset: int) -> float:
        partitions = self._context.broker.hosted_replicas
        held = partitions.find_leader(tp) or partitions.find_follower(tp)
        if held is None or offset >= held.log.end_offset:
            return 0.0
        return (self._context.clock.wall_ms() - held.log.segments.created_ms(offset)) / 1000

    # -- labels -------------------------------------------------------------------------------------------------------

    def _forget_others(self, there: set[tuple[str, str]]) -> None:
        self._labelled = {labels: None for labels in self._labelled if labels in there}

    def _labels(self, group: str, topic: str) -> Labels:
        labels = (group, topic)
        if labels not in self._labelled:
            if len(self._labelled) >= self._context.broker.settings.tiered_metrics_max_group_topics:
                return (OTHERS, OTHERS)
            self._labelled[labels] = None
        return labels

    # -- ends ---------------------------------------------------------------------------------------------------------

    async def _end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the high watermarks: those known here, else those of the leaders, else the last known ones."""
        broker, found = self._context.broker, dict[TopicPartition, int]()
        remote: dict[Leader, dict[TopicPartition, OffsetQuery]] = {}
        for tp in partitions:
            topic_id = broker.image.topics[tp.topic].topic_id
            replica, copy = broker.hosted_replicas.find_leader(tp), broker.hosted_replicas.find_follower(tp)
            if replica is not None and replica.topic_id == topic_id:
                found[tp] = replica.high_watermark
            elif copy is not None and not copy.is_stopped and copy.topic_id == topic_id:
                found[tp] = max(copy.high_watermark, copy.leader_high_watermark)
            else:
                if tp in self._ends:
                    found[tp] = self._ends[tp]
                with suppress(Refused):
                    leader = self._context.remote_brokers.leader(tp, topic_id)
                    query = OffsetQuery(topic_id, leader.epoch, LATEST)
                    remote.setdefault(leader._replace(epoch=-1), {})[tp] = query
        for each in await asyncio.gather(*(self._fetch_offsets(*share) for share in remote.items())):
            found.update(each)
        return found

    async def _log_starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the log starts: those known here, else those of the leaders, else the last known ones."""
        broker, found = self._context.broker, dict[TopicPartition, int]()
        remote: dict[Leader, dict[TopicPartition, OffsetQuery]] = {}
        for tp in partitions:
            topic_id = broker.image.topics[tp.topic].topic_id
            replica = broker.hosted_replicas.find_leader(tp)
            if replica is not None and replica.topic_id == topic_id:
                found[tp] = replica.log_start_offset
                continue
            if tp in self._starts:
                found[tp] = self._starts[tp]
            with suppress(Refused):
                leader = self._context.remote_brokers.leader(tp, topic_id)
                query = OffsetQuery(topic_id, leader.epoch, EARLIEST)
                remote.setdefault(leader._replace(epoch=-1), {})[tp] = query
        for each in await asyncio.gather(*(self._fetch_offsets(*share) for share in remote.items())):
            found.update(each)
        return found

    async def _fetch_offsets(
        self, leader: Leader, queries: Mapping[TopicPartition, OffsetQuery]
    ) -> dict[TopicPartition, int]:
        """Returns offsets of the partitions that one broker leads; nothing if the broker does not reply in time."""
        with suppress(Refused, Unavailable, Corrupt, TimeoutError):
            async with asyncio.timeout(REFRESH_SECONDS):
                got = await self._context.remote_brokers.list_offsets(leader, queries)
            return {tp: offset for tp, offset in got.items() if isinstance(offset, int)}
        return {}
