"""Which records of a refused batch are at fault (KIP-467): the batch is opened only now, and only so far."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.records import native
from tiered.records.batch import open_section

DECODED_BYTES_MAX = 256 << 10
"""What one request may make of its batches, opened: a millisecond. The rest is refused without its records named."""
ERRORS_MAX = 1000

_NUMBER = re.compile(r"record (\d+) ")


class RecordErrors:
    """The faults of single records that one Produce request is told of."""

    def __init__(self) -> None:
        self._bytes_left = DECODED_BYTES_MAX
        self._errors_left = ERRORS_MAX

    def find_errors(
        self, refused: Refused, batch: memoryview, config: TopicConfig, now_ms: int
    ) -> Sequence[tuple[int, str]]:
        """(place in the batch, what is wrong) of its records; none where the fault is not that of a record, or where
        the request has had its share."""
        if refused.code is Code.INVALID_RECORD:
            number = _NUMBER.search(refused.why)
            return [(int(number[1]), refused.why)] if number is not None else ()
        if refused.code is not Code.INVALID_TIMESTAMP or not (self._bytes_left and self._errors_left):
            return ()
        low, high = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        try:
            payload, _, base_timestamp, _, count = open_section(batch, max_bytes=self._bytes_left)
            found = native.outside(payload, base_timestamp, low, high, count, self._errors_left)
        except Corrupt:  # too large, or what nobody can open: its share is spent either way
            self._bytes_left = 0
            return ()
        self._bytes_left -= min(self._bytes_left, len(payload))
        self._errors_left -= len(found)
        return [(place, f"timestamp {stamp} is not within [{low}, {high}]") for place, stamp in found]
