"""The start of a leader epoch: the new leader reconciles its log with the manifest before it serves (R5).

If the local log and the manifest disagree, the bucket wins and the local log is dropped. `leader_state.reconcile` makes
that decision; this module carries it out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.errors import Corrupt, Refused
from tiered.hot.disk_log import DiskLog
from tiered.ids import NO_EPOCH, PartitionId
from tiered.records.batch import decode_header
from tiered.records.marker import TransactionMarker
from tiered.records.model import HEADER_BYTES
from tiered.replication.chain_history import ChainHistory, SaveOffsets, append_from_chains
from tiered.replication.cold_history import find_lost_markers, read_history, restart_at_cold_end
from tiered.replication.cold_tier import ColdTier
from tiered.replication.leader_state import ColdLog, Lineage, RestartAtColdEnd, reconcile

log = logging.getLogger(__name__)


class LeaderStart(NamedTuple):
    """The result of `prepare_leader_log`: the manifest if it was read, and the reason and offset of a restart of the
    local log if there was one."""

    manifest: Manifest | None
    restart: RestartAtColdEnd | None
    takeover_pending: bool = False
    """True if the manifest must be taken over soon, because an earlier leader may still change it."""
    stored_end: int = 0
    """All records below are in the bucket, in segments or in write-ahead chains."""
    lost_markers: Sequence[TransactionMarker] = ()
    """Markers of cold transactions that no disk has any more: this leader writes them before any other record."""


class PreviousLeader(Enum):
    """Knowledge about earlier leaders: decides how a new leader reads the manifest."""

    NONE = "the topic is new: nothing of it can be cold"
    STOPPED_CLEANLY = "the last leader stopped cleanly: it has no write to the manifest in flight"
    WAS_IN_SYNC_WITH = (
        "this replica was in sync: what a write in flight names is committed, so it is here, byte for byte"
    )
    MAY_STILL_WRITE = "an earlier leader may have a write to the manifest in flight"


def refuse_later_epochs(hot: DiskLog, leader_epoch: int) -> None:
    """Raises `Corrupt` if the log has a later leader epoch than the one that begins: the metadata log went back.

    The next start would take batches of an earlier epoch behind those of a later one for rot, and cut them.
    """
    if hot.epochs.latest <= leader_epoch:
        return
    if _epoch_of_last_batch(hot) <= leader_epoch and hot.repair_leader_epochs():
        # Only the leader epochs on disk were damaged, not the log.
        log.warning("leader epochs repaired from the batches partition=%s lineage=%s", hot.name, hot.epochs.lineage)
    if hot.epochs.latest > leader_epoch:
        raise Corrupt(
            f"the log has leader epoch {hot.epochs.latest}, and would be led under epoch {leader_epoch}: the metadata"
            " log went back to an older state",
            where=hot.name,
        )


def _epoch_of_last_batch(hot: DiskLog) -> int:
    found = (
        hot.read(hot.end_offset - 1, 0, end_offset=hot.end_offset) if hot.end_offset > hot.local_start_offset else None
    )
    head = decode_header(found.file.pread(found.start, HEADER_BYTES)) if found is not None else None
    return head.leader_epoch if head is not None else NO_EPOCH


async def prepare_leader_log(
    hot: DiskLog,
    cold: ColdTier,
    partition_id: PartitionId,
    topic: str,
    leader_epoch: int,
    previous_leader: PreviousLeader,
    chains: ChainHistory | None,
    save_offsets: SaveOffsets,
) -> LeaderStart:
    """Makes the local log agree with the cold segments. The new epoch then starts at max(local end, cold end) with its
    first batch. Raises `Unavailable` if the bucket does not reply; the partition must not be served then.

    Reading the manifest is not enough while a change by an earlier leader may still land. That change may name records
    that are not in this log. The cold end would then move past other records, acknowledged here in the meantime. In
    that case this leader takes over the manifest first, which fences that change. `chains` has the records of the
    partition in write-ahead chains; they were fenced before. `save_offsets` settles a truncation before any of these
    records is appended.
    """
    manifest, tiered = None, hot.config.remote_storage_enable
    if previous_leader is not PreviousLeader.NONE and not (
        previous_leader is PreviousLeader.MAY_STILL_WRITE and tiered
    ):
        manifest = await cold.manifests.load(partition_id)
        if (
            previous_leader is PreviousLeader.WAS_IN_SYNC_WITH
            and manifest is not None
            and isinstance(_compare_with_manifest(hot, manifest), RestartAtColdEnd)
        ):
            previous_leader = PreviousLeader.MAY_STILL_WRITE  # this replica lacks committed records after all
    if previous_leader is PreviousLeader.MAY_STILL_WRITE and tiered:
        manifest = await cold.manifests.take_over(partition_id, topic, leader_epoch)
    restart = await _restart_if_diverged(hot, cold, manifest) if manifest is not None else None
    if hot.producers.is_incomplete:
        await _restore_producers(hot, cold, manifest)
    stored_end = manifest.cold_end_offset if manifest is not None else 0
    if chains is not None:
        stored_end = await _append_from_chains(hot, cold, manifest, chains, save_offsets)
    lost_markers: Sequence[TransactionMarker] = ()
    if manifest is not None:
        hot.advance_start(min(manifest.log_start_offset, hot.end_offset))
        if hot.producers.txns.has_begun_below(manifest.cold_end_offset):
            lost_markers = await find_lost_markers(cold, manifest, hot.producers)
            if tiered:
                await _leave_records_to_the_bucket(hot, manifest.cold_end_offset)
            log.warning(
                "markers of cold transactions are lost partition=%s cold_end_offset=%d known=%d last_stable_offset=%d",
                manifest.tp,
                manifest.cold_end_offset,
                len(lost_markers),
                hot.first_unstable_offset,
            )
    if restart is not None or hot.synced_entry.fsynced_only:
        await hot.flush()  # acknowledged records are fsynced then, so they count as committed again at once
    takeover_pending = tiered and previous_leader is PreviousLeader.WAS_IN_SYNC_WITH
    return LeaderStart(
        manifest, restart, takeover_pending=takeover_pending, stored_end=stored_end, lost_markers=lost_markers
    )


async def _append_from_chains(
    hot: DiskLog, cold: ColdTier, manifest: Manifest | None, chains: ChainHistory, save_offsets: SaveOffsets
) -> int:
    """Appends what chains have above the cold end. Returns the end of what is in the bucket."""

    async def restart(first: int) -> None:
        if manifest is not None and manifest.entries:
            restart_at_cold_end(hot, await read_history(cold, manifest))
        else:
            hot.truncate_fully_and_start_at(first, (), None)

    start = manifest.cold_end_offset if manifest is not None else hot.local_start_offset
    entries = manifest.entries if manifest is not None else ()
    epoch = entries[-1].lineage[-1][0] if entries and entries[-1].lineage else NO_EPOCH
    return await append_from_chains(hot, start, epoch, chains, restart, save_offsets)


async def _restart_if_diverged(hot: DiskLog, cold: ColdTier, manifest: Manifest) -> RestartAtColdEnd | None:
    found = _compare_with_manifest(hot, manifest)
    if (
        isinstance(found, RestartAtColdEnd)
        and hot.end_offset >= manifest.cold_end_offset
        and hot.repair_leader_epochs()
    ):
        # Only the leader epochs on disk were damaged, not the log: keep the records that are only here.
        log.warning("leader epochs repaired from the batches partition=%s lineage=%s", manifest.tp, hot.epochs.lineage)
        found = _compare_with_manifest(hot, manifest)
    if not isinstance(found, RestartAtColdEnd):
        return None
    if found.empty:
        log.info("empty log starts at the cold end partition=%s offset=%d", manifest.tp, found.offset)
    else:
        log.warning(
            "local log disagrees with the bucket, it restarts at the cold end partition=%s offset=%d why=%s",
            manifest.tp,
            found.offset,
            found.why,
        )
    restart_at_cold_end(hot, await read_history(cold, manifest))
    await hot.flush()
    return found


async def _restore_producers(hot: DiskLog, cold: ColdTier, manifest: Manifest | None) -> None:
    """Takes producers from the bucket that a power cut took from the disk: otherwise their retries are appended twice
    (I11). The log agrees with the bucket, so the batches above the cold end follow the snapshot there."""
    history = None
    if manifest is not None and hot.local_start_offset <= manifest.cold_end_offset:
        try:
            history = await read_history(cold, manifest)
        except Corrupt as error:
            log.error("producer state in the bucket is damaged partition=%s why=%s", hot.name, error)
    if history is not None and history.producers is not None:
        hot.restore_producers(history.offset, history.producers, history.batches)
        log.warning("producers restored from the bucket partition=%s offset=%d", hot.name, history.offset)
    else:
        hot.restore_producers(hot.end_offset, None, ())
        log.error(
            "producers from before the local log are unknown, retries may be appended twice partition=%s start=%d",
            hot.name,
            hot.local_start_offset,
        )


async def _leave_records_to_the_bucket(hot: DiskLog, cold_end: int) -> None:
    """Drops the local records below the cold end offset. The bucket knows which of their transactions were aborted, and
    this disk does not: readers get them from the bucket until the markers are committed."""
    if hot.end_offset == cold_end:
        hot.roll()
    await hot.drop_local_below(cold_end)


def _compare_with_manifest(hot: DiskLog, manifest: Manifest) -> object:
    known = ColdLog(manifest.log_start_offset, manifest.cold_end_offset, cold_lineage(manifest.entries))
    has_gaps = hot.compaction.may_have_gaps or not all(entry.is_dense for entry in manifest.entries)
    after_gap = partial(_epoch_after_gap, hot) if has_gaps else None
    return reconcile(hot.local_start_offset, hot.end_offset, hot.epochs.lineage, known, after_gap)


def _epoch_after_gap(hot: DiskLog, offset: int) -> int:
    """Returns the leader epoch of the first batch after `offset`, or -1 if a batch holds `offset`."""
    try:
        found = hot.read(offset, 0, end_offset=hot.end_offset)
        head = decode_header(found.file.pread(found.start, HEADER_BYTES)) if found is not None else None
    except (Corrupt, Refused):
        return NO_EPOCH
    return head.leader_epoch if head is not None and head.base_offset > offset else NO_EPOCH


def cold_lineage(entries: tuple[SegmentEntry, ...]) -> Lineage:
    """Returns the leader epochs that wrote these segments, as one lineage."""
    lineage: list[tuple[int, int]] = []
    for entry in entries:
        for epoch, start in entry.lineage:
            if not lineage or lineage[-1][0] != epoch:
                lineage.append((epoch, start))
    return lineage
