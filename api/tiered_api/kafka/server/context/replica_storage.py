"""The sizes, offsets and segments that this broker has of a partition, for DescribeLogDirs and for HTTP."""

from __future__ import annotations

import asyncio

from tiered.broker.broker import Broker
from tiered.broker.health import describe_damage, describe_disk, describe_outage
from tiered.broker.partition_report import describe_segments, describe_times, find_cleaned_to
from tiered.errors import Corrupt, Unavailable
from tiered.replication.follower_replica import FollowerReplica
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.leader_state import NEVER_NS
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    ReportedFollower,
    ReportedLeader,
    ReportedSegment,
    ReportedTimeMark,
)

SEGMENTS_MAX = 1_000
"""Most segments in a reply."""
MARKS_MAX = 20_000
"""Most marks of time in a reply."""
DAMAGED_MAX = 5
"""Most damaged objects of a partition in a reply."""
BUCKET_SECONDS = 3.0
"""Longest wait for the bucket, which has the older part of a list of segments."""


def describe_replica(
    broker: Broker, held: LeaderReplica | FollowerReplica, marks_max: int = 0
) -> DescribeLogDirsPartition:
    """Returns the sizes of a partition on this disk and, if this broker leads it, in the bucket, the offset below which
    it is cleaned, and at most `marks_max` marks of time."""
    place = DescribeLogDirsPartition(held.tp.partition, held.log.segments.size_bytes)
    if isinstance(held, LeaderReplica):
        place.remote_size = held.unified_log.cold_bytes
        place.cleaned_to = find_cleaned_to(held) or -1
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


def describe_leader(broker: Broker, replica: LeaderReplica) -> ReportedLeader:
    """Returns the state of a leader that explains why its offsets do not move. The sum over all partitions is that of
    the broker's report on itself, which it keeps for a while if there are many."""
    state, clock, outage = replica.state, broker.world.clock, broker.store.outage
    held, since_ms = broker.late_transactions.find_holding(replica), replica.unified_log.upload_lag_since_ms
    now_ms, ahead_ms = clock.wall_ms(), clock.wall_ms() - clock.mono_ns() // 1_000_000

    def wall_ms(ns: int) -> int:
        return -1 if ns == NEVER_NS else ns // 1_000_000 + ahead_ms

    return ReportedLeader(
        leader_epoch=state.leader_epoch,
        log_start=replica.log_start_offset,
        cold_end=replica.cold_end_offset,
        last_stable=replica.last_stable_offset,
        high_watermark=replica.high_watermark,
        position=state.end,
        led_since_ms=wall_ms(state.began_ns),
        waiting_segments=replica.unified_log.waiting_segments,
        waiting_bytes=replica.unified_log.waiting_bytes,
        waiting_on_broker=broker.self_reports.read().health.details["waiting_segments"],
        upload_lag_ms=0 if since_ms is None else max(0, now_ms - since_ms),
        upload_problem=replica.upload_problem,
        outage=describe_outage(outage) if outage is not None else "",
        outage_why=outage.why if outage is not None else "",
        disk_problem="; ".join(said for said, _ in describe_disk(broker.disk)),
        damaged=[
            describe_damage(each, now_ms)
            for each in broker.cold_tier.reader.list_damaged()
            if each.partition_id == replica.partition_id
        ][:DAMAGED_MAX],
        producer_id=held.producer_id if held is not None else -1,
        transaction_start=held.first_offset if held is not None else -1,
        transaction_since_ms=held.since_ms if held is not None else -1,
        transactional_id=held.transactional_id if held is not None else "",
        followers=[
            ReportedFollower(each.node_id, each.offset, wall_ms(each.caught_up_ns), wall_ms(each.last_fetch_ns))
            for each in state.list_followers()
        ],
    )
