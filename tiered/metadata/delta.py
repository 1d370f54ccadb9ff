"""The actions of one broker between two images, in their order: drop, resign, configure, change ISRs, follow, lead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image
from tiered.metadata.parts.topics import Loss, PartitionImage, TopicImage
from tiered.value import value


@value
class Lead:
    """Start to lead a partition under this leader epoch.

    `is_new`: the topic did not exist before, so no log of it exists anywhere. `was_in_sync`: this replica was in sync
    with the previous leader until now, so it has everything that leader may have committed.
    """

    tp: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    is_new: bool
    was_in_sync: bool = False


@value
class Follow:
    """Copy from `leader` under this leader epoch.

    Keep the log as it is while that is `NO_LEADER`. `is_new`: see `Lead`.
    """

    tp: TopicPartition
    topic_id: TopicId
    leader: int
    leader_epoch: int
    is_new: bool = False


@value
class Delta:
    """Actions in the order in which to perform them: drop, resign, configure, ISR changes, follow, lead.

    `configured_topics` have changed settings. They come before `isr_changed`, the same leaderships with another ISR:
    under a new `min.insync.replicas` a high watermark may have to stand still. `loss_changes` are partitions with a new
    or acknowledged loss, each with the newest loss still unacknowledged, or None.
    """

    dropped: tuple[TopicPartition, ...] = ()
    resigned: tuple[TopicPartition, ...] = ()
    leaders: tuple[Lead, ...] = ()
    configured_topics: tuple[str, ...] = ()
    loss_changes: tuple[tuple[TopicPartition, Loss | None], ...] = ()
    broker_configs_changed: bool = False
    followers: tuple[Follow, ...] = ()
    isr_changed: tuple[tuple[TopicPartition, PartitionImage], ...] = ()


@dataclass(slots=True)
class _DeltaBuilder:
    """A delta while partitions are added.

    `was_registered` and `is_registered`: the incarnation holds its node id in the old and in the new image. Without
    that, it has logs but neither leads nor follows.
    """

    node_id: int
    was_registered: bool
    is_registered: bool
    dropped: list[TopicPartition] = field(default_factory=list)
    resigned: list[TopicPartition] = field(default_factory=list)
    leaders: list[Lead] = field(default_factory=list)
    followers: list[Follow] = field(default_factory=list)
    isr_changed: list[tuple[TopicPartition, PartitionImage]] = field(default_factory=list)

    def add_partition(
        self, tp: TopicPartition, topic_id: TopicId, was: PartitionImage | None, now: PartitionImage
    ) -> None:
        node = self.node_id
        is_new = was is None and now.leader_epoch == 0  # in a later epoch another broker has led it before
        before = was if self.was_registered else None
        is_leader = self.is_registered and now.leader == node
        was_leader = before is not None and before.leader == node
        same_leader = before is not None and (before.leader, before.leader_epoch) == (now.leader, now.leader_epoch)
        if was_leader and not is_leader:
            self.resigned.append(tp)
        if is_leader and not same_leader:
            was_in_sync = before is not None and _was_in_sync(before, now, node)
            self.leaders.append(Lead(tp, topic_id, now.leader_epoch, is_new, was_in_sync))
        elif is_leader and before is not None and before.partition_epoch != now.partition_epoch:
            self.isr_changed.append((tp, now))
        was_replica = before is not None and node in before.replicas
        if self.is_registered and not is_leader and node in now.replicas and not (same_leader and was_replica):
            self.followers.append(Follow(tp, topic_id, now.leader, now.leader_epoch, is_new))
        if was is not None and node in was.replicas and node not in now.replicas:
            self.dropped.append(tp)


def compute_delta(old: Image, new: Image, node_id: int, incarnation: str) -> Delta:
    """Returns the actions of this incarnation of `node_id` when `old` becomes `new`.

    If the incarnation appears in `new`, these are to lead or follow all its replicas. Topics that are the same object
    in both images cost nothing.
    """
    builder = _DeltaBuilder(
        node_id, _is_registered(old, node_id, incarnation), _is_registered(new, node_id, incarnation)
    )
    configured: list[str] = []
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            hosted = (p for p, each in enumerate(topic.partitions) if node_id in each.replicas)
            builder.dropped += [TopicPartition(topic.name, p) for p in hosted]
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is topic and builder.was_registered == builder.is_registered:
            continue
        for p, (was, now) in enumerate(_pair_partitions(before, topic)):
            if was is now and builder.was_registered == builder.is_registered:
                continue
            tp = TopicPartition(topic.name, p)
            builder.add_partition(tp, topic_id, was, now)
        if before is not None and before.configs != topic.configs:
            configured.append(topic.name)
    return Delta(
        tuple(builder.dropped),
        tuple(builder.resigned),
        tuple(builder.leaders),
        tuple(configured),
        tuple(_loss_changes(old, new)),
        old.broker_configs != new.broker_configs,
        tuple(builder.followers),
        tuple(builder.isr_changed),
    )


def _loss_changes(old: Image, new: Image) -> Iterable[tuple[TopicPartition, Loss | None]]:
    if old.losses == new.losses:
        return
    for topic_id, p in dict.fromkeys((*old.losses, *new.losses)):
        partition_id = PartitionId(topic_id, p)
        topic, losses = new.topics_by_id.get(topic_id), new.losses.get(partition_id, ())
        if topic is not None and losses != old.losses.get(partition_id, ()):
            yield TopicPartition(topic.name, p), losses[-1] if losses else None


def _was_in_sync(was: PartitionImage, now: PartitionImage, node_id: int) -> bool:
    """True if the replica was in sync with another leader until this very change.

    Only a single change counts: of several at once, one may have removed it from the ISR before it was elected.
    """
    had_other_leader = was.leader not in (NO_LEADER, node_id)
    return had_other_leader and node_id in was.isr and now.partition_epoch == was.partition_epoch + 1


def _is_registered(image: Image, node_id: int, incarnation: str) -> bool:
    broker = image.brokers.get(node_id)
    return broker is not None and broker.alive and broker.incarnation == incarnation


def _pair_partitions(before: TopicImage | None, now: TopicImage) -> list[tuple[PartitionImage | None, PartitionImage]]:
    known = before.partitions if before else ()
    return [(known[p] if p < len(known) else None, each) for p, each in enumerate(now.partitions)]


def hosted_partitions(image: Image, node_id: int) -> Iterable[tuple[TopicPartition, TopicImage]]:
    """Yields the partitions that have a replica on a broker, with their topics."""
    for topic in image.topics.values():
        for p, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                yield TopicPartition(topic.name, p), topic
