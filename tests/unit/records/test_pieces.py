"""Tests of batches that are opened in pieces: the same records, in little memory, whatever the codec."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.seeds import chosen
from tiered.errors import Corrupt, TooLarge
from tiered.records import compression, native, pieces
from tiered.records.batch import check_batch, decode_header, decode_records, encode_batch, first_at_or_after
from tiered.records.compression import compress_pieces, decompress
from tiered.records.model import (
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_FROM,
    OBJECTS_MAX,
    Codec,
    ProducerRecord,
    Record,
)
from tiered.records.native import crc32c
from tiered.records.pieces import RECORD_BYTES_MAX, Piece, iterate_records, open_pieces, read_records
from tiered.records.pure_compact import rebuild_batch

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MIB = 1 << 20


def lines(count: int, size: int = 1000) -> list[tuple[int, bytes | None, bytes | None, tuple[()]]]:
    return [(number, b"%d" % number, b"x" * size, ()) for number in range(count)]


def open_all(data: bytes | bytearray) -> list[Piece]:
    return list(open_pieces(data, 0, decode_header(data)))


@pytest.fixture(params=[1, 7, 60, 1000])
def piece_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Lets every compressed batch be opened in pieces of so many bytes or more."""
    set_piece_bytes(monkeypatch, request.param)
    return int(request.param)


def set_piece_bytes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(pieces, "RATIO_FROM", 1)
    monkeypatch.setattr(pieces, "RATIO_MAX", 0)
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(compression, "PIECE_BYTES", size)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_that_compresses_well_is_opened_in_pieces(codec: Codec) -> None:
    data = encode_batch(lines(20_000, 2000), base_offset=100, codec=codec)
    found = open_all(data)
    assert len(found) > 15 and all(len(each.section[0]) <= 2 * MIB for each in found)
    assert [each.is_last for each in found] == [False] * (len(found) - 1) + [True]
    assert [row for each in found for row in native.rows(*each.section)] == [
        Record(100 + number, number, key, value, ()) for number, key, value, _ in lines(20_000, 2000)
    ]
    following = [each.last_offset + 1 for each in found]
    assert [each.first for each in found] == [0, *(offset - 100 for offset in following[:-1])]
    assert following[-1] == 20_100
    assert check_batch(data).count == 20_000
    assert first_at_or_after(data, 0, 19_000) == (19_100, 19_000)


@pytest.mark.parametrize("codec", Codec)
def test_usual_batch_is_opened_in_one_piece(codec: Codec) -> None:
    found = open_all(encode_batch(lines(100), codec=codec))
    assert [(each.first, each.last_offset, each.is_last) for each in found] == [(0, 99, True)]


@pytest.mark.parametrize("codec", PACKED)
def test_pieces_have_the_records_of_the_batch(codec: Codec, piece_bytes: int) -> None:
    rng = random.Random(piece_bytes)
    produced = [
        (rng.randint(0, 99), rng.randbytes(rng.randint(0, 9)), rng.randbytes(rng.choice((0, 3, 100))), [("h", b"v")])
        for _ in range(50)
    ]
    data = encode_batch(produced, base_offset=7, codec=codec)
    rows = decode_records(encode_batch(produced, base_offset=7))
    head = decode_header(data)
    assert list(iterate_records(data, 0, head)) == rows
    assert check_batch(data) == head
    for start in (0, 7, 30, 56, 57):
        assert read_records(data, 0, head, start, 1 << 20, 1000) == ([row for row in rows if row.offset >= start], True)
    for wanted in range(100):
        assert first_at_or_after(data, 0, wanted, 20) == next(
            ((row.offset, row.timestamp) for row in rows if row.offset >= 20 and row.timestamp >= wanted), None
        )


