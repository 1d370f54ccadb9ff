"""Tests of the bytes of encrypted objects: any range reads back, and no changed, cut, moved or swapped byte does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.encryption import KEYS
from tiered.errors import Corrupt, Unavailable
from tiered.object_store.encrypted_object import (
    CHUNK_BYTES,
    HEADER_BYTES,
    SEALED_BYTES,
    ObjectCipher,
    find_chunks,
    make_header,
    parse_header,
    stored_size,
    unwrap_data_key,
)
from tiered.records.native import crc32c

KEY = "data/topic/0/00000000000000000000.seg"
SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)
CONTENT = random.Random(1).randbytes(max(SIZES))


def seal(content: bytes, key: str = KEY, draw: int = 1) -> bytes:
    """Returns an object."""
    source = random.Random(draw)
    data_key = source.randbytes(32)
    header = make_header(KEYS["one"], "one", data_key, source.randbytes(12), key, len(content))
    return header + ObjectCipher(data_key, key, len(content)).encrypt(content)


def open_range(sealed: bytes, start: int, length: int, key: str = KEY) -> bytes:
    """Returns a range of the content, read as a store reads it."""
    header = parse_header(sealed[:HEADER_BYTES], key)
    if header is None:
        raise Corrupt("plain")
    if len(sealed) != stored_size(header.size):
        raise Corrupt("size")
    chunks = find_chunks(start, length, header.size)
    part = sealed[chunks.position : chunks.position + chunks.length]
    cipher = ObjectCipher(unwrap_data_key(header, KEYS["one"], key), key, header.size)
    return cipher.decrypt(part, chunks, start, length)


@pytest.mark.parametrize("size", SIZES)
def test_object_reads_back_and_shows_nothing_of_its_content(size: int) -> None:
    content = CONTENT[:size]
    sealed = seal(content)
    assert len(sealed) == stored_size(size)
    assert open_range(sealed, 0, size) == content
    assert size < 16 or content[:16] not in sealed
    assert seal(content, draw=2)[HEADER_BYTES:] != sealed[HEADER_BYTES:]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(SIZES[1:]), st.data())
def test_any_range_reads_back_from_its_chunks(size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size - 1))
    length = data.draw(st.integers(1, size - start))
    assert open_range(seal(CONTENT[:size]), start, length) == CONTENT[start : start + length]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), st.data())
def test_a_flipped_bit_anywhere_is_noticed(size: int, data: st.DataObject) -> None:
    sealed = bytearray(seal(CONTENT[:size]))
    bit = data.draw(st.integers(0, 8 * min(len(sealed), HEADER_BYTES + 20) - 1) | st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt, match="damaged"):
        open_range(bytes(sealed), 0, size)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(SIZES), st.data())
def test_a_cut_object_is_noticed(size: int, data: st.DataObject) -> None:
    sealed = seal(CONTENT[:size])
    with pytest.raises(Corrupt):
        open_range(sealed[: data.draw(st.integers(0, len(sealed) - 1))], 0, size)


def test_cut_object_with_the_header_of_a_shorter_one_is_noticed() -> None:
    """Somebody who can write the header, with its CRC, has not the key that binds the size."""
    whole, shorter = seal(CONTENT), seal(CONTENT[: 2 * CHUNK_BYTES])
    forged = shorter[:HEADER_BYTES] + whole[HEADER_BYTES : len(shorter)]
    with pytest.raises(Corrupt, match=r"chunk 0 .* is damaged"):
        open_range(forged, 0, 2 * CHUNK_BYTES)


def test_swapped_chunks_are_noticed() -> None:
    sealed = seal(CONTENT)
    first, second = (sealed[HEADER_BYTES + n * SEALED_BYTES :][:SEALED_BYTES] for n in (0, 1))
    swapped = sealed[:HEADER_BYTES] + second + first + sealed[HEADER_BYTES + 2 * SEALED_BYTES :]
    with pytest.raises(Corrupt, match=r"chunk 1 .* is damaged") as caught:
        open_range(swapped, CHUNK_BYTES, 10)
    assert (caught.value.where, caught.value.position) == (KEY, HEADER_BYTES + SEALED_BYTES)


def test_object_under_the_key_of_another_is_noticed() -> None:
    with pytest.raises(Corrupt, match="was moved or changed"):
        open_range(seal(CONTENT, key="data/topic/1/00000000000000000000.seg"), 0, 10)


def test_header_of_another_key_with_the_same_id_names_the_id() -> None:
    header = parse_header(seal(b"x"), KEY)
    assert header is not None
    with pytest.raises(Corrupt, match="key one does not open the object: it has another key of that id"):
        unwrap_data_key(header, KEYS["two"], KEY)


@pytest.mark.parametrize("begin", [b"", b"{", b'{"crc":"00000000","body":{}}', b"TIEREDGI" + bytes(200), bytes(200)])
def test_plain_object_has_no_header(begin: bytes) -> None:
    assert parse_header(begin, KEY) is None


def test_header_of_a_newer_program_says_so() -> None:
    sealed = bytearray(seal(b"x"))
    sealed[9] = 2
    sealed[HEADER_BYTES - 4 : HEADER_BYTES] = crc32c(sealed[: HEADER_BYTES - 4]).to_bytes(4, "big")
    with pytest.raises(Unavailable, match=r"version 2 of encrypted objects, this program reads up to 1: upgrade it"):
        parse_header(sealed, KEY)
