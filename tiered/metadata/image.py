"""The cluster metadata as of one slot: an immutable value; `apply` returns a later one.

Keeps I24: a change that does not fit the image is `Corrupt`, because the log has forked then.

An image can be kept and read without a lock. A later image shares the parts that did not change. `apply` copies each
table once per call, so a replay passes many changes at a time.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple

from tiered.config.settings import Settings
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import UNKNOWN_END, PartitionId, TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import DISK_FULL, DISK_RECOVERING, DISK_USABLE, NO_LEADER, Change, freeze
from tiered.metadata.features import FIELDS_SINCE, find_metadata_version
from tiered.metadata.stored_configs import normalize_broker_configs, normalize_topic_configs
from tiered.quotas.entity import QuotaEntity
from tiered.security.acls import Acl, acl_from_texts
from tiered.security.broker_secrets import BrokerSecret, add_secret
from tiered.security.delegation_tokens import DelegationToken
from tiered.security.scram import ScramCredential
from tiered.security.secret import Secret
from tiered.value import value

CORDONED = "cordoned.log.dirs"
LOSSES_MAX = 4
"""Most unacknowledged losses of one partition; with more, the two oldest are merged."""


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


@value
class PartitionImage:
    """One partition.

    `leader` is `NO_LEADER` while no replica may lead. `elr` are replicas that left the ISR with all acknowledged
    records and may lead again. If ISR and ELR are both empty, an election waits until all `last_known` are back, and
    elects the replica with the highest of `ends` (R4). `partition_epoch` counts the changes of these fields (KIP-497).
    During a reassignment (KIP-455), `adding` are the new replicas. `removing` leave once all others are in sync. All
    records ever acknowledged are below `stored_end` and in the bucket; `UNKNOWN_END` if that is not known.
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

    @property
    def is_reassigning(self) -> bool:
        """True if a reassignment of the partition is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target_replicas(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(node for node in self.replicas if node not in self.removing) if self.removing else self.replicas


@dataclass(frozen=True, slots=True)
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


def inter_broker_address(listeners: Mapping[str, str], name: str) -> str:
    """Returns the address for other brokers: the listener called `name`, else the first one; "" if there is none."""
    return listeners.get(name) or next(iter(listeners.values()), "")


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """The last incarnation that took a node id.

    `alive` until it has stopped; `fenced` while the controller has no contact.
    """

    node_id: int
    incarnation: str
    directory: str
    http: str
    rack: str
    alive: bool
    registered_ms: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    """Addresses for clients: HOST:PORT by listener name."""
    fenced: bool = False
    stopping: bool = False
    """True if it has announced a stop and still serves."""
    advertised_http: str = ""
    """The `http://HOST:PORT` for HTTP clients; "" if that is `http`."""
    disk: str = DISK_USABLE
    """`usable`, `full` or `recovering`, as in `BrokerDiskReported`."""
    disk_since_ms: int = 0
    """Time of the report of `disk`; 0 if there was none."""
    moved_leaders: int = 0
    """Leaderships that other brokers took because the disk became full."""

    @property
    def is_disk_full(self) -> bool:
        """True if it serves and its disk is full."""
        return self.live and self.disk == DISK_FULL

    @property
    def live(self) -> bool:
        """True if it may lead and be in sync."""
        return self.alive and not self.fenced

    def address(self, listener: str) -> str:
        """Returns its HOST:PORT for other brokers (`inter_broker_address`)."""
        return inter_broker_address(self.listeners, listener)


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A deleted topic whose objects the collector has not deleted yet."""

    name: str
    topic_id: TopicId
    partitions: int
    deleted_ms: int


