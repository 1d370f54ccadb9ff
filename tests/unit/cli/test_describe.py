"""Tests of the rows of `tiered topic describe -p`."""

from __future__ import annotations

import pytest

from tiered_api.cli.topic.describe import partition_row
from tiered_api.kafka.protocol.messages.metadata import MetadataResponsePartition


@pytest.mark.parametrize(
    ("end", "stable", "shown"), [(10, 12, 10), (10, 10, 10), (10, 7, 7), (None, 7, 7), (10, None, None)]
)
def test_last_stable_offset_is_shown_up_to_the_high_watermark(
    end: int | None, stable: int | None, shown: int | None
) -> None:
    """The two are looked up by two requests, between which the log may grow."""
    row = partition_row(MetadataResponsePartition(0, 3, 1, 2, [1], [1]), 0, end, stable)
    assert (row["high_watermark"], row["last_stable_offset"]) == (end, shown)
