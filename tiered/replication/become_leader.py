"""How a replica begins to lead (rule R5): the manifest is read first, and where it disagrees the bucket wins."""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.hot.disk_log import DiskLog
from tiered.ids import PartitionId
from tiered.replication.cold_history import read_history, restart_at_cold_end
from tiered.replication.leader_state import ColdLog, Lineage, RestartAtColdEnd, reconcile
from tiered.replication.storage import ColdTier

log = logging.getLogger(__name__)


class LeaderStart(NamedTuple):
    """Where leading begins, and what made the local log start over, if anything did."""

    manifest: Manifest | None
    restart: RestartAtColdEnd | None
    takeover_pending: bool = False
    """The manifest is to be taken over soon: an earlier leader may still change it."""


class PreviousLeader(Enum):
    """What is known of those who led before."""

    NONE = "the topic was created just now: nothing of it can be cold"
    STOPPED_CLEANLY = "the last leader stopped cleanly: no write of its is under way"
    WAS_IN_SYNC_WITH = (
        "this replica was in sync: what a write under way names is committed, so it is here with the same bytes"
    )
    MAY_STILL_WRITE = "a write of an earlier leader may be under way to the manifest"


async def prepare_leader_log(
    hot: DiskLog,
    cold: ColdTier,
    partition_id: PartitionId,
    topic: str,
    leader_epoch: int,
    previous_leader: PreviousLeader,
) -> LeaderStart:
    """Makes the local log agree with what is cold, so that the new epoch begins at max(local end, cold end) with its
    first batch. `Unavailable` when the bucket does not say; nothing is served then.

    Reading the manifest is not enough while an earlier leader's change to it may still land, and name what is not here:
    the cold end would move over other records, acknowledged here by then. Then it is taken over first, which fences
    that change."""
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
            previous_leader = PreviousLeader.MAY_STILL_WRITE  # it does not have what was committed after all
    if previous_leader is PreviousLeader.MAY_STILL_WRITE and tiered:
        manifest = await cold.manifests.take_over(partition_id, topic, leader_epoch)
    restart = await _restart_if_diverged(hot, cold, manifest) if manifest is not None else None
    if manifest is not None:
        hot.advance_start(min(manifest.log_start_offset, hot.end_offset))
    if restart is not None or hot.synced_entry.fsynced_only:
        await hot.flush()  # what was acknowledged is committed again at once: it is below what counts as fsynced
    takeover_pending = tiered and previous_leader is PreviousLeader.WAS_IN_SYNC_WITH
    return LeaderStart(manifest, restart, takeover_pending=takeover_pending)


async def _restart_if_diverged(hot: DiskLog, cold: ColdTier, manifest: Manifest) -> RestartAtColdEnd | None:
    found = _compare_with_manifest(hot, manifest)
    if (
        isinstance(found, RestartAtColdEnd)
        and hot.end_offset >= manifest.cold_end_offset
        and hot.repair_leader_epochs()
    ):
        # The file of epochs had rotted, not the log: records that are only here must not go for it.
        log.warning(
            "leader epochs were not those of the batches partition=%s lineage=%s", manifest.tp, hot.epochs.lineage
        )
        found = _compare_with_manifest(hot, manifest)
    if not isinstance(found, RestartAtColdEnd):
        return None
    if found.empty:
        log.info("log begins at the end of what is cold partition=%s offset=%d", manifest.tp, found.offset)
    else:
        log.warning(
            "the bucket wins over the local log partition=%s offset=%d why=%s", manifest.tp, found.offset, found.why
        )
    restart_at_cold_end(hot, await read_history(cold, manifest))
    await hot.flush()
    return found


def _compare_with_manifest(hot: DiskLog, manifest: Manifest) -> object:
    known = ColdLog(manifest.log_start_offset, manifest.cold_end_offset, cold_lineage(manifest.entries))
    return reconcile(hot.local_start_offset, hot.end_offset, hot.epochs.lineage, known)


def cold_lineage(entries: tuple[SegmentEntry, ...]) -> Lineage:
    """Who wrote the offsets of these segments, as one lineage."""
    lineage: list[tuple[int, int]] = []
    for entry in entries:
        for epoch, start in entry.lineage:
            if not lineage or lineage[-1][0] != epoch:
                lineage.append((epoch, start))
    return lineage
