"""DescribeLogDirs (API key 35): the data directory, and the size of each partition in it.

Null means all partitions, followed ones included. A partition that is not on this broker is left out. v4+ has the size
of the disk (KIP-827). Sizes are those of local files. For partitions that this broker leads, a tagged field of our own
(v2+), which Kafka's clients skip, has the size in the bucket.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from tiered.errors import Code
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tiered_api.kafka.server.context.context import Call, KafkaContext


async def handle(context: KafkaContext, call: Call[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    """Returns one directory."""
    broker, requested = context.broker, call.request.topics
    wanted: Iterable[LeaderReplica | FollowerReplica] = broker.hosted_replicas.list_replicas()
    if requested is not None:
        named = {(topic.topic, number) for topic in requested for number in topic.partitions}
        wanted = (each for each in wanted if each.tp in named)
    topics: dict[str, DescribeLogDirsTopic] = {}
    async for held in context.turns.each_of(wanted):
        place = DescribeLogDirsPartition(held.tp.partition, held.log.segments.size_bytes)
        if isinstance(held, LeaderReplica):
            place.remote_size = held.unified_log.cold_bytes
        else:
            place.offset_lag = held.lag
        topics.setdefault(held.tp.topic, DescribeLogDirsTopic(held.tp.topic)).partitions.append(place)
    space = broker.world.disk.space()
    failed = Code.KAFKA_STORAGE_ERROR if broker.disk.dead is not None else Code.NONE
    directory = DescribeLogDirsResult(
        failed.number, os.path.abspath(broker.settings.data_dir), list(topics.values()), space.total, space.free
    )
    return DescribeLogDirsResponse(results=[directory])
