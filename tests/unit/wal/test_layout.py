"""Tests of the bytes of a chain's objects: round trips, and damage that is refused."""

from __future__ import annotations

import random

import pytest

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
