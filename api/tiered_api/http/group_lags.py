"""How far groups are behind, as metrics under the names of kafka_exporter. Looked up when somebody asks for metrics: of
the groups that this broker coordinates, over all partitions, whoever leads them.

`tiered.metrics.max.group.topics` pairs of a group and a topic have labels of their own, those that came first; all
others share one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import TopicPartition
from tiered.metrics import OTHERS, Labels
from tiered_api.http.partitions.end_history import EndHistory
from tiered_api.http.partitions.remote_brokers import Leader
from tiered_api.http.server.context import Site
from tiered_api.kafka.client.leader_routing import LATEST

FRESH_MS = 2_000
"""A look that is younger is not made again."""
LOOK_SECONDS = 2.0
"""The time that other brokers have to say where partitions end. For those that do not, the ends of before count."""
PARTITIONS_MAX = 100_000
"""Of which ends are looked up."""
LABELS = ("consumergroup", "topic")


class Lag(NamedTuple):
    """Of one group in one topic, over its partitions: records that it has not committed, their greatest age in seconds,
    and the sum of the offsets that it has committed."""

    records: int = 0
    seconds: float = 0.0
    committed: int = 0

    def plus(self, other: Lag) -> Lag:
        """Both together."""
        seconds = max(self.seconds, other.seconds)
        return Lag(self.records + other.records, seconds, self.committed + other.committed)


class GroupLags:
    """Of one broker."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lags: dict[Labels, Lag] = {}
        self._known: dict[Labels, None] = {}
        """Pairs that have labels of their own."""
        self._histories: dict[TopicPartition, EndHistory] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._looked_ms = -FRESH_MS
        self._looking = asyncio.Lock()
        metrics = site.node.metrics
        metrics.gauge("kafka_consumergroup_lag_sum", "Records of a topic that a group has not committed.", LABELS).read(
            lambda: {labels: lag.records for labels, lag in self._lags.items()}
        )
        metrics.gauge("kafka_consumergroup_lag_seconds", "How long the oldest of these records is there.", LABELS).read(
            lambda: {labels: lag.seconds for labels, lag in self._lags.items()}
        )
        metrics.gauge(
            "kafka_consumergroup_current_offset_sum",
            "Sum of the offsets of a topic that a group has committed.",
            LABELS,
        ).read(lambda: {labels: lag.committed for labels, lag in self._lags.items()})

    async def look(self) -> None:
        """Looks all of it up. Two that ask at the same time share a look."""
        async with self._looking:
            now_ms = self._site.clock.mono_ns() // 1_000_000
            if now_ms - self._looked_ms >= FRESH_MS:
                self._looked_ms = now_ms
                await self._look(now_ms)

    async def _look(self, now_ms: int) -> None:
        topics = self._site.node.image.topics
        committed = [each for each in self._site.node.coordinators.committed() if each[1] in topics]
        wanted = dict.fromkeys(TopicPartition(topic, p) for _, topic, offsets in committed for p in offsets)
        partitions = list(wanted)[:PARTITIONS_MAX]
        self._ends = await self._all_ends(partitions)
        self._histories = {at: self._histories.get(at) or EndHistory() for at in self._ends}
        for at, end in self._ends.items():
            self._histories[at].note(end, now_ms)
        lags: dict[Labels, Lag] = {}
        self._forget_others({(group, topic) for group, topic, _ in committed})
        for group, topic, offsets in committed:
            labels = self._labels(group, topic)
            for p, offset in offsets.items():
                lag = self._lag(TopicPartition(topic, p), offset, now_ms)
                lags[labels] = lags.get(labels, Lag()).plus(lag)
        self._lags = lags

    def _lag(self, at: TopicPartition, offset: int, now_ms: int) -> Lag:
        end = self._ends.get(at)
        if end is None or offset >= end:
            return Lag(committed=offset)
        since_ms, is_known = self._histories[at].behind_since_ms(offset)
        seconds = (now_ms - since_ms) / 1000
        if not is_known:  # longer than the looks go back: as old as the segment is, where there is one here
            seconds = max(seconds, self._age_here(at, offset))
        return Lag(end - offset, seconds, offset)

    def _age_here(self, at: TopicPartition, offset: int) -> float:
        partitions = self._site.node.partitions
        held = partitions.get(at) or partitions.copied(at)
        if held is None or offset >= held.log.end_offset:
            return 0.0
        return (self._site.clock.wall_ms() - held.log.segment_created_ms(offset)) / 1000

    # -- labels -------------------------------------------------------------------------------------------------------

    def _forget_others(self, there: set[tuple[str, str]]) -> None:
        self._known = {labels: None for labels in self._known if labels in there}

    def _labels(self, group: str, topic: str) -> Labels:
        labels = (group, topic)
        if labels not in self._known:
            if len(self._known) >= self._site.node.settings.tiered_metrics_max_group_topics:
                return (OTHERS, OTHERS)
            self._known[labels] = None
        return labels

    # -- ends ---------------------------------------------------------------------------------------------------------

    async def _all_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermarks: as they are here, else as leaders say, else as they were."""
        node, found = self._site.node, dict[TopicPartition, int]()
        away: dict[int, dict[TopicPartition, Leader]] = {}
        for at in partitions:
            replica, copy = node.partitions.get(at), node.partitions.copied(at)
            if replica is not None:
                found[at] = replica.high_watermark
            elif copy is not None and not copy.is_stopped:
                found[at] = max(copy.high_watermark, copy.leader_high_watermark)
            else:
                if at in self._ends:
                    found[at] = self._ends[at]
                with suppress(Refused):
                    leader = self._site.elsewhere.leader(at, node.image.topics[at.topic].topic_id)
                    away.setdefault(leader.node_id, {})[at] = leader
        for each in await asyncio.gather(*(self._asked(share) for share in away.values())):
            found.update(each)
        return found

    async def _asked(self, share: dict[TopicPartition, Leader]) -> dict[TopicPartition, int]:
        """The ends that one broker tells of those that it leads; nothing where it says nothing in time."""
        wanted = {at: (leader.epoch, LATEST) for at, leader in share.items()}
        with suppress(Refused, Unavailable, Corrupt, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                got = await self._site.elsewhere.offsets(next(iter(share.values())), wanted)
            return {at: end for at, end in got.items() if isinstance(end, int)}
        return {}
