"""Tests of zigzag varints."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.records import varint


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (2147483647, "feffffff0f"),
        (-2147483648, "ffffffff0f"),
        (9223372036854775807, "feffffffffffffffff01"),
        (-9223372036854775808, "ffffffffffffffffff01"),
    ],
)
def test_known_values_encode_and_decode(value: int, encoded: str) -> None:
    out = bytearray()
    varint.append(out, value)
    assert out.hex() == encoded
    assert varint.size(value) == len(out)
    assert varint.read(out, 0, len(out), varint.INT64_BYTES) == (value, len(out))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
def test_every_number_decodes_to_itself(value: int, after: bytes) -> None:
    out = bytearray()
    varint.append(out, value)
    assert varint.size(value) == len(out)
    assert varint.read(bytes(out) + after, 0, len(out) + len(after), varint.INT64_BYTES) == (value, len(out))


@pytest.mark.parametrize(
    ("data", "most", "fault"),
    [
        ("", varint.INT32_BYTES, varint.ENDS_EARLY),
        ("ffff", varint.INT32_BYTES, varint.ENDS_EARLY),
        ("ffffffff10", varint.INT32_BYTES, varint.TOO_LONG),
        ("ffffffffff", varint.INT32_BYTES, varint.TOO_LONG),
        ("ffffffffffffffffff02", varint.INT64_BYTES, varint.TOO_LONG),
        ("ffffffffffffffffffff", varint.INT64_BYTES, varint.TOO_LONG),
    ],
)
def test_invalid_varint_is_corrupt(data: str, most: int, fault: str) -> None:
    raw = bytes.fromhex(data)
    with pytest.raises(varint.BadVarint, match=fault):
        varint.read(raw, 0, len(raw), most)
