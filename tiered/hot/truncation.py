"""Truncates the end of a log, or restarts it empty at an offset with a history from elsewhere.

The order matters: the indexes are truncated before the log, and the log before the transaction index and the
snapshots. After a crash in the middle an index has too few entries, and never one that points past the end. A
transaction index has too many, which a start removes.
"""

from __future__ import annotations

from dataclasses import replace

from tiered.errors import Corrupt
from tiered.hot.index import IndexBuilder
from tiered.hot.leader_epochs import LeaderEpochs, Lineage
from tiered.hot.log_reader import find_segment
from tiered.hot.log_writer import LogWriter
from tiered.hot.producer_recovery import load_producers
from tiered.hot.recovery import WHOLE_LOG, RecoveryStart, start_from_checkpoint
from tiered.hot.segments import Segment
from tiered.producers.states import ProducerStates


def find_end(writer: LogWriter, offset: int) -> int:
    """Returns an offset that is not above the log end after a truncation at `offset`. Raises `Corrupt` if the log is
    damaged below."""
    if not writer.segments[0].base_offset < offset < writer.end_offset:
        return offset
    keep = find_segment(writer, offset)
    position = writer.index.find_position(keep, offset)
    if position and not writer.index.may_have_gaps:
        return writer.index.find_last_batch_end(keep, 0, position)[1]
    return keep.base_offset


def truncate(writer: LogWriter, keep: Segment, offset: int, interval: int) -> None:
    """Truncates the log at the batch that holds `offset`, in the segment `keep`: this batch and all later ones go.

    If other segments follow `keep`, only they go, and `keep` stays as it is. It is not read for that: it may be damaged
    above `offset`. If its end has to be read and is damaged, all goes at once.

    Raises `Corrupt` before anything is changed.
    """
    files = writer.files
    end = _find_whole_end(writer, keep, interval) if keep is not writer.active else None
    is_cut = end is None
    if end is None:
        end = _find_end_before(writer, keep, offset, interval)
    position, next_offset, builder = end.position, end.next_offset, end.builder
    entries = writer.txn_index.list_entries(writer.segments, keep)
    while writer.segments[-1] is not keep:
        _remove_segment(writer, writer.segments.pop())
    writer.index.unmap(keep.base_offset)
    if is_cut:
        writer.save_epochs()  # before index entries of their batches
        files.replace(files.path(keep.base_offset, ".index"), bytes(builder.offsets))
        files.replace(files.path(keep.base_offset, ".timeindex"), bytes(builder.times))
        files.log_file(keep.base_offset).truncate(position)
    # Not earlier: a start removes entries above the log end, but takes entries below its snapshot for complete.
    writer.txn_index.replace(keep, [entry for entry in entries if entry.last_offset < next_offset])
    keep.size, keep.next_offset, keep.index_checksums = position, next_offset, None
    keep.max_timestamp, keep.max_timestamp_offset = builder.max_timestamp, builder.max_timestamp_offset
    writer.end_offset = next_offset
    writer.unsynced.truncate_to(next_offset)
    for snapshot_offset in writer.snapshot_offsets():
        if snapshot_offset > next_offset:
            files.remove(files.path(snapshot_offset, ".snapshot"))
    producers_max = writer.producer_limits.per_partition
    producers, used = load_producers(files, writer.segments, writer.snapshot_offsets(), next_offset, producers_max)
    producers.restore_window(writer.producers)
    writer.replace_producers(producers)
    writer.set_active_segment(builder, (len(builder.offsets), len(builder.times)), used)
    if writer.epochs.truncate_from(next_offset):
        writer.save_epochs()
    writer.rewrite_checkpoint()


def _find_whole_end(writer: LogWriter, keep: Segment, interval: int) -> RecoveryStart | None:
    """Returns the end of a closed segment after its last batch, with its indexes. Returns None if that is damaged."""
    try:
        offsets, times = map(bytes, writer.index.indexes(keep))
        next_offset = keep.next_offset
        if writer.index.may_have_gaps:  # the last offsets may be in no batch, and a start would not find them
            next_offset = writer.index.find_last_batch_end(keep, 0, keep.size)[1]
    except Corrupt:
        return None
    end = start_from_checkpoint(keep, interval, keep.size, offsets, times, WHOLE_LOG)
    return replace(end, next_offset=next_offset) if end is not None else None


def _find_end_before(writer: LogWriter, keep: Segment, offset: int, interval: int) -> RecoveryStart:
    """Returns the end of a segment before the batch that holds `offset`, with the indexes up to there."""
    position, next_offset = writer.index.find_position(keep, offset), keep.base_offset
    builder = IndexBuilder(keep.base_offset, interval)
    for batch in writer.files.walk_positions(keep.base_offset, 0, position):
        builder.add_batch(batch.position, batch.size, batch.last_offset, batch.max_timestamp)
        next_offset = batch.last_offset + 1
    return RecoveryStart(position, next_offset, builder)


def truncate_fully(writer: LogWriter, offset: int, epochs: Lineage, producers: ProducerStates, interval: int) -> None:
    """Deletes all segments and restarts the empty log at `offset`, with the given epochs and producer state of lower
    offsets."""
    for segment in reversed(writer.segments):
        _remove_segment(writer, segment)
    for snapshot_offset in writer.snapshot_offsets():
        writer.files.remove(writer.files.path(snapshot_offset, ".snapshot"))
    # If a step fails, the log is an empty one until it is opened again.
    writer.segments[:] = [Segment(offset, offset, 0, writer.active.created_ms)]
    writer.end_offset = offset
    writer.unsynced.truncate_to(offset)
    writer.replace_producers(producers)
    writer.begin_empty_segment(offset, interval)
    del writer.segments[0]
    writer.take_snapshot()
    writer.epochs = LeaderEpochs(entry for entry in epochs if entry[1] < offset)
    writer.save_epochs()
    writer.rewrite_checkpoint()


def _remove_segment(writer: LogWriter, segment: Segment) -> None:
    writer.index.unmap(segment.base_offset)
    writer.txn_index.drop(segment.base_offset)
    for suffix in (".index", ".timeindex", ".txnindex", ".log", ".snapshot"):
        writer.files.remove(writer.files.path(segment.base_offset, suffix))
