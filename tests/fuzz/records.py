"""Fuzzing of record batches of every codec, of their sections, and of JSON that is split into values.

The C extension gets a buffer that ends where its memory ends, so that a sanitizer sees one byte too far. Its results
must equal those of plain Python.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any

from tiered.errors import Corrupt
from tiered.records import batch, native, pure, pure_compact
from tiered.records.model import CRC_AT, CRC_FROM, HEADER_BYTES

EDGES = (0, 0, 0, 1, -1, 2, 3, 9, 63, 64, 1000, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63 - 1, -(2**63))
COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")
AHEAD = 64
"""Bytes before those of an input. ctypes keeps small buffers within its object, where no tool sees the end."""

SEED = b"0123456789abcdef"
REFUSED = (Corrupt, ValueError, OverflowError, TypeError)


def copy_exactly(data: bytes) -> memoryview:
    """Returns the bytes in memory of their own, which ends where they end."""
    room = (ctypes.c_char * (AHEAD + len(data))).from_buffer_copy(bytes(AHEAD) + data)
    return memoryview(room).cast("B")[AHEAD:]


def result_or_error(call: Callable[[], Any]) -> Any:
    """Returns the result, or the type and text of the error."""
    try:
        return call()
    except REFUSED as error:
        return type(error), str(error)


def compare_implementations(name: str, data: bytes, *args: Any, **kwargs: Any) -> Any:
    """Returns the result of a function of both implementations; AssertionError if they differ."""
    plain = result_or_error(lambda: getattr(pure, name)(data, *args, **kwargs))
    if native.NATIVE:
        fast = result_or_error(lambda: getattr(native, name)(copy_exactly(data), *args, **kwargs))
        assert fast == plain, f"{name}{args}{kwargs}: {fast!r} is not {plain!r}"
    return plain


def check_sections(rng: Random, payload: bytes) -> None:
    """Checks the bytes as the records of a batch."""
    offset, timestamp, bound = rng.choice(EDGES), rng.choice(EDGES), rng.choice(EDGES)
    count = rng.choice((1, 1, 2, 3, 3, 4, rng.choice(EDGES)))
    compare_implementations("check_records", payload, count)
    compare_implementations("check_records", payload, count, 1)
    compare_implementations("split_records", payload, count, rng.choice((0, 1, 5)), rng.choice((-1, 0, 4)))
    rows = compare_implementations(
        "rows", payload, offset, timestamp, rng.choice((-1, -1, 77)), count, rng.choice((0, 3, 1000))
    )
    compare_implementations(
        "some_rows", payload, offset, timestamp, -1, count, bound, rng.choice((0, 20, 2**40)), rng.choice((0, 3, 9))
    )
    compare_implementations("first_at_or_after", payload, offset, timestamp, bound, count, rng.choice(EDGES))
    assert result_or_error(lambda: native.find_keyless(copy_exactly(payload), count, 3)) == result_or_error(
        lambda: pure_compact.find_keyless(payload, count, 3)
    )
    compare_implementations("outside", payload, timestamp, bound, rng.choice(EDGES), count, rng.choice((0, 1, 5)))
    if isinstance(rows, list):
        again = [(row.timestamp, row.key, row.value, row.headers) for row in rows]
        for base in (timestamp, bound):
            assert result_or_error(lambda base=base: native.encode_records(again, base)) == result_or_error(  # type: ignore[misc]
                lambda base=base: pure.encode_records(again, base)  # type: ignore[misc]
            )
    for start, end in ((0, 2**63 - 1), (offset, bound)):
        columns = rng.sample(COLUMNS, rng.randint(0, len(COLUMNS)))
        alike = [(payload, offset, timestamp, -1, count), (payload, bound, 0, 5, 1)]
        given = [(copy_exactly(payload), *rest) for _, *rest in alike]
        plain = result_or_error(lambda: pure.arrow(alike, columns, start, end))  # noqa: B023
        assert result_or_error(lambda: native.arrow(given, columns, start, end)) == plain  # type: ignore[arg-type]  # noqa: B023


def check_batches(rng: Random, log: bytes) -> None:
    """Checks the bytes as batches in a row, unchanged and with a valid CRC."""
    sealed = log[:CRC_AT] + native.crc32c(log[CRC_FROM:]).to_bytes(4, "big") + log[CRC_FROM:]
    for each in (log, sealed) if len(log) >= CRC_FROM else (log,):
        start, end = rng.choice((0, 0, 0, 1, len(each), -1)), rng.choice((None, None, len(each) // 2, len(each) + 1))
        most = rng.choice((None, None, 0, 1))
        for checked in (True, False):
            compare_implementations(
                "walk", each, start, end, check_crc=checked, max_batches=most, records=rng.random() < 0.5
            )
        bounds = rng.choice((0, 1_000)), rng.choice((0, 2_000, 2**63 - 1)), rng.choice((0, 2_000, 2**63 - 1))
        check_fit(each, rng.choice((0, 7, -1, 2**63 - 1)), rng.choice((0, 100, 1 << 20)), bounds)
        check_decompression(rng, each)
        check_compaction(rng, each)


def check_fit(log: bytes, base_offset: int, most: int, bounds: tuple[int, int, int]) -> None:
    """Checks `fit`, which writes into its input."""
    fast, plain = copy_exactly(log), bytearray(log)
    said = result_or_error(lambda: native.fit(fast, base_offset, 5, most, *bounds))
    assert said == result_or_error(lambda: pure.fit(plain, base_offset, 5, most, *bounds)) and bytes(fast) == plain


def check_compaction(rng: Random, log: bytes) -> None:
    """Puts the keys of batches into a table, and takes out what it supersedes."""
    from_offset, keys_max, upper = rng.choice(EDGES), rng.choice((1, 2, 9)), rng.choice(EDGES)
    now_ms, horizon_ms = rng.choice(EDGES), rng.choice(EDGES)
    one, kept = rng.choice((0, 0, 1, 2)), array("q", sorted(rng.sample(EDGES, 2)))
    results = []
    for module, data in ((native, copy_exactly(log)), (pure_compact, memoryview(log))):
        table = bytearray(16 * pure_compact.SLOT_BYTES)
        put = module.put_keys(table, SEED, 0, keys_max, -1, data, 0, len(data), from_offset, bool(one))
        results.append(
            (
                put,
                *module.filter_batches(
                    table, SEED, put.latest_offset, data, 0, len(data), kept.tobytes(), upper, now_ms, horizon_ms, one
                ),
                bytes(table),
            )
        )
    assert results[0] == results[1], (results, from_offset, keys_max, upper, now_ms, horizon_ms, one, kept)


def check_decompression(rng: Random, log: bytes) -> None:
    """Decompresses the first batch with its codec, up to a limit."""
    try:
        head = batch.decode_header(log)
        body = batch.decompress_payload(copy_exactly(log), 0, head, max_bytes=1 << 20)
    except Corrupt:
        return
    assert len(body) <= 1 << 20
    result_or_error(lambda: batch.check_batch(log, max_bytes=1 << 20))
    result_or_error(lambda: batch.decode_records(log, max_bytes=1 << 20))
    if head.codec:
        check_sections(rng, bytes(body)[: 16 << 10])


def check(kind: str, data: bytes) -> None:
    """Gives an input to every function that reads such bytes. Further arguments are drawn from the input."""
    rng = Random(data)
    compare_implementations("crc32c", data, rng.choice((0, 1, 2**32 - 1)))
    compare_implementations("murmur2", data)
    compare_implementations("find_text", data, data[5:7].lower() or b"a", rng.choice((0, 1, 70)))
    if native.NATIVE:
        ways = import_module("tiered.records._native").crc32c_ways(copy_exactly(data))
        assert set(ways) == {pure.crc32c(data)}, ways
    if kind == "json":
        compare_implementations("json_spans", data)
        compare_implementations("json_spans", data, rng.choice((0, 1, 2)))
        compare_implementations("json_elements", data)
        for each in (data, b'{"l":[' + data, b'{"l":[' + data + b"]}"):
            compare_implementations("json_entries", each, b"l", rng.choice((0, 5, 100)), rng.choice((0, 20, 1000)))
        compare_implementations("json_repeated_name", data, (b"data",))
    elif kind == "section":
        check_sections(rng, data)
    else:
        assert kind == "batch", kind
        check_batches(rng, data)
        check_sections(rng, data[HEADER_BYTES:])
