"""What a read of a partition gives: whole batches, and how far the log reaches for whoever asks."""

from __future__ import annotations

from typing import NamedTuple

from tiered.ports import FileSlice

Data = bytes | FileSlice


class Fetched(NamedTuple):
    """Whole batches from the one that holds the offset asked for, or none. A `FileSlice` is sent uncopied."""

    data: Data
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return self.data.length if isinstance(self.data, FileSlice) else len(self.data)
