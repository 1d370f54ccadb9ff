"""The faulty records of a rejected batch (KIP-467). The batch is opened only after its rejection, and only within
limits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiered.config.settings import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.hot.validation import NO_KEY, RecordsRefused
from tiered.records import native
from tiered.records.batch import open_section

DECODED_BYTES_MAX = 256 << 10
"""Most decompressed bytes for one request: about a millisecond. Further batches are refused without their faulty
records."""
ERRORS_MAX = 1000

_NUMBER = re.compile(r"record (\d+) ")


class RecordErrors:
    """The faulty records in the reply to one Produce request."""

    def __init__(self) -> None:
        self._bytes_left = DECODED_BYTES_MAX
        self._errors_left = ERRORS_MAX

    def find_errors(
        self, refused: Refused, batch: memoryview, config: TopicConfig, now_ms: int
    ) -> Sequence[tuple[int, str]]:
        """Returns (place in the batch, error text) of the faulty records. Empty if no record is at fault, or if the
        request has used up its limits."""
        if isinstance(refused, RecordsRefused):
            faults = refused.faults[: self._errors_left]
            self._errors_left -= len(faults)
            return [(number, f"record {number} {why}") for number, why in faults]
        if refused.code is Code.INVALID_RECORD and refused.why.endswith(NO_KEY):
            return self._find_keyless(batch)
        if refused.code is Code.INVALID_RECORD:
            number = _NUMBER.search(refused.why)
            return [(int(number[1]), refused.why)] if number is not None else ()
        if refused.code is not Code.INVALID_TIMESTAMP or not (self._bytes_left and self._errors_left):
            return ()
        low, high = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        try:
            payload, _, base_timestamp, _, count = open_section(batch, max_bytes=self._bytes_left)
            found = native.outside(payload, base_timestamp, low, high, count, self._errors_left)
        except Corrupt:  # too large or damaged: the limit is used up in both cases
            self._bytes_left = 0
            return ()
        self._bytes_left -= min(self._bytes_left, len(payload))
        self._errors_left -= len(found)
        return [(place, f"timestamp {stamp} is not within [{low}, {high}]") for place, stamp in found]

    def _find_keyless(self, batch: memoryview) -> Sequence[tuple[int, str]]:
        try:
            payload, _, _, _, count = open_section(batch, max_bytes=self._bytes_left)
            found = native.find_keyless(payload, count, self._errors_left)
        except Corrupt:
            self._bytes_left = 0
            return ()
        self._bytes_left -= min(self._bytes_left, len(payload))
        self._errors_left -= len(found)
        return [(number, f"record {number} {NO_KEY}") for number in found]
