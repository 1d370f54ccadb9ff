"""Consumer groups of any coordinator: descriptions, committed offsets and end offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tiered.errors import Code, Refused, Unavailable
from tiered.groups.requests import (
    DescribedMember,
    DescribeGroup,
    DescribeGroupReply,
    FetchOffsets,
    FetchOffsetsReply,
    GroupProgress,
    PartitionOffset,
)
from tiered.ids import TopicId, TopicPartition
from tiered.system.turns import each_of
from tiered_api.http.consumers.coordinator_calls import MOVED_CODES, find_coordinator, retry_while_loading
from tiered_api.http.exchange.context import HttpContext
from tiered_api.http.exchange.remote_brokers import Leader, OffsetQuery
from tiered_api.http.partitions.remote_partition import RemotePartition, open_partition
from tiered_api.kafka.client.client import code_from_number
from tiered_api.kafka.client.error_sentences import explain_error
from tiered_api.kafka.client.leader_routing import LATEST, STALE_COORDINATOR_CODES
from tiered_api.kafka.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from tiered_api.kafka.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from tiered_api.kafka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)

DESCRIBE_VERSION, LIST_VERSION, OFFSETS_VERSION = 6, 5, 9
DESCRIBE_BATCH = 100


class GroupDescription(NamedTuple):
    """A group and the broker that coordinates it."""

    coordinator: int
    description: DescribeGroupReply


async def describe_group(context: HttpContext, group: str, *, with_progress: bool = False) -> GroupDescription:
    """Describes a group; the code is GROUP_ID_NOT_FOUND if there is none. Raises `Refused` if no coordinator is found
    in time."""

    async def describe() -> GroupDescription:
        broker = await find_coordinator(context, group)
        if broker == context.broker.settings.node_id:
            asked = DescribeGroup(group, with_progress=with_progress, with_consumer_groups=True)
            return GroupDescription(broker, await context.broker.group_coordinators.submit(group, asked))
        [found] = await _describe_groups(context, broker, [group], with_progress=with_progress)
        if found.description.code in STALE_COORDINATOR_CODES:
            raise Refused(found.description.code, f"broker {broker} does not coordinate group {group[:249]!r}")
        return found

    return await retry_while_loading(context, describe, MOVED_CODES)


async def fetch_committed_offsets(context: HttpContext, group: str) -> Sequence[PartitionOffset]:
    """Returns all offsets that a group has committed."""

    async def fetch() -> Sequence[PartitionOffset]:
        broker = await find_coordinator(context, group)
        if broker != context.broker.settings.node_id:
            return await _fetch_offsets(context, broker, group)
        fetched: FetchOffsetsReply = await context.broker.group_coordinators.submit(group, FetchOffsets(group, None))
        return fetched.offsets

    return await retry_while_loading(context, fetch, MOVED_CODES)


async def list_all_groups(context: HttpContext) -> list[GroupDescription]:
    """Returns all groups of all live brokers by name, without their members. Raises `Refused` if one of the brokers
    does not list its groups."""
    brokers = sorted(each.node_id for each in context.broker.image.brokers.values() if each.live)
    lists = await asyncio.gather(
        *(retry_while_loading(context, partial(_groups_of_broker, context, broker)) for broker in brokers)
    )
    found = {
        group.description.group: group for groups in lists for group in groups if group.description.code is Code.NONE
    }
    return [found[name] for name in sorted(found)]


async def _groups_of_broker(context: HttpContext, broker: int) -> list[GroupDescription]:
    this_broker = context.broker
    if broker == this_broker.settings.node_id:
        groups: list[GroupDescription] = []
        async for name in each_of([each.group for each in await this_broker.group_coordinators.list_groups()]):
            described = await this_broker.group_coordinators.submit(
                name, DescribeGroup(name, with_consumer_groups=True)
            )
            groups.append(GroupDescription(broker, replace(described, members=())))
        return groups
    got = await _list_groups(context, broker)
    names = [each.group_id for each in got.groups]
    found: list[GroupDescription] = []
    for start in range(0, len(names), DESCRIBE_BATCH):
        some = await _describe_groups(context, broker, names[start : start + DESCRIBE_BATCH])
        found += [GroupDescription(broker, replace(each.description, members=())) for each in some]
    return found


async def _list_groups(context: HttpContext, broker: int) -> ListGroupsResponse:
    try:
        got = await context.remote_brokers.send_request(broker, ListGroupsRequest(), ListGroupsResponse, LIST_VERSION)
    except Unavailable as fault:
        raise _unreachable(broker, fault) from None
    if got.error_code:
        raise Refused(code_from_number(got.error_code), f"broker {broker} does not list its groups")
    return got


async def _describe_groups(
    context: HttpContext, broker: int, names: Sequence[str], *, with_progress: bool = False
) -> list[GroupDescription]:
    request = DescribeGroupsRequest(list(names), include_progress=with_progress, include_consumer_groups=True)
    try:
        got = await context.remote_brokers.send_request(broker, request, DescribeGroupsResponse, DESCRIBE_VERSION)
    except Unavailable as fault:
        raise _unreachable(broker, fault) from None
    return [GroupDescription(broker, _to_description(each)) for each in got.groups]


def _to_description(group: DescribedGroup) -> DescribeGroupReply:
    members = tuple(
        DescribedMember(
            each.member_id, each.group_instance_id, each.client_id, each.client_host,
            bytes(each.member_metadata), bytes(each.member_assignment),
        )
        for each in group.members
    )  # fmt: skip
    code = code_from_number(group.error_code)
    progress = [
        GroupProgress(each.since_ms, each.reason, each.rebalance_timeout_ms, tuple(each.awaited), each.pending)
        for each in group.progress or ()
    ]
    return DescribeGroupReply(
        code,
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        members,
        progress[0] if progress else None,
        group.group_type or "classic",
    )


async def _fetch_offsets(context: HttpContext, broker: int, group: str) -> Sequence[PartitionOffset]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
    try:
        got = await context.remote_brokers.send_request(broker, request, OffsetFetchResponse, OFFSETS_VERSION)
    except Unavailable as fault:
        raise _unreachable(broker, fault) from None
    code = code_from_number(got.groups[0].error_code)
    if code is not Code.NONE:
        raise Refused(
            code, f"broker {broker} refuses to read the offsets of group {group[:249]!r}: {explain_error(code.number)}"
        )
    return [
        PartitionOffset(
            topic.name, row.partition_index, row.committed_offset, row.committed_leader_epoch, row.metadata or ""
        )
        for topic in got.groups[0].topics
        for row in topic.partitions
    ]


def _unreachable(broker: int, fault: Unavailable) -> Refused:
    return Refused(Code.COORDINATOR_NOT_AVAILABLE, f"broker {broker} does not reply: {fault}")


# -- ends of partitions -----------------------------------------------------------------------------------------------


async def fetch_end_offsets(context: HttpContext, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
    """Returns the high watermarks of the partitions that exist and have a leader, with one request to each broker."""
    found: dict[TopicPartition, int] = {}
    remote: dict[Leader, dict[TopicPartition, OffsetQuery]] = {}
    for topic, partition in partitions:
        tp, image = TopicPartition(topic, partition), context.broker.image.topics.get(topic)
        if image is None:
            continue
        try:
            source = open_partition(context, tp, TopicId(image.topic_id))
            if isinstance(source, RemotePartition):
                leader = source.leader()
                query = OffsetQuery(source.topic_id, leader.epoch, LATEST)
                remote.setdefault(leader._replace(epoch=-1), {})[tp] = query
            else:
                found[tp] = source.high_watermark
        except Refused:
            continue
    for each in await asyncio.gather(
        *(_fetch_broker_ends(context, leader, queries) for leader, queries in remote.items())
    ):
        found.update(each)
    return found


async def _fetch_broker_ends(
    context: HttpContext, leader: Leader, queries: Mapping[TopicPartition, OffsetQuery]
) -> dict[TopicPartition, int]:
    """Returns the ends of partitions that one broker leads. Looks for the new leader of a partition that the broker
    does not lead any more."""
    try:
        got = await context.remote_brokers.list_offsets(leader, queries)
    except (Refused, Unavailable):
        got = {}
    found: dict[TopicPartition, int] = {}
    for tp, query in queries.items():
        end = got.get(tp)
        if isinstance(end, int):
            found[tp] = end
            continue
        try:
            found[tp] = (await RemotePartition(context, tp, query.topic_id).fetch_bounds())[1]
        except Refused:
            continue
    return found
