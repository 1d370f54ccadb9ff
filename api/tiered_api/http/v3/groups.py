"""REST v3: consumer groups, their members, assignments and lag."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from aiohttp import web

from tiered.errors import Code
from tiered.groups.requests import DescribedMember, DescribeGroupReply
from tiered.ids import TopicPartition
from tiered.security.acls import CLUSTER_NAME, Operation, ResourceType
from tiered_api.http.exchange.errors import GROUP_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.groups import (
    GroupDescription,
    describe_group,
    fetch_committed_offsets,
    fetch_end_offsets,
    list_all_groups,
)
from tiered_api.http.v3.shapes import Shape, base_shape, check_cluster, link, list_response, related_link
from tiered_api.kafka.client.group_member import read_assignment

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class PartitionLag(NamedTuple):
    """The position of a group in one partition. `member` has the partition now, if any."""

    tp: TopicPartition
    committed_offset: int
    end_offset: int
    member: DescribedMember | None

    @property
    def lag(self) -> int:
        """Number of records that exist and are not read; below 0 if the committed offset is above the end."""
        return self.end_offset - self.committed_offset


async def _find_group(request: HttpRequest) -> GroupDescription:
    """Returns the group that the path names. Raises `HttpError` 404 if there is none."""
    check_cluster(request)
    name = request.args["group"]
    found = await describe_group(request.context, name)
    if found.description.code is not Code.NONE:
        raise HttpError(GROUP_NOT_FOUND, f"consumer group {name[:249]!r} not found")
    return found


async def _group(request: HttpRequest) -> DescribeGroupReply:
    return (await _find_group(request)).description


def _member(request: HttpRequest, group: DescribeGroupReply) -> DescribedMember:
    for member in group.members:
        if member.member_id == request.args["consumer"]:
            return member
    raise HttpError(404, f"consumer group {group.group[:249]!r} has no such consumer")


async def _lags(request: HttpRequest, group: DescribeGroupReply) -> list[PartitionLag]:
    """Returns the lag of each committed offset, in order.

    A partition that is deleted or has no leader is left out, and a topic that the caller may not describe.
    """
    owners = {tp: member for member in group.members for tp in read_assignment(member.assignment)}
    committed = {
        TopicPartition(row.topic, row.partition): row.offset
        for row in await fetch_committed_offsets(request.context, group.group)
        if request.may(Operation.DESCRIBE, ResourceType.TOPIC, row.topic)
    }
    found = await fetch_end_offsets(request.context, committed)
    return [
        PartitionLag(tp, offset, found[tp], owners.get(tp)) for tp, offset in sorted(committed.items()) if tp in found
    ]


# -- shapes -----------------------------------------------------------------------------------------------------------


def group_shape(request: HttpRequest, found: GroupDescription) -> Shape:
    broker, group = found
    url = link(request, "consumer-groups", group.group)
    return base_shape(request, "KafkaConsumerGroup", url, "consumer-group", group.group) | {
        "consumer_group_id": group.group,
        "is_simple": not group.protocol_type,
        "partition_assignor": group.protocol,
        "state": _WORD.sub("_", group.state).upper(),
        "type": group.type.upper(),
        "is_mixed_consumer_group": False,
        "coordinator": related_link(link(request, "brokers", broker)),
        "consumers": related_link(f"{url}/consumers"),
        "lag_summary": related_link(f"{url}/lag-summary"),
    }


def consumer_shape(request: HttpRequest, group: DescribeGroupReply, member: DescribedMember) -> Shape:
    url = link(request, "consumer-groups", group.group, "consumers", member.member_id)
    names = ("consumer-group", group.group, "consumer", member.member_id)
    return base_shape(request, "KafkaConsumer", url, *names) | {
        "consumer_group_id": group.group,
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "assignments": related_link(f"{url}/assignments"),
    }


def assignment_shape(
    request: HttpRequest, group: DescribeGroupReply, member: DescribedMember, tp: TopicPartition
) -> Shape:
    place = ("consumer-groups", group.group, "consumers", member.member_id, "assignments", tp.topic)
    url = link(request, *place, "partitions", tp.partition)
    names = ("consumer-group", group.group, "consumer", member.member_id, "assignment", tp.partition)
    return base_shape(request, "KafkaConsumerAssignment", url, *names) | {
        "consumer_group_id": group.group,
        "consumer_id": member.member_id,
        "topic_name": tp.topic,
        "partition_id": tp.partition,
        "partition": related_link(link(request, "topics", tp.topic, "partitions", tp.partition)),
        "lag": related_link(
            link(request, "consumer-groups", group.group, "lags", tp.topic, "partitions", tp.partition)
        ),
    }


def lag_shape(request: HttpRequest, group: DescribeGroupReply, lag: PartitionLag) -> Shape:
    url = link(request, "consumer-groups", group.group, "lags", lag.tp.topic, "partitions", lag.tp.partition)
    names = ("consumer-group", group.group, "lag", lag.tp.topic, "partition", lag.tp.partition)
    return base_shape(request, "KafkaConsumerLag", url, *names) | {
        "consumer_group_id": group.group,
        "topic_name": lag.tp.topic,
        "partition_id": lag.tp.partition,
        "current_offset": lag.committed_offset,
        "log_end_offset": lag.end_offset,
        "lag": lag.lag,
        **_owner(lag.member),
    }


def _owner(member: DescribedMember | None, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}consumer_id": member.member_id if member else "",
        f"{prefix}instance_id": member.instance_id if member else None,
        f"{prefix}client_id": member.client_id if member else "",
    }


# -- operations -------------------------------------------------------------------------------------------------------


async def list_consumer_groups(request: HttpRequest) -> web.StreamResponse:
    """Lists the consumer groups of all brokers."""
    check_cluster(request)
    found = await list_all_groups(request.context)
    sees_all = request.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
    groups = [
        group
        for group in found
        if sees_all or request.may(Operation.DESCRIBE, ResourceType.GROUP, group.description.group)
    ]
    return await list_response(request, "KafkaConsumerGroup", groups, lambda group: (group_shape(request, group),))


async def get_consumer_group(request: HttpRequest) -> web.StreamResponse:
    """Returns one consumer group."""
    return json_response(group_shape(request, await _find_group(request)))


async def list_consumers(request: HttpRequest) -> web.StreamResponse:
    """Lists the members of a group."""
    group = await _group(request)
    members = group.members
    return await list_response(request, "KafkaConsumer", members, lambda each: (consumer_shape(request, group, each),))


async def get_consumer(request: HttpRequest) -> web.StreamResponse:
    """Returns one member."""
    group = await _group(request)
    return json_response(consumer_shape(request, group, _member(request, group)))


async def list_assignments(request: HttpRequest) -> web.StreamResponse:
    """Lists the partitions that are assigned to a member."""
    group = await _group(request)
    member = _member(request, group)
    places = sorted(read_assignment(member.assignment))
    return await list_response(
        request, "KafkaConsumerAssignment", places, lambda tp: (assignment_shape(request, group, member, tp),)
    )


async def get_assignment(request: HttpRequest) -> web.StreamResponse:
    """Returns one partition that is assigned to a member."""
    group = await _group(request)
    member, tp = _member(request, group), TopicPartition(request.args["topic"], request.path_number("partition"))
    if tp not in read_assignment(member.assignment):
        raise HttpError(UNKNOWN_TOPIC_OR_PARTITION, f"this consumer does not have {tp}")
    return json_response(assignment_shape(request, group, member, tp))


async def list_lags(request: HttpRequest) -> web.StreamResponse:
    """Lists the lag of a group by partition."""
    group = await _group(request)
    lags = await _lags(request, group)
    return await list_response(request, "KafkaConsumerLag", lags, lambda lag: (lag_shape(request, group, lag),))


async def get_lag(request: HttpRequest) -> web.StreamResponse:
    """Returns the lag of a group in one partition."""
    group, tp = await _group(request), TopicPartition(request.args["topic"], request.path_number("partition"))
    for lag in await _lags(request, group):
        if lag.tp == tp:
            return json_response(lag_shape(request, group, lag))
    raise HttpError(UNKNOWN_TOPIC_OR_PARTITION, f"the group has committed nothing of {tp}")


async def get_lag_summary(request: HttpRequest) -> web.StreamResponse:
    """Returns the sum of all lags above 0, and the greatest lag with its member."""
    group = await _group(request)
    lags = await _lags(request, group)
    if not lags:
        raise HttpError(404, f"consumer group {group.group[:249]!r} has committed nothing")
    worst = max(lags, key=lambda lag: lag.lag)
    url = link(request, "consumer-groups", group.group, "lag-summary")
    topic, partition = worst.tp
    return json_response(
        base_shape(request, "KafkaConsumerGroupLagSummary", url, "consumer-group", group.group, "lag-summary", "")
        | {
            "consumer_group_id": group.group,
            "max_lag": worst.lag,
            "total_lag": sum(max(lag.lag, 0) for lag in lags),
            "max_lag_topic_name": topic,
            "max_lag_partition_id": partition,
            **_owner(worst.member, "max_lag_"),
            "max_lag_partition": related_link(link(request, "topics", topic, "partitions", partition)),
        }
    )
