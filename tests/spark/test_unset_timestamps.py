"""Tests of reads from a time on, of a topic whose batches of earlier versions leave the greatest timestamp unset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_tiered.reader import TieredReader
from pyspark_tiered.source import check_options
from tests.spark import filling
from tests.unit.hot.test_validation_of_timestamps import with_header
from tiered.errors import Refused
from tiered.ids import PartitionId
from tiered.records.batch import encode_batch
from tiered.records.model import Codec

TOPIC = "old"
SEGMENTS = 140
"""More than the manifest itself keeps: the oldest are in a sub-manifest."""


def make_segment(number: int) -> filling.Segment:
    base = number * 10
    rows = [(filling.BASE_MS + at, b"k", b"v", ()) for at in range(base, base + 10)]
    data = encode_batch(rows, base_offset=base, leader_epoch=filling.EPOCH, codec=Codec.LZ4)
    return filling.Segment(base, base + 10, bytes(with_header(data, newest=-1)))


def test_native_reads_from_a_time_on_find_unset_timestamps(tmp_path: Path) -> None:
    store, identity = f"file://{tmp_path}/store", filling.topic_id(1)
    filling.create_topic(store, TOPIC, identity, 1)
    filling.upload(store, TOPIC, PartitionId(identity, 0), [make_segment(number) for number in range(SEGMENTS)])

    def read(**options: object) -> list[int]:
        texts = {name: str(value) for name, value in options.items()}
        reader = TieredReader(check_options({"store": store, "topic": TOPIC, **texts}), ("offset",))
        return [row["offset"] for each in reader.partitions() for rows in reader.read(each) for row in rows.to_pylist()]

    last, now = 10 * SEGMENTS, filling.BASE_MS
    for start in (0, 5, 444, last - 10, last - 1):
        assert read(startingTimestamp=now + start) == list(range(start, last))
        by_time = json.dumps({TOPIC: {"0": now + start}})
        assert read(startingOffsetsByTimestamp=by_time, endingTimestamp=now + last) == list(range(start, last))
    assert read(endingTimestamp=now + 444) == list(range(444))
    with pytest.raises(Refused, match="no record of old-0 has timestamp"):
        read(startingTimestamp=now + last)
