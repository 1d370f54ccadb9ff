"""Tests of codecs: data survives a round trip with every writer, and no input takes more memory than allowed."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from unittest.mock import patch

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import Corrupt, TooLarge, Unavailable
from tiered.records.compression import (
    CHEAP,
    CONTEXTS_MAX,
    COSTLY_BYTES_MAX,
    GZIP_MEMBERS_MAX,
    GZIP_PIECE_BYTES,
    INPUT_SLICE,
    _contexts,
    affordable_level,
    compress,
    decompress,
    decompress_pieces,
    level_cost,
)
from tiered.records.model import Codec

COMPRESSED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
MIB = 1 << 20


@pytest.mark.parametrize("codec", Codec)
@given(data=st.binary(max_size=2000), repeat=st.integers(1, 100))
def test_data_of_exactly_the_bound_is_decompressed(codec: Codec, data: bytes, repeat: int) -> None:
    data *= repeat
    assert decompress(codec, memoryview(compress(codec, memoryview(data))), len(data)) == data


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_above_the_bound_is_refused(codec: Codec) -> None:
    data = bytes(range(256)) * 1000
    with pytest.raises(Corrupt, match="more than 255999 bytes"):
        decompress(codec, compress(codec, data), len(data) - 1)


def bombs() -> dict[str, tuple[Codec, bytes]]:
    """Returns a few KiB for each codec that expand to 256 MiB."""
    zeros = bytes(256 * MIB)
    return {
        "gzip": (Codec.GZIP, compress(Codec.GZIP, zeros)),
        "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, zeros)),
        "snappy-raw": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(zeros))),
        "lz4": (Codec.LZ4, compress(Codec.LZ4, zeros)),
        "zstd-with-size": (Codec.ZSTD, zstandard.ZstdCompressor().compress(zeros)),
        "zstd-without-size": (Codec.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(zeros)),
    }


UNDER_A_LIMIT = """
import pickle, resource, sys
from tiered.errors import Corrupt, TooLarge
from tiered.records.compression import compress, decompress
for codec, bomb in (bombs := pickle.load(sys.stdin.buffer)).values():
    decompress(codec, compress(codec, b"warm"), 100)
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (32 << 20), resource.RLIM_INFINITY))
for name, (codec, bomb) in bombs.items():
    try:
        decompress(codec, bomb, 4 << 20)
    except Corrupt:
        print(name)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited by what /proc says")
def test_bombs_stay_within_the_bound() -> None:
    """Each bomb runs in a process that may take 32 MiB more than it has, with a bound of 4 MiB."""
    made = bombs()
    paths = os.pathsep.join(path for path in sys.path if path)
    run = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT],
        input=pickle.dumps(made),
        env={"PYTHONPATH": paths, "PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert run.stderr.decode() == ""
    assert run.stdout.decode().split() == list(made)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"\0" * 20),  # raw: says that it holds 4 GiB
        (Codec.SNAPPY, b"\x82SNAPPY\0\0\0\0\1\0\0\0\1\x7f\xff\xff\xff" + b"\0" * 20),  # a block of 2 GiB
        (Codec.ZSTD, bytes.fromhex("28b52ffde0ffffffffffffff7f010000")),  # a frame of 2^63 - 1 bytes
    ],
)
def test_declared_sizes_are_not_trusted(codec: Codec, data: bytes) -> None:
    with pytest.raises(Corrupt):
        decompress(codec, data, 1 << 40)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_cut_at_any_byte_is_corrupt(codec: Codec) -> None:
    whole = compress(codec, bytes(range(256)) * 4)
    for cut in range(len(whole)):
        with pytest.raises(Corrupt):
            decompress(codec, whole[:cut], 1 << 16)


