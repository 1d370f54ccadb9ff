"""Tests of the number of JSON values and of arrays cut into pieces, from the C extension and from plain Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.ports import Buffer
from tiered.records import native, pure

Count = Callable[[Buffer], int]
Cut = Callable[[Buffer, bytes, int, int], tuple[int, int, list[tuple[int, int, int, int]]] | None]
COUNTS = [pytest.param(native.json_elements, id="native"), pytest.param(pure.json_elements, id="pure")]
CUTS = [pytest.param(native.json_entries, id="native"), pytest.param(pure.json_entries, id="pure")]
MANY = 1 << 20
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\[]{},:é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\{', max_size=2), inner, max_size=4),
    max_leaves=20,
)
JSON_LIKE = st.text('{}[]"\\ ,:1l', max_size=60).map(str.encode)


def count_values(value: Any) -> int:
    """Returns the number of values and names of a parsed value; an empty list or object counts twice."""
    if isinstance(value, dict):
        return 1 + (sum(1 + count_values(each) for each in value.values()) or 1)
    if isinstance(value, list):
        return 1 + (sum(map(count_values, value)) or 1)
    return 1


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("text", "elements"),
    [
        (b"", 1),
        (b"12", 1),
        (b"[]", 2),
        (b"[1,2,3]", 4),
        (b'{"a":1,"b":[2]}', 6),
        (b'{"a":"[,:{\\",[["}', 3),
        (b'["open, [', 2),
        (b'[1,"open\\', 3),
    ],
)
def test_values_and_names_are_counted_outside_of_strings(count: Count, text: bytes, elements: int) -> None:
    assert count(text) == elements


@given(VALUES, st.booleans())
def test_count_is_that_of_the_parsed_value(value: Any, ascii_only: bool) -> None:
    assert native.json_elements(json.dumps(value, ensure_ascii=ascii_only).encode()) == count_values(value)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"l":[]}', (6, 6, [])),
        (b' {"a" : 1, "l" : [ ] }', (18, 19, [])),
        (b'{"l":[1]}', (6, 7, [(6, 7, 1, 1)])),
        (b'{"l":[1,[2,3],{"l":4}],"b":{}}', (6, 21, [(6, 13, 2, 4), (14, 21, 1, 3)])),
        (b'{"a":{"l":[1]},"l":["]"]}', (20, 23, [(20, 23, 1, 1)])),
        (b'{"l":[1,]}', (6, 8, [(6, 8, 2, 2)])),
        (b'{"l":[,]}', (6, 7, [(6, 7, 2, 2)])),
        (b'{"l":[1}', (6, 7, [(6, 7, 1, 1)])),
        (b'{"l":{"l":[1]}}', None),
        (b'{"l":1,"l":[1]}', None),
        (b'{"a":[1]}', None),
        (b'{"a":[1]}{"l":[1]}', None),
        (b'["l",[1]]', None),
        (b'["l":[1]]', None),
        (b'{"l":[1', None),
        (b'{"l":["', None),
        (b'{"l', None),
        (b"", None),
    ],
)
def test_array_of_an_object_is_cut_at_its_commas(cut: Cut, text: bytes, found: Any) -> None:
    assert cut(text, b"l", 4, MANY) == found


@pytest.mark.parametrize("cut", CUTS)
def test_pieces_end_at_the_most_elements_and_bytes(cut: Cut) -> None:
    text = b'{"l":[' + b",".join([b"[1,2]"] * 7 + [b"[1,2,3,4,5,6,7,8,9]"]) + b"]}"

    def shape(elements: int, size: int) -> list[tuple[int, int]]:
        found = cut(text, b"l", elements, size)
        assert found is not None
        return [(entries, total) for _, _, entries, total in found[2]]

    assert shape(9, MANY) == [(3, 9), (3, 9), (1, 3), (1, 10)]
    assert shape(MANY, 17) == [(3, 9), (3, 9), (1, 3), (1, 10)]
    assert shape(MANY, 16) == [(2, 6), (2, 6), (2, 6), (1, 3), (1, 10)]
    assert shape(0, 0) == [(1, 3)] * 7 + [(1, 10)]


@given(st.lists(VALUES, max_size=8), VALUES, st.integers(1, 30), st.integers(1, 60), st.sampled_from(["", " ", "\n"]))
def test_pieces_are_the_entries_of_the_array(values: list[Any], other: Any, most: int, size: int, space: str) -> None:
    text = json.dumps({"other": other, "l": values, "z": 1}, separators=("," + space, ":" + space)).encode()
    found = native.json_entries(text, b"l", most, size)
    assert found is not None
    start, end, pieces = found
    assert json.loads(text[:start] + text[end:]) == {"other": other, "l": [], "z": 1}

    def entries() -> Iterator[Any]:
        for begin, stop, count, elements in pieces:
            parsed = json.loads(b"[" + text[begin:stop] + b"]")
            assert len(parsed) == count and elements == sum(map(count_values, parsed))
            assert count == 1 or (elements <= most and stop - begin <= size)
            yield from parsed

    assert list(entries()) == values


@given(st.binary(max_size=60) | JSON_LIKE, st.integers(0, 6), st.integers(0, 9))
def test_c_and_python_count_and_cut_any_bytes_alike(text: bytes, most: int, size: int) -> None:
    assert native.json_elements(memoryview(text)) == pure.json_elements(memoryview(text))
    for data in (text, b'{"l":[' + text, b'{"l":[' + text + b"]}"):
        assert native.json_entries(data, b"l", most, size) == pure.json_entries(data, b"l", most, size)
