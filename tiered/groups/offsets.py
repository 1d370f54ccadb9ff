"""Committing, fetching and deleting offsets: who may, and what is kept."""

from __future__ import annotations

from tiered.errors import Code
from tiered.groups.classic import ClassicGroup, State
from tiered.groups.decision import Turn
from tiered.groups.log_state import LogState, size_of
from tiered.groups.records import NO_TIME, Offset, Record, offset_key, offset_record
from tiered.groups.requests import (
    NO_OFFSET,
    NO_RETENTION,
    Commit,
    CommitOffsets,
    Committed,
    Deleted,
    DeleteOffsets,
    Fetched,
    FetchOffsets,
)
from tiered.groups.subscription import CONSUMER
from tiered.groups.words import fits, java_length

LATEST_MS = (1 << 63) - 1
"""The latest time that a record can name."""

# -- committing -------------------------------------------------------------------------------------------------------


def commit(turn: Turn, request: CommitOffsets) -> Committed:
    """Whoever commits without being a member may do so where there are none: that makes a simple group."""
    group = turn.live.groups.get(request.group)
    code = _refusal(group, request)
    if code is not None:
        return Committed((code,) * len(request.offsets))
    if group is None:
        group = turn.live.groups[request.group] = ClassicGroup(request.group, turn.now.wall_ms, turn.live.said)
    if group.state in (State.STABLE, State.PREPARING):
        turn.expect(group, group.members[request.member_id])
    expires = NO_TIME
    if request.retention_ms != NO_RETENTION:
        expires = min(turn.now.wall_ms + request.retention_ms, LATEST_MS)
    records, codes, grown = list[Record](), list[Code](), 0
    for row in request.offsets:
        if not _keeps(row.metadata, turn.live.settings.metadata_bytes_max):
            codes.append(Code.OFFSET_METADATA_TOO_LARGE)
            continue
        kept = Offset(row.offset, row.leader_epoch, row.metadata, turn.now.wall_ms, expires, row.topic_id)
        more = size_of(kept) - size_of(turn.live.log.offset(request.group, row.topic, row.partition))
        grown += max(more, 0)
        if more > 0 and not turn.live.has_room(grown):  # clients try again
            codes.append(Code.COORDINATOR_NOT_AVAILABLE)
            continue
        records.append(offset_record(request.group, row.topic, row.partition, kept))
        codes.append(Code.NONE)
    turn.write(*records)
    return Committed(tuple(codes))


def _keeps(metadata: str, most: int) -> bool:
    return java_length(metadata) <= most and fits(metadata)


def _refusal(group: ClassicGroup | None, request: CommitOffsets) -> Code | None:
    stranger = request.generation < 0
    if not fits(request.group):
        return Code.INVALID_GROUP_ID
    if group is None:
        return None if stranger else Code.GROUP_ID_NOT_FOUND
    if stranger and group.state is State.EMPTY:
        return None
    if stranger and not request.member_id and request.instance_id is None:
        return Code.UNKNOWN_MEMBER_ID
    code = group.refusal(request.member_id, request.instance_id)
    if code is not None:
        return code
    if request.generation != group.generation:
        return Code.ILLEGAL_GENERATION
    return Code.REBALANCE_IN_PROGRESS if group.state is State.COMPLETING else None


# -- fetching ---------------------------------------------------------------------------------------------------------


def fetch(log: LogState, request: FetchOffsets) -> Fetched:
    """A group that nobody knows has committed nothing."""
    ids = dict(request.topic_ids)
    if request.partitions is None:
        return Fetched(Code.NONE, tuple(_row(topic, p, kept) for topic, p, kept in sorted(log.rows(request.group))))
    rows = []
    for topic, partition in request.partitions:
        kept = log.offset(request.group, topic, partition)
        if kept is not None and _is_other(kept.topic_id, ids.get(topic, "")):
            kept = None
        rows.append(_row(topic, partition, kept))
    return Fetched(Code.NONE, tuple(rows))


def _row(topic: str, partition: int, kept: Offset | None) -> Commit:
    if kept is None:
        return Commit(topic, partition, NO_OFFSET)
    return Commit(topic, partition, kept.offset, kept.leader_epoch, kept.metadata, kept.topic_id)


def _is_other(committed: str, asked: str) -> bool:
    return bool(committed and asked) and committed != asked


# -- deleting ---------------------------------------------------------------------------------------------------------


def delete(turn: Turn, request: DeleteOffsets) -> Deleted:
    """Not those that consumers of the group use; a group of another kind has to be empty."""
    group = turn.live.groups.get(request.group)
    if group is None:
        return Deleted(Code.GROUP_ID_NOT_FOUND)
    if group.state is not State.EMPTY and group.protocol_type != CONSUMER:
        return Deleted(Code.NON_EMPTY_GROUP)
    codes = list[Code]()
    for topic, partition in request.partitions:
        if group.uses(topic):
            codes.append(Code.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        codes.append(Code.NONE)
        if turn.live.log.offset(request.group, topic, partition) is not None:
            turn.write(tombstone(request.group, topic, partition))
    return Deleted(Code.NONE, tuple(codes))


def delete_topics(turn: Turn, topics: tuple[str, ...]) -> None:
    """Topics are gone: so is what was read of them."""
    for group, offsets in list(turn.live.log.offsets.items()):
        gone = [(topic, partition) for topic in topics for partition in offsets.get(topic, ())]
        turn.write(*(tombstone(group, topic, partition) for topic, partition in gone))


def tombstone(group: str, topic: str, partition: int) -> Record:
    return Record(offset_key(group, topic, partition), None)
