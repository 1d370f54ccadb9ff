"""What may be asked of the controller: plain values, one per verb, with the type of the answer named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tiered.ids import TopicId
from tiered.metadata.changes import ListEdit


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """-> TopicImage. `replication_factor` -1 and `partitions` -1 mean the defaults; `assignments` excludes both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Sequence[int]] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """-> tuple[TopicImage | Refused, ...], one for each. Those that can be made are made together."""

    topics: tuple[CreateTopic, ...]


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """-> DeletedTopic. With `topic_id` only when the name is still that topic's."""

    name: str
    topic_id: TopicId | None = None


@dataclass(frozen=True, slots=True)
class ForgetTopic:
    """-> None. Its last object is gone; said by the collector."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """-> TopicImage. `count` is the new total; `assignments` are the replicas of the new ones, when given."""

    name: str
    count: int
    validate_only: bool = False
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class AlterTopicConfigs:
    """-> TopicImage. A value sets, None returns to the default; keys not named stay, unless `replace`."""

    name: str
    configs: Mapping[str, str | ListEdit | None]
    validate_only: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class AlterBrokerConfigs:
    """-> dict[str, str], the settings now set. `node_id` -1 stands for all brokers."""

    node_id: int
    configs: Mapping[str, str | ListEdit | None]
    validate_only: bool = False
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """How far a log reaches that could not be proved whole, and the epoch of its last record (-1: none)."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class AwaitedEnd:
    """How far the log of a replica goes, and the epoch of its last record (-1: none). `asked_in` is the leader epoch of
    the partition while nobody leads it: an answer to an earlier election says nothing of now."""

    topic_id: TopicId
    partition: int
    asked_in: int
    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """-> None. A new incarnation takes its node id: it loses what the old one led, and stays eligible only when its
    recovery proved `whole` (rule R1). `ends` are of the replicas that could not be proved, or whose
    partition waits for them (rule R4); `proved` are those that are whole although the broker is not, at what they
    synced."""

    node_id: int
    incarnation: str
    directory: str
    http: str
    rack: str = ""
    whole: bool = False
    listeners: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[ReplicaEnd, ...] = ()
    proved: tuple[tuple[TopicId, int], ...] = ()


@dataclass(frozen=True, slots=True)
class AnnounceBroker:
    """-> None. The same incarnation answers at other addresses."""

    node_id: int
    incarnation: str
    http: str
    listeners: Mapping[str, str]
    advertised_http: str = ""


@dataclass(frozen=True, slots=True)
class NameDirectory:
    """-> None. The next incarnation may believe what this directory says of itself; none when it is empty: the disk
    failed, or what it lost is not told yet."""

    node_id: int
    incarnation: str
    directory: str


@dataclass(frozen=True, slots=True)
class StopBroker:
    """-> None. A clean stop: everything is on disk, nothing runs any more."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """-> None. The broker has left for good. Refused while it is live or has replicas."""

    node_id: int


@dataclass(frozen=True, slots=True)
class FenceBroker:
    """-> None. The controller does not hear this incarnation: others lead what it led."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class UnfenceBroker:
    """-> None. It is heard again, and has applied everything that was committed."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """-> int, how many leaderships stay because nobody else is in sync. Said by a broker before it stops cleanly."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class LeavePartitions:
    """-> None. What StopBroker does to these partitions. Said before it where they are many: one decision on all
    of them would hold up the controller."""

    node_id: int
    incarnation: str
    partitions: tuple[tuple[TopicId, int], ...]


@dataclass(frozen=True, slots=True)
class InSync:
    """A member of a wished in-sync set; `incarnation` is the `incarnation_number` that fetches."""

    node_id: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class IsrWish:
    """What the leader of `leader_epoch` wants the in-sync set to be, itself included (KIP-497, KIP-903)."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[InSync, ...]


@dataclass(frozen=True, slots=True)
class AlterPartitions:
    """-> tuple[Code, ...], one for each wish: NONE, or why it is not granted. Said by the leader of all of them."""

    node_id: int
    incarnation: str
    wishes: tuple[IsrWish, ...]


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """-> tuple[tuple[TopicId, int, Code], ...], one for each partition. `preferred`: the first replica, where it is in
    sync; else any replica that lives, where nobody leads, with the loss recorded (rule R4). None: all partitions."""

    preferred: bool
    partitions: tuple[tuple[TopicId, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Where the replicas of a partition are to be, the preferred leader first; None: they stay where they were."""

    topic_id: TopicId
    partition: int
    replicas: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Reassign:
    """-> tuple[Refused | None, ...], one for each move: None where it is under way, or was nothing to do (KIP-455).
    Without `other_counts` the number of replicas must stay (KIP-860)."""

    moves: tuple[Move, ...]
    other_counts: bool = True


@dataclass(frozen=True, slots=True)
class ReportLoss:
    """-> None. A leader could not prove its log whole: records from `from_offset` on may be gone. All that
    lay below `stored_to` when its epoch began is in the bucket, whatever was told before."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    from_offset: int
    stored_to: int = 0


@dataclass(frozen=True, slots=True)
class AcknowledgeLosses:
    """-> None. An operator has seen the losses of each (topic id, partition, leader epoch), up to that epoch."""

    losses: tuple[tuple[TopicId, int, int], ...]


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """All of a partition lies below `offset` and is in the bucket; -1: that is so no more."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class NoteStoredEnds:
    """-> None. Said by the leader of all of them. Partitions that another one leads by now are passed over."""

    node_id: int
    incarnation: str
    ends: tuple[StoredEnd, ...]


@dataclass(frozen=True, slots=True)
class ReportEnds:
    """-> None. Said by a live broker for which elections wait (rule R4, `in_sync.awaited`)."""

    node_id: int
    incarnation: str
    ends: tuple[AwaitedEnd, ...]


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """-> ProducerIdsAllocated. A block of ids that no broker has had."""

    node_id: int


Request = (
    CreateTopic
    | CreateTopics
    | DeleteTopic
    | ForgetTopic
    | CreatePartitions
    | AlterTopicConfigs
    | AlterBrokerConfigs
    | RegisterBroker
    | AnnounceBroker
    | NameDirectory
    | StopBroker
    | UnregisterBroker
    | FenceBroker
    | UnfenceBroker
    | HandOver
    | LeavePartitions
    | AlterPartitions
    | ElectLeaders
    | Reassign
    | ReportLoss
    | ReportEnds
    | AcknowledgeLosses
    | NoteStoredEnds
    | AllocateProducerIds
)
