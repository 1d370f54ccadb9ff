"""The segments of a partition in both tiers, and why the leader's disk still has each of them.

Pure. Below the cold end a row is an object of the bucket, above it a segment of the leader's disk. So rows neither
overlap nor leave a gap, also where an earlier leader closed its segments at other offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tiered.cold.manifest import ManifestNode, SegmentEntry
from tiered.compaction.cleanable_range import is_compacted
from tiered.config.settings import TopicConfig
from tiered.hot.retention import SAME_AS_TOTAL, RetentionSegment, age_start_ms
from tiered.time_text import format_seconds

UPLOAD_GRACE_MS = 60_000
"""Longest time that a due upload may take before it is a problem."""


class LocalReason(NamedTuple):
    """The reason why the leader's disk has a segment: a word for programs, and a sentence that begins with "it" or with
    what keeps the segment there."""

    code: str
    text: str


NOT_LOCAL = LocalReason("", "")
OPEN = "open"
TIER_OFF, COPY_OFF = "tier-off", "copy-off"
NOT_COMMITTED, OPEN_TRANSACTION = "not-committed", "open-transaction"
UPLOAD_FAILS, UPLOAD_WAITS = "upload-fails", "upload-waits"
CLEANED, RETENTION_DUE, RETENTION_KEEPS, NO_LIMIT = "cleaned", "retention-due", "retention-keeps", "no-limit"
REASON_CODES = (
    OPEN, TIER_OFF, COPY_OFF, NOT_COMMITTED, OPEN_TRANSACTION, UPLOAD_FAILS, UPLOAD_WAITS, CLEANED, RETENTION_DUE,
    RETENTION_KEEPS, NO_LIMIT,
)  # fmt: skip


class StoredSegment(NamedTuple):
    """Offsets `[base_offset, end_offset)`. Times in ms, -1 if there is none. `why_local` is empty if the leader's disk
    does not have the segment, `key` if the bucket does not. `why_code` is the code of that reason."""

    base_offset: int
    end_offset: int
    log_bytes: int
    newest_ms: int
    created_ms: int
    """When the leader's disk got the first record; -1 if that disk does not have it."""
    why_local: str
    key: str = ""
    uploaded_ms: int = -1
    is_cleaned: bool = False
    why_code: str = ""


class LeaderFacts(NamedTuple):
    """The state of a leader that decides what its disk keeps."""

    config: TopicConfig
    start: int
    """Rows end above this offset."""
    cold_end_offset: int
    last_stable_offset: int
    high_watermark: int
    clean_to: int
    """The end of the last clean, in the bucket if the topic copies to it, else on the disk."""
    closed_bytes: int
    upload_problem: str
    upload_max_lag_ms: int
    now_ms: int


def list_stored_segments(
    cold: Sequence[SegmentEntry],
    closed: Sequence[RetentionSegment],
    active: RetentionSegment,
    facts: LeaderFacts,
    most: int,
) -> list[StoredSegment]:
    """Returns at most `most` rows. `cold` and `closed` begin at the same offset, and each has `most` entries at most,
    but for one closed segment more."""
    ended = [after.created_ms for _, after in pairwise((*closed, active))]
    reasons = [_explain_closed(*each, facts) for each in zip(closed, ended, strict=True)][:most]
    local = list(zip(closed[:most], reasons, strict=True))
    if len(closed) <= most and active.size and active.next_offset > facts.start:
        local.append((active, _explain_active(facts)))
    rows = [_describe_object(entry, local) for entry in cold]
    if len(cold) < most:
        rows += [_describe_local(each, why, facts) for each, why in local if each.next_offset > facts.cold_end_offset]
    if len(closed) > most:  # above the last of them, nothing is known of the disk
        rows = [row for row in rows if row.base_offset < local[-1][0].next_offset]
    return rows[:most]


def list_cold_segments(cold: Sequence[SegmentEntry]) -> list[StoredSegment]:
    """Returns a row for each object. Nothing is known of a disk: no leader replies."""
    return [_describe_object(entry, ()) for entry in cold]


class TimeMark(NamedTuple):
    """The records below `offset` have timestamps of at most `ms`, as far as the segments say."""

    offset: int
    ms: int


