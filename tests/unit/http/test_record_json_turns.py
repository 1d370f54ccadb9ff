"""Tests of keys and values that take long to be shown: JSON with many values, and long texts."""

from __future__ import annotations

import base64
import json
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from tiered.records.batch import encode_batch
from tiered.records.model import Codec
from tiered_api.http.exchange.errors import HttpError
from tiered_api.http.exchange.fields import ELEMENTS_MAX
from tiered_api.http.partitions.reads import SHOWN_BYTES_MAX
from tiered_api.http.partitions.record_json import (
    EXPANSION_MAX,
    PIECE_BYTES,
    Rendered,
    encode_events,
    encode_json,
    encode_v2,
)

ROOM = 8 << 20
MOST = b"[" + b"1," * (ELEMENTS_MAX - 2) + b"1]"
"""JSON with as many values as are shown, and with one more."""
MORE = b"[" + b"1," * (ELEMENTS_MAX - 1) + b"1]"
LONG = b'"' + b"x" * SHOWN_BYTES_MAX + b'"'

FORMS: dict[str, Callable[[bytes, int, str], Rendered]] = {
    "json": lambda data, offset, form: encode_json(data, offset, ROOM, form, {"topic": "t"}),
    "events": lambda data, offset, form: encode_events(data, offset, ROOM, form),
    "v2": lambda data, offset, form: encode_v2(data, offset, ROOM, form, "t", 0),
}


def rows_of(reply: Rendered) -> list[dict[str, Any]]:
    """Returns the records of a reply of any form."""
    text = b"".join(reply.pieces)
    if text.startswith(b"id: "):
        return [orjson.loads(part.partition(b"data: ")[2]) for part in text.split(b"\n\n")[:-1]]
    found = orjson.loads(text)
    rows: list[dict[str, Any]] = found if isinstance(found, list) else found["records"]
    return rows


def batch(*values: bytes, key: bytes | None = None, codec: Codec = Codec.NONE) -> bytes:
    return encode_batch([(0, key, value, ()) for value in values], codec=codec)


@pytest.mark.parametrize("kind", ["json", "events"])
def test_value_with_too_many_elements_is_shown_as_base64(kind: str) -> None:
    first, second, third = rows_of(FORMS[kind](batch(MOST, MORE, b"7"), 0, "json"))
    assert first["value"] == json.loads(MOST) and "value_base64" not in first
    assert second["value"] is None and base64.b64decode(second["value_base64"]) == MORE
    assert third["value"] == 7


@pytest.mark.parametrize("kind", ["json", "events"])
@pytest.mark.parametrize("form", ["json", "string"])
def test_long_key_and_value_are_shown_as_base64(kind: str, form: str) -> None:
    [row] = rows_of(FORMS[kind](batch(LONG, key=LONG[:-3] + b'"'), 0, form))
    assert row["value"] is None and base64.b64decode(row["value_base64"]) == LONG
    assert len(row["key"]) == SHOWN_BYTES_MAX - (2 if form == "json" else 0) and "key_base64" not in row
    [row] = rows_of(FORMS[kind](batch(b"{}", key=LONG), 0, form))
    assert row["key"] is None and base64.b64decode(row["key_base64"]) == LONG


@pytest.mark.parametrize("kind", FORMS)
def test_long_values_keep_their_form_as_base64(kind: str) -> None:
    values = (b"a", LONG, b"b", LONG + b"c", b"")
    offset, shown = 0, list[dict[str, Any]]()
    while offset < len(values):
        reply = FORMS[kind](batch(*values, codec=Codec.ZSTD), offset, "binary")
        rows = rows_of(reply)
        assert len(rows) == reply.shown and reply.next_offset == offset + len(rows)
        shown, offset = shown + rows, reply.next_offset
    assert [base64.b64decode(row["value"]) for row in shown] == list(values)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("kind", FORMS)
def test_long_value_is_in_memory_as_base64_and_as_batch_only(kind: str, codec: Codec) -> None:
    value = b"x" * 3 * SHOWN_BYTES_MAX
    data = batch(value, codec=codec)
    opened = len(data) if codec is Codec.NONE else 0
    tracemalloc.start()
    try:
        reply = FORMS[kind](data, 0, "binary")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert opened + peak < 2.4 * len(value) and reply.size > 1.3 * len(value)


@pytest.mark.parametrize(("value", "why"), [(MORE, "100001 values and names"), (LONG, f"{len(LONG)} bytes")])
def test_v2_ends_before_a_value_that_takes_too_long_and_says_why(value: bytes, why: str) -> None:
    data = batch(b"1", b"2", value, b"4")
    reply = encode_v2(data, 0, ROOM, "json", "t", 0)
    assert ([row["value"] for row in rows_of(reply)], reply.shown, reply.next_offset) == ([1, 2], 2, 2)
    with pytest.raises(HttpError, match=f"at offset 2 is not json .it has {why}, more than .* position 3") as refused:
        encode_v2(data, 2, ROOM, "json", "t", 0)
    assert refused.value.error_code == 42203
    assert [row["value"] for row in rows_of(encode_v2(data, 3, ROOM, "json", "t", 0))] == [4]


