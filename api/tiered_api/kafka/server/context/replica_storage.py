"""The sizes, offsets and segments that this broker has of a partition, for DescribeLogDirs and for HTTP."""

from __future__ import annotations

import asyncio

from tiered.broker.broker import Broker
from tiered.broker.partition_report import describe_segments, describe_times
from tiered.errors import Corrupt, Unavailable
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    ReportedSegment,
    ReportedTimeMark,
)

SEGMENTS_MAX = 1_000
"""Most segments in a reply."""
MARKS_MAX = 20_000
"""Most marks of time in a reply."""
BUCKET_SECONDS = 3.0
"""Longest wait for the bucket, which has the older part of a list of segments."""


def describe_replica(
    broker: Broker, held: LeaderReplica | FollowerReplica, marks_max: int = 0
) -> DescribeLogDirsPartition:
    """Returns the sizes of a partition on this disk and, if this broker leads it, in the bucket and at most `marks_max`
    marks of time."""
    place = DescribeLogDirsPartition(held.tp.partition, held.log.segments.size_bytes)
    if isinstance(held, LeaderReplica):
        place.remote_size = held.unified_log.cold_bytes
        if marks_max > 0:
            marks = describe_times(held, marks_max, broker.world.clock.wall_ms())
            place.time_marks = [ReportedTimeMark(*each) for each in marks]
    else:
        place.offset_lag = held.lag
    return place


async def describe_with_segments(
    broker: Broker, held: LeaderReplica | FollowerReplica, start: int, most: int
) -> DescribeLogDirsPartition:
    """Returns what `describe_replica` does, with the offsets on this disk and, if this broker leads the partition, at
    most `most` segments of both tiers that end above `start`."""
    place = describe_replica(broker, held)
    place.local_start, place.log_end = held.log.local_start_offset, held.log.end_offset
    if isinstance(held, LeaderReplica) and most > 0:
        try:
            async with asyncio.timeout(BUCKET_SECONDS):
                found = await describe_segments(
                    held,
                    start,
                    min(most, SEGMENTS_MAX),
                    now_ms=broker.world.clock.wall_ms(),
                    upload_max_lag_ms=broker.settings.tiered_upload_max_lag_ms,
                )
        except (Unavailable, Corrupt) as error:
            place.segments_problem = f"the older part of the manifest cannot be read: {error}"
        except TimeoutError:
            place.segments_problem = f"the bucket did not reply within {BUCKET_SECONDS:g} s"
        else:
            place.segments = [ReportedSegment(*each) for each in found]
    return place