def test_number_of_gzip_members_is_bounded() -> None:
    empty, whole = (zlib.compress(data, 9, 31) for data in (b"", bytes(range(256)) * 1000))
    assert decompress(Codec.GZIP, whole + empty * (GZIP_MEMBERS_MAX - 2) + whole, 1 << 20) == bytes(range(256)) * 2000
    with patch.object(zlib, "decompressobj", wraps=zlib.decompressobj) as made:
        for count in (GZIP_MEMBERS_MAX + 1, 50_000):
            made.reset_mock()
            with pytest.raises(TooLarge, match="gzip: more than 1000 members"):
                decompress(Codec.GZIP, empty * count, 1 << 20)
            assert made.call_count == GZIP_MEMBERS_MAX


def test_bytes_behind_a_gzip_member_are_read_in_slices() -> None:
    """Each member copies the bytes behind it: 20 MB behind a thousand members would cost 20 GB of copies."""
    seen: list[int] = []

    class Noted:
        def __init__(self, window: int) -> None:
            self._made = made(window)

        def decompress(self, data: memoryview, most: int) -> bytes:
            seen.append(len(data))
            return self._made.decompress(data, most)

        def __getattr__(self, name: str) -> object:
            return getattr(self._made, name)

    made = zlib.decompressobj
    data = zlib.compress(b"", 9, 31) * 900 + zlib.compress(random.Random(0).randbytes(300_000), 1, 31)
    with patch.object(zlib, "decompressobj", Noted):
        assert len(decompress(Codec.GZIP, data, 1 << 20)) == 300_000
    assert max(seen[1:]) <= INPUT_SLICE < len(data) - 20_000


def test_cut_snappy_never_decodes_to_other_bytes() -> None:
    """The framing of snappy has no end mark. A cut between two blocks is found by the record count."""
    data = bytes(range(256)) * 400
    whole = compress(Codec.SNAPPY, data)
    for cut in range(0, len(whole), 97):
        try:
            assert data.startswith(decompress(Codec.SNAPPY, whole[:cut], 1 << 20))
        except Corrupt as error:
            assert error.why.startswith("snappy")


@pytest.mark.parametrize("codec", COMPRESSED)
def test_bytes_after_the_end_are_refused(codec: Codec) -> None:
    with pytest.raises(Corrupt):
        decompress(codec, compress(codec, b"hello" * 100) + b"\x07\x07\x07", 1 << 16)


@pytest.mark.parametrize("codec", COMPRESSED)
@given(garbage=st.binary(max_size=200))
def test_garbage_raises_only_corrupt(codec: Codec, garbage: bytes) -> None:
    try:
        assert len(decompress(codec, garbage, 1000)) <= 1000
    except Corrupt as error:
        assert error.why.startswith(codec.name.lower())


@pytest.mark.parametrize("codec", COMPRESSED)
@given(data=st.data())
def test_flipped_bits_raise_only_corrupt(codec: Codec, data: st.DataObject) -> None:
    whole = bytearray(compress(codec, b"some words, some words again, and some more words" * 20))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert len(decompress(codec, whole, 5000)) <= 5000
    except Corrupt as error:
        assert error.why.startswith(codec.name.lower())


def test_data_of_other_writers_decompresses() -> None:
    data = b'{"a": 1, "b": "two"}' * 500
    linked = lz4.frame.compress(data, block_linked=True, store_size=True, content_checksum=True)
    stream = zstandard.ZstdCompressor(level=19).compressobj()
    zstd = stream.compress(data[:3000]) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK) + stream.compress(data[3000:])
    assert decompress(Codec.LZ4, linked, 1 << 20) == data
    assert decompress(Codec.ZSTD, zstd + stream.flush(), 1 << 20) == data
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data)), 1 << 20) == data
    assert decompress(Codec.GZIP, gzip.compress(data[:100]) + gzip.compress(data[100:]), 1 << 20) == data


def test_zstd_without_a_stated_size_may_expand_by_any_factor() -> None:
    data = bytes(3 * MIB)
    assert decompress(Codec.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(data), 3 * MIB) == data


