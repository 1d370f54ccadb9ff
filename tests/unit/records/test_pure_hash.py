"""Tests of the keyed hashes of rows: SipHash by its published vectors, C and Python alike, no access outside of
buffers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.records.test_pure import both
from tiered.records import native, pure_hash

SECRET = bytes(range(16))
ABSENT = (0, None, None, None)


def int32(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def column(start: int, data: bytes | None, offsets: bytes | None = None, valid: bytes | None = None) -> tuple:  # type: ignore[type-arg]
    return start, valid, offsets, data


def test_siphash_gives_the_published_vectors() -> None:
    published = {0: "a3817f04ba25a8e66df67214c7550293", 1: "da87c1d86b99af44347659119b22fc45"}
    for size, expected in published.items():
        assert pure_hash.siphash(SECRET, bytes(range(size))).hex() == expected


@pytest.mark.skipif(not native.NATIVE, reason="the C extension is not built here")
@given(st.data())
def test_rows_in_any_buffers_hash_alike_or_are_refused(data: st.DataObject) -> None:
    def draw_column(width: int) -> tuple:  # type: ignore[type-arg]
        start = data.draw(st.sampled_from([0, 0, 1, 2, -1]))
        valid = data.draw(st.none() | st.binary(min_size=0, max_size=1))
        if width:
            return column(start, data.draw(st.none() | st.binary(min_size=width * 3, max_size=width * 5)), valid=valid)
        held = data.draw(st.none() | st.binary(max_size=30))
        steps = data.draw(st.lists(st.sampled_from([0, 0, 1, 3, 9, -1]), min_size=3, max_size=5))
        ends = [sum(steps[:i]) for i in range(len(steps))]
        return column(start, held, int32(*ends), valid)

    columns = tuple(draw_column(width) for width in (4, 8, 8, 1, 0, 0, 0, 1, 0, 0))
    hashes = both("hash_rows", SECRET, data.draw(st.sampled_from([0, 1, 2])), columns)
    assert isinstance(hashes, (bytes, tuple))


@pytest.mark.skipif(not native.NATIVE, reason="the C extension is not built here")
def test_fields_of_any_size_hash_alike() -> None:
    """The sizes meet every place in a word at which a field can begin and end."""
    for key_size in range(20):
        for value_size in range(20):
            name = b"n" * (key_size % 3)
            columns = (
                column(0, int32(7)),
                column(0, bytes(range(8))),
                column(0, bytes(range(8, 16))),
                column(0, b"\1"),
                column(0, bytes(range(key_size)), int32(0, key_size)),
                column(0, bytes(range(100, 100 + value_size)), int32(0, value_size)),
                column(0, None, int32(0, 2)),
                ABSENT,
                column(0, name * 2, int32(0, len(name), 2 * len(name))),
                column(0, b"c" * value_size, int32(0, value_size, value_size), b"\1"),
            )
            assert len(both("hash_rows", SECRET, 1, columns)) == 16


@pytest.mark.parametrize(
    ("secret", "rows", "columns"),
    [(b"short", 0, (ABSENT,) * 10), (SECRET, -1, (ABSENT,) * 10), (SECRET, 0, (ABSENT,) * 9)],
    ids=["secret", "rows", "columns"],
)
def test_wrong_call_is_refused(secret: bytes, rows: int, columns: tuple) -> None:  # type: ignore[type-arg]
    with pytest.raises(ValueError, match="10 columns"):
        native.hash_rows(secret, rows, columns)