@pytest.mark.parametrize(("size", "objects"), [(1, 1000), (300, 1000), (1 << 20, 3), (1 << 20, 2)])
def test_reads_of_parts_give_each_record_once(size: int, objects: int, piece_bytes: int) -> None:
    produced = [(0, None, b"v" * 40, [("h", None)])] * 40
    data = encode_batch(produced, codec=Codec.ZSTD)
    head, at, found, ended = decode_header(data), 0, list[Record](), False
    while not ended:
        rows, ended = read_records(data, 0, head, at, size, objects)
        assert 1 <= len(rows) <= max(1, size // 40, 1) and len(rows) * 2 <= objects
        found, at = found + rows, rows[-1].offset + 1
    assert found == decode_records(encode_batch(produced))


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("change", ["one more", "one less", "cut", "left over", "out of order"])
def test_pieces_that_do_not_match_the_header_are_corrupt(codec: Codec, change: str, piece_bytes: int) -> None:
    body = bytearray(native.encode_records(lines(40, 20)))
    count = {"one more": 41, "one less": 39}.get(change, 40)
    if change == "cut":
        body = body[:-1]
    if change == "left over":
        body += b"\0"
    if change == "out of order":
        body = bytearray(native.encode_records(lines(20, 20)) * 2)
    data = rebuild_batch(
        encode_batch(lines(40, 20)), 0, compress_pieces(codec, [body]), count=count, attributes=codec, base_timestamp=0,
        max_timestamp=39,
    )  # fmt: skip
    with pytest.raises(Corrupt):
        open_all(data)
    with pytest.raises(Corrupt):
        check_batch(data)


@pytest.mark.parametrize("codec", PACKED)
@given(st.lists(st.binary(max_size=300), max_size=8))
def test_data_compressed_in_pieces_is_what_it_was(codec: Codec, parts: list[bytes]) -> None:
    assert decompress(codec, compress_pieces(codec, iter(parts)), 1 << 20) == b"".join(parts)


@pytest.mark.parametrize("codec", PACKED)
def test_compressed_data_that_is_cut_is_corrupt(codec: Codec, piece_bytes: int) -> None:
    whole = encode_batch(lines(30, 10), codec=codec)
    for cut in range(1, len(whole) - HEADER_BYTES):
        data = rebuild_batch(
            whole, 0, whole[HEADER_BYTES:-cut], count=30, attributes=codec, base_timestamp=0, max_timestamp=29
        )
        try:
            rows = list(iterate_records(data, 0, decode_header(data)))
        except Corrupt:
            continue
        assert rows == decode_records(encode_batch(lines(30, 10))), "only what follows the records was cut"


def test_record_above_the_limit_is_too_large() -> None:
    data = encode_batch([(0, None, b"a", ()), (0, None, bytes(RECORD_BYTES_MAX), ())], codec=Codec.ZSTD)
    with pytest.raises(TooLarge, match=r"record 1 takes 16777[0-9]+ bytes, and no more than 16777216 are opened"):
        open_all(data)
    assert read_records(data, 0, decode_header(data), 0, MIB, 100)[0][0].value == b"a"
    fits = encode_batch([(0, None, bytes(RECORD_BYTES_MAX - 20), ())], codec=Codec.ZSTD)
    assert len(read_records(fits, 0, decode_header(fits), 0, MIB, 100)[0][0].value or b"") == RECORD_BYTES_MAX - 20


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_batch_above_the_callers_limit_is_too_large(codec: Codec) -> None:
    data = encode_batch(lines(20_000, 2000), codec=codec)
    with pytest.raises(TooLarge, match="more than 5000000 bytes"):
        first_at_or_after(data, 0, 19_999, max_bytes=5_000_000)
    assert first_at_or_after(data, 0, 100, max_bytes=5_000_000) == (100, 100)


IN_LITTLE_MEMORY = """
import resource, sys
from tiered.records.batch import check_batch, decode_header, first_at_or_after
from tiered.records.pieces import iterate_records, read_records
data = sys.stdin.buffer.read()
head = decode_header(data)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert sum(1 for _ in iterate_records(data, 0, head)) == head.count
check_batch(data)
assert first_at_or_after(data, 0, head.max_timestamp) == (head.last_offset, head.max_timestamp)
rows, _ = read_records(data, 0, head, head.last_offset - 10, 1 << 20, 1000)
assert len(rows) == 11
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the memory of a process in KiB")
@pytest.mark.parametrize("codec", chosen(PACKED, [Codec.SNAPPY]))
def test_two_hundred_mebibytes_of_lines_are_read_in_little_memory(codec: Codec) -> None:
    line = b"2026-11-29T12:00:00.000Z INFO all is well, nothing to report, see you in a while " * 6
    data = encode_batch([(number, None, line, ()) for number in range(420_000)], codec=codec)
    run = subprocess.run(
        [sys.executable, "-c", IN_LITTLE_MEMORY],
        input=data,
        env={"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert run.stderr.decode() == ""
    most = 150 if codec is Codec.SNAPPY else 60  # snappy of 10 MB is opened whole, up to 64 MiB
    assert int(run.stdout) < most << 10


@pytest.mark.parametrize(("hides_its_size", "most"), [(False, 4 * MIB), (True, 14 * MIB)])
def test_gzip_above_the_bound_of_a_whole_batch_takes_little_memory(hides_its_size: bool, most: int) -> None:
    """zlib in one call takes twice the bound, in each of the readers, before it says that there is more."""
    data = bytearray(encode_batch([(number, None, bytes(100_000), ()) for number in range(1000)], codec=Codec.GZIP))
    if hides_its_size:  # the trailer tells the size of the last member only
        data += zlib.compress(b"", 9, 31)
        struct.pack_into(">i", data, LENGTH_FROM - 4, len(data) - LENGTH_FROM)
        struct.pack_into(">I", data, CRC_AT, crc32c(data[CRC_FROM:]))
    tracemalloc.start()
    try:
        first = next(open_pieces(data, 0, decode_header(data)))
        assert not first.is_last
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batch_of_more_headers_than_are_objects_at_once_is_iterated(codec: Codec) -> None:
    rows = [(0, None, None, [("", None)] * (OBJECTS_MAX // 2 + 1))] * 2
    data = encode_batch(rows, codec=codec)
    lengths = [len(record.headers) for record in iterate_records(data, 0, decode_header(data))]
    assert lengths == [OBJECTS_MAX // 2 + 1] * 2


MANY: tuple[int, None, None, list[tuple[str, None]]] = (0, None, None, [("", None)] * OBJECTS_MAX)
LONG = (0, None, bytes(RECORD_BYTES_MAX), ())


@pytest.mark.parametrize(("large", "next_offset"), [(MANY, 6), (LONG, 7)], ids=["headers", "bytes"])
def test_iteration_tells_the_record_that_alone_is_beyond_a_bound(large: ProducerRecord, next_offset: int) -> None:
    rows: list[ProducerRecord] = [(0, None, b"v", ()), large, (0, None, b"w", ())]
    data = encode_batch(rows, base_offset=4, codec=Codec.ZSTD)
    records = iterate_records(data, 0, decode_header(data))
    assert next(records).offset == 4
    with pytest.raises(TooLarge) as caught:
        next(records)
    assert (caught.value.offset, caught.value.next_offset) == (5, next_offset)
    rest = iterate_records(data, 0, decode_header(data), 6)
    if large is MANY:
        assert [each.offset for each in rest] == [6]
    else:  # it is behind bytes that are not opened
        with pytest.raises(TooLarge):
            next(rest)
