"""The explanation of a group: by its coordinator, its committed offsets, and the leaders of their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiohttp import web

from tiered.errors import Code, Refused, Unavailable
from tiered.groups.requests import DescribedMember, DescribeGroupReply
from tiered.groups.subscription import CONSUMER
from tiered.ids import TopicId, TopicPartition
from tiered.security.acls import Operation, ResourceType
from tiered_api.explanation.cause import describe_causes
from tiered_api.explanation.group import (
    GroupFacts,
    GroupMember,
    GroupPosition,
    explain_coordinator,
)
from tiered_api.explanation.group import explain_group as explain
from tiered_api.http.consumers.coordinator_calls import MOVED_CODES
from tiered_api.http.exchange.errors import GROUP_NOT_FOUND, HttpError
from tiered_api.http.exchange.remote_brokers import Leader, OffsetQuery
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.explanations.transactions import fetch_held
from tiered_api.http.groups import GroupDescription, describe_group, fetch_end_offsets
from tiered_api.http.overview.groups import fetch_committed
from tiered_api.http.overview.unread import UnreadTimes
from tiered_api.kafka.client.group_member import read_assignment
from tiered_api.kafka.client.leader_routing import EARLIEST, EARLIEST_LOCAL, LATEST


class LogBounds(NamedTuple):
    """Offsets of a log by its leader, None if they are not known."""

    log_start: int | None = None
    local_start: int | None = None
    last_stable: int | None = None


UNKNOWN = LogBounds()


async def explain_group(request: HttpRequest) -> web.StreamResponse:
    """Tells why a consumer group does not read, or is behind."""
    group = request.args["group"]
    try:
        found = await describe_group(request.context, group, with_progress=True)
        if found.description.code is not Code.NONE:
            raise HttpError(GROUP_NOT_FOUND, f"consumer group {group[:249]!r} not found")
        committed = await fetch_committed(request, group, lambda topic: True)
    except Refused as refused:
        if refused.code not in MOVED_CODES:
            raise
        return json_response({"group": group} | describe_causes([explain_coordinator(group, refused.why)]))
    positions: dict[TopicPartition, int | None] = dict.fromkeys(_find_owners(found.description))
    positions |= committed
    visible = {tp: offset for tp, offset in positions.items() if _may_describe(request, tp.topic)}
    facts = await _gather(request, found, visible, sum(tp not in visible for tp in committed))
    return json_response({"group": group} | describe_causes(explain(facts)))


async def _gather(
    request: HttpRequest, found: GroupDescription, wanted: Mapping[TopicPartition, int | None], hidden: int
) -> GroupFacts:
    described = found.description
    ends, bounds = await asyncio.gather(fetch_end_offsets(request.context, wanted), _fetch_bounds(request, wanted))
    begins = {tp: bounds.get(tp, UNKNOWN).log_start or 0 if offset is None else offset for tp, offset in wanted.items()}
    behind = [(tp, offset) for tp, offset in begins.items() if offset < ends.get(tp, 0)]
    times = await request.context.service(UnreadTimes).find(request, behind)
    topics, owners = request.context.broker.image.topics, _find_owners(described)
    positions = [
        GroupPosition(
            tp,
            offset,
            found_bounds.log_start,
            found_bounds.local_start,
            ends.get(tp),
            times.get((tp, begins[tp])),
            tp.topic in topics,
            found_bounds.last_stable,
            owners.get(tp),
        )
        for tp, offset in sorted(wanted.items())
        for found_bounds in (bounds.get(tp, UNKNOWN),)
    ]
    return GroupFacts(
        described.group,
        found.coordinator,
        described.state,
        described.progress,
        [_describe_member(described, each) for each in described.members],
        positions,
        request.context.clock.wall_ms(),
        hidden,
        await fetch_held(request, [each.tp for each in positions if each.is_held]),
    )


def _find_owners(described: DescribeGroupReply) -> dict[TopicPartition, GroupMember]:
    """Returns the member of each partition, by the assignments of a consumer group."""
    return {
        tp: _describe_member(described, each)
        for each in described.members
        if described.protocol_type == CONSUMER
        for tp in read_assignment(each.assignment)
    }


def _describe_member(described: DescribeGroupReply, each: DescribedMember) -> GroupMember:
    count = len(read_assignment(each.assignment)) if described.protocol_type == CONSUMER else None
    return GroupMember(each.member_id, each.client_id, each.client_host, count)


async def _fetch_bounds(request: HttpRequest, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LogBounds]:
    """Returns where logs begin and where read_committed consumers stop, with three requests to each leader. Partitions
    whose leader does not reply are missing."""
    context, found = request.context, dict[TopicPartition, LogBounds]()
    remote: dict[Leader, dict[TopicPartition, OffsetQuery]] = {}
    for tp in partitions:
        topic = context.broker.image.topics.get(tp.topic)
        replica = context.broker.hosted_replicas.find_leader(tp)
        if topic is None:
            continue
        if replica is not None and replica.topic_id == topic.topic_id:
            found[tp] = LogBounds(replica.log_start_offset, replica.local_start_offset, replica.last_stable_offset)
            continue
        try:
            leader = context.remote_brokers.leader(tp, TopicId(topic.topic_id))
        except Refused:
            continue
        query = OffsetQuery(TopicId(topic.topic_id), leader.epoch, EARLIEST)
        remote.setdefault(leader._replace(epoch=-1), {})[tp] = query

    async def ask(leader: Leader, queries: dict[TopicPartition, OffsetQuery]) -> None:
        local = {tp: each._replace(timestamp=EARLIEST_LOCAL) for tp, each in queries.items()}
        latest = {tp: each._replace(timestamp=LATEST) for tp, each in queries.items()}
        try:
            replies = await asyncio.gather(
                context.remote_brokers.list_offsets(leader, queries),
                context.remote_brokers.list_offsets(leader, local),
                context.remote_brokers.list_offsets(leader, latest, read_committed=True),
            )
        except (Refused, Unavailable):
            return
        for tp in queries:
            offsets = (reply.get(tp) for reply in replies)
            found[tp] = LogBounds(*(offset if isinstance(offset, int) else None for offset in offsets))

    await asyncio.gather(*(ask(*share) for share in remote.items()))
    return found


def _may_describe(request: HttpRequest, topic: str) -> bool:
    return request.may(Operation.DESCRIBE, ResourceType.TOPIC, topic)
