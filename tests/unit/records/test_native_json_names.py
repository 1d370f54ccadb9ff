"""Tests of names that an object of a JSON value has twice, from the C extension and from plain Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.ports import Buffer
from tiered.records import native, pure

Find = Callable[[Buffer, tuple[bytes, ...]], str | None]
BOTH = [pytest.param(native.json_repeated_name, id="native"), pytest.param(pure.json_repeated_name, id="pure")]
NAMES = st.sampled_from(["a", "b", "data", "é", 'q"', "\\", "\n", ""])
LEAVES = st.none() | st.integers() | st.sampled_from(['{"a":1,"a":2}', "[{", '"', "\\", "data", ""])


class Pairs(list[tuple[str, Any]]):
    """An object with all its fields, also those that repeat."""


VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.lists(st.tuples(NAMES, inner), max_size=4).map(Pairs)
)


def to_text(value: Any, space: str, ascii_only: bool) -> str:
    """Returns JSON of a value, with the fields that repeat."""
    if isinstance(value, Pairs):
        inside = (f"{to_text(name, '', ascii_only)}{space}:{to_text(each, space, ascii_only)}" for name, each in value)
        return "{" + f"{space},".join(inside) + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(to_text(each, space, ascii_only) for each in value) + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


def has_repeated(value: Any, free: str) -> bool:
    """True if an object outside of the values of `free` has a name twice."""
    if isinstance(value, Pairs):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(has_repeated(each, free) for name, each in value if name != free)
    return isinstance(value, list) and any(has_repeated(each, free) for each in value)


@pytest.mark.parametrize("find", BOTH)
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'{"key":1,"key":2}', "key"),
        (b'{"key":1,"ke\\u0079":2}', "key"),
        (b'{"key" : 1 , "key" : 2}', "key"),
        (b'[{"a":1},{"a":1}]', None),
        (b'{"a":{"a":{"a":"a"}},"b":"a"}', None),
        (b'[{"data":1},{"b":1,"b":2}]', "b"),
        (b'{"data":{"n":1,"n":2},"data":3}', "data"),
        (b'{"dat\\u0061":[{"n":1,"n":2}]}', None),
        (b'{"data":"x","b":{"n":1,"n":2}}', "n"),
        (b'"a"', None),
        (b"{" + b",".join(b'"%d":1' % n for n in range(200)) + b"}", None),
        (b"{" + b",".join(b'"%d":1' % (n % 199) for n in range(200)) + b"}", "0"),
        (b"[" * 70 + b'{"a":1,"a":2}' + b"]" * 70, "a"),
    ],
)
def test_first_repeated_name_is_found(find: Find, text: bytes, name: str | None) -> None:
    assert find(text, (b"data",)) == name


@pytest.mark.parametrize("find", BOTH)
@given(VALUES, st.sampled_from(["", " ", "\n\t"]), st.booleans())
def test_repeated_names_of_any_value_are_found(find: Find, value: Any, space: str, ascii_only: bool) -> None:
    text = to_text(value, space, ascii_only).encode()
    assert (find(text, (b"data",)) is not None) == has_repeated(value, "data"), text


@given(st.binary(max_size=60) | st.text('{}[]"\\ ,:1adt\n', max_size=60).map(str.encode))
def test_c_and_python_agree_on_any_bytes(text: bytes) -> None:
    def outcome(find: Find) -> object:
        try:
            return find(memoryview(text), (b"a", b"data"))
        except ValueError as error:
            return str(error)

    assert outcome(native.json_repeated_name) == outcome(pure.json_repeated_name)


PARTS = ["a", "\\u0061", "\\u00e9", "é", "\\ud83d\\ude00", "😀", "\\ud83d", "\\n", "\\/", "\\x", "\\u12"]


@given(st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("".join), max_size=4))
def test_c_and_python_decode_names_alike(names: list[str]) -> None:
    text = ("{" + ",".join(f'"{name}":[{{"a":1,"a":2}}]' for name in names) + "}").encode()

    def outcome(find: Find) -> object:
        try:
            return find(text, (b"a", "é".encode(), "😀".encode(), b"/"))
        except ValueError as error:
            return str(error)

    assert outcome(native.json_repeated_name) == outcome(pure.json_repeated_name)


@pytest.mark.parametrize("other", ["\\u0061", "\\u0061b", "\\n", "\\ud83d\\ude00", "\\/"])
def test_names_with_escapes_stay_in_c(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native.NATIVE:
        return
    monkeypatch.delattr("tiered.records.pure_text.json_repeated_name")
    assert native.json_repeated_name(f'{{"b":1,"{other}":1}}'.encode(), ()) is None
    with pytest.raises(AttributeError):  # plain Python names the field that is there twice
        native.json_repeated_name(f'{{"{other}":1,"{other}":1}}'.encode(), ())
