"""The positions of a REST consumer, and the ones among them that its group does not have (I34)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from tiered.ids import TopicPartition


class ConsumerPosition(NamedTuple):
    """An offset, and the id of its topic: a topic of the same name that is created later has other records."""

    topic_id: str
    offset: int


Positions = dict[TopicPartition, ConsumerPosition]


class ConsumerPositions:
    """The next offset of each partition. It comes from the group, from a reset, from a seek, or from a read.

    A position that the group does not have ends with the assignment. Then the next owner begins at the one before.
    """

    def __init__(self) -> None:
        self._now: Positions = {}
        self._resets: Positions = {}
        """Positions that a reset gave, until they are committed."""
        self._moved: Positions = {}
        """Positions after reads and seeks, until they are committed."""
        self._lost: Positions = {}
        """The ones of these whose partitions were taken away before a commit."""

    def find(self, tp: TopicPartition) -> ConsumerPosition | None:
        """Returns the position in a partition; None before it has one."""
        return self._now.get(tp)

    def all(self) -> Positions:
        """Returns the position of each partition."""
        return dict(self._now)

    def uncommitted(self) -> Positions:
        """Returns the positions that the group does not have."""
        return {**self._resets, **self._moved}

    # -- changes ------------------------------------------------------------------------------------------------------

    def begin(self, tp: TopicPartition, spot: ConsumerPosition) -> None:
        """Begins at the offset that the group has."""
        self._now[tp] = spot

    def reset(self, tp: TopicPartition, spot: ConsumerPosition) -> None:
        """Begins at the offset of a reset. A later owner that resets too would skip the records between the two."""
        self._now[tp] = self._resets[tp] = spot
        self._moved.pop(tp, None)

    def move(self, positions: Mapping[TopicPartition, ConsumerPosition]) -> None:
        """Moves past records that the client has, or to the place that it chose."""
        self._now.update(positions)
        self._moved.update(positions)
        for tp in positions:
            self._resets.pop(tp, None)

    def lose(self, positions: Mapping[TopicPartition, ConsumerPosition]) -> None:
        """Notes records that the client has, of partitions that were taken away."""
        for tp, spot in positions.items():
            before = self._lost.get(tp)
            if before is None or before.topic_id != spot.topic_id or before.offset < spot.offset:
                self._lost[tp] = spot

    def retain(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets the positions in all other partitions."""
        mine = set(partitions)
        self.lose({tp: spot for tp, spot in self._moved.items() if tp not in mine})
        for held in (self._now, self._resets, self._moved):
            for tp in held.keys() - mine:
                del held[tp]

    def revoke(self) -> Positions:
        """Forgets all positions. Returns those that the group does not have."""
        uncommitted = self.uncommitted()
        self.retain(())
        return uncommitted

    # -- commits ------------------------------------------------------------------------------------------------------

    def note_committed(self, tp: TopicPartition, spot: ConsumerPosition) -> None:
        """Notes a position that the group has now."""
        for held in (self._resets, self._moved):
            if held.get(tp) == spot:
                del held[tp]
        lost = self._lost.get(tp)
        if lost is not None and (lost.topic_id != spot.topic_id or lost.offset <= spot.offset):
            del self._lost[tp]

    def drop_lost(self, topic_ids: Container[str]) -> None:
        """Forgets lost reads of other topics than these: nobody can read them again."""
        self._lost = {tp: spot for tp, spot in self._lost.items() if spot.topic_id in topic_ids}

    def take_lost(self, topic_ids: Container[str]) -> list[TopicPartition]:
        """Returns the partitions, of these topics, whose reads were lost before a commit. Forgets them."""
        self.drop_lost(topic_ids)
        lost, self._lost = self._lost, {}
        return sorted(lost)