@dataclass(frozen=True, slots=True)
class Image:
    """Everything that the cluster has agreed on, up to and including `slot`."""

    slot: int = -1
    controller_epoch: int = 0
    controller: int = NO_LEADER
    controller_incarnation: str = ""
    """The controller cannot be reached until this incarnation is registered."""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    broker_configs: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    deleted_topics: Mapping[TopicId, DeletedTopic] = field(default_factory=dict)
    next_producer_id: int = 0
    losses: Mapping[PartitionId, tuple[Loss, ...]] = field(default_factory=dict)
    """Unacknowledged losses, the oldest first."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Levels of features that operators have set; the others are as in a new cluster."""
    features_epoch: int = 0
    """Number of changes of `features`."""
    acls: frozenset[Acl] = frozenset()
    """ACLs of the cluster. Another object after each change of them."""
    scram: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict)
    """SCRAM credentials by user and mechanism. Another object after each change."""
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    """Client quotas by entity and key. Another object after each change."""
    broker_secrets: tuple[BrokerSecret, ...] = ()
    """The newest secrets of brokers after the first one of the cluster, the oldest first."""
    delegation_tokens: Mapping[str, DelegationToken] = field(default_factory=dict)
    """Delegation tokens by id. Another object after each change."""
    partition_count: int = field(default=0, compare=False)
    """Number of partitions of all topics."""
    replica_counts: Mapping[int, int] = field(default_factory=dict, compare=False)
    """Number of replicas on each broker, including those that a reassignment adds and removes."""

    def apply(self, changes: Iterable[Change], slot: int | None = None) -> Image:
        """Returns the image after `changes`, which end at `slot`.

        Raises `Corrupt` if a change does not fit: the log forked.
        """
        builder = _ImageBuilder(self)
        for change in changes:
            builder.apply(change)
        return builder.finish(self.slot if slot is None else slot)

    def live_brokers(self) -> list[BrokerImage]:
        """Returns the brokers that may lead and be in sync, in order of their first registration."""
        return [broker for broker in self.brokers.values() if broker.live]

    def live_ids(self) -> frozenset[int]:
        """Returns ids of the live brokers."""
        return frozenset(broker.node_id for broker in self.brokers.values() if broker.live)

    def stopping_ids(self) -> frozenset[int]:
        """Returns ids of the brokers that announced a stop."""
        return frozenset(broker.node_id for broker in self.brokers.values() if broker.stopping)

    @property
    def metadata_version(self) -> int:
        """The level of `tiered.metadata.version` in force."""
        return find_metadata_version(self.features)

    def full_disk_ids(self) -> frozenset[int]:
        """Returns ids of the brokers whose disk is full."""
        return frozenset(broker.node_id for broker in self.brokers.values() if broker.disk == DISK_FULL)

    def recovering_disk_ids(self) -> frozenset[int]:
        """Returns ids of the brokers whose disk was full until a short time ago."""
        return frozenset(broker.node_id for broker in self.brokers.values() if broker.disk == DISK_RECOVERING)

    def placement_racks(self) -> dict[int, str]:
        """Returns node id -> rack of the brokers that take new replicas: live and not cordoned."""
        return {each.node_id: each.rack for each in self.live_brokers() if not self.is_cordoned(each.node_id)}

    def is_cordoned(self, node_id: int) -> bool:
        """True if the broker takes no new replicas (KIP-1066)."""
        given = self.broker_configs.get(node_id, {}).get(CORDONED)
        return given is not None and bool(Settings.from_strings({CORDONED: given}).cordoned_log_dirs)

    def check_incarnation(self, node_id: int, incarnation: str) -> BrokerImage:
        """Returns the broker if `incarnation` is the last one that registered.

        Raises `Refused` (STALE_BROKER_EPOCH) if not.
        """
        known = self.brokers.get(node_id)
        if known is None or known.incarnation != incarnation:
            raise Refused(Code.STALE_BROKER_EPOCH, f"another incarnation of broker {node_id} has registered")
        return known


