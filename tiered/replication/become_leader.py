"""How a replica begins to lead (rule R5): the manifest is read first, and where it disagrees the bucket wins."""

from __future__ import annotations

import logging
from enum import Enum
from typing import NamedTuple

from tiered.cold.manifest import Manifest, SegmentEntry
from tiered.hot.disk_log import DiskLog
from tiered.ids import PartitionId
from tiered.replication.cold_history import begin_behind, read_history
from tiered.replication.leader_state import Cold, Lineage, Restart, reconcile
from tiered.replication.storage import ColdTier

log = logging.getLogger(__name__)


class Begun(NamedTuple):
    """Where leading begins, and what made the local log start over, if anything did."""

    manifest: Manifest | None
    restart: Restart | None
    owes: bool = False
    """The manifest is to be taken over soon: an earlier leader may still change it."""


class Past(Enum):
    """What is known of those who led before."""

    NONE = "the topic was created just now: nothing of it can be cold"
    SETTLED = "the last leader stopped cleanly: no write of its is under way"
    INHERITED = "this replica was in sync: what a write under way names is committed, so it is here with the same bytes"
    OPEN = "a write of an earlier leader may be under way to the manifest"


async def begin(hot: DiskLog, cold: ColdTier, pid: PartitionId, topic: str, epoch: int, past: Past) -> Begun:
    """Makes the local log agree with what is cold, so that the new epoch begins at max(local end, cold end) with its
    first batch. `Unavailable` when the bucket does not say; nothing is served then.

    Reading the manifest is not enough while an earlier leader's change to it may still land, and name what is not here:
    the cold end would move over other records, acknowledged here by then. Then it is taken over first, which fences
    that change."""
    manifest, tiered = None, hot.config.remote_storage_enable
    if past is not Past.NONE and not (past is Past.OPEN and tiered):
        manifest = await cold.manifests.load(pid)
        if past is Past.INHERITED and manifest is not None and isinstance(_compared(hot, manifest), Restart):
            past = Past.OPEN  # it does not have what was committed after all
    if past is Past.OPEN and tiered:
        manifest = await cold.manifests.take_over(pid, topic, epoch)
    restart = await _agree(hot, cold, manifest) if manifest is not None else None
    if manifest is not None:
        hot.advance_start(min(manifest.log_start_offset, hot.end_offset))
    if restart is not None or hot.synced_entry.fsynced_only:
        await hot.flush()  # what was acknowledged is committed again at once: it is below what counts as fsynced
    return Begun(manifest, restart, owes=past is Past.INHERITED and tiered)


async def _agree(hot: DiskLog, cold: ColdTier, manifest: Manifest) -> Restart | None:
    found = _compared(hot, manifest)
    if isinstance(found, Restart) and hot.end_offset >= manifest.cold_end_offset and hot.repair_leader_epochs():
        # The file of epochs had rotted, not the log: records that are only here must not go for it.
        log.warning(
            "leader epochs were not those of the batches partition=%s lineage=%s", manifest.tp, hot.epochs.lineage
        )
        found = _compared(hot, manifest)
    if not isinstance(found, Restart):
        return None
    if found.empty:
        log.info("log begins at the end of what is cold partition=%s offset=%d", manifest.tp, found.offset)
    else:
        log.warning(
            "the bucket wins over the local log partition=%s offset=%d why=%s", manifest.tp, found.offset, found.why
        )
    begin_behind(hot, await read_history(cold, manifest))
    await hot.flush()
    return found


def _compared(hot: DiskLog, manifest: Manifest) -> object:
    known = Cold(manifest.log_start_offset, manifest.cold_end_offset, cold_lineage(manifest.entries))
    return reconcile(hot.local_start_offset, hot.end_offset, hot.epochs.lineage, known)


def cold_lineage(entries: tuple[SegmentEntry, ...]) -> Lineage:
    """Who wrote the offsets of these segments, as one lineage."""
    lineage: list[tuple[int, int]] = []
    for entry in entries:
        for epoch, start in entry.lineage:
            if not lineage or lineage[-1][0] != epoch:
                lineage.append((epoch, start))
    return lineage
