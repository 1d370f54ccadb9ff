"""Length checks for strings that clients send and that records of `__consumer_offsets` have to hold."""

from __future__ import annotations

STRING_BYTES_MAX = 32_767
"""Longest string that a record can hold, in bytes: its length field has 16 bits."""


def fits_in_record(text: str) -> bool:
    """True if a record can hold the string."""
    return 4 * len(text) <= STRING_BYTES_MAX or len(text.encode()) <= STRING_BYTES_MAX


def java_length(text: str) -> int:
    """Returns the length as Java counts it: UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
