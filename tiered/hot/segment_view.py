"""Closed segments as other packages see them, and the data that is uploaded with each."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tiered.errors import Corrupt
from tiered.hot.index import rebase_indexes
from tiered.hot.leader_epochs import Lineage
from tiered.hot.log_writer import LogWriter
from tiered.hot.producer_recovery import load_producers
from tiered.hot.segment_files import SegmentFiles
from tiered.hot.segments import Segment
from tiered.ports import FileSlice
from tiered.producers.aborted_txns import encode_aborted_txns
from tiered.producers.states import ProducerStates
from tiered.value import value

log = logging.getLogger(__name__)


@value
class SegmentView:
    """A segment: offsets `[base_offset, next_offset)`, `size` bytes. Times in ms."""

    base_offset: int
    next_offset: int
    size: int
    max_timestamp: int
    created_ms: int
    files: SegmentFiles

    @classmethod
    def of(cls, segment: Segment, files: SegmentFiles) -> SegmentView:
        return cls(
            segment.base_offset,
            segment.next_offset,
            segment.size,
            segment.max_timestamp,
            segment.created_ms,
            files,
        )

    @property
    def log(self) -> FileSlice:
        """Returns the bytes of the log. Opens the file."""
        return FileSlice(self.files.log_file(self.base_offset), 0, self.size)


class LogSegmentData(NamedTuple):
    """The data that is uploaded with a segment: log, indexes, producer snapshot at its end, and its leader epochs.

    Index entries are relative to `base_offset` and to the first byte of `log`. `txn_index` names every aborted
    transaction that has records here, even if its marker is in a later segment: a cold segment is read by itself.
    """

    base_offset: int
    next_offset: int
    log: FileSlice
    offset_index: bytes
    time_index: bytes
    txn_index: bytes
    producer_snapshot: bytes
    lineage: Lineage


def build_segment_data(writer: LogWriter, segment: Segment, from_offset: int | None) -> LogSegmentData:
    """Collects the data of a closed segment, from the batch that holds `from_offset` on.

    None means the whole segment. If a clean removed that batch, the data begins at `from_offset` itself, with the bytes
    of the next batch: an object begins where the one before it ends. Raises `Corrupt` if there is no such batch.
    """
    files = writer.files
    offsets, times = (bytes(index) for index in writer.index.indexes(segment))
    first, position = segment.base_offset, 0
    if from_offset is not None and from_offset > first:
        position = writer.index.find_position(segment, from_offset)
        batch = next(files.walk_positions(segment.base_offset, position, segment.size), None)
        if batch is None:
            raise Corrupt(f"no batch from offset {from_offset} on", where=files.path(segment.base_offset, ".log"))
        first = min(batch.base_offset, from_offset)
        offsets, times = rebase_indexes(offsets, times, first - segment.base_offset, position)
    end = segment.next_offset
    aborted = writer.txn_index.find(writer.segments, first, end)
    return LogSegmentData(
        first,
        end,
        FileSlice(files.log_file(segment.base_offset), position, segment.size - position),
        offsets,
        times,
        encode_aborted_txns(aborted),
        _producer_snapshot_at(writer, end),
        writer.epochs.lineage_within(first, end),
    )


def _producer_snapshot_at(writer: LogWriter, end: int) -> bytes:
    """Returns the producer snapshot at the end of a segment.

    If its file is missing or invalid, rebuilds it from older snapshots and the log: the copy in the bucket may be the
    only one that the next leader has.
    """
    path = writer.files.path(end, ".snapshot")
    data = writer.files.read(path)
    if data is not None:
        try:
            ProducerStates.from_snapshot(data, end, where=path)
        except Corrupt as error:
            log.warning("invalid producer snapshot is rebuilt error=%s", error)
        else:
            return data
    producers_max = writer.producer_limits.per_partition
    return load_producers(writer.files, writer.segments, writer.snapshot_offsets(), end, producers_max)[
        0
    ].encode_snapshot()
