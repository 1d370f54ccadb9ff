"""Topics, their partitions, deleted topics and losses.

Keeps I24: a change that names no topic or partition of the image, or an earlier leader epoch, is `Corrupt`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from itertools import chain
from typing import Any, NamedTuple

from tiered.errors import Corrupt
from tiered.ids import UNKNOWN_END, PartitionId, TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import NO_LEADER, freeze
from tiered.metadata.parts.json_fields import fields_of
from tiered.metadata.stored_configs import merge_configs, normalize_topic_configs
from tiered.value import value

LOSSES_MAX = 4
"""Most unacknowledged losses of one partition; with more, the two oldest are merged."""

_TopicsChange = (
    kinds.TopicCreated
    | kinds.TopicDeleted
    | kinds.TopicForgotten
    | kinds.PartitionsAdded
    | kinds.PartitionChanged
    | kinds.TopicConfigChanged
    | kinds.LossReported
    | kinds.LossesAcknowledged
    | kinds.StoredEndsNoted
)


class Loss(NamedTuple):
    """A possible loss since `leader_epoch`: acknowledged records of earlier epochs, from `from_offset` on.

    `newest_ms` is the timestamp of the newest record that is left; 0 if none is known.
    """

    leader_epoch: int
    from_offset: int
    at_ms: int
    newest_ms: int = 0

    @property
    def seconds(self) -> int | None:
        """The seconds before the report of which records may be missing; None if that is not known."""
        return -((self.newest_ms - self.at_ms) // 1000) if 0 < self.newest_ms <= self.at_ms else None


class End(NamedTuple):
    """End of a log that could not be proved whole, and the leader epoch of its last record."""

    node_id: int
    leader_epoch: int
    end_offset: int


class ChainRef(NamedTuple):
    """The write-ahead chain of a broker that led a partition: the last leader epoch in which it did."""

    leader_epoch: int
    node_id: int
    incarnation: str


@value
class PartitionImage:
    """One partition.

    `leader` is `NO_LEADER` while no replica may lead. `elr` are replicas that left the ISR with all acknowledged
    records and may lead again. If ISR and ELR are both empty, an election waits until all `last_known` are back, and
    elects the replica with the highest of `ends` (R4). `partition_epoch` counts the changes of these fields (KIP-497).
    During a reassignment (KIP-455), `adding` are the new replicas. `removing` leave once all others are in sync. All
    records ever acknowledged are below `stored_end` and in the bucket; `UNKNOWN_END` if that is not known. `chains` are
    the write-ahead chains that may have records which are in no segment, in the order of their leaders. If
    `is_in_bucket`, all acknowledged records are in segments or in these chains.
    """

    replicas: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = -1
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    loss: Loss | None = None
    partition_epoch: int = 0
    last_known: tuple[int, ...] = ()
    ends: tuple[End, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    stored_end: int = UNKNOWN_END
    chains: tuple[ChainRef, ...] = ()
    is_in_bucket: bool = False

    @property
    def is_reassigning(self) -> bool:
        """True if a reassignment of the partition is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing) if self.removing else self.replicas


@value
class TopicImage:
    """One topic: `partitions[p]`, and the settings that differ from the defaults."""

    name: str
    topic_id: TopicId
    partitions: tuple[PartitionImage, ...]
    configs: Mapping[str, str]
    created_ms: int
    wanted: int = 0
    """Replication factor to reach once there are enough brokers; 0: the replicas stay."""
    creator: str = ""
    """The holder for which its partitions count; "" is nobody, and unknown for topics of earlier versions."""


@value
class DeletedTopic:
    """A deleted topic whose objects the collector has not deleted yet."""

    name: str
    topic_id: TopicId
    partitions: int
    deleted_ms: int


