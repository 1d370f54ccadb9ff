"""The state of one partition in plain words, as `explain` of the command line and of HTTP shows it."""

from __future__ import annotations

from typing import Any, NamedTuple

from tiered.broker.stored_segments import (
    LeaderFacts,
    StoredSegment,
    TimeMark,
    list_cold_segments,
    list_stored_segments,
    mark_times,
)
from tiered.cold.manifest import SegmentEntry
from tiered.cold.manifest_store import ManifestStore
from tiered.compaction.cleanable_range import CleanableRange
from tiered.hot.checkpoints import CompactionState
from tiered.ids import PartitionId
from tiered.replication.leader_replica import LeaderReplica


def explain(replica: LeaderReplica) -> dict[str, Any]:
    """Describes where the records are, and what keeps them from moving to the bucket."""
    log, state = replica.log, replica.state
    return {
        "topic": replica.topic,
        "topic_id": replica.topic_id,
        "partition": replica.partition,
        "leader": state.node_id,
        "leader_epoch": state.leader_epoch,
        "isr": sorted(state.isr),
        "log_start_offset": replica.log_start_offset,
        "local_start_offset": replica.local_start_offset,
        "cold_end_offset": replica.cold_end_offset,
        "last_stable_offset": replica.last_stable_offset,
        "high_watermark": replica.high_watermark,
        "log_end_offset": log.end_offset,
        "flushed_offset": log.flushed_offset,
        "local_bytes": replica.log.segments.size_bytes,
        "cold_bytes": replica.unified_log.cold_bytes,
        "local_segments": replica.log.segments.count,
        "cold_segments": replica.unified_log.cold_segments,
        "waiting_segments": replica.unified_log.waiting_segments,
        "upload_problem": replica.upload_problem or None,
        "possible_loss": replica.possible_loss,
        "compaction": _explain_compaction(replica),
    }


class CompactionFacts(NamedTuple):
    """The last clean of a leader's log, on disk or in the bucket, and what the next one may read."""

    is_in_bucket: bool
    last: CompactionState
    found: CleanableRange


def describe_compaction(replica: LeaderReplica) -> CompactionFacts | None:
    """Returns None if compaction neither cleans the log nor once did."""
    log, manifest = replica.log, replica.manifest
    if not log.compaction.may_have_gaps:
        return None
    if not replica.config.copies_to_bucket:
        found = log.compaction.find_cleanable(log.start_offset, replica.high_watermark)
        return CompactionFacts(False, log.compaction.state or CompactionState(), found)
    last = CompactionState()
    if manifest is not None:
        last = CompactionState(
            manifest.clean_to, manifest.cleaned_ms, manifest.clean_bytes_before, manifest.clean_bytes_after
        )
    return CompactionFacts(True, last, replica.cleanable_in_bucket or CleanableRange(0, 0, 0, 0, 0))


def find_cleaned_to(replica: LeaderReplica) -> int | None:
    """Returns the offset below which compaction has cleaned the log; None if compaction has never cleaned it."""
    facts = replica.log.compaction
    if not facts.may_have_gaps:
        return None
    if replica.config.copies_to_bucket:
        cleaned_to = -1 if replica.manifest is None else replica.manifest.clean_to
    else:
        cleaned_to = -1 if facts.state is None else facts.state.clean_to
    return cleaned_to if cleaned_to > 0 else None


def _explain_compaction(replica: LeaderReplica) -> dict[str, Any] | None:
    facts = describe_compaction(replica)
    if facts is None:
        return None
    return {
        "where": "bucket" if facts.is_in_bucket else "disk",
        **facts.last._asdict(),
        "clean_bytes": facts.found.clean_bytes,
        "dirty_bytes": facts.found.dirty_bytes,
        "dirty_ratio": round(facts.found.dirty_ratio, 4),
        "overdue_ms": facts.found.overdue_ms,
    }


async def describe_segments(
    replica: LeaderReplica, start: int, most: int, *, now_ms: int, upload_max_lag_ms: int
) -> list[StoredSegment]:
    """Returns at most `most` segments of both tiers that end above `start`, oldest first. Raises `Unavailable` and
    `Corrupt` if old parts of the manifest cannot be read."""
    start, manifest = max(start, replica.log_start_offset), replica.manifest
    cold: list[SegmentEntry] = []
    if manifest is not None:
        async for entry in replica.cold.manifests.list_segments(manifest, start):
            cold.append(entry)
            if len(cold) == most:
                break
    segments, clean = replica.log.segments, replica.log.compaction.state
    clean_to = manifest.clean_to if manifest is not None else -1
    if not replica.config.copies_to_bucket and clean is not None:
        clean_to = clean.clean_to
    facts = LeaderFacts(
        replica.config,
        start,
        manifest.cold_end_offset if manifest is not None else 0,
        replica.last_stable_offset,
        replica.high_watermark,
        clean_to,
        segments.size_bytes - segments.active.size,
        replica.upload_problem,
        upload_max_lag_ms,
        now_ms,
    )
    return list_stored_segments(cold, segments.closed(start, most + 1), segments.active, facts, most)


class ColdSegments(NamedTuple):
    """Segments in the bucket, and the offset behind the last one of the partition there."""

    segments: list[StoredSegment]
    end_offset: int


async def describe_cold_segments(
    manifests: ManifestStore, partition_id: PartitionId, start: int, most: int
) -> ColdSegments:
    """Returns at most `most` segments that the bucket has and that end above `start`, oldest first, by the manifest in
    the bucket. Raises `Unavailable` and `Corrupt` if it cannot be read."""
    manifest = await manifests.load(partition_id)
    cold: list[SegmentEntry] = []
    if manifest is None:
        return ColdSegments([], 0)
    async for entry in manifests.list_segments(manifest, start):
        cold.append(entry)
        if len(cold) == most:
            break
    return ColdSegments(list_cold_segments(cold), manifest.cold_end_offset)


def describe_times(replica: LeaderReplica, most: int, now_ms: int) -> list[TimeMark]:
    """Returns how old the records of a partition are, by offset: at most `most` marks. Reads nothing."""
    segments, manifest = replica.log.segments, replica.manifest
    nodes = manifest.nodes if manifest is not None else ()
    return mark_times(nodes, segments.closed(replica.cold_end_offset), segments.active, now_ms, most)