@pytest.mark.parametrize("kind", FORMS)
def test_reply_of_many_pieces_has_all_records_in_order(kind: str) -> None:
    values = [orjson.dumps({"n": n, "text": "x" * (n % 700)}) for n in range(3000)]
    data = b"".join(
        encode_batch([(0, None, each, ()) for each in values[at : at + 750]], base_offset=at, codec=Codec.LZ4)
        for at in range(0, 3000, 750)
    )
    reply = FORMS[kind](data, 0, "json")
    assert (reply.shown, reply.next_offset) == (3000, 3000)
    assert [row["value"] for row in rows_of(reply)] == [orjson.loads(each) for each in values]
    assert len(reply.pieces) > len(data) // PIECE_BYTES


@pytest.mark.parametrize("kind", FORMS)
def test_reply_ends_early_where_its_text_grows_above_the_bound(kind: str) -> None:
    """A control character takes six bytes as text."""
    value = b'"%b"' % (b"\\u0001" * 30_000) if kind == "v2" else b"\x01" * 180_000
    values = [value] * 60
    reply = FORMS[kind](batch(*values, codec=Codec.ZSTD), 0, "json" if kind == "v2" else "string")
    largest = max(map(len, reply.pieces))
    assert sum(map(len, reply.pieces)) < EXPANSION_MAX * ROOM + 2 * largest
    assert reply.next_offset == reply.shown == len(rows_of(reply)) > 0
    assert kind == "v2" or reply.shown < len(values)


SHAPES: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + b"[]," * (ELEMENTS_MAX // 2 - 2) + b"[]]",
    "names": lambda: b"{" + b",".join(b'"%d":1' % n for n in range(ELEMENTS_MAX // 2 - 1)) + b"}",
    "long names": lambda: b"{" + b",".join(b'"%0100d":1' % n for n in range(38_000)) + b"}",
    "deep": lambda: b"[" * 2_000_000,
    "deep objects": lambda: b'{"a":' * 800_000,
    "numbers": lambda: b"[" + b",".join([b"2.2250738585072011e-308"] * (ELEMENTS_MAX - 2)) + b"]",
    "long number": lambda: b"1" * (SHOWN_BYTES_MAX - 1),
    "text": lambda: b'"' + b"x" * (SHOWN_BYTES_MAX - 2) + b'"',
    "wide text": lambda: b'"' + (b"a" * 1000 + "😀".encode()) * 4000 + b'"',
    "escapes": lambda: b'"' + b"\\n" * (SHOWN_BYTES_MAX // 2 - 1) + b'"',
    "escaped characters": lambda: b'"' + b"\\u0001" * (SHOWN_BYTES_MAX // 6 - 1) + b'"',
    "spaces": lambda: b"[" + b" " * (SHOWN_BYTES_MAX - 2) + b"]",
    "too many lists": lambda: b"[" + b"[]," * 16_000_000 + b"[]]",
    "too long": lambda: b'"' + b"\x01" * 50_000_000 + b'"',
}
"""Values that take long, made by the tests that need them: some have 50 MB."""


def longest_call(call: Callable[[], object]) -> float:
    """Returns the most CPU seconds that one function in C takes. It may hold the interpreter's lock all the time."""
    began = longest = 0.0

    def note(_: object, event: str, __: object) -> None:
        nonlocal began, longest
        if event == "c_call":
            began = time.thread_time()
        elif event in ("c_return", "c_exception"):
            longest = max(longest, time.thread_time() - began)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return longest


def measure_unavoidable() -> float:
    """Returns the CPU seconds of the slowest steps that no reply can do without: copies of a whole value, and the parse
    of the longest JSON that is shown."""
    value, names = bytearray(SHAPES["too long"]()), SHAPES["long names"]()
    return min(longest_call(lambda: (value.copy(), orjson.loads(names))) for _ in range(3))


TEXTS = ("text", "wide text", "escapes", "escaped characters", "too long")
"""Shapes that differ where a value is shown as text. Shown as base64 they differ by their length alone."""
SHOWN = [
    *(("json", shape) for shape in SHAPES),
    *(("string", shape) for shape in TEXTS),
    *(("binary", shape) for shape in ("text", "too long")),
]


@pytest.mark.parametrize(("form", "shape"), SHOWN)
def test_no_step_of_a_reply_holds_the_lock_for_long(shape: str, form: str) -> None:
    """The bound is a ratio: a busy machine makes both slow. To parse all of 50 MB takes a hundred times as long."""
    data = batch(SHAPES[shape]())
    longest = min(longest_call(lambda: encode_json(data, 0, ROOM, form, {})) for _ in range(3))
    assert longest < 5 * measure_unavoidable()
