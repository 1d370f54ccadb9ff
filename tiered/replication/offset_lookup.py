"""Look-ups of offsets by name, by timestamp or by leader epoch, hot or cold (I4, I33).

The local log and the manifest in memory are enough for most look-ups. Only a cold record, or a history that is older
than the local log, costs reads from the bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from tiered.cold.manifest import Manifest, SegmentEntry, epoch_at
from tiered.hot.time_lookup import NO_TIMESTAMP, TimeLookups, find_max_timestamp
from tiered.ids import NO_EPOCH
from tiered.replication.leader_replica import LeaderReplica


class OffsetSpec(IntEnum):
    """Offsets that have a name. The numbers are those that Kafka sends in place of a timestamp."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class TimestampAndOffset(NamedTuple):
    """The result of a look-up. `timestamp` is -1 if the offset is not that of a record; all fields are -1 if nothing
    was found."""

    offset: int
    timestamp: int
    leader_epoch: int


LATER_THAN_ALL = 1 << 63
OFFSET_NOT_FOUND = TimestampAndOffset(-1, -1, NO_EPOCH)


async def find_by_spec(
    replica: LeaderReplica, spec: OffsetSpec, end: Callable[[], int], lookups: TimeLookups
) -> TimestampAndOffset:
    """Returns the offset of that name. `end` returns the end of what the client may see, which a look-up that waits
    reads at its end; `lookups` are shared by one request. Raises `Unavailable` and `Corrupt` from the bucket."""
    match spec:
        case OffsetSpec.LATEST:
            return TimestampAndOffset(end(), -1, replica.leader_epoch)
        case OffsetSpec.EARLIEST:
            return await _with_epoch(replica, replica.log_start_offset)
        case OffsetSpec.EARLIEST_LOCAL:
            return await _with_epoch(replica, max(replica.local_start_offset, replica.log_start_offset))
        case OffsetSpec.LATEST_TIERED:
            cold_end = replica.cold_end_offset
            return await _with_epoch(replica, cold_end - 1) if cold_end > replica.log_start_offset else OFFSET_NOT_FOUND
        case OffsetSpec.EARLIEST_PENDING_UPLOAD:
            if not replica.config.remote_storage_enable:
                return OFFSET_NOT_FOUND
            return await _with_epoch(replica, max(replica.cold_end_offset, replica.log_start_offset))
        case OffsetSpec.MAX_TIMESTAMP:
            return await _find_max_timestamp(replica, end, lookups)


async def find_by_timestamp(
    replica: LeaderReplica, timestamp: int, end: Callable[[], int], lookups: TimeLookups
) -> TimestampAndOffset:
    """Returns the first record at or after `timestamp` (ms), if it is below the `end` of what the client may see when
    the look-up ends. A new leader may learn during the look-up that older records are committed."""
    found = await replica.reads.offset_for_timestamp(timestamp, lookups)
    return TimestampAndOffset(*found) if found is not None and found[0] < end() else OFFSET_NOT_FOUND


async def end_offset_for_epoch(replica: LeaderReplica, epoch: int) -> tuple[int, int]:
    """Returns (the largest epoch <= `epoch` that wrote records, the end offset of that epoch). A client that read under
    `epoch` compares its position with it. Returns (-1, -1) for an epoch that is not known here, as Kafka does."""
    hot = replica.log.epochs
    if epoch < 0 or epoch > replica.leader_epoch:
        return NO_EPOCH, -1
    if epoch == replica.leader_epoch:
        return epoch, replica.log.end_offset
    if epoch > hot.latest:
        return hot.latest, replica.log.end_offset
    if not hot.lineage or epoch < hot.lineage[0][0]:
        return await _cold_end_offset_for_epoch(replica, epoch)
    return hot.end_offset_for(epoch, replica.log.end_offset)


async def _cold_end_offset_for_epoch(replica: LeaderReplica, epoch: int) -> tuple[int, int]:
    """Searches the lineages of the cold segments, oldest first, then that of the local log as it was before the
    wait for the bucket: a deletion takes old epochs away."""
    best, lineage, end = NO_EPOCH, replica.log.epochs.lineage, replica.log.end_offset
    if replica.manifest is not None:
        async for entry in replica.cold.manifests.list_segments(replica.manifest):
            for wrote_epoch, start in entry.lineage:
                if wrote_epoch > epoch:
                    return (best, start) if best != NO_EPOCH else (epoch, start)
                best = wrote_epoch
    later = [start for wrote_under, start in lineage if wrote_under > epoch]
    end = later[0] if later else end
    return (best, end) if best != NO_EPOCH else (epoch, end)


async def _find_max_timestamp(
    replica: LeaderReplica, end: Callable[[], int], lookups: TimeLookups
) -> TimestampAndOffset:
    """Returns the first record with the greatest timestamp below the `end` of what the client may see.

    The figures of segments bound that timestamp. They count deleted records and those above the `end`. A bound that no
    record has is followed by the next lower one.
    """
    before = LATER_THAN_ALL
    while (newest := await _bound_timestamps(replica, end(), before, lookups)) > NO_TIMESTAMP:
        found = await replica.reads.offset_for_timestamp(newest, lookups)
        if found is not None and found[0] < end():
            return TimestampAndOffset(*found)
        before = newest
    return OFFSET_NOT_FOUND


async def _bound_timestamps(replica: LeaderReplica, end: int, before: int, lookups: TimeLookups) -> int:
    """Returns a bound on the timestamps of the records below `end`, which are all earlier than `before`. Both tiers are
    those of one moment."""
    manifest, local_start = replica.manifest, replica.local_start_offset
    newest = await find_max_timestamp(replica.log, end, before, lookups)
    if manifest is None or manifest.log_start_offset >= local_start:
        return newest
    if _names_latest(manifest, local_start) and all(node.max_timestamp < before for node in manifest.nodes):
        return max(newest, *(node.max_timestamp for node in manifest.nodes))
    cold = await replica.cold.reader.find_max_timestamp(replica.partition_id, manifest, local_start, before, lookups)
    return max(newest, cold)


def _names_latest(manifest: Manifest, end: int) -> bool:
    """True if the manifest itself says how late the last cold records below offset `end` are."""
    for node in reversed(manifest.nodes):
        if node.base_offset < end and not (isinstance(node, SegmentEntry) and node.is_timeless):
            return isinstance(node, SegmentEntry) and not node.is_time_unset
    return True


async def _with_epoch(replica: LeaderReplica, offset: int) -> TimestampAndOffset:
    """Returns an offset without timestamp, with the epoch that wrote (or will write) its record."""
    epoch = replica.log.epochs.epoch_at(offset)
    if epoch == NO_EPOCH and replica.manifest is not None:
        entry = await replica.cold.manifests.find_segment(replica.manifest, offset)
        epoch = epoch_at(entry, offset) if entry is not None else NO_EPOCH
    return TimestampAndOffset(offset, -1, epoch if epoch != NO_EPOCH else replica.leader_epoch)
