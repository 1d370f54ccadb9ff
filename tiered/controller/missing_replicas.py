"""Topics that were born with fewer replicas than topics have by default, for want of brokers: what they gain now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tiered.config.settings import Settings
from tiered.controller import leaders
from tiered.controller.partition_limits import PartitionLimits
from tiered.controller.requests import Move
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image, PartitionImage, TopicImage
from tiered.metadata.topic_names import OFFSETS_TOPIC


def plan_missing_replicas(image: Image, settings: Settings) -> tuple[Move, ...]:
    """More replicas for each partition that has fewer than its topic should have by now, where it has a leader to copy
    from and is not on its way already; those that it has stay, the preferred leader first. Brokers that hold as many
    replicas as they may gain none."""
    racks, limits = leaders.placement_racks(image), PartitionLimits(image, settings)
    loads = Counter(
        node for topic in image.topics.values() for each in topic.partitions for node in each.target_replicas
    )
    found: list[Move] = []
    for topic in image.topics.values():
        target_count = min(_target_replication(topic, settings), len(racks))
        for p, partition in enumerate(topic.partitions):
            if (
                len(partition.replicas) < target_count
                and partition.leader != NO_LEADER
                and not partition.is_reassigning
            ):
                added = _choose_brokers(partition, target_count, racks, loads, limits)
                if not added:
                    continue
                limits.add_replicas(added)
                loads.update(added)
                found.append(Move(topic.topic_id, p, (*partition.replicas, *added)))
    return tuple(found)


def _target_replication(topic: TopicImage, settings: Settings) -> int:
    """0: as many as it has."""
    if topic.name == OFFSETS_TOPIC:
        return settings.offsets_topic_replication_factor
    return topic.wanted


def _choose_brokers(
    partition: PartitionImage, target_count: int, racks: Mapping[int, str], loads: Counter[int], limits: PartitionLimits
) -> tuple[int, ...]:
    """On racks that it does not stand in, and on brokers that hold the fewest replicas."""
    made: list[int] = []
    while len(partition.replicas) + len(made) < target_count:
        has = {*partition.replicas, *made}
        used = {racks[node] for node in has if racks.get(node)}
        rest = [node for node in racks if node not in has and limits.has_room(node)]
        if not rest:
            break
        made.append(min(rest, key=lambda node: (racks[node] in used, loads[node], node)))
    return tuple(made)
