"""Changes of in-sync sets as lines for a log: who joined or left, and of how many partitions.

A broker that restarts leaves and joins the sets of all partitions that it has a replica of; that is one event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tiered.ids import TopicPartition

NAMES_MAX = 5
"""Partitions that a line names; of more it says how many there are."""


class IsrChangeSummary:
    """Changes that were granted since `lines` was read last."""

    def __init__(self) -> None:
        self._changes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[TopicPartition]] = {}

    def record(self, tp: TopicPartition, before: Collection[int], after: Collection[int]) -> None:
        """A partition got another in-sync set."""
        joined, left = sorted(set(after).difference(before)), sorted(set(before).difference(after))
        if joined or left:
            self._changes.setdefault((tuple(joined), tuple(left)), []).append(tp)

    def take_lines(self) -> Iterator[str]:
        """One for all partitions that the same brokers joined and left. They are told once."""
        found, self._changes = self._changes, {}
        for (joined, left), partitions in found.items():
            words = [
                f"{word}={','.join(map(str, nodes))}" for word, nodes in (("joined", joined), ("left", left)) if nodes
            ]
            names = ",".join(map(str, partitions[:NAMES_MAX]))
            if len(partitions) > NAMES_MAX:
                names = f"{len(partitions)} first={names}"
            yield f"in-sync sets change {' '.join(words)} partitions={names}"
