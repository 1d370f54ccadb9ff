"""Corrections of committed offsets by the state of the cluster (R5): after a load, and after a loss of records.

Partitions may have lost records, and topics may have been deleted, while no coordinator of the group was there. Records
that are written after a loss get the offsets of the lost ones. So the end of the partition alone says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tiered.groups.log_state import LogState
from tiered.groups.records import OffsetValue
from tiered.groups.requests import LostOffset, LowerOffsets, TopicsDeleted


class OffsetLimit(NamedTuple):
    """Offsets above `end` with an earlier leader epoch than `leader_epoch`, or with none, are those of lost records."""

    end: int
    leader_epoch: int


NO_TOPIC = OffsetLimit(-1, -1)
"""Stands for a topic that does not exist any more, though another one may have its name."""


class OffsetCorrections:
    """The corrections of one shard.

    `find_limit` gets topic, partition and a committed offset. It returns the limit of a partition that lost records,
    `NO_TOPIC` if there is no such topic, and None if the offset can stay.
    """

    def __init__(self, log_state: LogState, find_limit: Callable[[str, int, OffsetValue], OffsetLimit | None]) -> None:
        self._log_state = log_state
        self._find_limit = find_limit
        self._lost: list[LostOffset] = []
        self._deleted_topics: dict[str, None] = {}

    def check_group(self, group: str) -> int:
        """Compares the offsets of one group, committed or pending, with the cluster. Returns their number."""
        offsets = list(self._log_state.iterate_offsets(group))
        pending = self._log_state.pending.iterate_offsets(group)
        offsets += [(key.topic, key.partition, value) for _, key, value in pending]
        for topic, partition, written in offsets:
            limit = self._find_limit(topic, partition, written)
            if limit is NO_TOPIC:
                self._deleted_topics[topic] = None
            elif limit is not None and written.offset > limit.end and written.leader_epoch < limit.leader_epoch:
                self._lost.append(LostOffset(group, topic, partition, *limit))
        return len(offsets)

    def requests(self) -> list[LowerOffsets | TopicsDeleted]:
        """Returns the requests that make the corrections."""
        found: list[LowerOffsets | TopicsDeleted] = []
        if self._lost:
            found.append(LowerOffsets(tuple(self._lost)))
        if self._deleted_topics:
            found.append(TopicsDeleted(tuple(self._deleted_topics)))
        return found
