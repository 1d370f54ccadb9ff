"""Which records of a refused batch are at fault (KIP-467): the batch is opened only now, and only so far."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tiered.config import TopicConfig
from tiered.errors import Code, Corrupt, Refused
from tiered.records import native
from tiered.records.batch import section

OPENED_BYTES = 8 << 20
"""A batch that becomes larger is refused as a whole."""
TOLD_MAX = 1000

_NUMBER = re.compile(r"record (\d+) ")


def record_errors(refused: Refused, batch: memoryview, config: TopicConfig, now_ms: int) -> Sequence[tuple[int, str]]:
    """(place in the batch, what is wrong) of its records; none where the fault is not that of a record."""
    if refused.code is Code.INVALID_RECORD:
        found = _NUMBER.search(refused.why)
        return [(int(found[1]), refused.why)] if found is not None else ()
    if refused.code is not Code.INVALID_TIMESTAMP:
        return ()
    try:
        records = native.rows(*section(batch, max_bytes=OPENED_BYTES))
    except Corrupt:
        return ()
    low, high = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
    return [
        (place, f"timestamp {record.timestamp} is not within [{low}, {high}]")
        for place, record in enumerate(records)
        if not low <= record.timestamp <= high
    ][:TOLD_MAX]
