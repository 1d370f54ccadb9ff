"""A consumer group as DescribeGroups shows a classic one, for programs of ours that show both kinds alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiered.errors import Code
from tiered.groups.consumer.admin import CONSUMER_TYPE
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.assignors import choose_assignor
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.requests import DescribedMember, DescribeGroupReply
from tiered.groups.subscription import CONSUMER
from tiered.record_fields import I16, I32, encode_string

_VERSION, _NO_USER_DATA = I16.pack(0), I32.pack(-1)


def describe_as_classic(
    group: ConsumerGroup, find_topic: Callable[[str], SubscribedTopic | None]
) -> DescribeGroupReply:
    """Returns the description. The assignor stands for the protocol; topics that are gone are left out."""
    names = {found.topic_id: name for name in group.subscribed_topics() if (found := find_topic(name)) is not None}
    members = tuple(
        DescribedMember(
            member_id,
            metadata.instance_id,
            metadata.client_id,
            metadata.client_host,
            _encode_subscription(group.topics_of(metadata)),
            _encode_assignment(current.assigned, names),
        )
        for member_id, (metadata, current) in group.members.items()
    )
    assignor = choose_assignor(member.metadata.assignor for member in group.members.values())
    protocol = assignor if members else ""
    return DescribeGroupReply(Code.NONE, group.name, group.state.value, CONSUMER, protocol, members, type=CONSUMER_TYPE)


def _encode_subscription(topics: Iterable[str]) -> bytes:
    names = sorted(topics)
    return _VERSION + I32.pack(len(names)) + b"".join(map(encode_string, names)) + _NO_USER_DATA


def _encode_assignment(assignment: Assignment, names: dict[str, str]) -> bytes:
    rows = sorted((names[topic_id], sorted(each)) for topic_id, each in assignment.items() if topic_id in names)
    parts = [_VERSION, I32.pack(len(rows))]
    for name, partitions in rows:
        parts += (encode_string(name), I32.pack(len(partitions)), *map(I32.pack, partitions))
    return b"".join((*parts, _NO_USER_DATA))
