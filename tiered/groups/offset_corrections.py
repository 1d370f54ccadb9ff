"""Corrections of committed offsets, once a shard is loaded, by the state of the cluster (R5).

Partitions may have lost records, and topics may have been deleted, while no coordinator of the group was there.
"""

from __future__ import annotations

from collections.abc import Callable

from tiered.groups.log_state import LogState
from tiered.groups.requests import LostOffset, LowerOffsets, TopicsDeleted

NO_TOPIC = -1
"""End of a partition whose topic does not exist any more, though another one may have its name."""


class OffsetCorrections:
    """The corrections of one shard.

    `find_end` gets topic, partition and the topic id of a committed offset ("" if it has none). It returns the log end
    of a partition that lost records, `NO_TOPIC` if there is no such topic, and None if the offset can stay.
    """

    def __init__(self, log_state: LogState, find_end: Callable[[str, int, str], int | None]) -> None:
        self._log_state = log_state
        self._find_end = find_end
        self._lost: list[LostOffset] = []
        self._deleted_topics: dict[str, None] = {}

    def check_group(self, group: str) -> int:
        """Compares the offsets of one group, committed or pending, with the cluster. Returns their number."""
        offsets = list(self._log_state.iterate_offsets(group))
        pending = self._log_state.pending.iterate_offsets(group)
        offsets += [(key.topic, key.partition, value) for _, key, value in pending]
        for topic, partition, written in offsets:
            end = self._find_end(topic, partition, written.topic_id)
            if end == NO_TOPIC:
                self._deleted_topics[topic] = None
            elif end is not None and written.offset > end:
                self._lost.append(LostOffset(group, topic, partition, end))
        return len(offsets)

    def requests(self) -> list[LowerOffsets | TopicsDeleted]:
        """Returns the requests that make the corrections."""
        found: list[LowerOffsets | TopicsDeleted] = []
        if self._lost:
            found.append(LowerOffsets(tuple(self._lost)))
        if self._deleted_topics:
            found.append(TopicsDeleted(tuple(self._deleted_topics)))
        return found
