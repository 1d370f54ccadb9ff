"""Tests of JSON reads: the records of batches, and the memory meanwhile, bounded by bytes and by records and
headers."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tiered.errors import Corrupt, TooLarge
from tiered.records import native, pure
from tiered.records.batch import Codec, decode_header, encode_batch
from tiered.records.pieces import RECORD_BYTES_MAX, WHOLE_BYTES_MAX
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.partitions.reads import OBJECTS_MAX, decode_batches, decode_memory, max_decoded_size
from tiered_api.http.partitions.record_json import Rendered, encode_events, encode_json, rows_v2
from tiered_api.http.partitions.records import BATCHES_MAX, count_batches

PLAIN = encode_batch([(0, None, b"v" * 100, ())])
ROOM = 8 << 20
C = SimpleNamespace(**{name: getattr(native, name) for name in pure.__all__})
"""The functions in use: those of the C extension, if it is built."""


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
        with pytest.raises(HttpError, match="more than 2000 record batches") as caught:
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


def read_by(module: Any, call: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Returns the result or the error of a call whose records `module` decodes: the C extension, or plain Python."""
    before = {name: getattr(native, name) for name in pure.__all__}
    try:
        for name in before:
            setattr(native, name, getattr(module, name))
        return call()
    except TooLarge as error:
        return TooLarge, str(error), error.offset, error.next_offset
    finally:
        for name, function in before.items():
            setattr(native, name, function)


def shown_offsets(reply: tuple[Any, ...]) -> tuple[list[int], int]:
    """Returns the offsets of the records in a reply of any form, and the offset of the next read."""
    pieces, count, following = reply
    text = b"".join(pieces)
    if text.startswith(b"id: "):
        offsets = [int(line[4:]) for line in text.splitlines() if line.startswith(b"id: ")]
    elif text.startswith(b'{"next_offset"'):
        whole = json.loads(text)
        offsets = [row["offset"] for row in whole["records"]]
        assert whole["next_offset"] == following
    else:
        offsets = [row["offset"] for row in json.loads(b"[%b]" % text)]
    assert len(offsets) == count
    return offsets, following


FORMS: dict[str, Callable[[bytes, int, int], Rendered]] = {
    "v2": lambda data, offset, objects: rows_v2(data, offset, ROOM, "binary", "t", 0, objects),
    "json": lambda data, offset, objects: encode_json(data, offset, ROOM, "string", {}, objects=objects),
    "events": lambda data, offset, objects: encode_events(data, offset, ROOM, "string", objects=objects),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_shows_all_records_or_tells_those_beyond_its_bound(form: str) -> None:
    """Random batches, small bounds. C and plain Python agree on each read. A record is told instead of shown only if it
    alone is beyond the bound, with its own offset; the next read begins after it."""
    rng, told = random.Random(11), 0
    for _ in range(150):
        objects, base = rng.randrange(2, 9), 0
        batches: list[tuple[int, bytes]] = []
        headers: list[int] = []
        for _ in range(rng.randrange(1, 6)):
            counts = [rng.randrange(objects + 2) for _ in range(rng.randrange(1, 5))]
            rows = [(0, None, b"v", [("h", b"x")] * count) for count in counts]
            headers += counts
            batches.append((base + len(rows), encode_batch(rows, base_offset=base, codec=rng.choice(list(Codec)))))
            base += len(rows)
        offset, seen = 0, list[int]()
        while offset < base:
            data = b"".join(batch for end, batch in batches if end > offset)
            call = partial(FORMS[form], data, offset, objects)
            reply = read_by(pure, call)
            assert reply == read_by(C, call)
            if reply[0] is TooLarge:
                assert reply[2:] == (offset, offset + 1) and 1 + headers[offset] > objects
                told, shown, offset = told + 1, [offset], offset + 1
            else:
                shown, offset = shown_offsets(reply)
                assert shown and sum(1 + headers[n] for n in shown) <= objects
            seen += shown
        assert seen == [*range(base)]
    assert told > 20


def test_read_ends_before_a_damaged_batch_and_begins_with_its_error() -> None:
    damaged = bytearray(encode_batch([(0, None, b"w", ())], base_offset=1))
    damaged[-2] ^= 1
    assert read(PLAIN + bytes(damaged), 0) == ([0], 1)
    with pytest.raises(Corrupt, match="CRC"):
        read(bytes(damaged), 1)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_record_of_too_many_headers_is_told_with_its_offset(codec: Codec) -> None:
    headers = [("", None)] * OBJECTS_MAX
    rows = [(0, None, b"v", ()), (0, None, None, headers), (0, None, b"w", ())]
    data = encode_batch(rows, base_offset=7, codec=codec)
    assert read(data, 7) == ([7], 8)
    why = f"record 1 with {OBJECTS_MAX} headers exceeds the bound of {OBJECTS_MAX} records and headers"
    with pytest.raises(TooLarge, match=f"^{why} offset=8 next_offset=9$") as caught:
        read(data, 8)
    assert (caught.value.offset, caught.value.next_offset) == (8, 9)
    assert read(data, 9) == ([9], 10)


def test_record_of_too_many_bytes_is_told_with_the_end_of_its_batch() -> None:
    large = (0, None, bytes(RECORD_BYTES_MAX), ())
    data = encode_batch([(0, None, b"v", ()), large, (0, None, b"w", ())], base_offset=7, codec=Codec.ZSTD)
    assert read(data, 7) == ([7], 8)
    for offset in (8, 9):  # nothing behind the record can be opened
        with pytest.raises(TooLarge, match=f"no more than {RECORD_BYTES_MAX} are opened at once") as caught:
            read(data, offset)
        assert (caught.value.offset, caught.value.next_offset) == (offset, 10)


def test_batch_of_millions_of_headers_is_refused_before_it_takes_memory() -> None:
    for count in (400_000, 4_000_000):
        bomb = encode_batch([(0, None, None, [("", None)] * count)], codec=Codec.ZSTD)
        assert len(bomb) < 10_000
        with pytest.raises(TooLarge):
            read(bomb, 0)
