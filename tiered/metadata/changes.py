"""Every kind of change that the metadata log can hold, with its encoding.

A change is a fact that has happened; it is applied in slot order and never judged again. The names below are the
format: a kind or a field may be added (with a new format version), none may change its meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from tiered.errors import Corrupt
from tiered.ids import TopicId

NO_LEADER = -1
ALL_BROKERS = -1
"""The node id under which cluster-wide broker settings stand."""


@dataclass(frozen=True, slots=True)
class ListEdit:
    """Words that join the list that is in force, and words that leave it."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerElected:
    """The first change of a controller: from this slot on, entries of lower epochs are void (rule M2)."""

    epoch: int
    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerRegistered:
    """A process took a node id. `http` is where its incarnation answers, `directory` names its data directory,
    `listeners` is what clients are told: HOST:PORT by the listener's name. `advertised_http` is what HTTP clients are
    told (`http://HOST:PORT`), "" where that is `http`."""

    node_id: int
    incarnation: str
    directory: str
    http: str
    rack: str
    at_ms: int
    listeners: Mapping[str, str] = field(default_factory=dict)
    advertised_http: str = field(default_factory=str)


@dataclass(frozen=True, slots=True)
class BrokerStopped:
    """The incarnation wrote everything down and will not come back."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerFenced:
    """The incarnation was not heard for too long: it leads nothing and is in no in-sync set until it is heard again."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerUnfenced:
    """The same incarnation is heard again, and knows what was decided meanwhile."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerStopping:
    """That incarnation is about to stop: it joins no in-sync set, and is given no leadership because it has a claim."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class BrokerUnregistered:
    """The node id is free, and its settings are gone: it was not live and had no replicas."""

    node_id: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """`assignments[p]` are the replicas of partition p, the preferred leader first. `wanted`: so many were to be
    made by default, and there were fewer brokers; 0 otherwise. They become more as brokers join."""

    name: str
    topic_id: TopicId
    assignments: tuple[tuple[int, ...], ...]
    configs: Mapping[str, str]
    at_ms: int
    wanted: int = field(default_factory=int)


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """The name is free from here on; the objects wait for the collector."""

    topic_id: TopicId
    at_ms: int


@dataclass(frozen=True, slots=True)
class TopicForgotten:
    """No object of the deleted topic is left."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """New partitions at the end of a topic, with their replicas."""

    topic_id: TopicId
    assignments: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TopicConfigChanged:
    """Settings of a topic: a value sets, None returns to the default."""

    topic_id: TopicId
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class BrokerConfigChanged:
    """Settings of one broker, or of all of them under `CLUSTER`."""

    node_id: int
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class PartitionChanged:
    """Who leads a partition, who is in sync, and who left the set whole (ELR, KIP-966). While nobody of either is
    left, `last_known` are those that an election waits for, and `ends` what those of them have who came back: (node id,
    leader epoch of the last record, log end). No `replicas` means that they stay who they were. Of the replicas,
    `adding` are new until all but `removing` are in sync, who leave then (KIP-455)."""

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


@dataclass(frozen=True, slots=True)
class LossReported:
    """Acknowledged records from `from_offset` on may be gone: the leader of that epoch cannot prove its log whole."""

    topic_id: TopicId
    partition: int
    leader_epoch: int
    from_offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class StoredEndsNoted:
    """Of each (topic id, partition, offset): all records that were ever acknowledged lie below the offset, and are in
    the bucket. -1: that is not known any more, records may be on disks alone."""

    ends: tuple[tuple[TopicId, int, int], ...]


@dataclass(frozen=True, slots=True)
class LossesAcknowledged:
    """An operator has seen the losses of each (topic id, partition, leader epoch), up to those of that epoch."""

    losses: tuple[tuple[TopicId, int, int], ...]
    at_ms: int


@dataclass(frozen=True, slots=True)
class ProducerIdsAllocated:
    """The ids [first, first + count) belong to a broker, to give to idempotent producers; none is given twice."""

    node_id: int
    first: int
    count: int


Change = (
    ControllerElected
    | BrokerRegistered
    | BrokerStopped
    | BrokerFenced
    | BrokerUnfenced
    | BrokerStopping
    | BrokerUnregistered
    | TopicCreated
    | TopicDeleted
    | TopicForgotten
    | PartitionsAdded
    | TopicConfigChanged
    | BrokerConfigChanged
    | PartitionChanged
    | LossReported
    | StoredEndsNoted
    | LossesAcknowledged
    | ProducerIdsAllocated
)

KINDS: dict[str, type[Change]] = {
    "controller_elected": ControllerElected,
    "broker_registered": BrokerRegistered,
    "broker_stopped": BrokerStopped,
    "broker_fenced": BrokerFenced,
    "broker_unfenced": BrokerUnfenced,
    "broker_stopping": BrokerStopping,
    "broker_unregistered": BrokerUnregistered,
    "topic_created": TopicCreated,
    "topic_deleted": TopicDeleted,
    "topic_forgotten": TopicForgotten,
    "partitions_added": PartitionsAdded,
    "topic_config_changed": TopicConfigChanged,
    "broker_config_changed": BrokerConfigChanged,
    "partition_changed": PartitionChanged,
    "loss_reported": LossReported,
    "stored_ends_noted": StoredEndsNoted,
    "losses_acknowledged": LossesAcknowledged,
    "producer_ids_allocated": ProducerIdsAllocated,
}

_NAMES = {kind: name for name, kind in KINDS.items()}
_FIELDS = {kind: tuple(each.name for each in fields(kind)) for kind in KINDS.values()}
_OPTIONAL = {
    kind: {each.name for each in fields(kind) if each.default_factory is not MISSING} for kind in KINDS.values()
}
"""Fields that entries of earlier versions lack."""


def to_json(change: Change) -> dict[str, Any]:
    """One change as a JSON object, its kind first."""
    kind = type(change)
    return {"kind": _NAMES[kind]} | {name: getattr(change, name) for name in _FIELDS[kind]}


def from_json(data: dict[str, Any]) -> Change:
    """The change that `to_json` wrote. `Corrupt` for an unknown kind or field: skipping a change forks the cluster."""
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        raise Corrupt(f"unknown metadata change: {data.get('kind')!r}")
    named = data.keys() - {"kind"}
    if not set(_FIELDS[kind]) - _OPTIONAL[kind] <= named <= set(_FIELDS[kind]):
        raise Corrupt(f"metadata change {data['kind']} has the fields {sorted(data)}")
    return kind(**{name: freeze(data[name]) for name in named})


def freeze(value: Any) -> Any:
    """JSON lists as tuples, at every depth."""
    return tuple(freeze(item) for item in value) if isinstance(value, list) else value
