"""REST v3: consumer groups, their members, what is assigned to each, and how far behind they are."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from aiohttp import web

from tiered.errors import Code
from tiered.groups.requests import DescribeGroupReply, DescribedMember
from tiered.ids import TopicPartition
from tiered_api.http.groups import Group, describe, ends, everyone, offsets
from tiered_api.http.server.errors import GROUP_NOT_FOUND, UNKNOWN_TOPIC_OR_PARTITION, HttpError
from tiered_api.http.server.request import Request
from tiered_api.http.server.responses import as_json
from tiered_api.http.v3.shapes import Shape, cluster, head, link, listed, related
from tiered_api.kafka.client.group_member import read_assignment

_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Lag(NamedTuple):
    """How far a group has read one partition. `member` is who has it now, if anybody."""

    at: TopicPartition
    current: int
    end: int
    member: DescribedMember | None

    @property
    def behind(self) -> int:
        """Records that are there and not read."""
        return max(self.end - self.current, 0)


async def _found(request: Request) -> Group:
    """The group that the path names; HttpError 404 when there is none."""
    cluster(request)
    name = request.args["group"]
    found = await describe(request.site, name)
    if found.described.code is not Code.NONE:
        raise HttpError(GROUP_NOT_FOUND, f"consumer group {name[:249]!r} not found")
    return found


async def _group(request: Request) -> DescribeGroupReply:
    return (await _found(request)).described


def _member(request: Request, group: DescribeGroupReply) -> DescribedMember:
    for member in group.members:
        if member.member_id == request.args["consumer"]:
            return member
    raise HttpError(404, f"consumer group {group.group[:249]!r} has no such consumer")


async def _lags(request: Request, group: DescribeGroupReply) -> list[Lag]:
    """One for each offset that the group committed, in order. A partition that nobody leads, or that is gone, is left
    out."""
    owners = {at: member for member in group.members for at in read_assignment(member.assignment)}
    committed = {
        TopicPartition(row.topic, row.partition): row.offset for row in await offsets(request.site, group.group)
    }
    found = await ends(request.site, committed)
    return [Lag(at, offset, found[at], owners.get(at)) for at, offset in sorted(committed.items()) if at in found]


# -- shapes -----------------------------------------------------------------------------------------------------------


def group_shape(request: Request, found: Group) -> Shape:
    broker, group = found
    url = link(request, "consumer-groups", group.group)
    return head(request, "KafkaConsumerGroup", url, "consumer-group", group.group) | {
        "consumer_group_id": group.group,
        "is_simple": not group.protocol_type,
        "partition_assignor": group.protocol,
        "state": _WORD.sub("_", group.state).upper(),
        "type": "CLASSIC",
        "is_mixed_consumer_group": False,
        "coordinator": related(link(request, "brokers", broker)),
        "consumers": related(f"{url}/consumers"),
        "lag_summary": related(f"{url}/lag-summary"),
    }


def consumer_shape(request: Request, group: DescribeGroupReply, member: DescribedMember) -> Shape:
    url = link(request, "consumer-groups", group.group, "consumers", member.member_id)
    names = ("consumer-group", group.group, "consumer", member.member_id)
    return head(request, "KafkaConsumer", url, *names) | {
        "consumer_group_id": group.group,
        "consumer_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "assignments": related(f"{url}/assignments"),
    }


def assignment_shape(request: Request, group: DescribeGroupReply, member: DescribedMember, at: TopicPartition) -> Shape:
    place = ("consumer-groups", group.group, "consumers", member.member_id, "assignments", at.topic)
    url = link(request, *place, "partitions", at.partition)
    names = ("consumer-group", group.group, "consumer", member.member_id, "assignment", at.partition)
    return head(request, "KafkaConsumerAssignment", url, *names) | {
        "consumer_group_id": group.group,
        "consumer_id": member.member_id,
        "topic_name": at.topic,
        "partition_id": at.partition,
        "partition": related(link(request, "topics", at.topic, "partitions", at.partition)),
        "lag": related(link(request, "consumer-groups", group.group, "lags", at.topic, "partitions", at.partition)),
    }


def lag_shape(request: Request, group: DescribeGroupReply, lag: Lag) -> Shape:
    url = link(request, "consumer-groups", group.group, "lags", lag.at.topic, "partitions", lag.at.partition)
    names = ("consumer-group", group.group, "lag", lag.at.topic, "partition", lag.at.partition)
    return head(request, "KafkaConsumerLag", url, *names) | {
        "consumer_group_id": group.group,
        "topic_name": lag.at.topic,
        "partition_id": lag.at.partition,
        "current_offset": lag.current,
        "log_end_offset": lag.end,
        "lag": lag.behind,
        **_owner(lag.member),
    }


def _owner(member: DescribedMember | None, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}consumer_id": member.member_id if member else "",
        f"{prefix}instance_id": member.instance_id if member else None,
        f"{prefix}client_id": member.client_id if member else "",
    }


# -- operations -------------------------------------------------------------------------------------------------------


async def list_consumer_groups(request: Request) -> web.StreamResponse:
    """The consumer groups of all brokers."""
    cluster(request)
    groups = await everyone(request.site)
    return await listed(request, "KafkaConsumerGroup", groups, lambda group: (group_shape(request, group),))


async def get_consumer_group(request: Request) -> web.StreamResponse:
    """One consumer group."""
    return as_json(group_shape(request, await _found(request)))


async def list_consumers(request: Request) -> web.StreamResponse:
    """The members of a group."""
    group = await _group(request)
    members = group.members
    return await listed(request, "KafkaConsumer", members, lambda each: (consumer_shape(request, group, each),))


async def get_consumer(request: Request) -> web.StreamResponse:
    """One member."""
    group = await _group(request)
    return as_json(consumer_shape(request, group, _member(request, group)))


async def list_assignments(request: Request) -> web.StreamResponse:
    """The partitions that a member has now."""
    group = await _group(request)
    member = _member(request, group)
    places = sorted(read_assignment(member.assignment))
    return await listed(
        request, "KafkaConsumerAssignment", places, lambda at: (assignment_shape(request, group, member, at),)
    )


async def get_assignment(request: Request) -> web.StreamResponse:
    """One partition that a member has now."""
    group = await _group(request)
    member, at = _member(request, group), TopicPartition(request.args["topic"], request.number("partition"))
    if at not in read_assignment(member.assignment):
        raise HttpError(UNKNOWN_TOPIC_OR_PARTITION, f"this consumer does not have {at}")
    return as_json(assignment_shape(request, group, member, at))


async def list_lags(request: Request) -> web.StreamResponse:
    """How far the group is behind, partition by partition."""
    group = await _group(request)
    lags = await _lags(request, group)
    return await listed(request, "KafkaConsumerLag", lags, lambda lag: (lag_shape(request, group, lag),))


async def get_lag(request: Request) -> web.StreamResponse:
    """How far the group is behind in one partition."""
    group, at = await _group(request), TopicPartition(request.args["topic"], request.number("partition"))
    for lag in await _lags(request, group):
        if lag.at == at:
            return as_json(lag_shape(request, group, lag))
    raise HttpError(UNKNOWN_TOPIC_OR_PARTITION, f"the group has committed nothing of {at}")


async def get_lag_summary(request: Request) -> web.StreamResponse:
    """The sum of all lags, and the greatest one with who has it."""
    group = await _group(request)
    lags = await _lags(request, group)
    if not lags:
        raise HttpError(404, f"consumer group {group.group[:249]!r} has committed nothing")
    worst = max(lags, key=lambda lag: lag.behind)
    url = link(request, "consumer-groups", group.group, "lag-summary")
    topic, partition = worst.at
    return as_json(
        head(request, "KafkaConsumerGroupLagSummary", url, "consumer-group", group.group, "lag-summary", "")
        | {
            "consumer_group_id": group.group,
            "max_lag": worst.behind,
            "total_lag": sum(lag.behind for lag in lags),
            "max_lag_topic_name": topic,
            "max_lag_partition_id": partition,
            **_owner(worst.member, "max_lag_"),
            "max_lag_partition": related(link(request, "topics", topic, "partitions", partition)),
        }
    )
