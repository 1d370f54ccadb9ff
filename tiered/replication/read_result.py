"""Results of reads from a partition: whole batches, and the offsets that go with them."""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code
from tiered.peers import DivergingEpoch
from tiered.ports import FileSlice

RecordBytes = bytes | FileSlice


AbortedTxns = tuple[tuple[int, int], ...]
"""Aborted transactions as a reply names them: (producer id, first offset), sorted by offset."""


class ReadResult(NamedTuple):
    """Whole batches, starting with the one that holds the requested offset, or none. A `FileSlice` is sent without a
    copy. A read_committed reader leaves out the records of `aborted_txns`; each ends with a marker in the log."""

    data: RecordBytes
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    aborted_txns: AbortedTxns = ()

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return self.data.length if isinstance(self.data, FileSlice) else len(self.data)

    def end_offset(self, read_committed: bool) -> int:
        """Returns the end of the records that such a reader gets: last stable offset or high watermark."""
        return self.last_stable_offset if read_committed else self.high_watermark


class FollowerReadResult(NamedTuple):
    """The leader's reply to a follower for one partition: `peers.FetchedPartition` before it is encoded. It has no
    records if `code` is an error or the logs diverge."""

    code: Code
    diverging: DivergingEpoch | None
    data: RecordBytes
    high_watermark: int
    log_start_offset: int
    local_start_offset: int
    cold_end_offset: int
    may_have_gaps: bool = False

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return self.data.length if isinstance(self.data, FileSlice) else len(self.data)