class _ImageBuilder:
    """An image while changes are applied.

    Partitions of a changed topic are copied to a list once and put back at the end.
    """

    def __init__(self, image: Image) -> None:
        self.image = image
        self.epoch, self.controller = image.controller_epoch, image.controller
        self.controller_incarnation = image.controller_incarnation
        self.brokers = dict(image.brokers)
        self.topics = dict(image.topics)
        self.topics_by_id = dict(image.topics_by_id)
        self.broker_configs = dict(image.broker_configs)
        self.deleted_topics = dict(image.deleted_topics)
        self.next_producer_id = image.next_producer_id
        self.losses = dict(image.losses)
        self.features, self.features_epoch = image.features, image.features_epoch
        self.changed_acls: set[Acl] | None = None
        self.scram = image.scram
        self.broker_secrets = image.broker_secrets
        self.quotas: dict[QuotaEntity, Mapping[str, float]] | None = None
        self.changed_tokens: dict[str, DelegationToken] | None = None
        self.partition_count, self.replica_counts = image.partition_count, Counter(image.replica_counts)
        self.changed_partitions: dict[TopicId, list[PartitionImage]] = {}
        self.made: dict[tuple[object, ...], tuple[PartitionImage, PartitionImage]] = {}
        """Changed partitions, each with what it was, by what it was and how it changed: equal ones share one object."""

    def finish(self, slot: int) -> Image:
        for topic_id in self.changed_partitions:
            self._put_topic(replace(self.topics_by_id[topic_id], partitions=tuple(self.changed_partitions[topic_id])))
        acls = self.image.acls if self.changed_acls is None else frozenset(self.changed_acls)
        quotas = self.image.quotas if self.quotas is None else self.quotas
        tokens = self.image.delegation_tokens if self.changed_tokens is None else self.changed_tokens
        return Image(
            slot, self.epoch, self.controller, self.controller_incarnation, self.brokers, self.topics,
            self.topics_by_id, self.broker_configs, self.deleted_topics, self.next_producer_id, self.losses,
            self.features, self.features_epoch, acls, self.scram, quotas, self.broker_secrets, tokens,
            self.partition_count, self.replica_counts,
        )  # fmt: skip

    def apply(self, change: Change) -> None:
        match change:
            case kinds.PartitionChanged():  # first: most changes are of this kind
                self._change_partition(change)
            case kinds.ControllerElected():
                if change.epoch <= self.epoch:
                    raise Corrupt(f"controller epoch {change.epoch} follows {self.epoch}")
                self.epoch, self.controller = change.epoch, change.node_id
                self.controller_incarnation = change.incarnation
            case (
                kinds.BrokerRegistered()
                | kinds.BrokerStopped()
                | kinds.BrokerFenced()
                | kinds.BrokerUnfenced()
                | kinds.BrokerStopping()
                | kinds.BrokerDiskReported()
                | kinds.BrokerUnregistered()
            ):
                self._apply_broker(change)
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
                configs = normalize_topic_configs(_merge_configs(topic.configs, change.configs))
                self._put_topic(replace(topic, configs=configs))
            case kinds.BrokerConfigChanged():
                old = self.broker_configs.get(change.node_id, {})
                self.broker_configs[change.node_id] = normalize_broker_configs(_merge_configs(old, change.configs))
            case kinds.LossReported():
                self._report_loss(change)
            case kinds.StoredEndsNoted():
                for topic_id, partition, offset in change.ends:
                    partitions, old_partition = self._mutable_partition(topic_id, partition)
                    partitions[partition] = replace(old_partition, stored_end=offset)
            case kinds.LossesAcknowledged():
                for topic_id, partition, epoch in change.losses:
                    partition_id = PartitionId(topic_id, partition)
                    self._put_losses(
                        partition_id,
                        tuple(each for each in self.losses.get(partition_id, ()) if each.leader_epoch > epoch),
                    )
            case kinds.ProducerIdsAllocated():
                if change.first < self.next_producer_id:
                    raise Corrupt(f"producer ids from {change.first} on are given out already")
                self.next_producer_id = change.first + change.count
            case kinds.FeatureLevelSet():
                self.features = {**self.features, change.name: change.level}
                self.features_epoch += 1
            case kinds.AclAdded():
                self._mutable_acls().add(_decode_acl(change))
            case kinds.AclRemoved():
                self._mutable_acls().discard(_decode_acl(change))
            case kinds.ScramCredentialSet():
                kept = {**self.scram.get(change.user, {}), change.mechanism: _decode_credential(change)}
                self.scram = {**self.scram, change.user: kept}
            case kinds.ScramCredentialRemoved():
                kept = {
                    name: each for name, each in self.scram.get(change.user, {}).items() if name != change.mechanism
                }
                others = {user: each for user, each in self.scram.items() if user != change.user}
                self.scram = {**others, change.user: kept} if kept else others
            case kinds.ClientQuotaSet() | kinds.ClientQuotaRemoved():
                self._change_quota(change)
            case kinds.BrokerSecretSet():
                secret = BrokerSecret(change.version, Secret(change.secret))
                self.broker_secrets = add_secret(self.broker_secrets, secret)
            case kinds.DelegationTokenSet():
                self._mutable_tokens()[change.token_id] = _decode_token(change)
            case kinds.DelegationTokenRemoved():
                self._mutable_tokens().pop(change.token_id, None)

    def _change_quota(self, change: kinds.ClientQuotaSet | kinds.ClientQuotaRemoved) -> None:
        if self.quotas is None:
            self.quotas = dict(self.image.quotas)
        kept = dict(self.quotas.get(change.entity, {}))
        if isinstance(change, kinds.ClientQuotaSet):
            kept[change.key] = change.value
        else:
            kept.pop(change.key, None)
        if kept:
            self.quotas[change.entity] = kept
        else:
            self.quotas.pop(change.entity, None)

    def _apply_broker(
        self,
        change: kinds.BrokerRegistered
        | kinds.BrokerStopped
        | kinds.BrokerFenced
        | kinds.BrokerUnfenced
        | kinds.BrokerStopping
        | kinds.BrokerDiskReported
        | kinds.BrokerUnregistered,
    ) -> None:
        known = self.brokers.get(change.node_id)
        is_same_incarnation = known is not None and known.incarnation == change.incarnation
        if isinstance(change, kinds.BrokerRegistered):
            registered = BrokerImage(
                change.node_id, change.incarnation, change.directory, change.http, change.rack, True, change.at_ms,
                change.listeners, advertised_http=change.advertised_http,
            )  # fmt: skip
            if known is not None and is_same_incarnation:  # it registers again, with other addresses
                registered = replace(
                    registered, fenced=known.fenced, stopping=known.stopping, disk=known.disk,
                    disk_since_ms=known.disk_since_ms, moved_leaders=known.moved_leaders,
                )  # fmt: skip
            self.brokers[change.node_id] = registered
        elif known is not None and is_same_incarnation:
            if isinstance(change, kinds.BrokerStopped):
                self.brokers[change.node_id] = replace(known, alive=False)
            elif isinstance(change, kinds.BrokerUnregistered):
                del self.brokers[change.node_id]
                self.broker_configs.pop(change.node_id, None)
            elif isinstance(change, kinds.BrokerStopping):
                self.brokers[change.node_id] = replace(known, stopping=True)
            elif isinstance(change, kinds.BrokerDiskReported):
                self.brokers[change.node_id] = replace(
                    known, disk=change.disk, disk_since_ms=change.at_ms, moved_leaders=change.moved
                )
            else:
                self.brokers[change.node_id] = replace(known, fenced=isinstance(change, kinds.BrokerFenced))

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
            change.replicas, change.adding, change.removing,
        )  # fmt: skip
        known = self.made.get(key)
        if known is None:
            new = PartitionImage(
                change.replicas or old.replicas, change.leader, change.leader_epoch, change.isr, change.elr, old.loss,
                old.partition_epoch + 1, change.last_known, tuple(End(*each) for each in change.ends), change.adding,
                change.removing, old.stored_end,
            )  # fmt: skip
            self.made[key] = old, new  # with `old`, whose id nothing else may get meanwhile
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

    def _mutable_acls(self) -> set[Acl]:
        if self.changed_acls is None:
            self.changed_acls = set(self.image.acls)
        return self.changed_acls

    def _mutable_tokens(self) -> dict[str, DelegationToken]:
        if self.changed_tokens is None:
            self.changed_tokens = dict(self.image.delegation_tokens)
        return self.changed_tokens

    def _put_topic(self, topic: TopicImage) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.topic_id] = topic


