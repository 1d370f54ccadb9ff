"""What a read of a partition gives: whole batches, and how far the log reaches for whoever asks, or copies it."""

from __future__ import annotations

from typing import NamedTuple

from tiered.errors import Code
from tiered.peers import DivergingEpoch
from tiered.ports import FileSlice

RecordBytes = bytes | FileSlice


class ReadResult(NamedTuple):
    """Whole batches from the one that holds the offset asked for, or none. A `FileSlice` is sent uncopied."""

    data: RecordBytes
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return self.data.length if isinstance(self.data, FileSlice) else len(self.data)


class FollowerReadResult(NamedTuple):
    """What a leader answers a follower: `peers.FetchedPart` before it is on the wire. With a `code` or where histories
    part there are no records."""

    code: Code
    diverging: DivergingEpoch | None
    data: RecordBytes
    high_watermark: int
    log_start_offset: int
    local_start_offset: int
    cold_end_offset: int

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return self.data.length if isinstance(self.data, FileSlice) else len(self.data)
