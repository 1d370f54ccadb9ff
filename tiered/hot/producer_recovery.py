"""Producer state at an offset, rebuilt from the newest valid snapshot and the batch headers after it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tiered.errors import Corrupt
from tiered.hot.index import lookup_offset, lookup_position, valid_offset_bytes
from tiered.hot.producer_state import BATCHES_RETAINED, ProducerLimits, ProducerStates, decode_aborted_txns
from tiered.hot.recovery import usable_snapshots
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import Segment, find_segment_number
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch

log = logging.getLogger(__name__)

_SPECIAL = CONTROL | TRANSACTIONAL
RESTORE_BYTES = 1 << 20
"""Bytes of log before a snapshot that are read to restore older batches: a snapshot has only the last batch of a
producer."""


def load_producers(
    files: SegmentFiles, segments: Sequence[Segment], snapshots: Sequence[int], end: int, producers_max: int
) -> tuple[ProducerStates, int]:
    """Returns (producer state at `end`, offset of the snapshot used; without one, the base offset of the log).

    Invalid snapshots are deleted. If there are more than `producers_max` producers, those that wrote last are kept.
    """
    start, limits = segments[0].base_offset, ProducerLimits(producers_max)
    for offset in usable_snapshots(snapshots, start, end):
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
    for segment in segments[max(find_segment_number(segments, offset), 0) :]:
        if segment.base_offset < end and segment.next_offset > offset:
            _replay_segment(files, states, segment, offset, end)
    states.end_offset = end
    return states, offset


def read_offset_index(files: SegmentFiles, segment: Segment) -> bytes:
    """Returns the offset index in a segment's file, without bytes that cannot belong to one."""
    data = files.read(files.path(segment.base_offset, ".index")) or b""
    return data[: valid_offset_bytes(data, segment.size)]


def _replay_segment(files: SegmentFiles, states: ProducerStates, segment: Segment, start: int, end: int) -> None:
    position = 0
    if start > segment.base_offset:
        position = lookup_offset(read_offset_index(files, segment), start - segment.base_offset)[1]
    for batches in files.walk_batch_lists(segment.base_offset, position, check_crc=False):
        recent: dict[int, list[WalkedBatch]] = {}
        for batch in batches:
            if batch.position >= segment.size or batch.base_offset >= end:
                break
            if batch.producer_id < 0 or batch.base_offset < start:
                continue
            if batch.attributes & _SPECIAL:
                for one in recent.pop(batch.producer_id, ())[-BATCHES_RETAINED:]:
                    states.apply(one)
                if batch.attributes & CONTROL:
                    _end_transaction(files, states, segment, batch)
                else:
                    states.apply(batch)
            elif batch.producer_id in recent:
                recent[batch.producer_id].append(batch)
            else:
                recent[batch.producer_id] = [batch]
        for written in sorted(recent.values(), key=_last_offset):
            # Only the last batches of a producer are retained, so earlier ones need not be applied.
            for one in written[-BATCHES_RETAINED:]:
                states.apply(one)


def _last_offset(written: list[WalkedBatch]) -> int:
    return written[-1].last_offset


def _end_transaction(files: SegmentFiles, states: ProducerStates, segment: Segment, marker: WalkedBatch) -> None:
    aborted = states.end_transaction(marker, files.log_file(segment.base_offset).pread(marker.position, marker.size))
    if aborted is not None:
        file = files.open(files.path(segment.base_offset, ".txnindex"), create=True)
        if aborted not in decode_aborted_txns(file.pread(0, file.size())):
            file.append([aborted.encode()])


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
