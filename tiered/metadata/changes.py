"""All kinds of changes in the metadata log, with their encoding.

A change is a fact that has happened. It is applied in slot order and never judged again. The names below are the
format: a kind or a field may be added with a new format version, and none may change its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any

from tiered.errors import Corrupt
from tiered.ids import TopicId
from tiered.metadata.features import FIELDS_SINCE
from tiered.value import value

NO_LEADER = -1
ALL_BROKERS = -1
"""Node id of cluster-wide broker settings."""
DISK_USABLE, DISK_FULL, DISK_STALLED, DISK_RECOVERING = "usable", "full", "stalled", "recovering"
BAD_DISKS = (DISK_FULL, DISK_STALLED)
"""States of a disk whose broker leads only where no other can."""
"""States of a broker's disk. A recovering one has room again, but not for long enough to lead more than it must."""


@value
class ListEdit:
    """Words to add to a list setting in force, and words to remove."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@value
class ControllerElected:
    """First change of a controller: from this slot on, entries of lower epochs are void (M2)."""

    epoch: int
    node_id: int
    incarnation: str


@value
class BrokerRegistered:
    """A process takes a node id, or the same incarnation changes its addresses.

    `http` is the address of its HTTP interface, `directory` names its data directory, and `listeners` are the addresses
    for clients: HOST:PORT by listener name. `advertised_http` is the address for HTTP clients (`http://HOST:PORT`), ""
    if that is `http`. `process` is its number among the processes of its machine.
    """

    node_id: int
    incarnation: str
    directory: str
    http: str
    rack: str
    at_ms: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    advertised_http: str = field(default_factory=str)
    process: int = field(default_factory=int)


@value
class BrokerStopped:
    """The incarnation has stopped: everything is on disk, and it will not come back."""

    node_id: int
    incarnation: str


@value
class BrokerFenced:
    """The controller has no contact with the incarnation, which leads nothing and is in no ISR until it is unfenced."""

    node_id: int
    incarnation: str


@value
class BrokerUnfenced:
    """The same incarnation has contact again and has applied the changes made meanwhile."""

    node_id: int
    incarnation: str


@value
class BrokerStopping:
    """The incarnation is about to stop: it joins no ISR and is not elected as preferred leader."""

    node_id: int
    incarnation: str


@value
class BrokerDiskReported:
    """The disk of the incarnation is `usable`, `full`, `stalled` (its fsyncs do not end) or `recovering`. A broker with
    a full or stalled disk joins no ISR, and leads only where no other can. `moved` counts the leaderships that it lost
    with this change."""

    node_id: int
    incarnation: str
    disk: str
    moved: int
    at_ms: int


@value
class BrokerUnregistered:
    """The node id is free and its settings are removed. The broker was not live and had no replicas."""

    node_id: int
    incarnation: str


@value
class TopicCreated:
    """`assignments[p]` are the replicas of partition p, the preferred leader first.

    `wanted` is the default replication factor if there were too few brokers for it, else 0. Replicas are added as
    brokers join. The partitions count for the holder `creator`; "" is nobody.
    """

    name: str
    topic_id: TopicId
    assignments: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str]
    at_ms: int
    wanted: int = field(default_factory=int)
    creator: str = field(default_factory=str)


@value
class TopicDeleted:
    """The `name` is free from here on; the collector deletes the objects later."""

    topic_id: TopicId
    at_ms: int
    name: str = field(default_factory=str)


@value
class TopicForgotten:
    """The collector has deleted the last object of the topic, which had this `name`."""

    topic_id: TopicId
    name: str = field(default_factory=str)


@value
class PartitionsAdded:
    """New partitions at the end of a topic, with their replicas."""

    topic_id: TopicId
    assignments: tuple[tuple[int, ...], ...]


@value
class TopicConfigChanged:
    """Settings of a topic: a value sets, None returns to the default."""

    topic_id: TopicId
    configs: Mapping[str, str | None]


@value
class BrokerConfigChanged:
    """Settings of one broker, or of all brokers under `ALL_BROKERS`."""

    node_id: int
    configs: Mapping[str, str | None]


@value
class GroupConfigChanged:
    """Settings of a group of consumers: a value sets, None returns to the default."""

    group: str
    configs: Mapping[str, str | None]


@value
class PartitionChanged:
    """Leader, ISR and ELR (KIP-966) of a partition.

    If ISR and ELR are both empty, the election waits for `last_known`. `ends` are log ends reported by returned
    replicas: (node id, leader epoch of the last record, log end). Empty `replicas` means that they stay the same.
    During a reassignment (KIP-455), `adding` are the new replicas. `removing` leave once all others are in sync.
    `chains` are the write-ahead chains that may have records which are in no segment of the bucket: (leader epoch, node
    id, incarnation) of each leader since. If `is_in_bucket`, no acknowledged record is on disks alone.
    """

    topic_id: TopicId
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    last_known: tuple[int, ...] = field(default_factory=tuple)
    ends: tuple[tuple[int, int, int], ...] = field(default_factory=tuple)
    replicas: tuple[int, ...] = field(default_factory=tuple)
    adding: tuple[int, ...] = field(default_factory=tuple)
    removing: tuple[int, ...] = field(default_factory=tuple)
    chains: tuple[tuple[int, int, str], ...] = field(default_factory=tuple)
    is_in_bucket: bool = field(default_factory=bool)


@value
class LossReported:
    """Acknowledged records from `from_offset` on may be gone: the leader of that epoch cannot prove its log whole.

    The newest record that is left has the timestamp `newest_ms`; 0 if none is known.
    """

    topic_id: TopicId
    partition: int
    leader_epoch: int
    from_offset: int
    at_ms: int
    newest_ms: int = field(default_factory=int)


@value
class StoredEndsNoted:
    """(topic id, partition, offset) of each: all records ever acknowledged are below the offset and in the bucket.

    Offset -1 means that this no longer holds: records may be on disks alone.
    """

    ends: tuple[tuple[TopicId, int, int], ...]


@value
class LossesAcknowledged:
    """An operator has acknowledged the losses of each (topic id, partition, leader epoch), up to that epoch."""

    losses: tuple[tuple[TopicId, int, int], ...]
    at_ms: int


@value
class ProducerIdsAllocated:
    """The ids [first, first + count) belong to one broker, for idempotent producers. No id is allocated twice."""

    node_id: int
    first: int
    count: int


@value
class FeatureLevelSet:
    """An operator set the level of a feature; 0 means that clients do not use it."""

    name: str
    level: int


@value
class AclAdded:
    """An ACL holds: `permission` (ALLOW or DENY) for an operation on the resources named. The words are Kafka's."""

    resource_type: str
    pattern_type: str
    resource_name: str
    principal: str
    host: str
    operation: str
    permission: str


