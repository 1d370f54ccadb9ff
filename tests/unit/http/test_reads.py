"""Tests of JSON reads: the records of batches, and the memory meanwhile, bounded by bytes and by records and
headers."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tiered.errors import Corrupt
from tiered.records.batch import Codec, decode_header, encode_batch
from tiered.records.pieces import WHOLE_BYTES_MAX
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.reads import OBJECTS_MAX, decode_batches, decode_memory, max_decoded_size
from tiered_api.http.partitions.records import BATCHES_MAX, count_batches

PLAIN = encode_batch([(0, None, b"v" * 100, ())])
ROOM = 8 << 20


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec])
def test_estimated_effort_is_at_least_the_size_of_a_batch(codec: Codec) -> None:
    small = encode_batch([(0, None, bytes(range(256)) * 4 * 1000, ())], codec=codec)
    assert len(small) < 1 << 17
    for data in (small, PLAIN + small, small + PLAIN):
        assert max_decoded_size(data) >= 1_000_000
        assert decode_memory(data) >= 1_000_000


def test_effort_is_the_size_up_to_the_limit_of_a_batch() -> None:
    assert max_decoded_size(PLAIN) == len(PLAIN)
    assert max_decoded_size(b"no batch at all") == len(b"no batch at all")
    bomb = encode_batch([(0, None, bytes(1 << 20), ())], codec=Codec.ZSTD) * 100
    assert decode_memory(bomb) == WHOLE_BYTES_MAX


def test_many_small_batches_are_measured_in_bounded_memory() -> None:
    tracemalloc.start()
    try:
        assert max_decoded_size(PLAIN * 50_000) == len(PLAIN) * 50_000
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_body_of_too_many_batches_is_refused_in_bounded_memory() -> None:
    assert count_batches(bytearray(PLAIN * BATCHES_MAX)) == BATCHES_MAX
    data = bytearray(PLAIN * 20 * BATCHES_MAX)
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match="more than 10000 record batches") as caught:
            count_batches(data)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.status == 413


def read(data: bytes, offset: int, room: int = ROOM, objects: int = OBJECTS_MAX) -> tuple[list[int], int]:
    """Returns the offsets of the records of one read, and the offset of the next one."""
    batches = list(decode_batches(data, offset, room, objects))
    return [row.offset for batch in batches for row in batch.records], batches[-1].next_offset


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(("room", "objects"), [(ROOM, 7), (700, OBJECTS_MAX), (1, OBJECTS_MAX), (ROOM, 4), (1, 4)])
def test_next_read_continues_inside_a_batch(codec: Codec, room: int, objects: int) -> None:
    """Each read returns at least one record and stays within its bound; no record is returned twice."""
    headers = [("h", b"x")] * 2
    data = b"".join(
        encode_batch([(0, None, b"v" * 50, headers if n % 2 else ()) for n in range(9)], base_offset=base, codec=codec)
        for base in (0, 9, 20)
    )
    found: list[int] = []
    offset = 0
    while offset < 29:
        some, offset = read(data[_at(data, offset) :], offset, room, objects)
        assert some and sum(3 if (n - (20 if n >= 20 else 9 if n >= 9 else 0)) % 2 else 1 for n in some) <= objects
        found += some
    assert found == [*range(18), *range(20, 29)]


def _at(data: bytes, offset: int) -> int:
    """Returns the position of the batch that holds an offset, as a read of the log finds it."""
    size = len(data) // 3
    return 0 if offset < 9 else size if offset < 20 and offset < 18 else 2 * size


def test_read_of_any_batches_ends_within_its_bound_and_goes_on() -> None:
    """Batches whose records have no, few or all headers that a read takes; each read begins at the next batch."""
    rng = random.Random(5)
    for _ in range(200):
        objects, sizes = rng.randrange(4, 12), [rng.randrange(1, 5) for _ in range(8)]
        base, batches = 0, []
        for size in sizes:
            rows = [(0, None, b"v", [("h", b"x")] * rng.randrange(objects)) for _ in range(size)]
            batches.append((base, encode_batch(rows, base_offset=base, codec=rng.choice([Codec.NONE, Codec.LZ4]))))
            base += size
        offset, found = 0, []
        while offset < base:
            data = b"".join(batch for first, batch in batches if first + decode_header(batch).count > offset)
            some, offset = read(data, offset, ROOM, objects)
            assert some
            found += some
        assert found == [*range(base)]


def test_read_ends_before_a_damaged_batch_and_begins_with_its_error() -> None:
    damaged = bytearray(encode_batch([(0, None, b"w", ())], base_offset=1))
    damaged[-2] ^= 1
    assert read(PLAIN + bytes(damaged), 0) == ([0], 1)
    with pytest.raises(Corrupt, match="CRC"):
        read(bytes(damaged), 1)


def test_record_of_too_many_headers_needs_a_raw_read() -> None:
    data = encode_batch([(0, None, b"v", ()), (0, None, None, [("", None)] * OBJECTS_MAX)])
    assert read(data, 0) == ([0], 1)
    with pytest.raises(Corrupt, match="exceeds the bound on records and headers; a raw read gives the batch as it is"):
        read(data, 1)


def test_batch_of_millions_of_headers_is_refused_before_it_takes_memory() -> None:
    for count in (400_000, 4_000_000):
        bomb = encode_batch([(0, None, None, [("", None)] * count)], codec=Codec.ZSTD)
        assert len(bomb) < 10_000
        with pytest.raises(Corrupt):
            read(bomb, 0)
