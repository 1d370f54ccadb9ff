"""Limits on the partitions of a cluster and on the replicas of a broker.

Each replica takes some 5 KB of the broker's memory, a directory and files. Each partition is in the image of every
broker. The limits apply when partitions or replicas are created; existing ones stay, however low a limit is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tiered.config.settings import Settings
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.effective_config import broker_settings
from tiered.metadata.image import Image

CLUSTER_MAX = "tiered.partitions.max"
BROKER_MAX = "tiered.partitions.max.per.broker"


class PartitionLimits:
    """The partitions and replicas of an image, plus those that one decision has added so far.

    A replica that a reassignment adds or removes counts until it is gone. `settings` are those that the controller was
    started with.
    """

    def __init__(self, image: Image, settings: Settings) -> None:
        in_force = broker_settings(image, settings, ALL_BROKERS)
        self._broker_configs = image.broker_configs
        self._cluster_max = in_force.tiered_partitions_max
        self._broker_max = in_force.tiered_partitions_max_per_broker
        self._partitions = image.partition_count
        self._replicas = Counter(image.replica_counts)

    def add_partitions(self, assignments: Iterable[Sequence[int]]) -> None:
        """Counts new partitions, given by their replicas.

        Raises `Refused` (POLICY_VIOLATION) and counts none of them.
        """
        added = list(assignments)
        total = self._partitions + len(added)
        if total > self._cluster_max:
            raise Refused(
                Code.POLICY_VIOLATION,
                f"the cluster would have {total} partitions, {CLUSTER_MAX} is {self._cluster_max}",
            )
        self.add_replicas(node for replicas in added for node in replicas)
        self._partitions = total

    def add_replicas(self, nodes: Iterable[int]) -> None:
        """Counts a new replica on each of these brokers.

        Raises `Refused` (POLICY_VIOLATION) and counts none of them.
        """
        added = Counter(nodes)
        for node in sorted(added):
            total, limit = self._replicas[node] + added[node], self._limit(node)
            if total > limit:
                raise Refused(
                    Code.POLICY_VIOLATION,
                    f"broker {node} would have {total} replicas of partitions, {BROKER_MAX} is {limit}",
                )
        self._replicas.update(added)

    def add_replica_of_each(self, nodes: Sequence[int]) -> None:
        """Does what `add_replicas` does for brokers that all differ, in fewer steps."""
        if not all(map(self.has_room, nodes)):
            self.add_replicas(nodes)  # raises, in words
            return
        for node in nodes:
            self._replicas[node] += 1

    def has_room(self, node: int) -> bool:
        """True if the broker may have one more replica."""
        return self._replicas[node] < self._limit(node)

    def _limit(self, node: int) -> int:
        limit = self._broker_configs.get(node, {}).get(BROKER_MAX)
        return self._broker_max if limit is None else int(limit)
