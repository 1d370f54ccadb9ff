"""Limits on the partitions of a cluster and on the replicas of a broker.

Each replica takes some 5 KB of the broker's memory, a directory and files. Each partition is in the image of every
broker. The limits apply when partitions or replicas are created; existing ones stay, however low a limit is set.

Creators of topics have shares of both limits (`quotas.shares`). Replicas that a reassignment adds have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tiered.config.settings import Settings
from tiered.errors import Code, Refused
from tiered.metadata.changes import ALL_BROKERS
from tiered.metadata.effective_config import broker_settings
from tiered.metadata.image import Image
from tiered.quotas.shares import BROKER_REPLICAS, PARTITIONS, Pot, has_room, is_scarce, refuse

CLUSTER_MAX = "tiered.partitions.max"
BROKER_MAX = "tiered.partitions.max.per.broker"
_ALL = -1


def count_partitions(image: Image) -> Counter[str]:
    """Returns the partitions of each creator."""
    counts = Counter[str]()
    for topic in image.topics.values():
        if topic.creator:
            counts[topic.creator] += len(topic.partitions)
    return counts


def count_replicas(image: Image, node_id: int) -> Counter[str]:
    """Returns the replicas that one broker has of the partitions of each creator."""
    counts = Counter[str]()
    for topic in image.topics.values():
        if topic.creator:
            counts[topic.creator] += sum(node_id in each.replicas for each in topic.partitions)
    return counts


class PartitionLimits:
    """The partitions and replicas of an image, plus those that one decision has added so far.

    A replica that a reassignment adds or removes counts until it is gone. `settings` are those that the controller was
    started with.
    """

    def __init__(self, image: Image, settings: Settings) -> None:
        self._image = image
        in_force = broker_settings(image, settings, ALL_BROKERS)
        self._broker_configs = image.broker_configs
        self._cluster_max = in_force.tiered_partitions_max
        self._broker_max = in_force.tiered_partitions_max_per_broker
        self._partitions = image.partition_count
        self._replicas = Counter(image.replica_counts)
        self._added: dict[str, Counter[int]] = {}
        """The additions of this decision by creator: replicas by broker, and partitions under `_ALL`."""

    def add_partitions(self, assignments: Iterable[Sequence[int]], creator: str = "") -> None:
        """Counts new partitions of a creator, given by their replicas.

        Raises `Refused` (POLICY_VIOLATION) at a limit, `PotRefused` above the share of the creator, and counts none of
        them.
        """
        added = list(assignments)
        total = self._partitions + len(added)
        if total > self._cluster_max:
            raise Refused(
                Code.POLICY_VIOLATION,
                f"the cluster would have {total} partitions, {CLUSTER_MAX} is {self._cluster_max}",
            )
        if creator:
            self._check_shares(added, creator)
        self.add_replicas(node for replicas in added for node in replicas)
        self._partitions = total

    def _check_shares(self, assignments: Sequence[Sequence[int]], creator: str) -> None:
        added = Counter(node for replicas in assignments for node in replicas)
        new, count = self._added.setdefault(creator, Counter()), len(assignments)
        if is_scarce(self._cluster_max, self._partitions + count):
            own = count_partitions(self._image)[creator] + new[_ALL]
            _check_share(PARTITIONS, self._cluster_max, self._partitions, creator, own, count)
        for node, more in sorted(added.items()):
            limit = self._limit(node)
            if is_scarce(limit, self._replicas[node] + more):
                own = count_replicas(self._image, node)[creator] + new[node]
                _check_share(BROKER_REPLICAS, limit, self._replicas[node], creator, own, more)
        new.update(added)
        new[_ALL] += count

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


def _check_share(pot: Pot, bound: int, held: int, creator: str, own: int, more: int) -> None:
    """Raises `PotRefused` above the share of a creator. The limits themselves refuse what is above a bound."""
    if held + more <= bound and not has_room(bound, held, own, more):
        raise refuse(pot, bound, held, creator, own, more)
