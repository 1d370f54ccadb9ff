"""DescribeLogDirs (API key 35): the data directory, and the size of each partition in it.

Null means all partitions, followed ones included. A partition that is not on this broker is left out. v4+ has the size
of the disk (KIP-827). Sizes are those of local files. For partitions that this broker leads, a tagged field of our own
(v2+), which Kafka's clients skip, has the size in the bucket. If the request asks for segments, others have the offsets
on this disk and the segments of both tiers; if it asks for marks, how old the records are by offset; if it asks for
leaders, what holds the offsets of a partition that this broker leads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tiered.errors import Code
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext
from tiered_api.kafka.server.context.replica_storage import (
    MARKS_MAX,
    SEGMENTS_MAX,
    describe_leader,
    describe_replica,
    describe_with_segments,
)


async def handle(context: KafkaContext, call: Call[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    """Returns one directory."""
    broker, requested = context.broker, call.request.topics
    wanted: Iterable[LeaderReplica | FollowerReplica] = broker.hosted_replicas.list_replicas()
    if requested is not None:
        named = {(topic.topic, number) for topic in requested for number in topic.partitions}
        wanted = (each for each in wanted if each.tp in named)
    topics: dict[str, DescribeLogDirsTopic] = {}
    left, marks_left = SEGMENTS_MAX, MARKS_MAX
    async for held in context.turns.each_of(wanted):
        if call.request.segments_from < 0:
            marks_max = min(call.request.marks_max, marks_left)
            place = describe_replica(broker, held, marks_max)
            marks_left -= len(place.time_marks or ())
        else:
            most = min(call.request.segments_max, left)
            place = await describe_with_segments(broker, held, call.request.segments_from, most)
            left -= len(place.segments or ())
        if call.request.include_leader and isinstance(held, LeaderReplica):
            place.leader = [describe_leader(broker, held)]
        topics.setdefault(held.tp.topic, DescribeLogDirsTopic(held.tp.topic)).partitions.append(place)
    space = broker.world.disk.space()
    failed = Code.KAFKA_STORAGE_ERROR if broker.disk.dead is not None else Code.NONE
    directory = DescribeLogDirsResult(
        failed.number, os.path.abspath(broker.settings.data_dir), list(topics.values()), space.total, space.free
    )
    return DescribeLogDirsResponse(results=[directory])