def add_loss(known: tuple[Loss, ...], old: PartitionImage, new: Loss) -> tuple[Loss, ...]:
    """Returns the unacknowledged losses of a partition after one more was reported; `old` is the partition before.

    If everything acknowledged is in the bucket, nothing is missing. The same loss may be reported again. With an
    earlier offset it counts as new, with a later one it only becomes smaller.
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


def _merge_configs(old: Mapping[str, str], new: Mapping[str, str | None]) -> dict[str, str]:
    kept = {key: value for key, value in old.items() if key not in new}
    return kept | {key: value for key, value in new.items() if value is not None}


def to_json(image: Image) -> dict[str, Any]:
    """Returns the body of a snapshot."""
    return {
        "slot": image.slot,
        "epoch": image.controller_epoch,
        "controller": image.controller,
        "controller_incarnation": image.controller_incarnation,
        "brokers": [_fields_of(broker) for broker in image.brokers.values()],
        "topics": [
            _fields_of(topic)
            | {
                "partitions": [
                    _fields_of(each) | {"loss": _loss_to_json(each), "ends": [list(end) for end in each.ends]}
                    for each in topic.partitions
                ]
            }
            for topic in image.topics.values()
        ],
        "broker_configs": [{"node_id": node, "configs": configs} for node, configs in image.broker_configs.items()],
        "deleted": [_fields_of(topic) for topic in image.deleted_topics.values()],
        "next_producer_id": image.next_producer_id,
        "losses": [
            [*partition_id, [_encode_loss(each) for each in losses]] for partition_id, losses in image.losses.items()
        ],
        "features": image.features,
        "features_epoch": image.features_epoch,
        "acls": [list(each.to_texts()) for each in sorted(image.acls)],
        "scram": {
            user: {name: _credential_to_json(each) for name, each in credentials.items()}
            for user, credentials in image.scram.items()
        },
        "quotas": [[[list(part) for part in entity], dict(values)] for entity, values in image.quotas.items()],
        "broker_secrets": [[each.version, each.digits.reveal()] for each in image.broker_secrets],
        "delegation_tokens": [list(each) for each in image.delegation_tokens.values()],
    }


def from_json(body: dict[str, Any]) -> Image:
    """Returns the image of a snapshot's body. Raises KeyError, TypeError or AttributeError if it has another shape."""
    topics = [
        TopicImage(
            **topic
            | {
                "partitions": tuple(_partition_from_json(each) for each in topic["partitions"]),
                "configs": normalize_topic_configs(topic["configs"]),
            }
        )
        for topic in body["topics"]
    ]
    counts = Counter(node for topic in topics for each in topic.partitions for node in each.replicas)
    return Image(
        body["slot"],
        body["epoch"],
        body["controller"],
        body.get("controller_incarnation", ""),
        {broker["node_id"]: BrokerImage(**broker) for broker in body["brokers"]},
        {topic.name: topic for topic in topics},
        {topic.topic_id: topic for topic in topics},
        {each["node_id"]: normalize_broker_configs(each["configs"]) for each in body["broker_configs"]},
        {topic["topic_id"]: DeletedTopic(**topic) for topic in body["deleted"]},
        body.get("next_producer_id", 0),
        {
            PartitionId(topic_id, partition): tuple(Loss(*each) for each in losses)
            for topic_id, partition, losses in body.get("losses", ())
        },
        body.get("features", {}),
        body.get("features_epoch", 0),
        frozenset(_acl_from_texts(*each) for each in body.get("acls", ())),
        {
            user: {name: _credential_from_json(*each) for name, each in credentials.items()}
            for user, credentials in body.get("scram", {}).items()
        },
        {freeze(entity): values for entity, values in body.get("quotas", ())},
        tuple(BrokerSecret(version, Secret(digits)) for version, digits in body.get("broker_secrets", ())),
        {each[0]: DelegationToken(*freeze(each)) for each in body.get("delegation_tokens", ())},
        sum(len(topic.partitions) for topic in topics),
        counts,
    )


