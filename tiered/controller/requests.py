"""Requests to the controller: plain values, one class per request, with the type of the reply after `->`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from tiered.ids import TopicId
from tiered.metadata.changes import AclAdded, ListEdit, ScramCredentialSet
from tiered.metadata.features import HIGHEST_METADATA_VERSION
from tiered.value import value


@value
class CreateTopic:
    """-> TopicImage. `replication_factor` -1 and `partitions` -1 mean the defaults; `assignments` excludes both.

    The partitions count for the holder `creator`, "" for nobody.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[Sequence[int]] | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    validate_only: bool = False
    creator: str = ""


@value
class CreateTopics:
    """-> tuple[TopicImage | Refused, ...], one for each topic. Topics that are granted are created together."""

    topics: tuple[CreateTopic, ...]


@value
class DeleteTopic:
    """-> DeletedTopic. With a `topic_id`, deletes only if the name still belongs to that topic."""

    name: str
    topic_id: TopicId | None = None


@value
class ForgetTopic:
    """-> None. Sent when the collector has deleted the topic's last object."""

    topic_id: TopicId


@value
class CreatePartitions:
    """-> TopicImage. `count` is the new total; `assignments`, if given, are the replicas of the new partitions."""

    name: str
    count: int
    validate_only: bool = False
    assignments: Sequence[Sequence[int]] | None = None


@value
class AlterTopicConfigs:
    """-> TopicImage. A value sets, None returns to the default. Settings that are not named stay, unless `replace`."""

    name: str
    configs: Mapping[str, str | ListEdit | None]
    validate_only: bool = False
    replace: bool = False


@value
class AlterBrokerConfigs:
    """-> dict[str, str], the settings after the change. `node_id` -1 stands for all brokers."""

    node_id: int
    configs: Mapping[str, str | ListEdit | None]
    validate_only: bool = False
    replace: bool = False


@value
class AlterGroupConfigs:
    """-> dict[str, str], the settings after the change. The group need not exist."""

    group: str
    configs: Mapping[str, str | ListEdit | None]
    validate_only: bool = False
    replace: bool = False


