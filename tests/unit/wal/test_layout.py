"""Tests of the bytes of a chain's objects: round trips, and damage that is refused."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt, Refused
from tiered.ids import PartitionId, TopicId
from tiered.records.native import crc32c
from tiered.wal.layout import (
    ChainId,
    Fence,
    NewExtent,
    Window,
    decode,
    encode_fence,
    encode_window,
    header_end,
    parse_key,
    slot_key,
)

CHAIN = ChainId(3, "AAAAAAAAQACAAAAAAAAAAQ")
ONE, TWO = (PartitionId(TopicId("AAAAAAAAQACAAAAAAAAAAg"), p) for p in (0, 1))
EXTENTS = (
    NewExtent(ONE, 4, 10, 12, 9, b"first"),
    NewExtent(TWO, 5, 0, 1, 0, b"second"),
    NewExtent(ONE, 4, 12, 13, 10, b"x"),
)
WINDOW = encode_window(CHAIN, 7, "n", "cluster", 6, EXTENTS)


def parse(data: bytes, slot: int = 7, cluster_id: str = "cluster", size: int = len(WINDOW)) -> Window | Fence:
    return decode(data, CHAIN, slot, cluster_id, size)


def test_extents_are_where_the_header_says() -> None:
    window = parse(WINDOW)
    assert isinstance(window, Window) and (window.slot, window.nonce, window.decided) == (7, "n", 6)
    assert [each[:5] for each in window.extents] == [each[:5] for each in EXTENTS]
    assert [WINDOW[each.position : each.position + each.length] for each in window.extents] == [
        b"first", b"second", b"x",
    ]  # fmt: skip


def test_header_alone_is_enough() -> None:
    assert parse(WINDOW[: header_end(WINDOW, "key")]) == parse(WINDOW)


def test_fence_has_the_epochs_of_its_partitions() -> None:
    data = encode_fence(CHAIN, 9, "f", "cluster", 7, {ONE: 5, TWO: 6})
    assert parse(data, 9, size=len(data)) == Fence(9, "f", 7, {ONE: 5, TWO: 6})


def test_key_names_chain_and_slot() -> None:
    assert parse_key(slot_key(CHAIN, 7)) == (CHAIN, 7)
    assert slot_key(CHAIN, 9) < slot_key(CHAIN, 10)
    for key in ("wal/3/x", "wal/3/a/7", "data/3/a/00000000000000000007", slot_key(CHAIN, 7) + ".old"):
        assert parse_key(key) is None


def test_object_of_another_slot_or_cluster_is_refused() -> None:
    with pytest.raises(Corrupt, match="slot 7"):
        parse(WINDOW, 8)
    with pytest.raises(Refused, match="belongs to the cluster cluster"):
        parse(WINDOW, cluster_id="other")


def test_object_of_a_newer_program_is_refused() -> None:
    newer = encode_window(CHAIN, 7, "n", "cluster", 6, EXTENTS).replace(b'"version":1', b'"version":2')
    end = header_end(newer, "key")
    newer = newer[:12] + crc32c(newer[16:end]).to_bytes(4, "big") + newer[16:]
    with pytest.raises(Refused, match="version 2"):
        parse(newer)


@pytest.mark.parametrize("wrong", ['"AAAAAAAAQACAAAAAAAAAAg",0,"4"', '"AAAAAAAAQACAAAAAAAAAAg",0.5,4', "7,0,4"])
def test_row_that_is_no_topic_id_with_numbers_is_damaged(wrong: str) -> None:
    """The CRC is right: a program wrote it so."""
    row = b'"AAAAAAAAQACAAAAAAAAAAg",0,4'
    assert row in WINDOW
    end = header_end(WINDOW, "key")
    header = WINDOW[16:end].replace(row, wrong.encode(), 1)
    data = WINDOW[:8] + len(header).to_bytes(4, "big") + crc32c(header).to_bytes(4, "big") + header + WINDOW[end:]
    with pytest.raises(Corrupt):
        parse(data, size=len(data))


NUMBERS = st.integers(0, 1 << 40)
PARTITIONS = st.builds(lambda topic, number: PartitionId(TopicId(f"{topic:022d}"), number), NUMBERS, st.integers(0, 9))
NEW_EXTENTS = st.builds(
    lambda partition, epoch, committed, base, count, data: NewExtent(
        partition, epoch, committed + base, committed + base + count, committed, data
    ),
    PARTITIONS, NUMBERS, NUMBERS, NUMBERS, st.integers(1, 1000), st.binary(min_size=1, max_size=50),
)  # fmt: skip


@given(st.lists(NEW_EXTENTS, max_size=6), NUMBERS, st.text(max_size=8))
def test_any_window_comes_back_whole(extents: list[NewExtent], slot: int, nonce: str) -> None:
    data = encode_window(CHAIN, slot, nonce, "cluster", slot, extents)
    window = decode(data[: header_end(data, "key")], CHAIN, slot, "cluster", len(data))
    assert isinstance(window, Window) and (window.slot, window.nonce, window.decided) == (slot, nonce, slot)
    assert [each[:5] for each in window.extents] == [each[:5] for each in extents]
    assert [data[each.position :][: each.length] for each in window.extents] == [each.data for each in extents]


@given(st.dictionaries(PARTITIONS, NUMBERS, max_size=6), NUMBERS)
def test_any_fence_comes_back_whole(epochs: dict[PartitionId, int], slot: int) -> None:
    data = encode_fence(CHAIN, slot, "f", "cluster", slot, epochs)
    assert decode(data, CHAIN, slot, "cluster", len(data)) == Fence(slot, "f", slot, epochs)


def test_cut_or_longer_object_is_damaged() -> None:
    for size in (len(WINDOW) - 1, len(WINDOW) + 1):
        with pytest.raises(Corrupt, match="its header says"):
            parse(WINDOW, size=size)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_header_is_never_taken(seed: int) -> None:
    rng, data = random.Random(seed), bytearray(WINDOW)
    end = header_end(WINDOW, "key")
    data[rng.randrange(end)] ^= 1 << rng.randrange(8)
    with pytest.raises(Corrupt):
        parse(bytes(data[: rng.choice((end, len(data)))]))
    with pytest.raises(Corrupt):
        parse(WINDOW[: rng.randrange(end)])
