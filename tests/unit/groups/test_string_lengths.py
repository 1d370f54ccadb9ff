"""Tests of the lengths of strings: a record holds them in bytes of UTF-8, Java counts code units of UTF-16."""

from __future__ import annotations

import pytest

from tiered.groups.string_lengths import STRING_BYTES_MAX, fits_in_record, java_length


@pytest.mark.parametrize("letter", ["a", "ä", "€", "\U0001f600"])
def test_string_fits_up_to_the_last_byte_of_its_length_field(letter: str) -> None:
    most = STRING_BYTES_MAX // len(letter.encode())
    assert fits_in_record(letter * most) and not fits_in_record(letter * (most + 1))


@pytest.mark.parametrize(("text", "length"), [("", 0), ("abc", 3), ("äb", 2), ("€", 1), ("a\U0001f600", 3)])
def test_length_counts_code_units_of_utf_16(text: str, length: int) -> None:
    assert java_length(text) == length
