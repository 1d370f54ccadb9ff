"""Tests of CRC-32C: the vectors of RFC 3720 appendix B.4, and every path of the C code against the tables of another
author."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.ports import Buffer
from tiered.records import native, pure

CHECKSUMS = [pytest.param(native.crc32c, id="native"), pytest.param(pure.crc32c, id="pure")]
ISCSI_READ = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000020000000000000000"[:96]
)


@pytest.mark.parametrize("crc32c", CHECKSUMS)
@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (ISCSI_READ, 0xD9963A56),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc_equals_known_vectors(crc32c: Callable[[Buffer], int], data: bytes, crc: int) -> None:
    assert crc32c(data) == crc


@pytest.mark.parametrize("size", [1, 7, 8, 255, 256, 767, 768, 769, 1024, 12287, 12288, 12289, 65536, 300_001])
@pytest.mark.parametrize("start", [0, 1, 3])
def test_c_and_python_agree_on_every_length_and_alignment(size: int, start: int) -> None:
    data = memoryview(random.Random(size).randbytes(size + start))[start:]
    assert native.crc32c(data) == pure.crc32c(data)


@pytest.mark.skipif(not native.NATIVE, reason="the C extension is not built here")
@pytest.mark.parametrize("size", [0, 1, 9, 255, 511, 512, 513, 767, 768, 1024, 4097, 12288, 12289, 65537])
def test_every_implementation_gives_the_same_sum(size: int) -> None:
    from tiered.records._native import crc32c_ways

    data = random.Random(size).randbytes(size)
    assert set(crc32c_ways(data)) == {pure.crc32c(data)}


@given(st.binary(max_size=5000), st.data())
def test_sum_continues_from_an_earlier_one(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    assert native.crc32c(data[cut:], native.crc32c(data[:cut])) == pure.crc32c(data)
