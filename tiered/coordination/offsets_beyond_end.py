"""Committed offsets of groups above the end of a partition that lost records.

Coordinators lower the offsets that they find after a loss (R5). A member that still has its position commits it again.
It gets no record until the log has grown past that offset, and then skips those below.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tiered.controller.member_view import MemberView
from tiered.coordination.group_coordinators import GroupCoordinators
from tiered.hosting.hosted_replicas import HostedReplicas
from tiered.ids import TopicPartition
from tiered.metadata.parts.topics import PartitionImage
from tiered.metrics import Metrics
from tiered.ports import Clock

REFRESH_NS = 5 * 10**9
"""Time for which the last result counts."""


class OffsetBeyondEnd(NamedTuple):
    """The committed offset of a group, above the log end offset `end`."""

    group: str
    tp: TopicPartition
    offset: int
    end: int


class OffsetsBeyondEnd:
    """Finds such offsets of the groups that one broker coordinates, in partitions of which it has a replica in sync.

    Partitions without a reported loss are left out: a client may commit any offset.
    """

    def __init__(
        self,
        coordinators: GroupCoordinators,
        replicas: HostedReplicas,
        view: MemberView,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._coordinators = coordinators
        self._replicas = replicas
        self._view = view
        self._clock = clock
        self._found: list[OffsetBeyondEnd] = []
        self._found_ns = clock.mono_ns() - REFRESH_NS
        metrics.gauge(
            "tiered_group_offsets_beyond_end",
            "Committed offsets of groups above the end of a partition that lost records.",
        ).set_function(lambda: float(len(self.find())))

    def find(self) -> list[OffsetBeyondEnd]:
        """Returns the offsets by group and partition, as of some seconds ago."""
        now_ns = self._clock.mono_ns()
        if now_ns - self._found_ns >= REFRESH_NS:
            self._found_ns, self._found = now_ns, sorted(self._iter_offsets())
        return self._found

    def _iter_offsets(self) -> Iterator[OffsetBeyondEnd]:
        ends = self._find_ends()
        if not ends:
            return
        for group, topic, offsets in self._coordinators.iter_committed_offsets({tp.topic for tp in ends}):
            for partition, offset in offsets.items():
                tp = TopicPartition(topic, partition)
                if tp in ends and offset > ends[tp]:
                    yield OffsetBeyondEnd(group, tp, offset, ends[tp])

    def _find_ends(self) -> dict[TopicPartition, int]:
        """Returns the log end offsets of the partitions that ever reported a loss, as far as they are known here."""
        ends = {}
        for topic in self._view.image.topics.values():
            for number, each in enumerate(topic.partitions):
                if each.loss is not None:
                    tp = TopicPartition(topic.name, number)
                    end = self._find_end(tp, each)
                    if end is not None:
                        ends[tp] = end
        return ends

    def _find_end(self, tp: TopicPartition, partition: PartitionImage) -> int | None:
        """Returns the log end offset of a replica in sync: it has all that a consumer can have read."""
        replica = self._replicas.find_leader(tp)
        if replica is not None:
            return replica.log.end_offset
        copy = self._replicas.find_follower(tp)
        return copy.log.end_offset if copy is not None and self._view.node_id in partition.isr else None
