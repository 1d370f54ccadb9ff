"""Commit, fetch, deletion and correction of offsets: permissions, and the stored values (I18)."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, ClassicGroupState
from tiered.groups.consumer.fencing import check_committer, check_fetcher, check_transactional_committer
from tiered.groups.decision import Decision, GroupState
from tiered.groups.pending_offsets import pending_size, size_growth
from tiered.groups.rebalance import drop_group_if_unused
from tiered.groups.records import NO_TIME, OffsetKey, OffsetValue, offset_key, offset_record
from tiered.groups.requests import (
    NO_OFFSET,
    NO_RETENTION,
    CommitOffsets,
    CommitOffsetsReply,
    CommitTransactionalOffsets,
    DeleteOffsets,
    DeleteReply,
    FetchOffsets,
    FetchOffsetsReply,
    LostOffset,
    OffsetLowered,
    PartitionOffset,
)
from tiered.groups.string_lengths import fits_in_record, java_length
from tiered.groups.subscription import CONSUMER
from tiered.shard import CoordinatorRecord, ProducerIdAndEpoch

LATEST_MS = (1 << 63) - 1
"""The latest time that a record can hold."""

# -- committing -------------------------------------------------------------------------------------------------------


def handle_commit_offsets(decision: Decision, request: CommitOffsets) -> CommitOffsetsReply:
    """Handles OffsetCommit. A client that is no member may commit while the group has none (a simple group).

    A share group has no committed offsets: its position is the state of its share partitions.
    """
    if request.group in decision.state.log_state.share_groups:
        return CommitOffsetsReply((Code.GROUP_ID_NOT_FOUND,) * len(request.offsets))
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None:
        code = check_committer(consumer_group, request.member_id, request.generation, request.knows_epochs)
        if code is None:
            return CommitOffsetsReply(_write_offsets(decision, request.group, request, NO_TIME))
        return CommitOffsetsReply((code,) * len(request.offsets))
    group = decision.state.groups.get(request.group)
    code = _validate_commit(group, request)
    if code is not None:
        return CommitOffsetsReply((code,) * len(request.offsets))
    group = group or _create_simple_group(decision, request.group)
    if group.state in (ClassicGroupState.STABLE, ClassicGroupState.PREPARING):
        decision.schedule_heartbeat(group, group.members[request.member_id])
    expires = NO_TIME
    if request.retention_ms != NO_RETENTION:
        expires = min(decision.now.wall_ms + request.retention_ms, LATEST_MS)
    codes = _write_offsets(decision, group.name, request, expires)
    if not any(code is Code.NONE for code in codes):
        drop_group_if_unused(decision, group)  # clients that are not members may name any number of groups
    return CommitOffsetsReply(codes)


def handle_commit_transactional_offsets(decision: Decision, request: CommitTransactionalOffsets) -> CommitOffsetsReply:
    """Handles TxnOffsetCommit: writes offsets that the marker of the producer's transaction commits or drops.

    A request that names a member or a generation is fenced by them (KIP-447). Before v3 it names none.
    """
    if request.group in decision.state.log_state.share_groups:
        return CommitOffsetsReply((Code.GROUP_ID_NOT_FOUND,) * len(request.offsets))
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    if consumer_group is not None:
        code = check_transactional_committer(consumer_group, request.member_id, request.generation)
        if code is None:
            codes = _write_offsets(decision, request.group, request, NO_TIME, request.producer)
            return CommitOffsetsReply(codes)
        return CommitOffsetsReply((code,) * len(request.offsets))
    group = decision.state.groups.get(request.group)
    code = _validate_transactional_commit(group, request)
    if code is not None:
        return CommitOffsetsReply((code,) * len(request.offsets))
    group = group or _create_simple_group(decision, request.group)
    codes = _write_offsets(decision, group.name, request, NO_TIME, request.producer)
    if not any(code is Code.NONE for code in codes):
        drop_group_if_unused(decision, group)
    return CommitOffsetsReply(codes)


def _create_simple_group(decision: Decision, name: str) -> ClassicGroup:
    group = decision.state.groups[name] = ClassicGroup(name, decision.now.wall_ms, decision.state.protocol_bytes)
    return group


def _write_offsets(
    decision: Decision,
    group: str,
    request: CommitOffsets | CommitTransactionalOffsets,
    expires_ms: int,
    producer: ProducerIdAndEpoch | None = None,
) -> tuple[Code, ...]:
    """Writes the rows that pass all checks. Returns one code for each row.

    A row without a topic id gets the id of the topic that has the name now.
    """
    state, log_state = decision.state, decision.state.log_state
    codes, added_bytes = list[Code](), 0
    room: int | None = None
    is_refused = False
    state.holders.claim(group, request.holder)
    topic, topic_id = "", state.find_topic_id("")
    for row in request.offsets:
        if row.topic != topic:  # mostly, the rows of a topic stand together
            topic, topic_id = row.topic, state.find_topic_id(row.topic)
        if row.metadata and not _fits_metadata_limit(row.metadata, state.settings.metadata_bytes_max):
            codes.append(Code.OFFSET_METADATA_TOO_LARGE)
            continue
        if row.topic_id and _is_other_topic(row.topic_id, topic_id):
            codes.append(Code.UNKNOWN_TOPIC_ID)
            continue
        key = OffsetKey(group, topic, row.partition)
        value = OffsetValue(
            row.offset, row.leader_epoch, row.metadata, decision.now.wall_ms, expires_ms, row.topic_id or topic_id
        )
        if producer is None:
            growth = size_growth(log_state.committed_offset(*key), value)
        else:
            growth = pending_size(value) - pending_size(log_state.pending.find(producer.producer_id, key))
        if growth > 0:
            added_bytes += growth
            room = state.find_room(group) if room is None else room
            if added_bytes > room:  # clients retry
                if not is_refused:
                    state.report_refusal(group, added_bytes)
                is_refused = True
                codes.append(Code.COORDINATOR_NOT_AVAILABLE)
                continue
        decision.write_offset(key, value, producer)
        codes.append(Code.NONE)
    return tuple(codes)


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


def _validate_transactional_commit(group: ClassicGroup | None, request: CommitTransactionalOffsets) -> Code | None:
    """Returns the code of a refusal, else None. A rebalance in progress is none: the generation fences."""
    if not fits_in_record(request.group):
        return Code.INVALID_GROUP_ID
    if group is None:
        return None if request.generation < 0 else Code.ILLEGAL_GENERATION
    if request.generation < 0 and group.state is ClassicGroupState.EMPTY:
        return None
    if request.generation < 0 and not request.member_id and request.instance_id is None:
        return None
    code = group.validate_member(request.member_id, request.instance_id)
    return code or (None if request.generation == group.generation else Code.ILLEGAL_GENERATION)


# -- fetching ---------------------------------------------------------------------------------------------------------


def handle_fetch_offsets(state: GroupState, request: FetchOffsets) -> FetchOffsetsReply:
    """Handles OffsetFetch. An unknown group has committed nothing.

    A request without a topic id is about the topic that has the name now. A member of a consumer group that names
    itself is fenced by its epoch.
    """
    consumer_group = state.log_state.consumer_groups.get(request.group)
    code = check_fetcher(consumer_group, request.member_id, request.member_epoch)
    if code is not None:
        return FetchOffsetsReply(code)
    ids = dict(request.topic_ids)
    rows: list[PartitionOffset] = []
    if request.partitions is None:
        rows += (
            _partition_offset(topic, p, value)
            for topic, p, value in sorted(state.log_state.iterate_offsets(request.group))
            if not _is_other_topic(value.topic_id, state.find_topic_id(topic))
        )
        return _make_fetch_reply(state, request, rows)
    for topic, partition in request.partitions:
        value = state.log_state.committed_offset(request.group, topic, partition)
        if value is not None and _is_other_topic(value.topic_id, ids.get(topic) or state.find_topic_id(topic)):
            value = None
        rows.append(_partition_offset(topic, partition, value))
    return _make_fetch_reply(state, request, rows)


def _make_fetch_reply(state: GroupState, request: FetchOffsets, rows: list[PartitionOffset]) -> FetchOffsetsReply:
    """Returns the rows. Takes the offsets out of those whose offset is not stable, if that is required."""
    pending = state.log_state.pending
    if not request.require_stable or not pending.has_group(request.group):
        return FetchOffsetsReply(Code.NONE, tuple(rows))
    unstable = frozenset(
        (row.topic, row.partition) for row in rows if pending.has_partition(request.group, row.topic, row.partition)
    )
    return FetchOffsetsReply(
        Code.NONE,
        tuple(PartitionOffset(row.topic, row.partition, NO_OFFSET) if row[:2] in unstable else row for row in rows),
        unstable,
    )


def _partition_offset(topic: str, partition: int, value: OffsetValue | None) -> PartitionOffset:
    if value is None:
        return PartitionOffset(topic, partition, NO_OFFSET)
    return PartitionOffset(topic, partition, value.offset, value.leader_epoch, value.metadata, value.topic_id)


def _is_other_topic(topic_id: str, other_id: str) -> bool:
    return bool(topic_id and other_id) and topic_id != other_id


# -- deleting ---------------------------------------------------------------------------------------------------------


def handle_delete_offsets(decision: Decision, request: DeleteOffsets) -> DeleteReply:
    """Handles OffsetDelete. Offsets of subscribed topics stay. A group that is not of consumers has to be empty."""
    consumer_group = decision.state.log_state.consumer_groups.get(request.group)
    group = decision.state.groups.get(request.group)
    if group is None and consumer_group is None:
        return DeleteReply(Code.GROUP_ID_NOT_FOUND)
    if group is not None and group.state is not ClassicGroupState.EMPTY and group.protocol_type != CONSUMER:
        return DeleteReply(Code.NON_EMPTY_GROUP)
    codes = list[Code]()
    for topic, partition in request.partitions:
        is_subscribed = consumer_group is not None and consumer_group.is_subscribed(topic)
        if is_subscribed or (group is not None and group.is_subscribed_to_topic(topic)):
            codes.append(Code.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        codes.append(Code.NONE)
        log_state = decision.state.log_state
        if log_state.committed_offset(request.group, topic, partition) is not None or log_state.pending.has_partition(
            request.group, topic, partition
        ):
            decision.write(offset_tombstone(request.group, topic, partition))
    return DeleteReply(Code.NONE, tuple(codes))


def delete_topic_offsets(decision: Decision, topics: tuple[str, ...]) -> None:
    """Removes the offsets of deleted topics from all groups.

    Offsets whose id is that of the topic that has the name now stay. An offset without an id goes.
    """
    log_state = decision.state.log_state
    current_ids = {topic: decision.state.find_topic_id(topic) for topic in topics}

    def is_gone(topic: str, value: OffsetValue) -> bool:
        return topic in current_ids and (not current_ids[topic] or value.topic_id != current_ids[topic])

    for group in list(dict.fromkeys((*log_state.offsets, *log_state.pending.groups()))):
        offsets = log_state.offsets.get(group, {})
        gone = dict.fromkeys(
            OffsetKey(group, topic, partition)
            for topic in topics
            for partition, value in offsets.get(topic, {}).items()
            if is_gone(topic, value)
        )
        pending = list(log_state.pending.iterate_offsets(group))
        gone |= dict.fromkeys(key for _, key, value in pending if is_gone(key.topic, value))
        for key in gone:
            committed = log_state.committed_offset(*key)
            decision.write(offset_tombstone(*key))  # it removes all offsets of the partition
            if committed is not None and not is_gone(key.topic, committed):
                decision.write(offset_record(*key, committed))
        for producer, key, value in pending:
            if key in gone and not is_gone(key.topic, value):
                decision.write(offset_record(*key, value, producer))


def lower_offsets(decision: Decision, lost: tuple[LostOffset, ...]) -> None:
    """Lowers committed and pending offsets to the first record that was lost: consumers go on there."""
    log_state = decision.state.log_state
    for group, topic, partition, end, leader_epoch in lost:
        committed = log_state.committed_offset(group, topic, partition)
        pending = [each for each in log_state.pending.iterate_offsets(group) if each[1][1:] == (topic, partition)]
        is_lowered = committed is not None and committed.offset > end and committed.leader_epoch < leader_epoch
        if committed is not None and is_lowered:
            decision.write(offset_record(group, topic, partition, committed._replace(offset=end, leader_epoch=-1)))
            decision.report(OffsetLowered(group, topic, partition, committed.offset, end))
        for producer, key, value in pending:
            if value.offset > end and value.leader_epoch < leader_epoch:
                decision.write(offset_record(*key, value._replace(offset=end, leader_epoch=-1), producer))
                decision.report(OffsetLowered(group, topic, partition, value.offset, end))
            elif is_lowered:  # the record of the committed offset superseded it
                decision.write(offset_record(*key, value, producer))


def offset_tombstone(group: str, topic: str, partition: int) -> CoordinatorRecord:
    return CoordinatorRecord(offset_key(group, topic, partition), None)