def test_lz4_frames_have_the_form_that_java_reads() -> None:
    frame = compress(Codec.LZ4, b"x" * 200_000)
    assert lz4.frame.get_frame_info(frame)["block_linked"] is False


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_higher_level_compresses_better(codec: Codec) -> None:
    data = b"".join(b"%d,%d;" % (i, i * i % 9973) for i in range(5000))
    assert len(compress(codec, data, 9)) < len(compress(codec, data, 1))
    assert decompress(codec, compress(codec, data, 9), len(data)) == data


def test_threads_do_not_share_contexts() -> None:
    data = [bytes([n]) * 100_000 + bytes(range(256)) * 400 for n in range(4)]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(50):
            packed = compress(Codec.ZSTD, data[number])
            if decompress(Codec.ZSTD, packed, 1 << 20) != data[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


LEVELS: dict[Codec, range] = {
    Codec.GZIP: range(-1, 10),
    Codec.LZ4: range(18),
    Codec.ZSTD: range(-20, 23),
}


@pytest.mark.parametrize("codec", LEVELS)
def test_cost_of_a_level_is_that_of_its_slowest_data(codec: Codec) -> None:
    """Two kinds of letters are the slowest data for gzip and lz4, and 16 for zstd."""
    data = bytes(random.Random(1).choices(b"0123456789abcdef" if codec is Codec.ZSTD else b"ab", k=1 << 16))
    unit = min(cpu_seconds(lambda: compress(Codec.GZIP, data, 6)) for _ in range(3))
    for level in LEVELS[codec]:
        taken = min(cpu_seconds(lambda level=level: compress(codec, data, level)) for _ in range(3))  # type: ignore[misc]
        assert taken < 4 * unit * level_cost(codec, level), level


def cpu_seconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


@pytest.mark.parametrize("codec", LEVELS)
def test_costs_rise_with_levels_and_the_default_is_cheap(codec: Codec) -> None:
    costs = [level_cost(codec, level) for level in LEVELS[codec]]
    assert costs == sorted(costs) and min(costs) == level_cost(codec, None) == 1
    assert level_cost(Codec.SNAPPY, None) == 1 and level_cost(Codec.NONE, None) == 0


@pytest.mark.parametrize("codec", LEVELS)
def test_large_batch_gets_the_default_level_instead_of_a_costly_one(codec: Codec) -> None:
    for level in LEVELS[codec]:
        assert affordable_level(codec, level, COSTLY_BYTES_MAX) == level
        large = affordable_level(codec, level, COSTLY_BYTES_MAX + 1)
        assert large == (level if level_cost(codec, level) <= CHEAP else None)


def test_thread_keeps_few_compressors_however_many_levels_there_are() -> None:
    for level in [*range(-300, 0), 3]:
        data = compress(Codec.ZSTD, b"x" * 1000, level)
        assert decompress(Codec.ZSTD, data, 1000) == b"x" * 1000
    assert len(_contexts.compressors) == CONTEXTS_MAX and 3 in _contexts.compressors


def zstd_frame(window_log: int, size: int) -> bytes:
    """Returns a frame of a window that becomes `size` equal bytes. It takes 4 bytes for each 128 KiB."""
    frame = bytearray(b"\x28\xb5\x2f\xfd\0" + bytes([(window_log - 10) << 3]))
    for left in range(size, 0, -(1 << 17)):
        head = min(left, 1 << 17) << 3 | 2 | (left <= 1 << 17)
        frame += head.to_bytes(3, "little") + b"a"
    return bytes(frame)


MEMORY_TAKEN = """
import pickle, sys
from pathlib import Path
from tiered.errors import Corrupt
from tiered.records.compression import decompress, decompress_pieces

def memory_mb(what):
    return int(Path("/proc/self/status").read_text().partition(f"{what}:")[2].split()[0]) // 1024

for name, (codec, data, piece) in pickle.load(sys.stdin.buffer).items():
    Path("/proc/self/clear_refs").write_text("5")
    before, length = memory_mb("VmRSS"), 0
    try:
        decompress(codec, data, 64 << 20)
    except Corrupt:
        pass
    try:
        for each in decompress_pieces(codec, data, piece):
            length += len(each)
    except Corrupt:
        pass
    print(name, length, memory_mb("VmHWM") - before, memory_mb("VmRSS") - before, sep=",")
"""
"""Prints for each input how many bytes it became, and how many MB of memory it took and kept."""


def memory_taken(inputs: dict[str, tuple[Codec, bytes, int]]) -> dict[str, tuple[int, int, int]]:
    """Returns for each input its length in pieces, the MB that it took, and the MB that it kept.

    A process of its own measures: the memory of a process of many tests moves by itself.
    """
    run = subprocess.run(
        [sys.executable, "-c", MEMORY_TAKEN], input=pickle.dumps(inputs), capture_output=True, timeout=240, check=True
    )
    rows = (line.split(",") for line in run.stdout.decode().splitlines())
    return {name: (int(length), int(taken), int(kept)) for name, length, taken, kept in rows}


def small_inputs() -> dict[str, tuple[Codec, bytes]]:
    """Returns inputs of a KB or less that claim much: windows, blocks and lengths."""
    return {
        **{f"zstd window {log}": (Codec.ZSTD, zstd_frame(log, 30 << 20)[:1000]) for log in (20, 23, 27, 28, 31)},
        "zstd empty blocks": (Codec.ZSTD, zstd_frame(27, 1)[:6] + bytes(900) + b"\1\0\0"),
        "lz4 linked": (Codec.LZ4, lz4.frame.compress(bytes(250_000), block_linked=True, block_size=7)),
        "lz4 begun": (Codec.LZ4, lz4.frame.compress(bytes(9_000_000), block_linked=True, block_size=7)[:40]),
        "snappy lies": (Codec.SNAPPY, b"\xff\xff\xff\x7f" + b"a" * 900),
        "snappy empty blocks": (Codec.SNAPPY, compress(Codec.SNAPPY, b"")[:16] + b"\0\0\0\1\0" * 190),
        "gzip": (Codec.GZIP, compress(Codec.GZIP, bytes(900_000))),
    }


@pytest.mark.resident
def test_input_of_a_kilobyte_takes_little_memory_in_every_codec() -> None:
    inputs = small_inputs()
    assert max(len(data) for _, data in inputs.values()) <= 1200
    taken = memory_taken({name: (codec, data, 16 * MIB) for name, (codec, data) in inputs.items()})
    assert list(taken) == list(inputs)
    assert {name: mb for name, (_, mb, _) in taken.items() if mb > 80} == {}


def test_window_above_that_of_the_highest_level_is_refused() -> None:
    assert len(decompress(Codec.ZSTD, zstd_frame(27, 1000), 1000)) == 1000
    assert b"".join(decompress_pieces(Codec.ZSTD, zstd_frame(27, 300_000), MIB)) == b"a" * 300_000
    for log in (28, 31):
        with pytest.raises(Corrupt, match="memory"):
            decompress(Codec.ZSTD, zstd_frame(log, 1000), 1000)
        with pytest.raises(Corrupt, match="memory"):
            list(decompress_pieces(Codec.ZSTD, zstd_frame(log, 1000), MIB))


@pytest.mark.resident
def test_thread_keeps_no_memory_of_a_wide_window() -> None:
    """The 10 KB of the frame become 300 MB, so that all of the window is used."""
    ((length, taken, kept),) = memory_taken({"wide": (Codec.ZSTD, zstd_frame(27, 300 * MIB), MIB)}).values()
    assert length == 300 * MIB and taken > 100 and kept < 40


def test_gzip_of_much_data_is_made_in_pieces_between_which_it_may_end() -> None:
    data = random.Random(1).randbytes(10 * GZIP_PIECE_BYTES)
    pieces: list[int] = []
    made = compress(Codec.GZIP, data, 9, lambda: pieces.append(1))
    assert len(pieces) == 10 and made == compress(Codec.GZIP, data, 9)

    def end() -> None:
        pieces.append(1)
        raise Unavailable("nobody waits")

    with pytest.raises(Unavailable):
        compress(Codec.GZIP, data, 9, end)
    assert len(pieces) == 11
