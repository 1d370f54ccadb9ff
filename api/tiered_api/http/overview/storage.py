"""Tells where the records of a topic are: on the disks of the leaders, in the bucket, or in both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from aiohttp import web

from tiered.errors import Refused, Unavailable
from tiered.ids import TopicId, TopicPartition
from tiered.metadata.effective_config import topic_config
from tiered.metadata.parts.topics import PartitionImage, TopicImage
from tiered.metadata.topic_names import INTERNAL
from tiered.replication.leader_replica import LeaderReplica
from tiered.system.turns import each_of
from tiered_api.http.exchange.remote_brokers import Leader, OffsetQuery
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.partitions.produce import find_topic
from tiered_api.kafka.client.leader_routing import EARLIEST, EARLIEST_LOCAL, LATEST, LATEST_TIERED, cap_last_stable
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tiered_api.kafka.server.context.replica_storage import MARKS_MAX, describe_replica

DESCRIBE_LOG_DIRS = 4
"""The version of the request."""
MARKS_OF_PARTITION = 64
LOOKUPS = {
    "log_start_offset": (EARLIEST, False),
    "local_start_offset": (EARLIEST_LOCAL, False),
    "last_tiered_offset": (LATEST_TIERED, False),
    "last_stable_offset": (LATEST, True),
    "high_watermark": (LATEST, False),
}
"""The timestamp of each offset, and True for a look-up by a committed reader."""

Tiers = dict[str, Any]
"""Offsets and bytes of a partition by its leader, None where it has none, or `error`."""


async def get_topic_storage(request: HttpRequest) -> web.StreamResponse:
    """Returns for each partition of a topic which offsets are on its leader's disk and in the bucket, with their
    bytes."""
    topic = find_topic(request.context, request.args["topic"])
    marks = request.query_integer("marks", 0, 0, MARKS_OF_PARTITION)
    marks = min(marks, MARKS_MAX // max(1, len(topic.partitions)))
    found = await fetch_tiers(request, topic, marks)
    rows = [_row(number, part, found[number]) for number, part in enumerate(topic.partitions)]
    defaults = request.context.broker.settings.topic_defaults()
    return json_response(
        {
            "topic": topic.name,
            "topic_id": str(topic.topic_id),
            "is_internal": topic.name in INTERNAL,
            "cleanup_policy": list(topic_config(topic, defaults).cleanup_policy),
            "partitions": rows,
        }
    )


async def fetch_tiers(request: HttpRequest, topic: TopicImage, marks: int = 0) -> dict[int, Tiers]:
    """Returns the tiers of each partition of a topic, by their leaders, with `marks` of time."""
    found: dict[int, Tiers] = {}
    remote: dict[Leader, dict[TopicPartition, OffsetQuery]] = {}
    async for number in each_of(range(len(topic.partitions))):
        tp = TopicPartition(topic.name, number)
        here = request.context.broker.hosted_replicas.find_leader(tp)
        if here is not None and here.topic_id == topic.topic_id:
            found[number] = _describe_replica(request, here, marks)
            continue
        try:
            leader = request.context.remote_brokers.leader(tp, TopicId(topic.topic_id))
        except Refused as refused:
            found[number] = {"error": refused.why}
            continue
        query = OffsetQuery(TopicId(topic.topic_id), leader.epoch, EARLIEST)
        remote.setdefault(leader._replace(epoch=-1), {})[tp] = query
    for each in await asyncio.gather(
        *(_ask_leader(request, leader, queries, marks) for leader, queries in remote.items())
    ):
        found.update(each)
    return found


def _describe_replica(request: HttpRequest, replica: LeaderReplica, marks: int) -> Tiers:
    place = describe_replica(request.context.broker, replica, marks)
    knows_end = replica.high_watermark >= replica.epoch_start  # as a look-up of offsets (KIP-207)
    return _describe_place(place) | {
        "log_start_offset": replica.log_start_offset,
        "local_start_offset": replica.local_start_offset,
        "cold_end_offset": replica.cold_end_offset or None,
        "last_stable_offset": replica.last_stable_offset if knows_end else None,
        "high_watermark": replica.high_watermark if knows_end else None,
        "local_bytes": replica.log.segments.size_bytes,
        "cold_bytes": replica.unified_log.cold_bytes,
    }


def _row(number: int, part: PartitionImage, tiers: Tiers) -> dict[str, Any]:
    return {
        "partition": number,
        "leader": part.leader,
        "leader_epoch": part.leader_epoch,
        "replicas": list(part.replicas),
        "isr": list(part.isr),
        **tiers,
    }


async def _ask_leader(
    request: HttpRequest, leader: Leader, queries: dict[TopicPartition, OffsetQuery], marks: int
) -> dict[int, Tiers]:
    """Returns the tiers of the partitions that one other broker leads."""
    try:
        offsets, places = await asyncio.gather(
            asyncio.gather(*(_list_offsets(request, leader, queries, *each) for each in LOOKUPS.values())),
            _fetch_places(request, leader, queries, marks),
        )
    except (Refused, Unavailable) as fault:
        return {tp.partition: {"error": f"broker {leader.node_id} does not say: {fault}"} for tp in queries}
    found: dict[int, Tiers] = {}
    for tp in queries:
        tiers: Tiers = {name: each.get(tp) for name, each in zip(LOOKUPS, offsets, strict=True)}
        tiers["last_stable_offset"] = cap_last_stable(tiers["last_stable_offset"], tiers["high_watermark"])
        last_tiered = tiers.pop("last_tiered_offset")
        tiers["cold_end_offset"] = None if last_tiered is None else last_tiered + 1
        place = places.get(tp)
        tiers["local_bytes"], tiers["cold_bytes"] = (place.partition_size, place.remote_size) if place else (None, None)
        found[tp.partition] = tiers | (_describe_place(place) if place else {})
    return found


async def _list_offsets(
    request: HttpRequest,
    leader: Leader,
    queries: dict[TopicPartition, OffsetQuery],
    timestamp: int,
    read_committed: bool,
) -> dict[TopicPartition, int]:
    wanted = {tp: query._replace(timestamp=timestamp) for tp, query in queries.items()}
    got = await request.context.remote_brokers.list_offsets(leader, wanted, read_committed, request.caller)
    return {tp: offset for tp, offset in got.items() if isinstance(offset, int) and offset >= 0}


async def _fetch_places(
    request: HttpRequest, leader: Leader, partitions: Iterable[TopicPartition], marks: int
) -> dict[TopicPartition, DescribeLogDirsPartition]:
    """Returns the bytes of each partition on disk and in the bucket, and its marks of time. This broker asks for
    itself: it has checked that the caller may describe the topic, and the request needs a right on the cluster."""
    named: dict[str, DescribableLogDirTopic] = {}
    for tp in partitions:
        named.setdefault(tp.topic, DescribableLogDirTopic(tp.topic)).partitions.append(tp.partition)
    ask = DescribeLogDirsRequest(list(named.values()), marks_max=marks)
    got = await request.context.remote_brokers.send_request(
        leader.node_id, ask, DescribeLogDirsResponse, DESCRIBE_LOG_DIRS
    )
    return {
        TopicPartition(topic.name, each.partition_index): each
        for directory in got.results
        for topic in directory.topics
        for each in topic.partitions
    }


def _describe_place(place: DescribeLogDirsPartition) -> Tiers:
    """Returns what the leader alone knows: how far the log is cleaned, and marks of time if they were asked for."""
    found: Tiers = {"cleaned_to_offset": place.cleaned_to if place.cleaned_to > 0 else None}
    if place.time_marks is not None:
        found["time_marks"] = [[each.offset, each.ms] for each in place.time_marks]
    return found
