"""Groups, whichever broker coordinates them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tiered.errors import Code, Refused, Unavailable
from tiered.groups.requests import PartitionOffset, DescribeGroupReply, DescribedMember, DescribeGroup, FetchOffsetsReply, FetchOffsets
from tiered.ids import TopicId, TopicPartition
from tiered_api.http.consumers.coordinator_calls import MOVED, coordinator_of, patiently
from tiered_api.http.partitions.remote_brokers import Leader
from tiered_api.http.partitions.remote_partition import Away, source_of
from tiered_api.http.server.context import Site
from tiered_api.kafka.client.client import code_from_number
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

DESCRIBE, LIST, OFFSETS = 6, 5, 9
DESCRIBED_AT_ONCE = 100


class Group(NamedTuple):
    """A group and the broker that coordinates it."""

    broker: int
    described: DescribeGroupReply


async def describe(site: Site, group: str) -> Group:
    """With code GROUP_ID_NOT_FOUND when there is none. `Refused` when its coordinator was not found in time."""

    async def ask() -> Group:
        broker = await coordinator_of(site, group)
        if broker == site.node.settings.node_id:
            return Group(broker, await site.node.coordinators.ask(group, DescribeGroup(group)))
        [found] = await _describe(site, broker, [group])
        if found.described.code in STALE_COORDINATOR_CODES:
            raise Refused(found.described.code, f"broker {broker} does not coordinate group {group[:249]!r}")
        return found

    return await patiently(site, ask, MOVED)


async def offsets(site: Site, group: str) -> Sequence[PartitionOffset]:
    """All that a group has committed."""

    async def ask() -> Sequence[PartitionOffset]:
        broker = await coordinator_of(site, group)
        if broker != site.node.settings.node_id:
            return await _offsets(site, broker, group)
        fetched: FetchOffsetsReply = await site.node.coordinators.ask(group, FetchOffsets(group, None))
        return fetched.offsets

    return await patiently(site, ask, MOVED)


async def everyone(site: Site) -> list[Group]:
    """All groups of all brokers that live, by name, without their members. `Refused` when one of these does not say
    which it has."""
    brokers = sorted(each.node_id for each in site.node.image.brokers.values() if each.live)
    lists = await asyncio.gather(*(patiently(site, partial(_all_of, site, broker)) for broker in brokers))
    found = {group.described.group: group for groups in lists for group in groups if group.described.code is Code.NONE}
    return [found[name] for name in sorted(found)]


async def _all_of(site: Site, broker: int) -> list[Group]:
    node = site.node
    if broker == node.settings.node_id:
        told: list[Group] = []
        for number, name in enumerate([each.group for each in await node.coordinators.list()], 1):
            described = await node.coordinators.ask(name, DescribeGroup(name))
            told.append(Group(broker, replace(described, members=())))
            if number % DESCRIBED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return told
    got = await _ask_list(site, broker)
    names = [each.group_id for each in got.groups]
    found: list[Group] = []
    for start in range(0, len(names), DESCRIBED_AT_ONCE):
        some = await _describe(site, broker, names[start : start + DESCRIBED_AT_ONCE])
        found += [Group(broker, replace(each.described, members=())) for each in some]
    return found


async def _ask_list(site: Site, broker: int) -> ListGroupsResponse:
    try:
        got = await site.elsewhere.ask(broker, ListGroupsRequest(), ListGroupsResponse, LIST)
    except Unavailable as fault:
        raise _silent(broker, fault) from None
    if got.error_code:
        raise Refused(code_from_number(got.error_code), f"broker {broker} does not tell its groups")
    return got


async def _describe(site: Site, broker: int, names: Sequence[str]) -> list[Group]:
    request = DescribeGroupsRequest(list(names))
    try:
        got = await site.elsewhere.ask(broker, request, DescribeGroupsResponse, DESCRIBE)
    except Unavailable as fault:
        raise _silent(broker, fault) from None
    return [Group(broker, _described(each)) for each in got.groups]


def _described(group: DescribedGroup) -> DescribeGroupReply:
    members = tuple(
        DescribedMember(
            each.member_id, each.group_instance_id, each.client_id, each.client_host,
            bytes(each.member_metadata), bytes(each.member_assignment),
        )
        for each in group.members
    )  # fmt: skip
    code = code_from_number(group.error_code)
    return DescribeGroupReply(code, group.group_id, group.group_state, group.protocol_type, group.protocol_data, members)


async def _offsets(site: Site, broker: int, group: str) -> Sequence[PartitionOffset]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
    try:
        got = await site.elsewhere.ask(broker, request, OffsetFetchResponse, OFFSETS)
    except Unavailable as fault:
        raise _silent(broker, fault) from None
    code = code_from_number(got.groups[0].error_code)
    if code is not Code.NONE:
        raise Refused(code, f"broker {broker} does not tell the offsets of group {group[:249]!r}: {code.name}")
    return [
        PartitionOffset(topic.name, row.partition_index, row.committed_offset, row.committed_leader_epoch, row.metadata or "")
        for topic in got.groups[0].topics
        for row in topic.partitions
    ]


def _silent(broker: int, fault: Unavailable) -> Refused:
    return Refused(Code.COORDINATOR_NOT_AVAILABLE, f"broker {broker} does not answer: {fault}")


# -- where partitions end ---------------------------------------------------------------------------------------------


async def ends(site: Site, partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, int]:
    """The high watermarks of those that are there and led; one question to each broker."""
    found: dict[TopicPartition, int] = {}
    away: dict[int, dict[TopicPartition, Leader]] = {}
    for topic, partition in partitions:
        at, image = TopicPartition(topic, partition), site.node.image.topics.get(topic)
        if image is None:
            continue
        try:
            source = source_of(site, at, TopicId(image.topic_id))
            if isinstance(source, Away):
                leader = source.leader()
                away.setdefault(leader.node_id, {})[at] = leader
            else:
                found[at] = source.high_watermark
        except Refused:
            continue
    for each in await asyncio.gather(*(_ends(site, share) for share in away.values())):
        found.update(each)
    return found


async def _ends(site: Site, share: dict[TopicPartition, Leader]) -> dict[TopicPartition, int]:
    """Of partitions that one broker leads. What it does not lead any more is asked once more, by itself."""
    [leader, *_] = share.values()
    wanted = {at: (each.epoch, LATEST) for at, each in share.items()}
    try:
        got = await site.elsewhere.offsets(leader, wanted)
    except (Refused, Unavailable):
        got = {}
    found: dict[TopicPartition, int] = {}
    for at in share:
        end = got.get(at)
        if isinstance(end, int):
            found[at] = end
            continue
        image = site.node.image.topics.get(at.topic)
        try:
            if image is not None:
                found[at] = (await Away(site, at, image.topic_id).bounds())[1]
        except Refused:
            continue
    return found