@value
class AclRemoved:
    """An ACL with these fields does not hold any more."""

    resource_type: str
    pattern_type: str
    resource_name: str
    principal: str
    host: str
    operation: str
    permission: str


@value
class ScramCredentialSet:
    """A user has this SCRAM credential for a mechanism, such as `SCRAM-SHA-256`. Salt and keys are base64."""

    user: str
    mechanism: str
    salt: str = field(repr=False)
    stored_key: str = field(repr=False)
    server_key: str = field(repr=False)
    iterations: int


@value
class ScramCredentialRemoved:
    """A user has no SCRAM credential for a mechanism any more."""

    user: str
    mechanism: str


@value
class ClientQuotaSet:
    """An entity has a quota. `entity` lists types with names, in order of the types; None is the default of a type."""

    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float


@value
class ClientQuotaRemoved:
    """An entity does not have a quota any more."""

    entity: tuple[tuple[str, str | None], ...]
    key: str


@value
class DelegationTokenSet:
    """A delegation token exists (KIP-48), or its expiry is another one. `owner`, `requester` and `renewers` are
    principals, such as `User:alice`. The HMAC of the token is nowhere in the metadata."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expiry_ms: int


@value
class DelegationTokenRemoved:
    """A delegation token does not exist any more."""

    token_id: str


@value
class BrokerSecretSet:
    """Brokers have this secret, with the next version, as hexadecimal digits."""

    version: int
    secret: str = field(repr=False)


Change = (
    ControllerElected
    | BrokerRegistered
    | BrokerStopped
    | BrokerFenced
    | BrokerUnfenced
    | BrokerStopping
    | BrokerDiskReported
    | BrokerUnregistered
    | TopicCreated
    | TopicDeleted
    | TopicForgotten
    | PartitionsAdded
    | TopicConfigChanged
    | BrokerConfigChanged
    | GroupConfigChanged
    | PartitionChanged
    | LossReported
    | StoredEndsNoted
    | LossesAcknowledged
    | ProducerIdsAllocated
    | FeatureLevelSet
    | AclAdded
    | AclRemoved
    | ScramCredentialSet
    | ScramCredentialRemoved
    | ClientQuotaSet
    | ClientQuotaRemoved
    | BrokerSecretSet
    | DelegationTokenSet
    | DelegationTokenRemoved
)

KINDS: dict[str, type[Change]] = {
    "controller_elected": ControllerElected,
    "broker_registered": BrokerRegistered,
    "broker_stopped": BrokerStopped,
    "broker_fenced": BrokerFenced,
    "broker_unfenced": BrokerUnfenced,
    "broker_stopping": BrokerStopping,
    "broker_disk_reported": BrokerDiskReported,
    "broker_unregistered": BrokerUnregistered,
    "topic_created": TopicCreated,
    "topic_deleted": TopicDeleted,
    "topic_forgotten": TopicForgotten,
    "partitions_added": PartitionsAdded,
    "topic_config_changed": TopicConfigChanged,
    "broker_config_changed": BrokerConfigChanged,
    "group_config_changed": GroupConfigChanged,
    "partition_changed": PartitionChanged,
    "loss_reported": LossReported,
    "stored_ends_noted": StoredEndsNoted,
    "losses_acknowledged": LossesAcknowledged,
    "producer_ids_allocated": ProducerIdsAllocated,
    "feature_level_set": FeatureLevelSet,
    "acl_added": AclAdded,
    "acl_removed": AclRemoved,
    "scram_credential_set": ScramCredentialSet,
    "scram_credential_removed": ScramCredentialRemoved,
    "client_quota_set": ClientQuotaSet,
    "client_quota_removed": ClientQuotaRemoved,
    "broker_secret_set": BrokerSecretSet,
    "delegation_token_set": DelegationTokenSet,
    "delegation_token_removed": DelegationTokenRemoved,
}

_NAMES = {kind: name for name, kind in KINDS.items()}
_FIELDS = {kind: tuple(each.name for each in fields(kind)) for kind in KINDS.values()}
_KEYS = {kind: {"kind", *names} for kind, names in _FIELDS.items()}
_OPTIONAL = {
    kind: {each.name for each in fields(kind) if each.default_factory is not MISSING} for kind in KINDS.values()
}
"""Fields that entries of earlier versions lack."""


def to_json(change: Change) -> dict[str, Any]:
    """Returns a change as a JSON object, its kind first. Newer fields are left out if they are empty."""
    kind = type(change)
    made = {"kind": _NAMES[kind]}
    for name in _FIELDS[kind]:
        made[name] = getattr(change, name)
    for name in FIELDS_SINCE.get(kind.__name__, ()):
        if not made[name]:
            del made[name]
    return made


_NEWER = ": a newer program wrote it, start that one"


def from_json(data: dict[str, Any]) -> Change:
    """Returns the change that `to_json` wrote.

    Raises `Corrupt` for an unknown kind or field: a broker that skipped a change would have another image than the
    rest.
    """
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        raise Corrupt(f"unknown metadata change: {data.get('kind')!r}{_NEWER}")
    if unknown := data.keys() - _KEYS[kind]:
        raise Corrupt(f"metadata change {data['kind']} has {', '.join(sorted(unknown))}{_NEWER}")
    if lacking := _KEYS[kind] - _OPTIONAL[kind] - data.keys():
        raise Corrupt(f"metadata change {data['kind']} lacks {', '.join(sorted(lacking))}")
    named = {name: freeze(item) if isinstance(item, list) else item for name, item in data.items()}
    del named["kind"]
    return kind(**named)


def freeze(item: Any) -> Any:
    """Returns JSON lists as tuples, at every depth."""
    return tuple(map(freeze, item)) if isinstance(item, list) else item
