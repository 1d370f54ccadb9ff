"""Takes the end of a log back: a cut at an offset, or a new beginning with a history that others kept.

The order is the contract: a cut's index before its log, its log before snapshots, so that a crash in the middle leaves
an index that says too little, never one that points behind the end.
"""

from __future__ import annotations

from tiered.hot.index import IndexBuilder
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.hot.log_writer import LogWriter
from tiered.hot.producer_recovery import load_producers
from tiered.hot.producer_state import ProducerStates, decode_aborted_txns
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import Segment


def truncate(writer: LogWriter, keep: Segment, offset: int, interval: int) -> None:
    """Cuts the batch that holds `offset`, which stands in the segment `keep`, and all after it."""
    files = writer.files
    while writer.segments[-1] is not keep:
        _remove_segment(writer, writer.segments.pop())
    position, next_offset = writer.index.find_position(keep, offset), keep.base_offset
    builder = IndexBuilder(keep.base_offset, interval)
    for spot in files.walk_positions(keep.base_offset, 0, position):
        builder.add_batch(spot.position, spot.size, spot.last_offset, spot.max_timestamp)
        next_offset = spot.last_offset + 1
    writer.index.unmap(keep.base_offset)
    files.replace(files.path(keep.base_offset, ".index"), bytes(builder.offsets))
    files.replace(files.path(keep.base_offset, ".timeindex"), bytes(builder.times))
    _truncate_aborted_txns(files, keep.base_offset, next_offset)
    files.log_file(keep.base_offset).truncate(position)
    keep.size, keep.next_offset, keep.index_checksums = position, next_offset, None
    keep.max_timestamp, keep.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
    writer.end_offset = next_offset
    writer.unsynced.truncate_to(next_offset)
    for above in writer.snapshot_offsets():
        if above > next_offset:
            files.remove(files.path(above, ".snapshot"))
    most = writer.producer_limits.per_partition
    producers, used = load_producers(files, writer.segments, writer.snapshot_offsets(), next_offset, most)
    writer.replace_producers(producers)
    writer.set_active_segment(builder, (len(builder.offsets), len(builder.times)), used)
    if writer.epochs.truncate_from(next_offset):
        writer.save_epochs()
    writer.rewrite_checkpoint()


def truncate_fully(writer: LogWriter, offset: int, epochs: Lineage, producers: ProducerStates, interval: int) -> None:
    """Removes all segments and begins empty at `offset`, with the epochs and producers of what lies below it."""
    for segment in reversed(writer.segments):
        _remove_segment(writer, segment)
    for left in writer.snapshot_offsets():
        writer.files.remove(writer.files.path(left, ".snapshot"))
    writer.segments.clear()
    writer.end_offset = offset
    writer.unsynced.truncate_to(offset)
    writer.replace_producers(producers)
    writer.begin_empty_segment(offset, interval)
    writer.take_snapshot()
    writer.epochs = LeaderEpochs(entry for entry in epochs if entry[1] < offset)
    writer.save_epochs()
    writer.rewrite_checkpoint()


def _remove_segment(writer: LogWriter, segment: Segment) -> None:
    writer.index.unmap(segment.base_offset)
    for suffix in (".index", ".timeindex", ".txnindex", ".log", ".snapshot"):
        writer.files.remove(writer.files.path(segment.base_offset, suffix))


def _truncate_aborted_txns(files: SegmentFiles, base_offset: int, end: int) -> None:
    path = files.path(base_offset, ".txnindex")
    held = files.read(path)
    if held is not None:
        files.replace(path, b"".join(one.encode() for one in decode_aborted_txns(held) if one.last_offset < end))
