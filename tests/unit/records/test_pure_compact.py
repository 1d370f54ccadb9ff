"""Tests that both implementations of the compaction functions give equal results, and equal error texts, on any
input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records.test_pure import mutated_bytes
from tiered.records import native, pure_compact
from tiered.records.batch import encode_batch
from tiered.records.model import HEADER_BYTES, Codec

pytestmark = pytest.mark.skipif(not native.NATIVE, reason="the C extension is not built here")

SEED = b"0123456789abcdef"
RECORDS = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**50),
        st.none() | st.binary(max_size=2) | st.binary(max_size=40),
        st.none() | st.binary(max_size=9),
        st.just([("h", b"1")]) | st.just([]),
    ),
    min_size=1,
    max_size=6,
)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Draws some batches one after the other: plain, compressed, transactional, with and without a horizon."""
    data, base = b"", draw(st.integers(0, 5))
    for records in draw(st.lists(RECORDS, max_size=5)):
        producer = draw(st.sampled_from([-1, -1, 3]))
        made = bytearray(
            encode_batch(
                records,
                base_offset=base,
                codec=draw(st.sampled_from([Codec.NONE] * 5 + [Codec.GZIP])),
                producer_id=producer,
                producer_epoch=0,
                base_sequence=base,
                log_append_time=draw(st.booleans()),
                transactional=producer >= 0 and draw(st.booleans()),
            )
        )
        if draw(st.booleans()):
            made[22] |= 0x40
            made[17:21] = native.crc32c(made[21:]).to_bytes(4, "big")
        data += made
        base += len(records) + draw(st.integers(0, 2))
    return data


@given(
    logs() | mutated_bytes(logs()),
    st.integers(0, 6),
    st.integers(1, 12),
    st.booleans(),
    st.lists(st.integers(0, 30), max_size=3, unique=True),
    st.integers(0, 40),
    st.sampled_from([0, 2**40, 2**49]),
)
def test_both_implementations_clean_alike(
    data: bytes, from_offset: int, keys_max: int, one: bool, kept: list[int], upper: int, now_ms: int
) -> None:
    offsets = b"".join(each.to_bytes(8, "little") for each in sorted(kept))
    results = []
    for module in (native, pure_compact):
        table = bytearray(24 * 16)
        put = module.put_keys(table, SEED, 0, keys_max, -1, data, 0, len(data), from_offset, one)
        cleaned = module.filter_batches(
            table, SEED, put.latest_offset, data, 0, len(data), offsets, upper, now_ms, now_ms + 1000, one
        )
        results.append((put, cleaned, table))
    assert results[0] == results[1]
    assert type(results[0][0]) is type(results[1][0]) and type(results[0][1]) is type(results[1][1])


MANY = [(-number, b"k%d" % (number % 61), None if number % 9 == 0 else b"v", [("h", b"1")]) for number in range(100)]


@given(
    st.integers(0, 10**6),
    st.integers(0, 255),
    st.integers(1, 70),
    st.integers(0, 110),
    st.sampled_from([0, 2**49, 2**63 - 1050]),
    st.booleans(),
    st.booleans(),
)
def test_both_implementations_clean_a_batch_of_many_records_alike(
    at: int, byte: int, keys_max: int, from_offset: int, now_ms: int, has_horizon: bool, is_damaged: bool
) -> None:
    """The native one looks up the keys of 32 records together. A damaged record stops it where it stops the other."""
    data = bytearray(encode_batch(MANY))
    data[22] |= 0x40 if has_horizon else 0
    if is_damaged:
        data[HEADER_BYTES + at % (len(data) - HEADER_BYTES)] = byte
    data[17:21] = native.crc32c(data[21:]).to_bytes(4, "big")
    data += encode_batch(MANY[::-1], base_offset=100)
    results = []
    for module in (native, pure_compact):
        table = bytearray(24 * 71)
        put = module.put_keys(table, SEED, 0, keys_max, -1, data, 0, len(data), from_offset, False)
        cleaned = module.filter_batches(
            table, SEED, max(put.latest_offset, from_offset), data, 0, len(data), b"", 300, now_ms, now_ms + 1000, False
        )
        results.append((put, cleaned, table))
    assert results[0] == results[1]


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (0, 99), (5, 4)])
def test_ranges_outside_the_buffer_are_refused(start: int, end: int) -> None:
    table = bytearray(48)
    with pytest.raises(ValueError, match="outside a buffer"):
        native.put_keys(table, SEED, 0, 1, -1, b"x" * 10, start, end, 0, False)
    with pytest.raises(ValueError, match="outside a buffer"):
        native.filter_batches(table, SEED, -1, b"x" * 10, start, end, b"", 0, 0, 0, False)


def test_table_without_a_slot_and_short_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="slot"):
        native.put_keys(bytearray(8), SEED, 0, 1, -1, b"", 0, 0, 0, False)
    with pytest.raises(ValueError, match="16 bytes"):
        native.put_keys(bytearray(48), b"short", 0, 1, -1, b"", 0, 0, 0, False)
