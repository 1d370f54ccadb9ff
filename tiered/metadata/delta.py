"""Two images -> what one broker has to do about the difference: lead, let go, configure, drop."""

from __future__ import annotations

from dataclasses import dataclass

from tiered.ids import TopicId, TopicPartition
from tiered.metadata.image import Image, Loss, PartitionImage, TopicImage


@dataclass(frozen=True, slots=True)
class Lead:
    """Start leading, under this epoch. `fresh`: the topic did not exist before, so no copy of it exists anywhere."""

    at: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """In the order in which to act: drop, resign, configure, lead. `configured` names topics with other settings,
    `lost` the losses that were reported since."""

    dropped: tuple[TopicPartition, ...] = ()
    resigned: tuple[TopicPartition, ...] = ()
    led: tuple[Lead, ...] = ()
    configured: tuple[str, ...] = ()
    lost: tuple[tuple[TopicPartition, Loss], ...] = ()
    brokers_configured: bool = False


def between(old: Image, new: Image, node_id: int) -> Delta:
    """What `node_id` has to do when `old` becomes `new`. Topics that are the same object in both cost nothing."""
    dropped: list[TopicPartition] = []
    resigned: list[TopicPartition] = []
    led: list[Lead] = []
    configured: list[str] = []
    lost: list[tuple[TopicPartition, Loss]] = []
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            held = (p for p, each in enumerate(topic.partitions) if node_id in each.replicas)
            dropped += [TopicPartition(topic.name, p) for p in held]
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is topic:
            continue
        for p, (was, now) in enumerate(_pairs(before, topic)):
            at = TopicPartition(topic.name, p)
            if now.leader == node_id and (was is None or was.leader_epoch != now.leader_epoch):
                led.append(Lead(at, topic_id, now.leader_epoch, was is None))
            elif was is not None and was.leader == node_id and now.leader != node_id:
                resigned.append(at)
            if now.loss is not None and (was is None or was.loss != now.loss):
                lost.append((at, now.loss))
        if before is not None and before.configs != topic.configs:
            configured.append(topic.name)
    return Delta(
        tuple(dropped),
        tuple(resigned),
        tuple(led),
        tuple(configured),
        tuple(lost),
        old.broker_configs != new.broker_configs,
    )


def _pairs(before: TopicImage | None, now: TopicImage) -> list[tuple[PartitionImage | None, PartitionImage]]:
    known = before.partitions if before else ()
    return [(known[p] if p < len(known) else None, each) for p, each in enumerate(now.partitions)]
