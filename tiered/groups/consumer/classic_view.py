"""A consumer group as DescribeGroups shows a classic one, for programs of ours that show both kinds alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tiered.errors import Code
from tiered.groups.consumer.admin import CONSUMER_TYPE
from tiered.groups.consumer.assignment import Assignment
from tiered.groups.consumer.assignors import choose_assignor
from tiered.groups.consumer.epochs import SubscribedTopic
from tiered.groups.consumer.group import ConsumerGroup
from tiered.groups.requests import DescribedMember, DescribeGroupReply
from tiered.groups.subscription import CONSUMER, TopicPartitions, encode_assignment
from tiered.record_fields import I16, I32, encode_string

_VERSION, _NO_USER_DATA = I16.pack(0), I32.pack(-1)


def describe_as_classic(
    group: ConsumerGroup, find_topic: Callable[[str], SubscribedTopic | None]
) -> DescribeGroupReply:
    """Returns the description. The assignor stands for the protocol; topics that are gone are left out."""
    names = find_names(group, find_topic)
    members = tuple(
        DescribedMember(
            member_id,
            metadata.instance_id,
            metadata.client_id,
            metadata.client_host,
            _encode_subscription(group.topics_of(metadata)),
            encode_assignment(name_topics(current.assigned, names)),
        )
        for member_id, (metadata, current) in group.members.items()
    )
    assignor = choose_assignor(member.metadata.assignor for member in group.members.values())
    protocol = assignor if members else ""
    return DescribeGroupReply(Code.NONE, group.name, group.state.value, CONSUMER, protocol, members, type=CONSUMER_TYPE)


def _encode_subscription(topics: Iterable[str]) -> bytes:
    names = sorted(topics)
    return _VERSION + I32.pack(len(names)) + b"".join(map(encode_string, names)) + _NO_USER_DATA


def find_names(group: ConsumerGroup, find_topic: Callable[[str], SubscribedTopic | None]) -> dict[str, str]:
    """Returns the names of the topics that members subscribe to, by id."""
    return {found.topic_id: name for name in group.subscribed_topics() if (found := find_topic(name)) is not None}


def name_topics(assignment: Assignment, names: Mapping[str, str]) -> TopicPartitions:
    """Returns an assignment by names of topics, without those that are gone."""
    return {names[topic_id]: partitions for topic_id, partitions in assignment.items() if topic_id in names}
