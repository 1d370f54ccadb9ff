"""Tests of the partitioner: keys go to the partitions that Kafka's own clients choose. Vectors: `UtilsTest.testMurmur2`
of Apache Kafka."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.records import native, pure
from tiered.records.partitioner import partition_of


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_known_hashes(key: bytes, hashed: int) -> None:
    assert native.murmur2(key) == hashed
    assert pure.murmur2(key) == hashed


@given(st.binary(max_size=100))
def test_c_and_python_give_the_same_partition(key: bytes) -> None:
    assert native.murmur2(memoryview(key)) == pure.murmur2(key)


@given(st.binary(max_size=20), st.integers(1, 1000))
def test_partition_is_in_range(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_negative_hash_is_made_positive_as_in_kafka() -> None:
    assert partition_of(b"foobar", 6) == (-790332482 & 0x7FFFFFFF) % 6
