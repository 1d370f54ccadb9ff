"""Takes the end of a log back: a cut at an offset, or a new beginning with a history that others kept.

The order is the contract: a cut's index before its log, its log before snapshots, so that a crash in the middle leaves
an index that says too little, never one that points behind the end.
"""

from __future__ import annotations

from tiered.hot.index import IndexBuilder
from tiered.hot.leader_epochs import Epochs, Lineage
from tiered.hot.log_writer import Tail
from tiered.hot.producer_recovery import load_producers
from tiered.hot.producer_state import ProducerStates, decode_aborted
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import Segment


def truncate(tail: Tail, keep: Segment, offset: int, interval: int) -> None:
    """Cuts the batch that holds `offset`, which stands in the segment `keep`, and all after it."""
    files = tail.files
    while tail.segments[-1] is not keep:
        _remove(tail, tail.segments.pop())
    position, next_offset = tail.index.position(keep, offset), keep.base_offset
    builder = IndexBuilder(keep.base_offset, interval)
    for spot in files.spots(keep.base_offset, 0, position):
        builder.note(spot.position, spot.size, spot.last_offset, spot.max_timestamp)
        next_offset = spot.last_offset + 1
    tail.index.forget(keep.base_offset)
    files.replace(files.path(keep.base_offset, ".index"), bytes(builder.offsets))
    files.replace(files.path(keep.base_offset, ".timeindex"), bytes(builder.times))
    _cut_aborted(files, keep.base_offset, next_offset)
    files.log(keep.base_offset).truncate(position)
    keep.size, keep.next_offset, keep.proof = position, next_offset, None
    keep.max_timestamp, keep.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
    tail.end_offset = next_offset
    tail.unsynced.cut(next_offset)
    for above in tail.snapshots():
        if above > next_offset:
            files.remove(files.path(above, ".snapshot"))
    most = tail.producer_limits.per_partition
    producers, used = load_producers(files, tail.segments, tail.snapshots(), next_offset, most)
    tail.replace_producers(producers)
    tail.begin(builder, (len(builder.offsets), len(builder.times)), used)
    if tail.epochs.truncate_from(next_offset):
        tail.save_epochs()
    tail.renote()


def restart(tail: Tail, offset: int, epochs: Lineage, producers: ProducerStates, interval: int) -> None:
    """Removes all segments and begins empty at `offset`, with the epochs and producers of what lies below it."""
    for segment in reversed(tail.segments):
        _remove(tail, segment)
    for left in tail.snapshots():
        tail.files.remove(tail.files.path(left, ".snapshot"))
    tail.segments.clear()
    tail.end_offset = offset
    tail.unsynced.cut(offset)
    tail.replace_producers(producers)
    tail.begin_empty(offset, interval)
    tail.snapshot()
    tail.epochs = Epochs(entry for entry in epochs if entry[1] < offset)
    tail.save_epochs()
    tail.renote()


def _remove(tail: Tail, segment: Segment) -> None:
    tail.index.forget(segment.base_offset)
    for suffix in (".index", ".timeindex", ".txnindex", ".log", ".snapshot"):
        tail.files.remove(tail.files.path(segment.base_offset, suffix))


def _cut_aborted(files: SegmentFiles, base_offset: int, end: int) -> None:
    path = files.path(base_offset, ".txnindex")
    held = files.read(path)
    if held is not None:
        files.replace(path, b"".join(one.encode() for one in decode_aborted(held) if one.last_offset < end))
