"""The reasons why a segment is on a disk, in the bucket, or in both, and what would change that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tiered.broker import stored_segments
from tiered.time_text import format_seconds, format_time
from tiered_api.explanation.cause import Cause, format_nodes, plural
from tiered_api.explanation.transaction import TRANSACTION_MEND, HeldPartition, explain_last_stable
from tiered_api.kafka.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    ReportedLeader,
    ReportedSegment,
)

BUCKET_MEND = "mend the bucket, its credentials or the network: uploads then go on by themselves"
UPLOAD_MEND = "raise remote.log.manager.copier.thread.pool.size, or give the bucket more requests"
MENDS: Mapping[str, str] = {
    stored_segments.TIER_OFF: "remote.storage.enable=true has closed segments copied",
    stored_segments.COPY_OFF: "remote.log.copy.disable=false has closed segments copied",
    stored_segments.NOT_COMMITTED: "`tiered explain partition` names the follower that the high watermark waits for",
    stored_segments.OPEN_TRANSACTION: TRANSACTION_MEND,
    stored_segments.UPLOAD_FAILS: BUCKET_MEND,
    stored_segments.NO_LIMIT: "local.retention.ms or local.retention.bytes of the topic lets go of local copies",
}
"""The acts that mend the reason why a leader's disk has a segment, by its code. The other reasons end by themselves."""


class SegmentFacts(NamedTuple):
    """A segment, the brokers whose disks have a part of it, and the leader's state if the leader replies."""

    name: str
    """Topic and partition."""
    segment: ReportedSegment
    disks: Sequence[int]
    leader: ReportedLeader | None
    upload_max_lag_ms: int
    held: HeldPartition | None = None
    """The partition with the transaction that holds it, if the segment waits for one."""
    bucket_away: str = ""
    """An outage of the bucket that other brokers see."""


def explain_segment(facts: SegmentFacts) -> Iterator[Cause]:
    """Yields where the segment is, and why."""
    segment = facts.segment
    what = f"the segment of partition {facts.name} with offsets {segment.base_offset} to {segment.end_offset - 1}"
    place = {"base_offset": segment.base_offset, "end_offset": segment.end_offset, "bytes": segment.log_bytes}
    if segment.key:
        since = f" since {format_time(segment.uploaded_ms)}" if segment.uploaded_ms >= 0 else ""
        in_bucket = {"key": segment.key, "uploaded_ms": segment.uploaded_ms}
        yield Cause("in-bucket", f"{what} is in the bucket{since}, in object {segment.key}", place | in_bucket)
    else:
        yield Cause("not-in-bucket", f"{what} is not in the bucket", place)
    if facts.disks:
        on = f"the disk{'s' if len(facts.disks) > 1 else ''} of {format_nodes(facts.disks)}"
        yield Cause("on-disk", f"{on} {'have' if len(facts.disks) > 1 else 'has'} it", {"brokers": list(facts.disks)})
    if segment.why_code:
        yield Cause(
            segment.why_code, f"the leader's disk has it because {segment.why_local}", _values(facts), _mend(facts)
        )
    if facts.held is not None:
        yield from explain_last_stable(facts.held)
    if segment.why_code in (stored_segments.UPLOAD_WAITS, stored_segments.UPLOAD_FAILS) and facts.leader is not None:
        yield from explain_queue(facts.leader)
        yield from explain_outage_elsewhere(facts.leader, facts.bucket_away)
    elif segment.key and not facts.disks:  # only the bucket has it
        yield from explain_outage(facts.leader) if facts.leader is not None else ()
        yield from explain_outage_elsewhere(facts.leader, facts.bucket_away)
    if segment.is_cleaned:
        yield Cause("cleaned-segment", "compaction has cleaned it", {})


def explain_no_segment(name: str, offset: int, place: DescribeLogDirsPartition) -> Cause:
    """Returns that an offset of a partition is in no segment, by the reply of its leader."""
    start = place.leader[0].log_start if place.leader else place.local_start
    said = f"offset {offset} of partition {name} is in no segment: its log goes from {start} to {place.log_end}"
    return Cause("no-segment", said, {"log_start_offset": start, "log_end_offset": place.log_end})


def explain_queue(leader: ReportedLeader) -> Iterator[Cause]:
    """Yields what a segment waits behind, and an outage of the bucket."""
    mine, all_of_broker = leader.waiting_segments, leader.waiting_on_broker
    yield Cause(
        "upload-queue",
        f"{describe_waiting(mine)} in this partition, and {all_of_broker} on its broker",
        {"waiting_segments": mine, "waiting_on_broker": all_of_broker, "waiting_bytes": leader.waiting_bytes},
    )
    yield from explain_outage(leader)


def describe_waiting(count: int) -> str:
    """Returns how many closed segments of a partition wait for upload."""
    if not count:
        return "no closed segment waits for upload"
    return f"{plural(count, 'closed segment')} {'waits' if count == 1 else 'wait'} for upload"


def explain_outage(leader: ReportedLeader) -> Iterator[Cause]:
    """Yields an outage of the bucket as the leader sees it, with its text and since when."""
    if leader.outage:
        why = f" ({leader.outage_why})" if leader.outage_why else ""
        yield Cause("bucket-away", f"{leader.outage}{why}", {"why": leader.outage_why or None}, BUCKET_MEND)


def explain_outage_elsewhere(leader: ReportedLeader | None, seen: str) -> Iterator[Cause]:
    """Yields an outage of the bucket that other brokers see, and the leader does not: it has made no request since."""
    if seen and (leader is None or not leader.outage):
        yield Cause("bucket-away", seen, {"why": None}, BUCKET_MEND)


def explain_damage(name: str, leader: ReportedLeader) -> Iterator[Cause]:
    """Yields the objects that cold reads of a partition last found missing or damaged."""
    for each in leader.damaged:
        mend = "restore the object, and read it once; `tiered cold verify` finds all of them"
        yield Cause("damaged", f"cold reads of {name} fail, last at {each}", {"why": each}, mend)


def describe_upload_lag(leader: ReportedLeader, limit_ms: int) -> str:
    """Returns how old the oldest record is that is not in the bucket."""
    age = format_seconds(leader.upload_lag_ms / 1000)
    return f"the oldest record outside the bucket has been here for {age}, tiered.upload.max.lag.ms is {limit_ms}"


def is_upload_late(leader: ReportedLeader, limit_ms: int) -> bool:
    """True if a record outside the bucket is so old that health names it."""
    return leader.upload_lag_ms > limit_ms + stored_segments.UPLOAD_GRACE_MS


def _values(facts: SegmentFacts) -> dict[str, object]:
    segment, leader = facts.segment, facts.leader
    found: dict[str, object] = {"newest_ms": segment.newest_ms, "created_ms": segment.created_ms}
    if leader is not None:
        found |= {"high_watermark": leader.high_watermark, "last_stable_offset": leader.last_stable}
    return found


def _mend(facts: SegmentFacts) -> str:
    leader = facts.leader
    if facts.segment.why_code == stored_segments.OPEN_TRANSACTION and facts.held is not None:
        return ""  # the cause of the transaction names the act
    if facts.segment.why_code == stored_segments.UPLOAD_WAITS:
        is_late = leader is not None and is_upload_late(leader, facts.upload_max_lag_ms)
        return UPLOAD_MEND if is_late else ""
    return MENDS.get(facts.segment.why_code, "")
