"""The plan that adds missing replicas after brokers join. `balancer` carries it out.

A topic created while too few brokers were live has fewer replicas than its default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tiered.config.settings import Settings
from tiered.controller.partition_limits import PartitionLimits
from tiered.controller.placement import Machines, count_machines
from tiered.controller.requests import Move, Reassign
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered.metadata.topic_names import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC


def plan_missing_replicas(image: Image, settings: Settings) -> tuple[Move, ...]:
    """Returns more replicas for each partition that has fewer than its topic's target.

    Skips partitions without a leader, which nothing could copy from, and those with a reassignment. Existing replicas
    stay in their order, with the preferred leader first. Brokers at their replica limit get none, and brokers whose
    disk is full get none until they have room.
    """
    racks, machines, limits = _racks_with_room(image), image.machines(), PartitionLimits(image, settings)
    replica_counts = Counter(
        node for topic in image.topics.values() for each in topic.partitions for node in each.target_replicas
    )
    moves: list[Move] = []
    for topic in image.topics.values():
        target_count = min(_target_replication(topic, settings), count_machines(racks, machines))
        for p, partition in enumerate(topic.partitions):
            if (
                len(partition.replicas) < target_count
                and partition.leader != NO_LEADER
                and not partition.is_reassigning
            ):
                added = _choose_brokers(partition, target_count, racks, machines, replica_counts, limits)
                if not added:
                    continue
                limits.add_replicas(added)
                replica_counts.update(added)
                moves.append(Move(topic.topic_id, p, (*partition.replicas, *added)))
    return tuple(moves)


def _racks_with_room(image: Image) -> dict[int, str]:
    """Returns node id -> rack of the brokers that take new replicas and have room for them."""
    full = image.bad_disk_ids()
    return {node: rack for node, rack in image.placement_racks().items() if node not in full}


def _target_replication(topic: TopicImage, settings: Settings) -> int:
    """Returns the replication factor that a topic is to have; 0 means that its replicas stay."""
    if topic.name == OFFSETS_TOPIC:
        return settings.offsets_topic_replication_factor
    if topic.name == TRANSACTIONS_TOPIC:
        return settings.transaction_state_log_replication_factor
    if topic.name == SHARE_STATE_TOPIC:
        return settings.share_coordinator_state_topic_replication_factor
    return topic.wanted


def _choose_brokers(
    partition: PartitionImage,
    target_count: int,
    racks: Mapping[int, str],
    machines: Machines,
    replica_counts: Counter[int],
    limits: PartitionLimits,
) -> tuple[int, ...]:
    """Returns brokers for new replicas: on machines that the partition does not use, on racks that it does not use yet
    if possible, then with the fewest replicas."""
    chosen: list[int] = []
    while len(partition.replicas) + len(chosen) < target_count:
        replicas = {*partition.replicas, *chosen}
        used = {racks[node] for node in replicas if racks.get(node)}
        taken = {machines.get(node, node) for node in replicas}
        free = [node for node in racks if machines.get(node, node) not in taken and limits.has_room(node)]
        if not free:
            break
        chosen.append(min(free, key=lambda node: (racks[node] in used, replica_counts[node], node)))
    return tuple(chosen)


class MissingReplicas:
    """Missing replicas as a `BalancingPlan`: planned only after a broker joins, or its full disk got room.

    So a reassignment that an operator cancels does not start again at once. Brokers that start together lead to one
    plan, the one after the pause.
    """

    on_success = "adding missing replicas"
    on_refusal = "missing replicas not added yet"
    batch_max = 500
    repeats = False

    def __init__(self) -> None:
        self._known_brokers: frozenset[int] = frozenset()

    def is_needed(self, image: Image, settings: Settings) -> bool:
        """True if a broker has joined since the last call and replicas are missing."""
        placeable = frozenset(_racks_with_room(image))
        joined, self._known_brokers = placeable - self._known_brokers, placeable
        return bool(joined) and bool(plan_missing_replicas(image, settings))

    def interval_seconds(self, settings: Settings) -> float | None:
        """Returns None: time alone adds no replica."""
        return None

    def plan(self, image: Image, settings: Settings) -> tuple[Move, ...]:
        """Returns the reassignments that add the replicas."""
        return plan_missing_replicas(image, settings)

    def confirm(self, before: tuple[Move, ...], after: tuple[Move, ...]) -> tuple[Move, ...]:
        """Returns the later plan, which knows all brokers that joined meanwhile; nothing without a first plan."""
        return after if before else ()

    def to_request(self, steps: tuple[Move, ...]) -> Reassign:
        """Returns the request that starts these reassignments."""
        return Reassign(steps)
