"""The segments of a partition in both tiers: which broker has them, which object, and why they are still on a disk."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from tiered.broker.partition_report import describe_cold_segments
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.ids import PartitionId, TopicPartition
from tiered.metadata.parts.topics import TopicImage
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.http.exchange.errors import PARTITION_NOT_FOUND, HttpError
from tiered_api.http.exchange.request import HttpRequest
from tiered_api.http.exchange.responses import json_response
from tiered_api.http.overview.storage import DESCRIBE_LOG_DIRS
from tiered_api.http.partitions.produce import find_topic
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ReportedSegment,
)
from tiered_api.kafka.server.context.replica_storage import (
    BUCKET_SECONDS,
    SEGMENTS_MAX,
    describe_leader,
    describe_with_segments,
)

PAGE = 200
"""Segments of a reply, unless the request says how many."""


async def get_partition_segments(request: HttpRequest) -> web.StreamResponse:
    """Lists the segments of a partition, oldest first: offsets, bytes, the brokers and the object that have each."""
    topic, number = find_topic(request.context, request.args["topic"]), request.path_number("partition")
    if number >= len(topic.partitions):
        raise HttpError(PARTITION_NOT_FOUND, f"topic {topic.name!r} has no partition {number}")
    start = request.query_integer("from", 0, 0, (1 << 63) - 1)
    most = request.query_integer("limit", PAGE, 1, SEGMENTS_MAX)
    part = topic.partitions[number]
    asked = await asyncio.gather(
        *(ask_broker(request, topic, number, node, start, most if node == part.leader else 0) for node in part.replicas)
    )
    places = dict(zip(part.replicas, asked, strict=True))
    leader = places.get(part.leader, "no broker leads the partition now")
    if isinstance(leader, str):
        segments, end, problem = await _ask_bucket(request, PartitionId(topic.topic_id, number), start, most, leader)
    else:
        segments, end, problem = leader.segments or [], leader.log_end, leader.segments_problem
    more = segments and segments[-1].end_offset < end
    return json_response(
        {
            "topic": topic.name,
            "topic_id": str(topic.topic_id),
            "partition": number,
            "leader": part.leader,
            "brokers": [_describe_broker(node, place) for node, place in places.items()],
            "segments": [_row(each, places) for each in segments],
            "next_from": segments[-1].end_offset if more else None,
            "error": problem or None,
        }
    )


async def _ask_bucket(
    request: HttpRequest, partition_id: PartitionId, start: int, most: int, why: str
) -> tuple[list[ReportedSegment], int, str]:
    """Returns the segments that the bucket has, the offset behind them, and the sentence that no others are known,
    because of `why`."""
    try:
        async with asyncio.timeout(BUCKET_SECONDS):
            found = await describe_cold_segments(request.context.broker.cold_tier.manifests, partition_id, start, most)
    except (Unavailable, Corrupt, TimeoutError) as error:
        return [], 0, f"{why}, and the manifest in the bucket cannot be read: {error or 'it takes too long'}"
    segments = [ReportedSegment(*each) for each in found.segments]
    return segments, found.end_offset, f"{why}: these are the segments in the bucket alone, to {found.end_offset}"


def _describe_broker(node: int, place: DescribeLogDirsPartition | str) -> dict[str, Any]:
    if isinstance(place, str):
        return {"node_id": node, "error": place}
    return {
        "node_id": node,
        "local_start_offset": place.local_start,
        "log_end_offset": place.log_end,
        "local_bytes": place.partition_size,
    }


def _row(segment: ReportedSegment, places: dict[int, DescribeLogDirsPartition | str]) -> dict[str, Any]:
    has_disk = [
        node
        for node, place in sorted(places.items())
        if not isinstance(place, str) and place.local_start < segment.end_offset and place.log_end > segment.base_offset
    ]
    return {
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.log_bytes,
        "newest_timestamp": segment.newest_ms if segment.newest_ms >= 0 else None,
        "created_ms": segment.created_ms if segment.created_ms >= 0 else None,
        "on_brokers": has_disk,
        "why_local": segment.why_local or None,
        "why_code": segment.why_code or None,
        "object": {"key": segment.key, "uploaded_ms": segment.uploaded_ms} if segment.key else None,
        "cleaned": segment.is_cleaned,
    }


async def ask_broker(
    request: HttpRequest, topic: TopicImage, number: int, node: int, start: int, most: int, *, with_leader: bool = False
) -> DescribeLogDirsPartition | str:
    """Returns what the disk of a broker has of the partition, or why that is not known; `with_leader`, with the state
    of the leader if that broker leads. This broker asks for itself: it has checked that the caller may describe the
    topic, and the request needs a right on the cluster."""
    broker, tp = request.context.broker, TopicPartition(topic.name, number)
    if node == broker.settings.node_id:
        held = broker.hosted_replicas.find_leader(tp) or broker.hosted_replicas.find_follower(tp)
        if held is None or held.topic_id != topic.topic_id:
            return f"broker {node} does not have the partition open"
        place = await describe_with_segments(broker, held, start, most)
        if with_leader and isinstance(held, LeaderReplica):
            place.leader = [describe_leader(broker, held)]
        return place
    named = [DescribableLogDirTopic(topic.name, [number])]
    ask = DescribeLogDirsRequest(named, start, most, include_leader=with_leader)
    try:
        got = await request.context.remote_brokers.send_request(
            node, ask, DescribeLogDirsResponse, DESCRIBE_LOG_DIRS, BUCKET_SECONDS
        )
    except (Refused, Unavailable) as fault:
        return f"broker {node} does not reply: {fault}"
    found = [each for directory in got.results for named in directory.topics for each in named.partitions]
    return found[0] if found else f"broker {node} does not have the partition open"
