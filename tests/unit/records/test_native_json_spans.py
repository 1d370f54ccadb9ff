"""Tests of the spans of JSON values in a stream, from the C extension and from plain Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.records import native, pure

Spans = Callable[..., tuple[list[tuple[int, int]], int]]
BOTH = [pytest.param(native.json_spans, id="native"), pytest.param(pure.json_spans, id="pure")]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("json_spans", BOTH)
@pytest.mark.parametrize(
    ("text", "spans", "rest"),
    [
        (b"", [], 0),
        (b" \t\r\n", [], 4),
        (b"{}", [(0, 2)], 2),
        (b'{"a":"}"}{"b":[1,{}]}', [(0, 9), (9, 21)], 21),
        (b'"\\"" "\\\\"', [(0, 4), (5, 9)], 9),
        (b"12 true\nnull ", [(0, 2), (3, 7), (8, 12)], 13),
        (b"1[2]", [(0, 1), (1, 4)], 4),
        (b"12", [], 0),  # the next byte may be another digit
        (b'{"a":1} {"b"', [(0, 7)], 8),
        (b'"half\\', [], 0),
        (b"[[[", [], 0),
    ],
)
def test_examples_have_the_expected_spans(
    json_spans: Spans, text: bytes, spans: list[tuple[int, int]], rest: int
) -> None:
    assert json_spans(text) == (spans, rest)


@pytest.mark.parametrize("json_spans", BOTH)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"  ,{}", "unexpected byte 0x2c at 2"),
        (b"{]", "unexpected byte 0x5d at 1"),
        (b"\xff", "unexpected byte 0xff at 0"),
        (b"[" * 65, "nested deeper than 64 at 64"),
    ],
)
def test_garbage_before_a_value_is_an_error(json_spans: Spans, text: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        json_spans(text)


@pytest.mark.parametrize("json_spans", BOTH)
def test_garbage_behind_a_value_is_the_rest(json_spans: Spans) -> None:
    assert json_spans(b'{"a":1} ]{"b":2}') == ([(0, 7)], 8)


@pytest.mark.parametrize("json_spans", BOTH)
def test_depth_of_64_is_allowed(json_spans: Spans) -> None:
    deep = b"[" * 64 + b"]" * 64
    assert json_spans(deep) == ([(0, 128)], 128)


@pytest.mark.parametrize("most", [0, 1, 2, 9])
@pytest.mark.parametrize("json_spans", BOTH)
def test_values_after_the_most_are_the_rest(json_spans: Spans, most: int) -> None:
    text = b"1 [2] {}"
    spans = [(0, 1), (2, 5), (6, 8)]
    assert json_spans(text, most) == (spans[:most], [0, 2, 6, 8][min(most, 3)])
    assert json_spans(b"1 ]", 1) == ([(0, 1)], 2)


@given(st.lists(VALUES, max_size=5), st.sampled_from(["", " ", "\n\t"]), st.booleans())
def test_valid_values_are_found_one_by_one(values: list[Any], between: str, ascii_only: bool) -> None:
    text = "".join(json.dumps(v, ensure_ascii=ascii_only) + (between or "\n") for v in values).encode()
    spans, rest = native.json_spans(text)
    assert [json.loads(text[start:end]) for start, end in spans] == values
    assert rest == len(text)


@given(st.lists(VALUES, min_size=1, max_size=3), st.data())
def test_stream_in_two_pieces_gives_the_same_values(values: list[Any], data: st.DataObject) -> None:
    text = "".join(json.dumps(v) + "\n" for v in values).encode()
    cut = data.draw(st.integers(0, len(text)))
    first, rest = native.json_spans(text[:cut])
    second, _ = native.json_spans(text[rest:])
    found = [text[a:b] for a, b in first] + [text[rest + a : rest + b] for a, b in second]
    assert [json.loads(one) for one in found] == values


@given(st.binary(max_size=60) | st.text('{}[]"\\ ,:1tn\n', max_size=60).map(str.encode), st.integers(0, 9))
def test_c_and_python_agree_on_any_bytes(text: bytes, most: int) -> None:
    def outcome(json_spans: Spans) -> object:
        try:
            return json_spans(memoryview(text), most)
        except ValueError as error:
            return str(error)

    assert outcome(native.json_spans) == outcome(pure.json_spans)