@value
class TopicsImage:
    """Topics by name and by id, deleted topics by id, and the unacknowledged losses, the oldest first."""

    KINDS = (
        kinds.TopicCreated, kinds.TopicDeleted, kinds.TopicForgotten, kinds.PartitionsAdded, kinds.PartitionChanged,
        kinds.TopicConfigChanged, kinds.LossReported, kinds.LossesAcknowledged, kinds.StoredEndsNoted,
    )  # fmt: skip

    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    deleted: Mapping[TopicId, DeletedTopic] = field(default_factory=dict)
    losses: Mapping[PartitionId, tuple[Loss, ...]] = field(default_factory=dict)
    partition_count: int = field(default=0, compare=False)
    """Number of partitions of all topics."""
    replica_counts: Mapping[int, int] = field(default_factory=dict, compare=False)
    """Number of replicas on each broker, including those that a reassignment adds and removes."""

    def apply(self, changes: Iterable[_TopicsChange]) -> TopicsImage:
        """Returns the part after the changes."""
        replay = _TopicsReplay(self)
        for change in changes:
            replay.apply(change)
        return replay.finish()

    def to_json(self) -> dict[str, Any]:
        """Returns the keys of the part in a snapshot."""
        return {
            "topics": [
                fields_of(topic) | {"partitions": [_partition_to_json(each) for each in topic.partitions]}
                for topic in self.topics.values()
            ],
            "deleted": [fields_of(topic) for topic in self.deleted.values()],
            "losses": [
                [*partition_id, [_encode_loss(each) for each in losses]] for partition_id, losses in self.losses.items()
            ],
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> TopicsImage:
        """Returns the part of a snapshot."""
        topics = [_topic_from_json(topic) for topic in body["topics"]]
        return cls(
            {topic.name: topic for topic in topics},
            {topic.topic_id: topic for topic in topics},
            {topic["topic_id"]: DeletedTopic(**topic) for topic in body["deleted"]},
            {
                PartitionId(topic_id, partition): tuple(Loss(*each) for each in losses)
                for topic_id, partition, losses in body.get("losses", ())
            },
            sum(len(topic.partitions) for topic in topics),
            Counter(node for topic in topics for each in topic.partitions for node in each.replicas),
        )


class _TopicsReplay:
    """The part while changes are applied.

    Partitions of a changed topic are copied to a list once and put back at the end.
    """

    def __init__(self, before: TopicsImage) -> None:
        self.topics = dict(before.topics)
        self.topics_by_id = dict(before.by_id)
        self.deleted_topics = dict(before.deleted)
        self.losses = dict(before.losses)
        self.partition_count, self.replica_counts = before.partition_count, Counter(before.replica_counts)
        self.changed_partitions: dict[TopicId, list[PartitionImage]] = {}
        self.made: dict[tuple[object, ...], tuple[PartitionImage, PartitionImage]] = {}
        """Cache: (old partition, change) -> (old, new). Equal partitions with equal changes share one object."""

    def finish(self) -> TopicsImage:
        for topic_id in self.changed_partitions:
            self._put_topic(replace(self.topics_by_id[topic_id], partitions=tuple(self.changed_partitions[topic_id])))
        return TopicsImage(
            self.topics, self.topics_by_id, self.deleted_topics, self.losses, self.partition_count, self.replica_counts
        )

    def apply(self, change: _TopicsChange) -> None:
        match change:
            case kinds.PartitionChanged():  # first: most changes are of this kind
                self._change_partition(change)
            case kinds.TopicCreated():
                self._create_topic(change)
            case kinds.TopicDeleted():
                self._delete_topic(change)
            case kinds.TopicForgotten():
                self.deleted_topics.pop(change.topic_id, None)
            case kinds.PartitionsAdded():
                self._mutable_partitions(change.topic_id).extend(self._new_partitions(change.assignments))
            case kinds.TopicConfigChanged():
                topic = self._find_topic(change.topic_id)
                configs = normalize_topic_configs(merge_configs(topic.configs, change.configs))
                self._put_topic(replace(topic, configs=configs))
            case kinds.LossReported():
                self._report_loss(change)
            case kinds.LossesAcknowledged():
                for topic_id, partition, epoch in change.losses:
                    partition_id = PartitionId(topic_id, partition)
                    known = self.losses.get(partition_id, ())
                    self._put_losses(partition_id, tuple(each for each in known if each.leader_epoch > epoch))
            case kinds.StoredEndsNoted():
                for topic_id, partition, offset in change.ends:
                    partitions, old_partition = self._mutable_partition(topic_id, partition)
                    partitions[partition] = replace(old_partition, stored_end=offset)

    def _create_topic(self, change: kinds.TopicCreated) -> None:
        if change.name in self.topics:
            raise Corrupt(f"topic {change.name} is created twice")
        partitions, configs = self._new_partitions(change.assignments), normalize_topic_configs(change.configs)
        self._put_topic(
            TopicImage(change.name, change.topic_id, partitions, configs, change.at_ms, change.wanted, change.creator)
        )

    def _new_partitions(self, assignments: Iterable[tuple[int, ...]]) -> tuple[PartitionImage, ...]:
        assignments = tuple(assignments)
        made = {replicas: PartitionImage(replicas) for replicas in dict.fromkeys(assignments)}
        self.partition_count += len(assignments)
        self.replica_counts.update(chain.from_iterable(assignments))
        return tuple(made[replicas] for replicas in assignments)

    def _delete_topic(self, change: kinds.TopicDeleted) -> None:
        topic = self._find_topic(change.topic_id)
        partitions = self.changed_partitions.pop(change.topic_id, topic.partitions)
        self.partition_count -= len(partitions)
        self.replica_counts.subtract(chain.from_iterable(each.replicas for each in partitions))
        del self.topics[topic.name], self.topics_by_id[change.topic_id]
        self.deleted_topics[change.topic_id] = DeletedTopic(topic.name, topic.topic_id, len(partitions), change.at_ms)
        self.losses = {
            partition_id: each for partition_id, each in self.losses.items() if partition_id.topic_id != change.topic_id
        }

    def _report_loss(self, change: kinds.LossReported) -> None:
        partitions, old = self._mutable_partition(change.topic_id, change.partition)
        loss = Loss(change.leader_epoch, change.from_offset, change.at_ms, change.newest_ms)
        partitions[change.partition] = replace(old, loss=loss)
        partition_id = PartitionId(change.topic_id, change.partition)
        self._put_losses(partition_id, add_loss(self.losses.get(partition_id, ()), old, loss))

    def _put_losses(self, partition_id: PartitionId, losses: tuple[Loss, ...]) -> None:
        if losses:
            self.losses[partition_id] = losses
        else:
            self.losses.pop(partition_id, None)

    def _change_partition(self, change: kinds.PartitionChanged) -> None:
        partitions, old = self._mutable_partition(change.topic_id, change.partition)
        if change.leader_epoch < old.leader_epoch:
            raise Corrupt(f"leader epoch {change.leader_epoch} follows {old.leader_epoch} in {change.topic_id}")
        key = (
            id(old), change.leader, change.leader_epoch, change.isr, change.elr, change.last_known, change.ends,
            change.replicas, change.adding, change.removing, change.chains, change.is_in_bucket,
        )  # fmt: skip
        known = self.made.get(key)
        if known is None:
            new = PartitionImage(
                change.replicas or old.replicas, change.leader, change.leader_epoch, change.isr, change.elr, old.loss,
                old.partition_epoch + 1, change.last_known, tuple(End(*each) for each in change.ends), change.adding,
                change.removing, old.stored_end, tuple(map(ChainRef._make, change.chains)) if change.chains else (),
                change.is_in_bucket,
            )  # fmt: skip
            self.made[key] = old, new  # keeps `old` alive, so that no other object gets its id
        else:
            new = known[1]
        partitions[change.partition] = new
        if new.replicas is not old.replicas and new.replicas != old.replicas:
            self.replica_counts.subtract(old.replicas)
            self.replica_counts.update(new.replicas)
        topic = self._find_topic(change.topic_id)
        if topic.wanted and not old.is_reassigning and len(new.target_replicas) < len(old.target_replicas):
            self._put_topic(replace(topic, wanted=0))  # an operator chose fewer replicas

    def _find_topic(self, topic_id: TopicId) -> TopicImage:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise Corrupt(f"a change names the topic {topic_id}, which does not exist")
        return topic

    def _mutable_partition(self, topic_id: TopicId, partition: int) -> tuple[list[PartitionImage], PartitionImage]:
        """Returns a partition, and the list in which to replace it."""
        partitions = self._mutable_partitions(topic_id)
        if not 0 <= partition < len(partitions):
            raise Corrupt(f"no partition {partition} in topic {topic_id}")
        return partitions, partitions[partition]

    def _mutable_partitions(self, topic_id: TopicId) -> list[PartitionImage]:
        if topic_id not in self.changed_partitions:
            self.changed_partitions[topic_id] = list(self._find_topic(topic_id).partitions)
        return self.changed_partitions[topic_id]

    def _put_topic(self, topic: TopicImage) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic


def add_loss(known: tuple[Loss, ...], old: PartitionImage, new: Loss) -> tuple[Loss, ...]:
    """Returns the unacknowledged losses of a partition after one more was reported; `old` is the partition before.

    A report of an unacknowledged loss of the same leader epoch replaces it. If that loss was acknowledged, a report
    with the same or a later offset changes nothing; one with an earlier offset counts as new. Nothing is added if
    `stored_end` is known.
    """
    if any(each.leader_epoch == new.leader_epoch for each in known):
        return tuple(new if each.leader_epoch == new.leader_epoch else each for each in known)
    is_same_loss = old.loss is not None and old.loss[:2] <= new[:2] and old.loss.leader_epoch == new.leader_epoch
    if is_same_loss or old.stored_end != UNKNOWN_END:
        return known
    if len(known) == LOSSES_MAX:
        first, second, *rest = known
        from_offset = min(first.from_offset, second.from_offset)
        newest_ms = min(first.newest_ms, second.newest_ms)
        known = (Loss(second.leader_epoch, from_offset, first.at_ms, newest_ms), *rest)
    return (*known, new)


def _topic_from_json(data: dict[str, Any]) -> TopicImage:
    partitions = tuple(_partition_from_json(each) for each in data["partitions"])
    return TopicImage(**data | {"partitions": partitions, "configs": normalize_topic_configs(data["configs"])})


def _partition_to_json(partition: PartitionImage) -> dict[str, Any]:
    loss = _encode_loss(partition.loss) if partition.loss else None
    found = fields_of(partition) | {"loss": loss, "ends": [list(end) for end in partition.ends]}
    if partition.chains:
        return found | {"chains": [list(each) for each in partition.chains]}
    return found


def _encode_loss(loss: Loss) -> list[int]:
    return list(loss if loss.newest_ms else loss[:3])


def _partition_from_json(data: dict[str, Any]) -> PartitionImage:
    loss, ends, chains = data.pop("loss"), data.pop("ends", ()), data.pop("chains", ())
    known = {name: freeze(each) for name, each in data.items()}
    return PartitionImage(
        **known, loss=Loss(*loss) if loss else None, ends=tuple(End(*each) for each in ends),
        chains=tuple(ChainRef(*each) for each in chains),
    )  # fmt: skip
