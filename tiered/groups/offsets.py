"""Commit, fetch, deletion and correction of offsets: permissions, and the stored values."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.decision import Decision
from tiered.groups.log_state import LogState, offset_size
from tiered.groups.records import NO_TIME, OffsetValue, offset_key, offset_record
from tiered.groups.requests import (
    NO_OFFSET,
    NO_RETENTION,
    CommitOffsets,
    CommitOffsetsReply,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    FetchOffsetsReply,
    LostOffset,
    OffsetLowered,
    PartitionOffset,
)
from tiered.groups.subscription import CONSUMER
from tiered.groups.words import fits_in_record, java_length
from tiered.shard import CoordinatorRecord

LATEST_MS = (1 << 63) - 1
"""The latest time that a record can hold."""

# -- committing -------------------------------------------------------------------------------------------------------


def handle_commit_offsets(decision: Decision, request: CommitOffsets) -> CommitOffsetsReply:
    """Handles OffsetCommit. A client that is no member may commit while the group has none (a simple group)."""
    group = decision.state.groups.get(request.group)
    code = _validate_commit(group, request)
    if code is not None:
        return CommitOffsetsReply((code,) * len(request.offsets))
    if group is None:
        group = decision.state.groups[request.group] = ClassicGroup(
            request.group, decision.now.wall_ms, decision.state.protocol_bytes
        )
    if group.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING):
        decision.schedule_heartbeat(group, group.members[request.member_id])
    expires = NO_TIME
    if request.retention_ms != NO_RETENTION:
        expires = min(decision.now.wall_ms + request.retention_ms, LATEST_MS)
    records, codes, added_bytes = list[CoordinatorRecord](), list[Code](), 0
    free_bytes: int | None = None
    for row in request.offsets:
        if not _fits_metadata_limit(row.metadata, decision.state.settings.metadata_bytes_max):
            codes.append(Code.OFFSET_METADATA_TOO_LARGE)
            continue
        value = OffsetValue(row.offset, row.leader_epoch, row.metadata, decision.now.wall_ms, expires, row.topic_id)
        growth = offset_size(value) - offset_size(
            decision.state.log_state.committed_offset(request.group, row.topic, row.partition)
        )
        if growth > 0:
            added_bytes += growth
            free_bytes = decision.state.free_bytes() if free_bytes is None else free_bytes
            if added_bytes > free_bytes:  # clients retry
                codes.append(Code.COORDINATOR_NOT_AVAILABLE)
                continue
        records.append(offset_record(request.group, row.topic, row.partition, value))
        codes.append(Code.NONE)
    decision.write(*records)
    return CommitOffsetsReply(tuple(codes))


def _fits_metadata_limit(metadata: str, limit: int) -> bool:
    return java_length(metadata) <= limit and fits_in_record(metadata)


def _validate_commit(group: ClassicGroup | None, request: CommitOffsets) -> Code | None:
    is_non_member = request.generation < 0
    if not fits_in_record(request.group):
        return Code.INVALID_GROUP_ID
    if group is None:
        return None if is_non_member else Code.GROUP_ID_NOT_FOUND
    if is_non_member and group.state is ClassicGroupState.EMPTY:
        return None
    if is_non_member and not request.member_id and request.instance_id is None:
        return Code.UNKNOWN_MEMBER_ID
    code = group.validate_member(request.member_id, request.instance_id)
    if code is not None:
        return code
    if request.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    return Code.REBALANCE_IN_PROGRESS if group.state is ClassicGroupState.COMPLETING else None


# -- fetching ---------------------------------------------------------------------------------------------------------


def handle_fetch_offsets(log_state: LogState, request: FetchOffsets) -> FetchOffsetsReply:
    """Handles OffsetFetch. An unknown group has committed nothing."""
    ids = dict(request.topic_ids)
    if request.partitions is None:
        return FetchOffsetsReply(
            Code.NONE,
            tuple(
                _partition_offset(topic, p, kept) for topic, p, kept in sorted(log_state.iterate_offsets(request.group))
            ),
        )
    rows = []
    for topic, partition in request.partitions:
        value = log_state.committed_offset(request.group, topic, partition)
        if value is not None and _is_other_topic(value.topic_id, ids.get(topic, "")):
            value = None
        rows.append(_partition_offset(topic, partition, value))
    return FetchOffsetsReply(Code.NONE, tuple(rows))


def _partition_offset(topic: str, partition: int, value: OffsetValue | None) -> PartitionOffset:
    if value is None:
        return PartitionOffset(topic, partition, NO_OFFSET)
    return PartitionOffset(topic, partition, value.offset, value.leader_epoch, value.metadata, value.topic_id)


def _is_other_topic(committed: str, requested: str) -> bool:
    return bool(committed and requested) and committed != requested


# -- deleting ---------------------------------------------------------------------------------------------------------


def handle_delete_offsets(decision: Decision, request: DeleteOffsets) -> DeleteReply:
    """Handles OffsetDelete. Offsets of subscribed topics stay. A group that is not of consumers has to be empty."""
    group = decision.state.groups.get(request.group)
    if group is None:
        return DeleteReply(Code.GROUP_ID_NOT_FOUND)
    if group.state is not ClassicGroupState.EMPTY and group.protocol_type != CONSUMER:
        return DeleteReply(Code.NON_EMPTY_GROUP)
    codes = list[Code]()
    for topic, partition in request.partitions:
        if group.is_subscribed_to_topic(topic):
            codes.append(Code.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        codes.append(Code.NONE)
        if decision.state.log_state.committed_offset(request.group, topic, partition) is not None:
            decision.write(offset_tombstone(request.group, topic, partition))
    return DeleteReply(Code.NONE, tuple(codes))


def delete_topic_offsets(decision: Decision, topics: tuple[str, ...]) -> None:
    """Removes the offsets of deleted topics from all groups."""
    for group, offsets in list(decision.state.log_state.offsets.items()):
        committed = [(topic, partition) for topic in topics for partition in offsets.get(topic, ())]
        decision.write(*(offset_tombstone(group, topic, partition) for topic, partition in committed))


def lower_offsets(decision: Decision, lost: tuple[LostOffset, ...]) -> None:
    """Lowers committed offsets to the ends of partitions that lost records: consumers go on there."""
    for group, topic, partition, end in lost:
        committed = decision.state.log_state.committed_offset(group, topic, partition)
        if committed is not None and committed.offset > end:
            decision.write(offset_record(group, topic, partition, committed._replace(offset=end, leader_epoch=-1)))
            decision.report(OffsetLowered(group, topic, partition, committed.offset, end))


def offset_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(offset_key(group, topic, partition), None)
