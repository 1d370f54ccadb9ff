"""Producer state at an offset, rebuilt from the newest valid snapshot and the batch headers after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tiered.errors import Corrupt, Unavailable
from tiered.hot.index import lookup_offset, lookup_position, valid_offset_bytes
from tiered.hot.recovery import WHOLE_LOG, classify_files, usable_snapshots
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import Segment, find_segment_number
from tiered.producers.aborted_txns import AbortedTxn
from tiered.producers.entry import BATCHES_RETAINED
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch

log = logging.getLogger(__name__)

RESTORE_BYTES = 1 << 20
"""Bytes of log before a snapshot that are read to restore older batches: a snapshot has only the last batch of a
producer."""


AbortedBySegment = dict[int, list[AbortedTxn]]
"""Aborted transactions by the base offset of the segment that has their marker."""


def load_producers(
    files: SegmentFiles,
    segments: Sequence[Segment],
    snapshots: Sequence[int],
    end: int,
    producers_max: int,
    *,
    trusted_to: int = WHOLE_LOG,
    aborted: AbortedBySegment | None = None,
    repair: bool = False,
    is_tiered: bool = False,
) -> tuple[ProducerStates, int]:
    """Returns (producer state at `end`, offset of the snapshot used; without one, the base offset of the log).

    Invalid snapshots are deleted. Those above `trusted_to` are not used, except at the base offset of the log. If there
    are more than `producers_max` producers, those that wrote last are kept. Transactions that are aborted at or above
    the returned offset are added to `aborted`. With `repair` the snapshots at base offsets that were not used are
    written again: once the segments below are dropped, nothing else knows their producers.

    Without a valid snapshot the state of a log that begins above 0 is incomplete. If the log is tiered, `repair` then
    deletes the snapshots instead: a later start must not take one for complete (`LogWriter.lacks_producers`).
    """
    start, limits = segments[0].base_offset, ProducerLimits(producers_max)
    for offset in usable_snapshots(snapshots, start, min(end, max(trusted_to, start))):
        path = files.path(offset, ".snapshot")
        try:
            states = ProducerStates.from_snapshot(files.read(path) or b"", offset, limits, where=path)
        except Corrupt as error:
            log.warning("invalid producer snapshot is deleted error=%s", error)
            files.remove(path)
            continue
        if len(states) and offset > start:
            _restore_batches(files, states, segments, offset)
        break
    else:
        states, offset = ProducerStates(start, limits), start
        states.is_incomplete = start > 0
    if repair and is_tiered and states.is_incomplete:
        repair = False
        for unused in usable_snapshots(snapshots, start, end):
            files.remove(files.path(unused, ".snapshot"))
    replay_producers(files, segments, states, end, offset + 1 if repair else WHOLE_LOG, aborted)
    return states, offset


def replay_producers(
    files: SegmentFiles,
    segments: Sequence[Segment],
    states: ProducerStates,
    end: int,
    save_from: int,
    aborted: AbortedBySegment | None = None,
) -> None:
    """Applies the batches of the log from `states.end_offset` to `end`. Writes the snapshots at the base offsets from
    `save_from` on. Adds the aborted transactions to `aborted`."""
    begin = states.end_offset
    for segment in segments[max(find_segment_number(segments, begin), 0) :]:
        if save_from <= segment.base_offset == states.end_offset:
            _save_snapshot(files, states)
        if segment.base_offset < end and segment.next_offset > begin:
            found, position = _replay_segment(files, states, segment, begin, end)
            if position == segment.size:
                states.end_offset = segment.next_offset  # compaction may have removed the last offsets
            if aborted is not None and found:
                aborted[segment.base_offset] = found
    states.end_offset = end


def _save_snapshot(files: SegmentFiles, states: ProducerStates) -> None:
    try:
        files.replace(files.path(states.end_offset, ".snapshot"), states.encode_snapshot())
    except Unavailable as error:
        if error.final:
            raise
        log.warning("no room for a producer snapshot directory=%s error=%s", files.directory, error)


def replay_aborted_txns(
    files: SegmentFiles, segments: Sequence[Segment], segment: Segment, producers_max: int
) -> list[AbortedTxn]:
    """Returns the aborted transactions whose marker is in `segment`, from its batches and the producer state at its
    begin. Raises `Corrupt` if the segment cannot be read to its end."""
    snapshots = classify_files(files.disk.list(files.directory)).snapshots
    begin = segment.base_offset
    states = load_producers(files, segments, snapshots, begin, producers_max)[0]
    states.end_offset = begin
    found, position = _replay_segment(files, states, segment, begin, segment.next_offset)
    if position != segment.size:
        where = files.path(begin, ".log")
        raise Corrupt(f"batches from offset {states.end_offset} on cannot be read", where=where)
    return found


def read_offset_index(files: SegmentFiles, segment: Segment) -> bytes:
    """Returns the offset index in a segment's file, without bytes that cannot belong to one."""
    data = files.read(files.path(segment.base_offset, ".index")) or b""
    return data[: valid_offset_bytes(data, segment.size)]