@value
class ReplicaEnd:
    """End of a log that could not be proved whole, and the leader epoch of its last record (-1: none)."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    end_offset: int


@value
class AwaitedEnd:
    """Log end of a replica, and the leader epoch of its last record (-1: none).

    `asked_in` is the leader epoch of the partition while it has no leader: an end reported for an earlier election does
    not count.
    """

    topic_id: TopicId
    partition: int
    asked_in: int
    leader_epoch: int
    end_offset: int


@value
class AdoptedReplicas:
    """Replicas of the broker `from_node` whose logs were moved to the disk of the broker that registers.

    `incarnation` stopped cleanly in the data directory `directory`, and was the last one there.
    """

    from_node: int
    directory: str
    incarnation: str
    partitions: tuple[tuple[TopicId, int], ...]


@value
class RegisterBroker:
    """-> None. A new incarnation takes its node id and loses the leaderships of the old one.

    It stays eligible only if its recovery proved its logs `whole` (R1). `ends` are of replicas that could not be
    proved, or whose partition waits for them (R4). `proved` are partitions whose logs are whole up to their last fsync
    although the broker's are not. `replaces` is the incarnation that has the node id as far as the new one knows, "" if
    none has it. The request is refused if it is another one; None replaces any. The broker supports levels of
    `tiered.metadata.version` up to `metadata_version`. It is the process number `process` of its machine, counted from
    0. It takes the place of another process of its machine in the replicas that are `adopted`.
    """

    node_id: int
    incarnation: str
    directory: str
    http: str
    rack: str = ""
    whole: bool = False
    listeners: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[ReplicaEnd, ...] = ()
    proved: tuple[tuple[TopicId, int], ...] = ()
    replaces: str | None = None
    metadata_version: int = HIGHEST_METADATA_VERSION
    process: int = 0
    adopted: tuple[AdoptedReplicas, ...] = ()


@value
class AnnounceBroker:
    """-> None. The same incarnation has other addresses."""

    node_id: int
    incarnation: str
    http: str
    listeners: Mapping[str, str]
    advertised_http: str = ""


@value
class NameDirectory:
    """-> None. Names the data directory that the next incarnation may trust.

    Empty if it may trust none: the disk failed, or a loss of its records is not reported yet.
    """

    node_id: int
    incarnation: str
    directory: str


@value
class StopBroker:
    """-> None. The broker has stopped cleanly: everything is on disk and nothing runs any more."""

    node_id: int
    incarnation: str


@value
class UnregisterBroker:
    """-> None. Removes a broker for good. Refused while it is live or has replicas."""

    node_id: int


@value
class FenceBroker:
    """-> None. The controller has lost contact with this incarnation: other brokers take over its leaderships.

    `others` are brokers and incarnations that it has lost at the same time.
    """

    node_id: int
    incarnation: str
    others: tuple[tuple[int, str], ...] = ()


@value
class UnfenceBroker:
    """-> None. This incarnation has contact again and has applied everything that was committed."""

    node_id: int
    incarnation: str


@value
class HandOver:
    """-> int, the number of leaderships that stay because no other replica is in sync. Sent before a clean stop."""

    node_id: int
    incarnation: str


@value
class ReportDisk:
    """-> int, the number of leaderships that the broker lost. The state of its disk is one of `BrokerDiskReported`."""

    node_id: int
    incarnation: str
    disk: str


@value
class LeavePartitions:
    """-> None. Does for these partitions the same as StopBroker.

    Sent before StopBroker if the partitions are many: one decision about all of them would block the controller.
    """

    node_id: int
    incarnation: str
    partitions: tuple[tuple[TopicId, int], ...]


@value
class InSync:
    """A member of a requested ISR; `incarnation` is the `incarnation_number` that its fetches name."""

    node_id: int
    incarnation: int


@value
class IsrChange:
    """An ISR change: the ISR that the leader of `leader_epoch` requests, itself included (KIP-497, KIP-903).

    Messages between brokers of all versions call it IsrWish (`tiered/controller/request_codec.py`).
    """

    topic_id: TopicId
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[InSync, ...]


@value
class AlterPartitions:
    """-> tuple[Code, ...], one for each change: NONE, or the reason for the refusal. Sent by their leader.

    Messages between brokers of all versions name the field `wishes`.
    """

    node_id: int
    incarnation: str
    wishes: tuple[IsrChange, ...]


@value
class ElectLeaders:
    """-> tuple[tuple[TopicId, int, Code], ...], one for each partition; `partitions` None means all partitions.

    `preferred` elects the first replica if it is in sync. Otherwise any live replica is elected where there is no
    leader, and the loss is recorded (R4).
    """

    preferred: bool
    partitions: tuple[tuple[TopicId, int], ...] | None = None


@value
class Move:
    """The target replicas of a partition, the preferred leader first; None cancels its reassignment."""

    topic_id: TopicId
    partition: int
    replicas: tuple[int, ...] | None


@value
class Reassign:
    """-> tuple[Refused | None, ...], one for each move; None if it was granted or nothing had to change (KIP-455).

    Without `other_counts` the number of replicas must stay the same (KIP-860).
    """

    moves: tuple[Move, ...]
    other_counts: bool = True


@value
class ReportLoss:
    """-> None. A leader could not prove its log whole: records from `from_offset` on may be gone.

    All records below `stored_to` at the start of its leader epoch are in the bucket, whatever was reported before. The
    newest record that was left then has the timestamp `newest_ms`; 0 if none is known.
    """

    topic_id: TopicId
    partition: int
    leader_epoch: int
    from_offset: int
    stored_to: int = 0
    newest_ms: int = 0


@value
class AcknowledgeLosses:
    """-> None. An operator acknowledges losses, for each (topic id, partition, leader epoch) up to that epoch."""

    losses: tuple[tuple[TopicId, int, int], ...]


@value
class StoredEnd:
    """All records of a partition are below `offset` and in the bucket; -1 means that this no longer holds."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    offset: int


@value
class NoteStoredEnds:
    """-> None. Sent by the leader of all these partitions. Skips partitions that have another leader by now.

    `chained` are (topic id, partition, partition epoch, true if all records are in the bucket): no chain of an earlier
    leader is needed any more.
    """

    node_id: int
    incarnation: str
    ends: tuple[StoredEnd, ...]
    chained: tuple[tuple[TopicId, int, int, bool], ...] = ()


@value
class ReportEnds:
    """-> None.

    Sent by a live broker whose log ends elections wait for (R4, `partition_transitions.awaited_replicas`).
    """

    node_id: int
    incarnation: str
    ends: tuple[AwaitedEnd, ...]


