"""The cluster metadata as of one slot: an immutable value; `apply` returns a later one.

Its parts are in `tiered/metadata/parts`. A change goes to the one part that takes its kind. An image can be kept and
read without a lock. A later image shares the parts that did not change. `apply` copies each table of a changed part
once per call, so a replay passes many changes at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, replace
from functools import cache
from typing import Any

from tiered.config.settings import Settings
from tiered.errors import Code, Corrupt, Refused
from tiered.ids import PartitionId, TopicId
from tiered.metadata.changes import BAD_DISKS, DISK_RECOVERING, Change
from tiered.metadata.features import KEYS_SINCE, find_metadata_version
from tiered.metadata.parts.acls import AclsImage
from tiered.metadata.parts.broker_secrets import BrokerSecretsImage
from tiered.metadata.parts.brokers import BrokerImage, BrokersImage
from tiered.metadata.parts.controllers import ControllersImage
from tiered.metadata.parts.delegation_tokens import DelegationTokensImage
from tiered.metadata.parts.features import FeaturesImage
from tiered.metadata.parts.groups import GroupConfigsImage
from tiered.metadata.parts.producer_ids import ProducerIdsImage
from tiered.metadata.parts.quotas import ClientQuotasImage
from tiered.metadata.parts.scram import ScramImage
from tiered.metadata.parts.topics import DeletedTopic, Loss, TopicImage, TopicsImage
from tiered.quotas.entity import QuotaEntity
from tiered.security.acls import Acl
from tiered.security.broker_secrets import BrokerSecret
from tiered.security.delegation_tokens import DelegationToken
from tiered.security.scram import ScramCredential
from tiered.value import value

CORDONED = "cordoned.log.dirs"


@value
class Image:
    """Everything that the cluster has agreed on, up to and including `slot`.

    The properties are the tables of the parts. Their documentation is there.
    """

    slot: int = -1
    controllers_image: ControllersImage = field(default_factory=ControllersImage)
    brokers_image: BrokersImage = field(default_factory=BrokersImage)
    topics_image: TopicsImage = field(default_factory=TopicsImage)
    producer_ids_image: ProducerIdsImage = field(default_factory=ProducerIdsImage)
    features_image: FeaturesImage = field(default_factory=FeaturesImage)
    acls_image: AclsImage = field(default_factory=AclsImage)
    scram_image: ScramImage = field(default_factory=ScramImage)
    quotas_image: ClientQuotasImage = field(default_factory=ClientQuotasImage)
    broker_secrets_image: BrokerSecretsImage = field(default_factory=BrokerSecretsImage)
    delegation_tokens_image: DelegationTokensImage = field(default_factory=DelegationTokensImage)
    group_configs_image: GroupConfigsImage = field(default_factory=GroupConfigsImage)

    @property
    def controller_epoch(self) -> int:
        return self.controllers_image.epoch

    @property
    def controller(self) -> int:
        return self.controllers_image.node_id

    @property
    def controller_incarnation(self) -> str:
        return self.controllers_image.incarnation

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        return self.brokers_image.brokers

    @property
    def broker_configs(self) -> Mapping[int, Mapping[str, str]]:
        return self.brokers_image.configs

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        return self.topics_image.topics

    @property
    def topics_by_id(self) -> Mapping[TopicId, TopicImage]:
        return self.topics_image.by_id

    @property
    def deleted_topics(self) -> Mapping[TopicId, DeletedTopic]:
        return self.topics_image.deleted

    @property
    def losses(self) -> Mapping[PartitionId, tuple[Loss, ...]]:
        return self.topics_image.losses

    @property
    def partition_count(self) -> int:
        return self.topics_image.partition_count

    @property
    def replica_counts(self) -> Mapping[int, int]:
        return self.topics_image.replica_counts

    @property
    def next_producer_id(self) -> int:
        return self.producer_ids_image.next_id

    @property
    def features(self) -> Mapping[str, int]:
        return self.features_image.levels

    @property
    def features_epoch(self) -> int:
        return self.features_image.epoch

    @property
    def acls(self) -> frozenset[Acl]:
        return self.acls_image.acls

    @property
    def scram(self) -> Mapping[str, Mapping[str, ScramCredential]]:
        return self.scram_image.users

    @property
    def quotas(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        return self.quotas_image.quotas

    @property
    def broker_secrets(self) -> tuple[BrokerSecret, ...]:
        return self.broker_secrets_image.secrets

    @property
    def delegation_tokens(self) -> Mapping[str, DelegationToken]:
        return self.delegation_tokens_image.tokens

    @property
    def group_configs(self) -> Mapping[str, Mapping[str, str]]:
        return self.group_configs_image.configs

    def apply(self, changes: Iterable[Change], slot: int | None = None) -> Image:
        """Returns the image after `changes`, which end at `slot`.

        The order of changes is kept within a part. No part reads another, so the order between parts does not matter. A
        change kind belongs to one part. Raises `Corrupt` if a change does not fit: the log forked.
        """
        taken = defaultdict[str, list[Any]](list)
        for change in changes:
            taken[_PART_OF[type(change)]].append(change)
        parts = {part: getattr(self, part).apply(its_changes) for part, its_changes in taken.items()}
        return replace(self, slot=self.slot if slot is None else slot, **parts)

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

    def bad_disk_ids(self) -> frozenset[int]:
        """Returns ids of the brokers whose disk is full or stalled."""
        return frozenset(broker.node_id for broker in self.brokers.values() if broker.disk in BAD_DISKS)

    def recovering_disk_ids(self) -> frozenset[int]:
        """Returns ids of the brokers whose disk was full or stalled until a short time ago."""
        return frozenset(broker.node_id for broker in self.brokers.values() if broker.disk == DISK_RECOVERING)

    def placement_racks(self) -> dict[int, str]:
        """Returns node id -> rack of the brokers that take new replicas: live and not cordoned."""
        return {each.node_id: each.rack for each in self.live_brokers() if not self.is_cordoned(each.node_id)}

    def machines(self) -> dict[int, int]:
        """Returns node id -> machine of the brokers that are processes of a machine with others."""
        return {each.node_id: each.machine for each in self.brokers.values() if each.process}

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


_PART_CLASSES: dict[str, Any] = {each.name: each.default_factory for each in fields(Image) if each.name != "slot"}
"""Class by field name, in field order: `from_json` relies on it."""
_PART_OF: dict[type[Change], str] = {kind: name for name, part in _PART_CLASSES.items() for kind in part.KINDS}
_FIRST_KEYS = (
    "slot", "epoch", "controller", "controller_incarnation", "brokers", "topics", "broker_configs", "deleted",
    "next_producer_id", "losses",
)  # fmt: skip
"""Keys of a snapshot whose order is not that of the parts: earlier versions wrote them in this order."""


def to_json(image: Image) -> dict[str, Any]:
    """Returns the body of a snapshot."""
    body = {"slot": image.slot}
    for name in _PART_CLASSES:
        body |= getattr(image, name).to_json()
    return {key: body[key] for key in (*_FIRST_KEYS, *body) if key not in KEYS_SINCE or body[key]}


def from_json(body: dict[str, Any]) -> Image:
    """Returns the image of a snapshot's body. Raises KeyError, TypeError or AttributeError if it has another shape, and
    `Corrupt` if it has a table that this program does not know."""
    if unknown := body.keys() - _known_keys():
        raise Corrupt(f"the snapshot has {', '.join(sorted(unknown))}: a newer program wrote it, start that one")
    return Image(body["slot"], *(part.from_json(body) for part in _PART_CLASSES.values()))


@cache
def _known_keys() -> frozenset[str]:
    """Returns the keys of a snapshot, whatever it holds."""
    return frozenset((*to_json(Image()), *KEYS_SINCE))
