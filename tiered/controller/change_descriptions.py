"""The changes that a caller of the controller made, in words of Kafka, for the audit log.

`describe_changes` has one line for each resource that a granted request changed. It names no secret: passwords and keys
of users, and settings that are secret, are left out. Requests that brokers send for themselves have no line, but the
report of a full disk: it moves leaderships.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tiered.controller import requests
from tiered.errors import Code, Refused
from tiered.ids import TopicId
from tiered.metadata import changes as kinds
from tiered.metadata.changes import AclAdded, AclRemoved, ListEdit
from tiered.metadata.image import Image
from tiered.metadata.shown_changes import SECRET_WORDS
from tiered.security.acls import CLUSTER_NAME
from tiered.security.secret import HIDDEN

CREATE, DELETE, ALTER, ALTER_CONFIGS = "CREATE", "DELETE", "ALTER", "ALTER_CONFIGS"
TOPIC, GROUP, BROKER, CLUSTER = "TOPIC", "GROUP", "BROKER", "CLUSTER"
USER, ACL, QUOTA, TOKEN = "USER", "ACL", "QUOTA", "DELEGATION_TOKEN"
EVERY_BROKER = -1
VALUE_MAX = 60
"""Most characters of the value of a setting: a long value hides no other setting of the request."""

OF_BROKERS = (
    requests.ForgetTopic, requests.RegisterBroker, requests.AnnounceBroker, requests.NameDirectory,
    requests.StopBroker, requests.FenceBroker, requests.UnfenceBroker, requests.HandOver, requests.ReportDisk,
    requests.LeavePartitions,
    requests.AlterPartitions, requests.ReportLoss, requests.NoteStoredEnds, requests.ReportEnds,
    requests.AllocateProducerIds, requests.RemoveExpiredTokens, requests.DescribeQuorum,
)  # fmt: skip
"""The requests that brokers send for themselves. Only the report of a full or stalled disk has a line."""


class DescribedChange(NamedTuple):
    """One resource that was changed, and what became of it."""

    operation: str
    resource_type: str
    resource_name: str
    detail: str = ""


def describe_changes(request: object, reply: Any, image: Image) -> Iterator[DescribedChange]:
    """Yields the changes of a request by its reply. With the reply None, those that it may have made. `image` has the
    names of topics."""
    match request:
        case requests.CreateTopic() | requests.CreateTopics():
            topics = request.topics if isinstance(request, requests.CreateTopics) else (request,)
            for topic in topics if isinstance(request, requests.CreateTopic) else _granted(topics, reply):
                if not topic.validate_only:
                    yield DescribedChange(CREATE, TOPIC, topic.name, _describe_new_topic(topic))
        case requests.DeleteTopic():
            yield DescribedChange(DELETE, TOPIC, request.name, getattr(reply, "topic_id", request.topic_id) or "")
        case requests.CreatePartitions(validate_only=False):
            yield DescribedChange(ALTER, TOPIC, request.name, f"partitions={request.count}")
        case requests.AlterTopicConfigs(validate_only=False):
            detail = _describe_configs(request.configs, replaced=request.replace)
            yield DescribedChange(ALTER_CONFIGS, TOPIC, request.name, detail)
        case requests.AlterBrokerConfigs(validate_only=False):
            name = "" if request.node_id == EVERY_BROKER else str(request.node_id)
            detail = _describe_configs(request.configs, replaced=request.replace)
            yield DescribedChange(ALTER_CONFIGS, BROKER, name, detail)
        case requests.AlterGroupConfigs(validate_only=False):
            detail = _describe_configs(request.configs, replaced=request.replace)
            yield DescribedChange(ALTER_CONFIGS, GROUP, request.group, detail)
        case requests.UnregisterBroker():
            yield DescribedChange(DELETE, BROKER, str(request.node_id))
        case requests.ReportDisk(disk=kinds.DISK_FULL | kinds.DISK_STALLED):
            moved = "" if reply is None else f": moved leadership of {reply} partitions"
            yield DescribedChange(ALTER, BROKER, str(request.node_id), f"disk {request.disk}{moved}")
        case requests.ElectLeaders():
            yield from _describe_elections(request, reply, image)
        case requests.Reassign():
            for move in _granted(request.moves, reply):
                replicas = "cancelled" if move.replicas is None else f"replicas={','.join(map(str, move.replicas))}"
                yield DescribedChange(ALTER, TOPIC, _name_of(image, move.topic_id, move.partition), replicas)
        case requests.AcknowledgeLosses():
            for topic_id, partition, epoch in request.losses:
                name = _name_of(image, topic_id, partition)
                yield DescribedChange(ALTER, CLUSTER, CLUSTER_NAME, f"loss of {name} in epoch {epoch} acknowledged")
        case requests.UpdateFeatures(validate_only=False):
            levels = " ".join(f"{each.name}={each.level}" for each in request.updates)
            yield DescribedChange(ALTER, CLUSTER, CLUSTER_NAME, f"features {levels}")
        case requests.RotateBrokerSecret():
            yield DescribedChange(ALTER, CLUSTER, CLUSTER_NAME, "new secret of the brokers")
        case _:
            yield from _describe_security(request, reply)


def _describe_security(request: object, reply: Any) -> Iterator[DescribedChange]:
    match request:
        case requests.CreateAcls():
            for acl in _granted(request.acls, reply):
                yield DescribedChange(CREATE, ACL, acl.resource_name, _describe_acl(acl))
        case requests.DeleteAcls():
            if reply is None:
                for chosen in request.filters:
                    yield DescribedChange(DELETE, ACL, chosen.resource_name or "", _describe_acl(chosen))
            for removed in reply or ():
                for each in () if isinstance(removed, Refused) else removed:
                    yield DescribedChange(DELETE, ACL, each.resource_name, _describe_acl(each))
        case requests.AlterScramCredentials():
            for deletion in request.deletions:
                if reply is None or reply.get(deletion.user) is None:
                    yield DescribedChange(DELETE, USER, deletion.user, deletion.mechanism)
            for upsertion in request.upsertions:
                if reply is None or reply.get(upsertion.user) is None:
                    yield DescribedChange(ALTER, USER, upsertion.user, upsertion.mechanism)
        case requests.AlterClientQuotas(validate_only=False):
            for each in _granted(request.alterations, reply):
                entity = " ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in each.entity)
                values = " ".join(f"{key}={'removed' if value is None else value}" for key, value in each.values)
                yield DescribedChange(ALTER, QUOTA, entity, values)
        case requests.CreateDelegationToken():
            yield DescribedChange(CREATE, TOKEN, getattr(reply, "token_id", ""), f"owner={request.owner}")
        case requests.RenewDelegationToken():
            yield DescribedChange(ALTER, TOKEN, request.token_id, "renewed")
        case requests.ExpireDelegationToken():
            yield DescribedChange(DELETE if request.period_ms < 0 else ALTER, TOKEN, request.token_id, "expiry")


def _granted(items: tuple[Any, ...], reply: Any) -> Iterator[Any]:
    """Yields the items whose part of the reply is no refusal."""
    for place, item in enumerate(items):
        if reply is None or not isinstance(reply[place], Refused):
            yield item


def _describe_new_topic(topic: requests.CreateTopic) -> str:
    counts = f"partitions={topic.partitions} " if topic.partitions > 0 else ""
    return (counts + _describe_configs(topic.configs)).strip()


def _describe_configs(configs: Mapping[str, str | ListEdit | None], *, replaced: bool = False) -> str:
    words = ["all others reset"] if replaced else []
    return " ".join([*(f"{name}={_describe_value(name, value)}" for name, value in configs.items()), *words])


def _describe_value(name: str, value: str | ListEdit | None) -> str:
    if value is None:
        return "reset"
    if any(word in name.lower() for word in SECRET_WORDS):
        return HIDDEN
    if isinstance(value, ListEdit):
        value = "".join((*(f"+{each}" for each in value.added), *(f"-{each}" for each in value.removed)))
    return value if len(value) <= VALUE_MAX else f"{value[: VALUE_MAX - 3]}..."


def _describe_elections(request: requests.ElectLeaders, reply: Any, image: Image) -> Iterator[DescribedChange]:
    kind = "preferred leader elected" if request.preferred else "unclean leader elected"
    if reply is None and request.partitions is None:
        yield DescribedChange(ALTER, CLUSTER, CLUSTER_NAME, f"{kind}, all partitions")
    rows = [(*place, Code.NONE) for place in request.partitions or ()] if reply is None else reply
    for topic_id, partition, code in rows:
        if code is Code.NONE:
            yield DescribedChange(ALTER, TOPIC, _name_of(image, topic_id, partition), kind)


def _describe_acl(acl: AclAdded | AclRemoved | requests.AclChoice) -> str:
    what = f"{acl.permission} {acl.operation} on {acl.resource_type} ({acl.pattern_type})"
    return f"{what} to {acl.principal or 'any'} from {acl.host or 'any'}"


def _name_of(image: Image, topic_id: TopicId, partition: int) -> str:
    topic = image.topics_by_id.get(topic_id)
    return f"{topic.name if topic is not None else topic_id}-{partition}"
