"""What the bucket knows of a log's past: leader epochs and producers, with which a log begins behind what is cold.

A new leader takes it where its own log disagrees (rule R5), a follower where it is new or far behind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from tiered.cold.manifest import FAN, Manifest
from tiered.errors import Corrupt, Refused
from tiered.hot.disk_log import DiskLog
from tiered.hot.index import OFFSET_ENTRY
from tiered.hot.leader_epochs import Lineage
from tiered.hot.producer_recovery import RESTORE_BYTES
from tiered.hot.producer_state import ProducerStates
from tiered.records.model import WalkedBatch
from tiered.records.native import walk
from tiered.replication.storage import ColdTier

log = logging.getLogger(__name__)

RECALL_SEGMENTS = 2 * FAN
"""So many segments are read for these bytes, at most: each costs a request, however small it is."""
RECALL_TRIES = 3


class ColdHistory(NamedTuple):
    """Of all below `offset`, the cold end. `batches` are the last of them that producers wrote: a snapshot holds only
    the newest of each, and who was never answered tries all of his last five again."""

    offset: int
    lineage: Lineage
    producers: bytes | None
    batches: Sequence[WalkedBatch]


async def read_history(cold: ColdTier, manifest: Manifest) -> ColdHistory:
    """What the newest cold segments say. `Unavailable`, `Corrupt` from the bucket."""
    offset = manifest.cold_end_offset
    if not manifest.entries:
        return ColdHistory(offset, (), None, ())
    sections = await cold.reader.read_sections(manifest.entries[-1])
    producers = sections.producers or None
    try:
        known = len(ProducerStates.from_snapshot(producers, offset)) if producers else 0
    except Corrupt as error:
        log.error("producers are unknown from here on, retries may double partition=%s why=%s", manifest.tp, error)
        return ColdHistory(offset, sections.lineage, None, ())
    batches = await _read_last_batches(cold, manifest, sections.offset_index) if known else ()
    return ColdHistory(offset, sections.lineage, producers, batches)


def restart_at_cold_end(hot: DiskLog, history: ColdHistory) -> None:
    """Drops all that is local, and begins at the cold end. `flush` before anything is appended: a power cut must not
    bring back parts of what was dropped."""
    hot.truncate_fully_and_start_at(history.offset, history.lineage, history.producers)
    hot.producers.restore_batches(history.batches)


async def _read_last_batches(cold: ColdTier, manifest: Manifest, offset_index: bytes) -> Sequence[WalkedBatch]:
    """Returns the newest cold batches of producers; those before the damage where bytes stay wrong. The reader gets
    wrong bytes once more by itself. They are looked at again, for they may be right in the bucket."""
    batches: list[WalkedBatch] = []
    for tries_left in reversed(range(RECALL_TRIES)):
        batches.clear()
        try:
            start = max(await _find_recall_offset(cold, manifest, offset_index), manifest.log_start_offset)
            async for piece in cold.reader.iterate(manifest.partition_id, start, manifest=manifest):
                batches += [batch for batch in walk(piece.data, check_crc=False).batches if batch.producer_id >= 0]
            break
        except (Corrupt, Refused) as error:
            if not tries_left or isinstance(error, Refused):
                log.error("producers are known by their last batch only partition=%s why=%s", manifest.tp, error)
                break
    return batches


async def _find_recall_offset(cold: ColdTier, manifest: Manifest, offset_index: bytes) -> int:
    """The offset from which on about `RECALL_BYTES` are cold; `offset_index` is that of the last segment. `Unavailable`
    and `Corrupt` from the sub-manifests that name older ones."""
    last = manifest.entries[-1]
    room = RESTORE_BYTES - last.log_bytes
    if room < 0:
        below = [relative for relative, position in OFFSET_ENTRY.iter_unpack(offset_index) if position <= -room]
        return last.base_offset + (below[-1] if below else 0)
    start, segments = last.base_offset, 1
    async for entry in cold.manifests.list_newest_first(manifest, last.base_offset):
        room -= entry.log_bytes
        segments += 1
        if room < 0 or segments > RECALL_SEGMENTS:
            break
        start = entry.base_offset
    return start