def _decode_acl(change: kinds.AclAdded | kinds.AclRemoved) -> Acl:
    return _acl_from_texts(*(getattr(change, name) for name in Acl._fields))


def _acl_from_texts(*texts: str) -> Acl:
    try:
        return acl_from_texts(*texts)
    except KeyError as error:
        raise Corrupt(f"an ACL of the metadata has the unknown word {error}") from None


def _decode_token(change: kinds.DelegationTokenSet) -> DelegationToken:
    return DelegationToken(*(getattr(change, name) for name in DelegationToken._fields))


def _decode_credential(change: kinds.ScramCredentialSet) -> ScramCredential:
    return _credential_from_json(change.salt, change.stored_key, change.server_key, change.iterations)


def _credential_to_json(credential: ScramCredential) -> list[Any]:
    *secrets, iterations = credential
    return [*(b64encode(each).decode() for each in secrets), iterations]


def _credential_from_json(salt: str, stored_key: str, server_key: str, iterations: int) -> ScramCredential:
    return ScramCredential(b64decode(salt), b64decode(stored_key), b64decode(server_key), iterations)


def _fields_of(value: Any) -> dict[str, Any]:
    """Returns the fields for a snapshot. Those above level 0 of the metadata are left out at their defaults."""
    since, known = FIELDS_SINCE.get(type(value).__name__, {}), value.__dataclass_fields__
    found = {name: getattr(value, name) for name in known}
    return {name: each for name, each in found.items() if name not in since or each != known[name].default}


def _loss_to_json(partition: PartitionImage) -> list[int] | None:
    return _encode_loss(partition.loss) if partition.loss else None


def _encode_loss(loss: Loss) -> list[int]:
    return list(loss if loss.newest_ms else loss[:3])


def _partition_from_json(data: dict[str, Any]) -> PartitionImage:
    loss, ends = data.pop("loss"), data.pop("ends", ())
    known = {name: freeze(each) for name, each in data.items()}
    return PartitionImage(**known, loss=Loss(*loss) if loss else None, ends=tuple(End(*each) for each in ends))