def _replay_segment(
    files: SegmentFiles, states: ProducerStates, segment: Segment, start: int, end: int
) -> tuple[list[AbortedTxn], int]:
    """Applies the batches of one segment in `[start, end)`. Returns the transactions that they abort, and the position
    after the last batch that could be read."""
    aborted: list[AbortedTxn] = []
    position = 0
    if start > segment.base_offset:
        position = lookup_offset(read_offset_index(files, segment), start - segment.base_offset)[1]
    next_offset = start
    for batches in files.walk_batch_lists(segment.base_offset, position, check_crc=False):
        recent: dict[int, list[WalkedBatch]] = {}
        for batch in batches:
            if batch.position >= segment.size or batch.base_offset >= end:
                break
            next_offset, position = batch.last_offset + 1, batch.position + batch.size
            if batch.producer_id < 0 or batch.base_offset < start:
                continue
            if batch.attributes & CONTROL or (
                batch.attributes & TRANSACTIONAL and not states.has_ongoing_txn(batch.producer_id, batch.producer_epoch)
            ):
                for one in recent.pop(batch.producer_id, ())[-BATCHES_RETAINED:]:
                    states.apply(one)
                if not batch.attributes & CONTROL:
                    states.apply(batch)
                elif (ended := _end_transaction(files, states, segment, batch)) is not None:
                    aborted.append(ended)
            elif batch.producer_id in recent:
                recent[batch.producer_id].append(batch)
            else:
                recent[batch.producer_id] = [batch]
        for written in sorted(recent.values(), key=_last_offset):
            # Only the last batches of a producer are retained, so earlier ones need not be applied.
            for one in written[-BATCHES_RETAINED:]:
                states.apply(one)
    states.end_offset = next_offset
    return aborted, position


def _end_transaction(
    files: SegmentFiles, states: ProducerStates, segment: Segment, marker: WalkedBatch
) -> AbortedTxn | None:
    """Applies a marker. A marker that cannot be read ends nothing: nobody gets the records of its transaction."""
    data = files.log_file(segment.base_offset).pread(marker.position, marker.size)
    try:
        return states.end_transaction(marker, data)
    except Corrupt as error:
        where = files.path(segment.base_offset, ".log")
        log.error("marker cannot be read, its transaction stays open file=%s error=%s", where, error)
        return None


def _last_offset(written: list[WalkedBatch]) -> int:
    return written[-1].last_offset


def _restore_batches(files: SegmentFiles, states: ProducerStates, segments: Sequence[Segment], offset: int) -> None:
    """Restores the retained batches from the log below `offset`, from as many segments as needed."""
    *before, last = segments[: find_segment_number(segments, offset - 1) + 1]
    index = read_offset_index(files, last)
    limit = lookup_offset(index, offset - 1 - last.base_offset)[1] - RESTORE_BYTES
    parts = [(last, lookup_position(index, limit) if limit > 0 else 0)]
    for segment in reversed(before):
        if limit >= 0:
            break
        limit += segment.size
        parts.append((segment, lookup_position(read_offset_index(files, segment), limit) if limit > 0 else 0))
    states.restore_batches(
        batch
        for segment, position in reversed(parts)
        for batch in files.walk_batches(segment.base_offset, position, check_crc=False)
        if batch.last_offset < offset and batch.position < segment.size
    )
