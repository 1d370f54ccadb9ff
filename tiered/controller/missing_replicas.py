"""The plan that adds missing replicas: a topic created with too few brokers has fewer replicas than its default.

`replica_gains` submits the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tiered.config.settings import Settings
from tiered.controller.partition_limits import PartitionLimits
from tiered.controller.requests import Move
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image, PartitionImage, TopicImage
from tiered.metadata.topic_names import OFFSETS_TOPIC


def plan_missing_replicas(image: Image, settings: Settings) -> tuple[Move, ...]:
    """Returns more replicas for each partition that has fewer than its topic's target.

    Skips partitions without a leader, which nothing could copy from, and those with a reassignment. Existing replicas
    stay in their order, with the preferred leader first. Brokers at their replica limit get none.
    """
    racks, limits = image.placement_racks(), PartitionLimits(image, settings)
    replica_counts = Counter(
        node for topic in image.topics.values() for each in topic.partitions for node in each.target_replicas
    )
    moves: list[Move] = []
    for topic in image.topics.values():
        target_count = min(_target_replication(topic, settings), len(racks))
        for p, partition in enumerate(topic.partitions):
            if (
                len(partition.replicas) < target_count
                and partition.leader != NO_LEADER
                and not partition.is_reassigning
            ):
                added = _choose_brokers(partition, target_count, racks, replica_counts, limits)
                if not added:
                    continue
                limits.add_replicas(added)
                replica_counts.update(added)
                moves.append(Move(topic.topic_id, p, (*partition.replicas, *added)))
    return tuple(moves)


def _target_replication(topic: TopicImage, settings: Settings) -> int:
    """Returns the replication factor that a topic is to have; 0 means that its replicas stay."""
    if topic.name == OFFSETS_TOPIC:
        return settings.offsets_topic_replication_factor
    return topic.wanted


def _choose_brokers(
    partition: PartitionImage,
    target_count: int,
    racks: Mapping[int, str],
    replica_counts: Counter[int],
    limits: PartitionLimits,
) -> tuple[int, ...]:
    """Returns brokers for new replicas: on racks that the partition does not use yet, then with the fewest replicas."""
    chosen: list[int] = []
    while len(partition.replicas) + len(chosen) < target_count:
        replicas = {*partition.replicas, *chosen}
        used = {racks[node] for node in replicas if racks.get(node)}
        free = [node for node in racks if node not in replicas and limits.has_room(node)]
        if not free:
            break
        chosen.append(min(free, key=lambda node: (racks[node] in used, replica_counts[node], node)))
    return tuple(chosen)
