"""Records that are read in one step give the same values as field by field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt
from tiered.groups import records
from tiered.groups.records import OffsetValue, offset_key, offset_record, read_key, read_offset

WORDS = st.text(max_size=40)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)


@given(WORDS, WORDS, INTS, LONGS, INTS, WORDS, LONGS)
def test_fast_and_slow_readers_read_the_same_records(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, when: int
) -> None:
    record = offset_record(group, topic, partition, OffsetValue(offset, epoch, metadata, when))
    assert record.value is not None
    assert records._read_offset_key_fast(record.key) == records._read_key(record.key) == (group, topic, partition)
    wanted = (offset, epoch, metadata, when, -1, "")
    assert records._read_offset_fast(record.value) == records._read_offset(record.value) == wanted


@given(st.binary(max_size=40) | WORDS.map(lambda word: offset_key(word, "t", 1)[: len(word)]))
def test_fast_and_slow_readers_refuse_the_same_records(raw: bytes) -> None:
    for both, slow in ((read_key, records._read_key), (read_offset, records._read_offset)):
        try:
            wanted = slow(raw)
        except Corrupt:
            with pytest.raises(Corrupt):
                both(raw)
        else:
            assert both(raw) == wanted
