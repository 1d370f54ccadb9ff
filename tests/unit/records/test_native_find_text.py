"""Tests of the text in bytes, from the C extension and from plain Python: letters count in either case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.ports import Buffer
from tiered.records import native, pure

Find = Callable[[Buffer, bytes, int], int]
FINDERS = [pytest.param(native.find_text, id="native"), pytest.param(pure.find_text, id="pure")]
FEW = st.text("abAB@[`{\0", max_size=200).map(str.encode)


@pytest.mark.parametrize("find", FINDERS)
@pytest.mark.parametrize(
    ("data", "text", "start", "place"),
    [
        (b"", b"a", 0, -1),
        (b"a", b"a", 0, 0),
        (b"xAbC", b"abc", 0, 1),
        (b"abcabc", b"abc", 1, 3),
        (b"abc", b"abc", 1, -1),
        (b"abc", b"abcd", 0, -1),
        (b"abc", b"c", 9, -1),
        (b"\xc3\x89", "é".encode(), 0, -1),
        (b"@[", b"`{", 0, -1),
    ],
)
def test_text_is_found_from_the_start_on(find: Find, data: bytes, text: bytes, start: int, place: int) -> None:
    assert find(data, text, start) == place


@pytest.mark.parametrize("find", FINDERS)
@pytest.mark.parametrize("at", [0, 1, 62, 63, 64, 65, 127, 128, 1_000])
def test_text_is_found_at_each_place_of_a_block(find: Find, at: int) -> None:
    data = bytearray(b"n-" * 600)
    data[at : at + 6] = b"NeedlE"
    assert find(data, b"needle", 0) == at
    assert find(memoryview(data)[: at + 6], b"needle", 0) == at
    assert find(memoryview(data)[: at + 5], b"needle", 0) == -1


@pytest.mark.parametrize("find", FINDERS)
def test_empty_text_and_negative_start_are_refused(find: Find) -> None:
    for text, start in ((b"", 0), (b"a", -1)):
        with pytest.raises(ValueError, match="takes a text"):
            find(b"abc", text, start)


@given(FEW, FEW.filter(bool), st.integers(0, 200))
def test_both_implementations_find_the_same_place(data: bytes, text: bytes, start: int) -> None:
    for wanted in (text.lower(), text[:2].lower()):
        assert native.find_text(data, wanted, start) == pure.find_text(data, wanted, start)
