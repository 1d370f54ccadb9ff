"""Offsets that are asked for by name, by time or by leader epoch, hot or cold.

What the local log and the manifest in memory know is answered at once; only a record that is cold, or a history older
than the local log, costs reads of the bucket.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from tiered.cold.manifest import epoch_at
from tiered.hot.time_lookup import TimeLookups, offset_for_timestamp
from tiered.ids import NO_EPOCH
from tiered.replication.leader_replica import Replica


class Named(IntEnum):
    """Offsets that have a name: the numbers are Kafka's, where a timestamp would stand."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class Offset(NamedTuple):
    """`timestamp` is -1 where no record is meant, all are where there is none."""

    offset: int
    timestamp: int
    leader_epoch: int


NOWHERE = Offset(-1, -1, NO_EPOCH)


async def named(replica: Replica, which: Named, end: int, lookups: TimeLookups) -> Offset:
    """The offset of that name; `end` is how far the asker may see, `lookups` are those of its request. `Unavailable`,
    `Corrupt` from the bucket."""
    match which:
        case Named.LATEST:
            return Offset(end, -1, replica.leader_epoch)
        case Named.EARLIEST:
            return await _at(replica, replica.log_start_offset)
        case Named.EARLIEST_LOCAL:
            return await _at(replica, max(replica.local_start_offset, replica.log_start_offset))
        case Named.LATEST_TIERED:
            cold_end = replica.cold_end_offset
            return await _at(replica, cold_end - 1) if cold_end > replica.log_start_offset else NOWHERE
        case Named.EARLIEST_PENDING_UPLOAD:
            if not replica.config.remote_storage_enable:
                return NOWHERE
            return await _at(replica, max(replica.cold_end_offset, replica.log_start_offset))
        case Named.MAX_TIMESTAMP:
            return await _newest(replica, lookups)


async def since(replica: Replica, timestamp: int, end: int, lookups: TimeLookups) -> Offset:
    """The first record at or after `timestamp` (ms) below `end`."""
    found = await replica.offset_for_timestamp(timestamp, lookups)
    return Offset(*found) if found is not None and found[0] < end else NOWHERE


async def end_of_epoch(replica: Replica, epoch: int) -> tuple[int, int]:
    """(largest epoch <= `epoch` that wrote, where it ends): what a client that read under `epoch` compares its position
    with. (-1, -1) for an epoch that is not known here, as Kafka answers."""
    hot = replica.log.epochs
    if epoch < 0 or epoch > replica.leader_epoch:
        return NO_EPOCH, -1
    if epoch == replica.leader_epoch:
        return epoch, replica.log.end_offset
    if epoch > hot.latest:
        return hot.latest, replica.log.end_offset
    if not hot.lineage or epoch < hot.lineage[0][0]:
        return await _end_of_cold_epoch(replica, epoch)
    return hot.end_offset_for(epoch, replica.log.end_offset)


async def _end_of_cold_epoch(replica: Replica, epoch: int) -> tuple[int, int]:
    """From the lineages of cold segments, oldest first, and that of the local log behind them."""
    best = NO_EPOCH
    if replica.manifest is not None:
        async for entry in replica.cold.manifests.list_segments(replica.manifest):
            for wrote_under, start in entry.lineage:
                if wrote_under > epoch:
                    return (best, start) if best != NO_EPOCH else (epoch, start)
                best = wrote_under
    later = [start for wrote_under, start in replica.log.epochs.lineage if wrote_under > epoch]
    end = later[0] if later else replica.log.end_offset
    return (best, end) if best != NO_EPOCH else (epoch, end)


async def _newest(replica: Replica, lookups: TimeLookups) -> Offset:
    """The first record with the greatest timestamp."""
    hot = replica.log.max_timestamp
    found = await offset_for_timestamp(replica.log, hot, lookups) if hot >= 0 else None
    manifest = replica.manifest
    if manifest is not None and manifest.nodes:
        newest = max(node.max_timestamp for node in manifest.nodes)
        if newest >= 0 and (found is None or newest >= found[1]):
            cold = await replica.cold.reader.offset_for_timestamp(
                replica.pid, newest, manifest=manifest, lookups=lookups
            )
            found = cold if cold is not None else found
    return Offset(*found) if found is not None else NOWHERE


async def _at(replica: Replica, offset: int) -> Offset:
    """An offset without a record's timestamp, with the epoch that wrote (or will write) it."""
    epoch = replica.log.epochs.epoch_at(offset)
    if epoch == NO_EPOCH and replica.manifest is not None:
        entry = await replica.cold.manifests.find_segment(replica.manifest, offset)
        epoch = epoch_at(entry, offset) if entry is not None else NO_EPOCH
    return Offset(offset, -1, epoch if epoch != NO_EPOCH else replica.leader_epoch)
