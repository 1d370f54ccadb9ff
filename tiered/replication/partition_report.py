"""The state of one partition in plain words, as `explain` of the command line and of HTTP shows it."""

from __future__ import annotations

from typing import Any

from tiered.hot.checkpoints import CompactionState
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
        "local_bytes": replica.log.size_bytes,
        "cold_bytes": replica.unified_log.cold_bytes,
        "local_segments": replica.log.segment_count,
        "cold_segments": replica.unified_log.cold_segments,
        "waiting_segments": replica.unified_log.waiting_segments,
        "upload_problem": replica.upload_problem or None,
        "possible_loss": replica.possible_loss,
        "compaction": _explain_compaction(replica),
    }


def _explain_compaction(replica: LeaderReplica) -> dict[str, Any] | None:
    """Describes the last clean of the leader's log, and what the next one may read; None if compaction neither cleans
    the log nor once did."""
    log = replica.log
    if not log.may_have_gaps:
        return None
    last, found = log.compaction or CompactionState(), log.find_cleanable(replica.high_watermark)
    return {
        **last._asdict(),
        "clean_bytes": found.clean_bytes,
        "dirty_bytes": found.dirty_bytes,
        "dirty_ratio": round(found.dirty_ratio, 4),
        "overdue_ms": found.overdue_ms,
    }
