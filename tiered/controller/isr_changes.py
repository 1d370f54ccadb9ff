"""ISR changes as lines for the broker's log: the brokers that joined or left, and the number of partitions.

A broker that restarts leaves and rejoins the ISR of every partition that it has a replica of. This is one event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tiered.ids import TopicPartition

NAMES_MAX = 5
"""Partitions that a line names; with more, the line also has their number."""


class IsrChangeSummary:
    """The ISR changes that were committed since `take_lines` was last called."""

    def __init__(self) -> None:
        self._changes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TopicPartition]] = {}

    def record(self, tp: TopicPartition, before: Collection[int], after: Collection[int]) -> None:
        """Records the ISR of a partition before and after a change."""
        joined, left = sorted(set(after).difference(before)), sorted(set(before).difference(after))
        if joined or left:
            self._changes.setdefault((tuple(joined), tuple(left)), []).append(tp)

    def take_lines(self) -> Iterator[str]:
        """Returns one line for all partitions with the same joined and left brokers, and forgets them."""
        changes, self._changes = self._changes, {}
        for (joined, left), partitions in changes.items():
            words = [
                f"{word}={','.join(map(str, nodes))}" for word, nodes in (("joined", joined), ("left", left)) if nodes
            ]
            names = ",".join(map(str, partitions[:NAMES_MAX]))
            if len(partitions) > NAMES_MAX:
                names = f"{len(partitions)} first={names}"
            yield f"ISR changed {' '.join(words)} partitions={names}"
