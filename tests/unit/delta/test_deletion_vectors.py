"""Tests of deletion vectors, on files that Delta 4.4 wrote, and on our own."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pyspark_tiered.delta.deletion_vectors import VectorFile, cut_vector, decode_vector, locate_vector
from pyspark_tiered.delta.vector_file import encode_vector_file
from tiered.errors import Corrupt, Refused

LARGE = zlib.decompress(
    base64.b64decode(
        "eNrt2LEJgDAURdEXtU3hBiKINoKlYpEp3MABnMp1RK2FjGJSaW1jcw9cPrwRvpEKt5/DbPQYu1SZtPZxTOTLNNwqVkh1qA01"
        "+tEEAAAAAMCbEQAAAAAAAL5Z8vhb8aWzdruOG6atvlY="
    )
)
"""After DELETE of 3, 5, 70000, 199999, of even numbers from 1000 to 30000, and of all from 131072 to 140000."""
SMALL = base64.b64decode("AQAAACTR0zlkAQAAAAAAAAAAAAAAOjAAAAEAAAAAAAEAEAAAAAEAAwBoNJep")
"""After DELETE of 1 and 3."""
SMALL_TEXT = "R5" + "8{^jtGHmZC{{{vHUGD"
"""Its place in an add action; in two parts, since it looks like the number of a rule."""
LARGE_PLACE = VectorFile("deletion_vector_941520ee-514b-45fe-96a4-417f542222a4.bin", 1, 8255)
SMALL_PLACE = VectorFile("deletion_vector_a5174f8c-3c32-49b3-bf38-857c620d3dcf.bin", 1, 36)


def test_vectors_of_delta_are_decoded() -> None:
    numbers = {3, 5, 70000, 199999, *range(1000, 30001, 2), *range(131072, 140001)}
    assert list(decode_vector(cut_vector(LARGE, LARGE_PLACE), len(numbers))) == sorted(numbers)
    assert list(decode_vector(cut_vector(SMALL, SMALL_PLACE), 2)) == [1, 3]


def test_vector_has_its_place_in_a_file_or_is_inline() -> None:
    place = {"storageType": "u", "pathOrInlineDv": "LOCteqa<vSMzu/@r3AJZ", "offset": 1, "sizeInBytes": 8255}
    assert locate_vector(place, "file:/t") == LARGE_PLACE
    place["pathOrInlineDv"] = "abLOCteqa<vSMzu/@r3AJZ"
    assert locate_vector(place, "file:/t") == LARGE_PLACE._replace(path=f"ab/{LARGE_PLACE.path}")
    inline = {"storageType": "i", "pathOrInlineDv": "HelloWorld", "sizeInBytes": 8}
    assert locate_vector(inline, "file:/t") == bytes.fromhex("864FD26FB559F75B")
    with pytest.raises(Refused, match="elsewhere"):
        locate_vector({"storageType": "p", "pathOrInlineDv": "/etc/passwd", "sizeInBytes": 1}, "file:/t")
    for wrong in ("../LOCteqa<vSMzu/@r3AJZ", "short", "~" * 20):
        with pytest.raises(Corrupt):
            locate_vector(place | {"pathOrInlineDv": wrong}, "file:/t")


def test_damaged_vector_is_refused_wherever_it_ends() -> None:
    with pytest.raises(Corrupt, match="checksum"):
        cut_vector(SMALL[:20] + b"x" + SMALL[21:], SMALL_PLACE)
    with pytest.raises(Corrupt, match="length"):
        cut_vector(SMALL, SMALL_PLACE._replace(length=35))
    vector = cut_vector(SMALL, SMALL_PLACE)
    for end in range(len(vector)):
        with pytest.raises(Corrupt):
            decode_vector(vector[:end], 2)
    for at in (0, 12 + 4):
        with pytest.raises(Corrupt):
            decode_vector(vector[:at] + b"\xff" + vector[at + 1 :], 2)


def test_vector_that_names_another_number_of_rows_is_refused() -> None:
    """A few bytes of overlapping runs name any number of rows."""
    vector = cut_vector(SMALL, SMALL_PLACE)
    for rows in (1, 3):
        with pytest.raises(Corrupt, match="rows"):
            decode_vector(vector, rows)
    runs = 60_000
    bitmap = struct.pack("<IBHHH", 12347, 1, 0, 65535, runs) + struct.pack("<HH", 0, 65535) * runs
    with pytest.raises(Corrupt, match="more than 65536 rows"):
        decode_vector(struct.pack("<iqI", 1681511377, 1, 0) + bitmap, 65536)


@settings(max_examples=50)
@given(
    st.sets(st.one_of(st.integers(0, 300), st.integers(65_000, 70_000), st.integers(2**32 - 3, 2**32 + 3)), min_size=1)
)
@example(set(range(4096)))
@example(set(range(4097)) | {1 << 20})
def test_written_vector_has_its_rows(rows: set[int]) -> None:
    others = np.array([7], np.int64)
    name, data, places = encode_vector_file([others, np.array(list(rows), np.int64)])
    place = locate_vector(places[1], "file:/t")
    assert isinstance(place, VectorFile)
    assert place.path == name
    assert list(decode_vector(cut_vector(data, place), len(rows))) == sorted(rows)
    assert places[1]["cardinality"] == len(rows)
