"""The health of the partitions of a cluster: leaderless, under-replicated and under `min.insync.replicas`.

Counts like Kafka. Under-replicated partitions count on their leader's broker, leaderless ones on every broker.
`min.insync.replicas` counts up to the number of replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tiered.controller.partition_transitions import awaited_replicas
from tiered.ids import TopicId, TopicPartition
from tiered.metadata import changes as kinds
from tiered.metadata.changes import NO_LEADER, Change
from tiered.metadata.effective_config import MIN_ISR, cluster_min_isr
from tiered.metadata.image import Image
from tiered.metadata.parts.brokers import BrokerImage
from tiered.metadata.parts.topics import Loss, PartitionImage

SILENT_MEND = "see if its process runs: start it again, after a kill if it hangs"
"""The act for a broker that does not answer. The others cannot tell if its process is gone or hangs."""


@dataclass(slots=True)
class PartitionHealth:
    """Counts of partitions.

    Over all partitions: `partition_count`, `leaderless` and `not_preferred_count`. Over those that `node_id` has a
    replica of: `replica_count`. All other fields count only partitions that `node_id` leads.
    """

    node_id: int
    partition_count: int = 0
    leaderless: dict[TopicPartition, PartitionImage] = field(default_factory=dict)
    not_preferred_count: int = 0
    leader_count: int = 0
    replica_count: int = 0
    under_replicated: dict[TopicPartition, PartitionImage] = field(default_factory=dict)
    under_min_isr: dict[TopicPartition, PartitionImage] = field(default_factory=dict)
    at_min_isr_count: int = 0


def assess_partitions(image: Image, node_id: int) -> PartitionHealth:
    """Returns the health of an image's partitions, as seen by one broker."""
    health = PartitionHealth(node_id)
    brokers = image.brokers
    default = cluster_min_isr(image)
    for topic in image.topics.values():
        min_isr = int(topic.configs.get(MIN_ISR, default))
        health.partition_count += len(topic.partitions)
        for number, each in enumerate(topic.partitions):
            health.replica_count += node_id in each.replicas
            leader = brokers.get(each.leader)
            if leader is None or not leader.live:
                health.leaderless[TopicPartition(topic.name, number)] = each
                health.not_preferred_count += 1
                continue
            health.not_preferred_count += each.leader != each.replicas[0]
            if each.leader == node_id:
                _count_leader(health, TopicPartition(topic.name, number), each, min_isr)
    return health


def _count_leader(health: PartitionHealth, tp: TopicPartition, each: PartitionImage, min_isr: int) -> None:
    health.leader_count += 1
    # Replicas that a reassignment adds are not missing yet.
    in_sync, target_count = len(each.isr), len(each.replicas) - len(each.adding)
    needed = min(min_isr, len(each.replicas))
    if in_sync < target_count:
        health.under_replicated[tp] = each
    if in_sync < needed:
        health.under_min_isr[tp] = each
    health.at_min_isr_count += in_sync == needed


def unacknowledged_losses(image: Image) -> dict[TopicPartition, Loss]:
    """Returns the losses that no operator has acknowledged, one for each partition, in order of their names.

    Several losses of a partition become one, with the lowest offset, the first time and the last leader epoch.
    """
    losses = {
        TopicPartition(topic.name, partition_id.partition): Loss(
            each[-1].leader_epoch,
            min(loss.from_offset for loss in each),
            each[0].at_ms,
            min(loss.newest_ms for loss in each),
        )
        for partition_id, each in image.losses.items()
        if (topic := image.topics_by_id.get(partition_id.topic_id)) is not None
    }
    return dict(sorted(losses.items()))


def describe_leaderless(image: Image, each: PartitionImage) -> str:
    """Returns in words which brokers the election of a partition waits for."""
    if each.leader != NO_LEADER:
        return f"its leader {each.leader} is {_broker_state(image, each.leader)}"
    eligible = [node for node in each.replicas if node in each.isr or node in each.elr]
    if eligible:
        return f"waits for {_format_brokers(image, eligible, 'or')}"
    if each.last_known:
        awaited_ids = awaited_replicas(each, image.live_ids())
        nodes = [node for node in each.replicas if node in awaited_ids] or each.last_known
        return f"waits until {_format_brokers(image, nodes, 'and')} have said what is left of their logs"
    return "no broker is known that has its records"


def describe_out_of_sync(image: Image, each: PartitionImage) -> str:
    """Returns in words which replicas of a partition are not in sync."""
    return _format_brokers(image, [node for node in each.replicas if node not in each.isr], "and")


def count_isr_changes(changes: Iterable[Change], before: Image, after: Image, node_id: int) -> tuple[int, int]:
    """Returns how many ISRs shrank and how many expanded, over the partitions that `node_id` leads.

    A partition that lost its leader by these changes counts for the broker that led it.
    """
    shrunk = expanded = 0
    for new, old in _changed_partitions(changes, before, after):
        if node_id in (new.leader, old.leader if new.leader == NO_LEADER else NO_LEADER):
            shrunk += any(node not in new.isr for node in old.isr)
            expanded += any(node not in old.isr for node in new.isr)
    return shrunk, expanded


def _changed_partitions(
    changes: Iterable[Change], before: Image, after: Image
) -> Iterator[tuple[PartitionImage, PartitionImage]]:
    """Yields each changed partition once, as it is and as it was. Leaves out new and deleted partitions."""
    seen: set[tuple[TopicId, int]] = set()
    for change in changes:
        if not isinstance(change, kinds.PartitionChanged) or (change.topic_id, change.partition) in seen:
            continue
        seen.add((change.topic_id, change.partition))
        now, was = after.topics_by_id.get(change.topic_id), before.topics_by_id.get(change.topic_id)
        if now is not None and was is not None and change.partition < len(was.partitions):
            yield now.partitions[change.partition], was.partitions[change.partition]


def broker_state(broker: BrokerImage) -> str:
    """Returns the state of a broker as a word: live, fenced or stopped."""
    return "live" if broker.live else "fenced" if broker.alive else "stopped"


def _format_brokers(image: Image, nodes: Sequence[int], word: str) -> str:
    """Returns broker ids as text; those that are not live have their state in parentheses."""
    each = [f"{node}" if (now := _broker_state(image, node)) == "live" else f"{node} ({now})" for node in nodes]
    return f"broker{'s' if len(each) > 1 else ''} " + f" {word} ".join(each)


def _broker_state(image: Image, node_id: int) -> str:
    known = image.brokers.get(node_id)
    if known is not None and known.bad_disk:
        return f"disk {known.bad_disk}"
    return "unknown" if known is None else broker_state(known)
