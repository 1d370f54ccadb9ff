"""Corrections of committed offsets by the state of the cluster (R5): after a load, and after a loss of records.

Partitions may have lost records, and topics may have been deleted, while no coordinator of the group was there. The
rule is in `durability/loss_rules.py`; this file applies it to the offsets of a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiered.durability.loss_rules import LedSinceLoss, OffsetLimit, find_limit
from tiered.groups.log_state import LogState
from tiered.groups.records import OffsetValue
from tiered.groups.requests import LostOffset, LowerOffsets, TopicsDeleted
from tiered.ids import PartitionId, TopicId
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss

NO_TOPIC = OffsetLimit(-1, -1)
"""Stands for a topic that does not exist any more, though another one may have its name."""

NewLosses = Iterable[tuple[PartitionId, Loss]]
FindLed = Callable[[str, PartitionId], LedSinceLoss | None]
"""Returns the partition of a topic, by its name and its id, if this broker leads it since a loss."""


class OffsetLimits:
    """The limits of committed offsets under an image. `new_losses` and `loaded_before_slot`: see `find_limit`."""

    def __init__(
        self, image: Image, new_losses: NewLosses, find_led: FindLed, loaded_before_slot: int | None = None
    ) -> None:
        self._image = image
        self._find_led = find_led
        self._loaded_before_slot = loaded_before_slot
        self._new_losses: dict[PartitionId, list[Loss]] = {}
        for partition_id, loss in new_losses:
            self._new_losses.setdefault(partition_id, []).append(loss)

    def find(self, topic: str, partition: int, written: OffsetValue) -> OffsetLimit | None:
        """Returns the limit of a partition that lost records, and None if the offset can stay.

        At a load, returns `NO_TOPIC` if the topic is gone. Later, its deletion is a request of its own.
        """
        known = self._image.topics.get(topic)
        if known is None or (written.topic_id and written.topic_id != known.topic_id):
            return NO_TOPIC if self._loaded_before_slot is not None else None
        at = PartitionId(TopicId(known.topic_id), partition)
        return find_limit(
            written.leader_epoch, self._image.losses.get(at, ()), self._new_losses.get(at, ()),
            self._find_led(topic, at), self._loaded_before_slot,
        )  # fmt: skip


class OffsetCorrections:
    """The corrections of one shard; `find_limit` is that of `OffsetLimits`."""

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
