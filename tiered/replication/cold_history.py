"""Leader epochs, producer state and outcomes that the bucket has for the records below the cold end offset.

A log that restarts at the cold end is rebuilt from them. A new leader does so if its log disagrees with the
bucket (R5), and a follower if it is new or far behind. A producer's retry is then still found (I11).

A transaction may be open at the cold end: its marker is above. Only decided ones go to the bucket. If all disks lose
the marker, the bucket still knows the outcome, and the new leader writes the marker again (I14).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tiered.cold.layout import SectionKind
from tiered.cold.manifest import FAN, Manifest
from tiered.cold.manifest_store import ObjectMissing
from tiered.errors import Corrupt, Refused
from tiered.hot.disk_log import DiskLog
from tiered.hot.index import OFFSET_ENTRY
from tiered.hot.leader_epochs import Lineage
from tiered.hot.producer_recovery import RESTORE_BYTES
from tiered.producers.aborted_txns import MAX_OFFSET, decode_aborted_txns
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.marker import TransactionMarker
from tiered.records.model import WalkedBatch
from tiered.records.native import walk
from tiered.replication.cold_tier import ColdTier

log = logging.getLogger(__name__)

RECALL_SEGMENTS = 2 * FAN
"""Maximum number of segments that are read to find `RESTORE_BYTES` of log. Each segment costs a request, however small
it is."""
RECALL_TRIES = 3


class ColdHistory(NamedTuple):
    """State of the log below `offset`, the cold end offset. `producers` is a snapshot, which holds only the newest
    batch of each producer. `batches` are the last batches below `offset` that producers
    wrote: a producer that got no reply retries all of its last five."""

    offset: int
    lineage: Lineage
    producers: bytes | None
    batches: Sequence[WalkedBatch]


async def read_history(cold: ColdTier, manifest: Manifest) -> ColdHistory:
    """Reads the history from the newest cold segments. Raises `Unavailable` and `Corrupt` from the bucket."""
    offset = manifest.cold_end_offset
    if not manifest.entries:
        return ColdHistory(offset, (), None, ())
    sections = await cold.reader.read_sections(manifest.entries[-1])
    if not sections.producers:
        return ColdHistory(offset, sections.lineage, None, ())
    try:
        states = ProducerStates.from_snapshot(sections.producers, offset, ProducerLimits(sys.maxsize, sys.maxsize))
    except Corrupt as error:
        log.error(
            "producer state in the bucket is damaged, retries may be appended twice partition=%s why=%s",
            manifest.tp,
            error,
        )
        return ColdHistory(offset, sections.lineage, None, ())
    batches = await _read_last_batches(cold, manifest, sections.offset_index) if len(states) else ()
    return ColdHistory(offset, sections.lineage, states.encode_snapshot(), batches)


def restart_at_cold_end(hot: DiskLog, history: ColdHistory) -> None:
    """Drops the whole local log and restarts it at the cold end. Call `flush` before the next append: a power cut must
    not bring back parts of the dropped log."""
    hot.truncate_fully_and_start_at(history.offset, history.lineage, history.producers)
    hot.producers.restore_batches(history.batches)


async def find_lost_markers(cold: ColdTier, manifest: Manifest, producers: ProducerStates) -> list[TransactionMarker]:
    """Returns the markers of open transactions whose records are all cold, in the order of their first offsets.

    All disks have lost these markers, and the coordinators would not write them again. A transaction that goes on above
    the cold end stays open: nobody knows what its records there count. So does one whose outcome is damaged in the
    bucket, and one whose records are all deleted: these do not wait for their outcome, and it may live. Raises
    `Unavailable`, and `Refused` if the records expire meanwhile.
    """
    found = producers.list_open_transactions_within(manifest.log_start_offset, manifest.cold_end_offset)
    try:
        aborted = await _read_aborted(cold, manifest, found[0].txn_first_offset) if found else ()
    except Corrupt as error:
        log.error("cold transactions stay open, their outcome is damaged partition=%s why=%s", manifest.tp, error)
        return []
    return [
        TransactionMarker(
            each.producer_id, each.epoch, (each.producer_id, each.txn_first_offset) not in aborted,
            max(each.coordinator_epoch, 0),
        )
        for each in found
    ]  # fmt: skip


async def _read_aborted(cold: ColdTier, manifest: Manifest, start: int) -> set[tuple[int, int]]:
    """Returns (producer id, first offset) of the aborted transactions that have records from `start` on.

    The index of every object with such records names them. A clean takes a name out, together with the records.
    """
    aborted = set[tuple[int, int]]()
    for tries_left in reversed(range(RECALL_TRIES)):
        try:
            async for entry in cold.manifests.list_newest_first(manifest, manifest.cold_end_offset):
                if entry.next_offset <= start:
                    break
                if any(ref.kind == SectionKind.TXN_INDEX for ref in entry.sections):
                    index = (await cold.reader.read_sections(entry)).txn_index
                    entries = decode_aborted_txns(index, begin=0, end=MAX_OFFSET, where=entry.key)
                    aborted.update((each.producer_id, each.first_offset) for each in entries)
            break
        except ObjectMissing as error:  # a clean has replaced the object, or it is lost
            if not tries_left:
                raise
            last = manifest.cold_end_offset - 1
            manifest = await cold.reader.find_newer_manifest(manifest.partition_id, last, error)
    return aborted


async def _read_last_batches(cold: ColdTier, manifest: Manifest, offset_index: bytes) -> Sequence[WalkedBatch]:
    """Returns the newest cold batches of producers; if bytes stay damaged, only those before the damage. The reader
    fetches damaged bytes once more itself. This function tries again on top of that, because the bytes may be right in
    the bucket."""
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
                log.error(
                    "cold batches are damaged, only the last batch of each producer is known partition=%s why=%s",
                    manifest.tp,
                    error,
                )
                break
    return batches


async def _find_recall_offset(cold: ColdTier, manifest: Manifest, offset_index: bytes) -> int:
    """Returns the offset from which on about `RESTORE_BYTES` of log are cold. `offset_index` is the index of the last
    segment. Raises `Unavailable` and `Corrupt` from the sub-manifests that name older segments."""
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
