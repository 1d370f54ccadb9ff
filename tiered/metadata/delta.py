"""Two images -> what one broker has to do about the difference: lead, follow, let go, configure, drop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tiered.ids import PartitionId, TopicId, TopicPartition
from tiered.metadata.changes import NO_LEADER
from tiered.metadata.image import Image, Loss, PartitionImage, TopicImage


@dataclass(frozen=True, slots=True)
class Lead:
    """Start leading, under this epoch. `fresh`: the topic did not exist before, so no copy of it exists anywhere.
    `heir`: in sync until now with another leader: all that one may have called committed is here."""

    tp: TopicPartition
    topic_id: TopicId
    leader_epoch: int
    is_new: bool
    was_in_sync: bool = False


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy from `leader` under this epoch; while that is `NO_LEADER`, keep the log as it is. `fresh` as in `Lead`."""

    tp: TopicPartition
    topic_id: TopicId
    leader: int
    leader_epoch: int
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Delta:
    """In the order in which to act: drop, resign, configure, in sync, follow, lead. `configured` names topics with
    other settings; they count before `in_sync`, the same leaderships with another in-sync set, because a high watermark
    may have to stand still by the new `min.insync.replicas`. `lost` are partitions of which a loss was told since, or
    acknowledged, each with the last that was not; None: with none."""

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
    """The difference as it is found. `was_here` and `is_here` say whether the incarnation had its place in either
    image: without it, it holds logs but neither leads nor follows."""

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
        is_new = was is None and now.leader_epoch == 0  # a later epoch: others have led it, though we see it only now
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
    """What this incarnation of `node_id` has to do when `old` becomes `new`; in the step in which it appears, that is
    to lead or follow all it holds. Topics that are the same object in both cost nothing."""
    draft = _DeltaBuilder(node_id, _is_registered(old, node_id, incarnation), _is_registered(new, node_id, incarnation))
    configured: list[str] = []
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            held = (p for p, each in enumerate(topic.partitions) if node_id in each.replicas)
            draft.dropped += [TopicPartition(topic.name, p) for p in held]
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is topic and draft.was_registered == draft.is_registered:
            continue
        for p, (was, now) in enumerate(_pair_partitions(before, topic)):
            if was is now and draft.was_registered == draft.is_registered:
                continue
            tp = TopicPartition(topic.name, p)
            draft.add_partition(tp, topic_id, was, now)
        if before is not None and before.configs != topic.configs:
            configured.append(topic.name)
    return Delta(
        tuple(draft.dropped),
        tuple(draft.resigned),
        tuple(draft.leaders),
        tuple(configured),
        tuple(_loss_changes(old, new)),
        old.broker_configs != new.broker_configs,
        tuple(draft.followers),
        tuple(draft.isr_changed),
    )


def _loss_changes(old: Image, new: Image) -> Iterable[tuple[TopicPartition, Loss | None]]:
    if old.losses == new.losses:
        return
    for topic_id, p in dict.fromkeys((*old.losses, *new.losses)):
        partition_id = PartitionId(topic_id, p)
        topic, now = new.topics_by_id.get(topic_id), new.losses.get(partition_id, ())
        if topic is not None and now != old.losses.get(partition_id, ()):
            yield TopicPartition(topic.name, p), now[-1] if now else None


def _was_in_sync(was: PartitionImage, now: PartitionImage, node_id: int) -> bool:
    """One step may be looked at alone; of several at once, one may have put it out of sync before it was elected."""
    had_other_leader = was.leader not in (NO_LEADER, node_id)
    return had_other_leader and node_id in was.isr and now.partition_epoch == was.partition_epoch + 1


def _is_registered(image: Image, node_id: int, incarnation: str) -> bool:
    broker = image.brokers.get(node_id)
    return broker is not None and broker.alive and broker.incarnation == incarnation


def _pair_partitions(before: TopicImage | None, now: TopicImage) -> list[tuple[PartitionImage | None, PartitionImage]]:
    known = before.partitions if before else ()
    return [(known[p] if p < len(known) else None, each) for p, each in enumerate(now.partitions)]


def hosted_partitions(image: Image, node_id: int) -> Iterable[tuple[TopicPartition, TopicImage]]:
    """The partitions that have a replica on a broker."""
    for topic in image.topics.values():
        for p, partition in enumerate(topic.partitions):
            if node_id in partition.replicas:
                yield TopicPartition(topic.name, p), topic