def mark_times(
    nodes: Sequence[ManifestNode],
    closed: Sequence[RetentionSegment],
    active: RetentionSegment,
    now_ms: int,
    most: int,
) -> list[TimeMark]:
    """Returns at most `most` marks, in order of offsets and of times, from the log start to the log end. `closed` are
    the segments of the disk above those of the bucket. Times of the future count as now."""
    found: list[TimeMark] = []
    if nodes and isinstance(nodes[0], SegmentEntry):
        found.append(TimeMark(nodes[0].base_offset, nodes[0].base_timestamp))
    for node in nodes:
        found.append(
            TimeMark(node.next_offset, node.newest_ms if isinstance(node, SegmentEntry) else node.max_timestamp)
        )
    local = [each for each in (*closed, active) if each.size]
    if local and not nodes:
        found.append(TimeMark(local[0].base_offset, local[0].created_ms))
    found += [TimeMark(each.next_offset, each.max_timestamp) for each in local]
    marks, latest = list[TimeMark](), 0
    for offset, ms in found:
        if ms >= 0 and (not marks or offset > marks[-1].offset):
            latest = max(latest, min(ms, now_ms))
            marks.append(TimeMark(offset, latest))
    if len(marks) <= most:
        return marks
    return [marks[number * (len(marks) - 1) // (most - 1)] for number in range(most)] if most > 1 else marks[-1:]


def _describe_object(entry: SegmentEntry, local: Sequence[tuple[RetentionSegment, LocalReason]]) -> StoredSegment:
    created_ms, why = next(
        (
            (each.created_ms, why)
            for each, why in local
            if each.base_offset < entry.next_offset and each.next_offset > entry.base_offset
        ),
        (-1, NOT_LOCAL),
    )
    return StoredSegment(
        entry.base_offset,
        entry.next_offset,
        entry.log_bytes,
        entry.newest_ms,
        created_ms,
        why.text,
        entry.key,
        entry.uploaded_ms,
        entry.is_cleaned,
        why.code,
    )


def _describe_local(segment: RetentionSegment, why: LocalReason, facts: LeaderFacts) -> StoredSegment:
    return StoredSegment(
        max(segment.base_offset, facts.cold_end_offset),
        segment.next_offset,
        segment.size,
        segment.max_timestamp,
        segment.created_ms,
        why.text,
        is_cleaned=segment.next_offset <= facts.clean_to,
        why_code=why.code,
    )


def _explain_active(facts: LeaderFacts) -> LocalReason:
    """Returns when the active segment closes. Only closed segments move to the bucket."""
    config = facts.config
    named = "internal.segment.bytes" if config.internal_segment_bytes else "segment.bytes"
    limits = [
        f"at {config.segment_size} bytes ({named})",
        f"after {format_seconds(config.segment_ms / 1000)} (segment.ms)",
    ]
    if config.copies_to_bucket:
        limits.append(f"after {format_seconds(facts.upload_max_lag_ms / 1000)} (the brokers' tiered.upload.max.lag.ms)")
    return LocalReason(OPEN, f"it is open, and closes {', or '.join(limits)}")


def _explain_closed(segment: RetentionSegment, ended_ms: int, facts: LeaderFacts) -> LocalReason:
    """Returns why a closed segment is on the disk."""
    if segment.next_offset <= facts.cold_end_offset:
        return _explain_kept(segment, ended_ms, facts)
    if not facts.config.remote_storage_enable:
        return LocalReason(TIER_OFF, "the topic has remote.storage.enable=false")
    if facts.config.remote_log_copy_disable:
        return LocalReason(COPY_OFF, "the topic has remote.log.copy.disable=true")
    if segment.next_offset > facts.high_watermark:
        why = f"its records are not committed: the high watermark is {facts.high_watermark}"
        return LocalReason(NOT_COMMITTED, why)
    if segment.next_offset > facts.last_stable_offset:
        why = f"a transaction is open from offset {facts.last_stable_offset} on, and uploads stop there"
        return LocalReason(OPEN_TRANSACTION, why)
    if facts.upload_problem:
        return LocalReason(UPLOAD_FAILS, f"its upload fails: {facts.upload_problem}")
    waited = format_seconds(max(facts.now_ms - ended_ms, 0) / 1000)
    return LocalReason(UPLOAD_WAITS, f"it waits for its upload: {waited} since it closed")


def _explain_kept(segment: RetentionSegment, ended_ms: int, facts: LeaderFacts) -> LocalReason:
    """Returns what keeps a segment on the disk that the bucket has too (`retention.find_local_start`)."""
    config = facts.config
    keep_ms, keep_bytes = config.local_retention_ms, config.local_retention_bytes
    named_ms, named_bytes = "local.retention.ms", "local.retention.bytes"
    if keep_ms == SAME_AS_TOTAL:
        keep_ms, named_ms = config.retention_ms, "retention.ms"
    if keep_bytes == SAME_AS_TOTAL:
        keep_bytes, named_bytes = config.retention_bytes, "retention.bytes"
    age_ms = facts.now_ms - age_start_ms(segment.max_timestamp, ended_ms, facts.now_ms)
    if is_compacted(config) and segment.next_offset <= facts.clean_to:
        return LocalReason(CLEANED, "the bucket has it cleaned, and the next check of retention drops it")
    if 0 <= keep_ms < age_ms:
        why = f"it is older than {named_ms}={keep_ms}: the next check of retention drops it and all before it"
        return LocalReason(RETENTION_DUE, why)
    limits = []
    if keep_ms >= 0:
        limits.append(f"{named_ms}={keep_ms} keeps it for {format_seconds(max(keep_ms - age_ms, 0) / 1000)} more")
    if keep_bytes >= 0:
        limits.append(f"{named_bytes}={keep_bytes}, and closed segments have {facts.closed_bytes} bytes")
    if limits:
        return LocalReason(RETENTION_KEEPS, "; ".join(limits))
    return LocalReason(NO_LIMIT, f"{named_ms} and {named_bytes} set no limit")