@value
class AllocateProducerIds:
    """-> ProducerIdsAllocated, a block of producer ids that no broker had before."""

    node_id: int


@value
class FeatureUpdate:
    """A level for a feature. `downgrade` allows a lower level than the present one, and no higher one."""

    name: str
    level: int
    downgrade: bool = False


@value
class UpdateFeatures:
    """-> None. All updates are made, or none."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@value
class CreateAcls:
    """-> tuple[Refused | None, ...], one for each ACL; None if it holds now. Those that are granted hold together."""

    acls: tuple[AclAdded, ...]


@value
class AclChoice:
    """A choice of ACLs by Kafka's words, as `tiered.security.acls.AclFilter`."""

    resource_type: str
    pattern_type: str
    resource_name: str | None
    principal: str | None
    host: str | None
    operation: str
    permission: str


@value
class DeleteAcls:
    """-> tuple[tuple[AclRemoved, ...] | Refused, ...], one for each filter: the ACLs that it chose."""

    filters: tuple[AclChoice, ...]


@value
class ScramDeletion:
    """The removal of a user's credential for a mechanism."""

    user: str
    mechanism: str


@value
class AlterScramCredentials:
    """-> Mapping[str, Refused | None], the outcome by user. Each user is altered on its own, and at most once.

    With `if_absent`, credentials that exist stay.
    """

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramCredentialSet, ...] = ()
    if_absent: bool = False


@value
class QuotaAlteration:
    """New quotas of an entity, by key; None removes a quota."""

    entity: tuple[tuple[str, str | None], ...]
    values: tuple[tuple[str, float | None], ...]


@value
class AlterClientQuotas:
    """-> tuple[Refused | None, ...], one for each entity. Each entity is altered as a whole or not at all."""

    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


@value
class RotateBrokerSecret:
    """-> the version of the secret. Sets the next secret of brokers, if the newest one has the version `expected`."""

    expected: int
    secret: str = field(repr=False)


@value
class CreateDelegationToken:
    """-> DelegationTokenSet. `requester` gets a token of `owner` (KIP-48). `max_lifetime_ms` 0 or less: the default."""

    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    max_lifetime_ms: int = -1


@value
class RenewDelegationToken:
    """-> the new expiry. A principal renews a token, for the default time if `period_ms` is 0 or less."""

    token_id: str
    principal: str
    period_ms: int = -1


@value
class ExpireDelegationToken:
    """-> the new expiry. A principal sets it to a time from now; a period below 0 removes the token."""

    token_id: str
    principal: str
    period_ms: int = -1


@value
class RemoveExpiredTokens:
    """-> the number of delegation tokens that expired and are removed. More may be left if there are many."""


@value
class QuorumObserver:
    """A broker that follows the metadata log. It has applied `slot`; -1 if nothing is known. The times are of the
    controller's wall clock, or -1: of the last fetch, and of the last one that had all entries of its time."""

    node_id: int
    slot: int = -1
    fetched_ms: int = -1
    caught_up_ms: int = -1


@value
class Quorum:
    """The controller, the last slot of its metadata log, and the live brokers that follow it."""

    controller: int
    controller_epoch: int
    slot: int
    now_ms: int
    observers: tuple[QuorumObserver, ...]


@value
class DescribeQuorum:
    """-> Quorum. Changes nothing."""


Request = (
    CreateTopic
    | CreateTopics
    | DeleteTopic
    | ForgetTopic
    | CreatePartitions
    | AlterTopicConfigs
    | AlterBrokerConfigs
    | AlterGroupConfigs
    | RegisterBroker
    | AnnounceBroker
    | NameDirectory
    | StopBroker
    | UnregisterBroker
    | FenceBroker
    | UnfenceBroker
    | HandOver
    | ReportDisk
    | LeavePartitions
    | AlterPartitions
    | ElectLeaders
    | Reassign
    | ReportLoss
    | ReportEnds
    | AcknowledgeLosses
    | NoteStoredEnds
    | AllocateProducerIds
    | UpdateFeatures
    | CreateAcls
    | DeleteAcls
    | AlterScramCredentials
    | AlterClientQuotas
    | RotateBrokerSecret
    | CreateDelegationToken
    | RenewDelegationToken
    | ExpireDelegationToken
    | RemoveExpiredTokens
    | DescribeQuorum
)
