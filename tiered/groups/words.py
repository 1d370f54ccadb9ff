"""Words from outside, as records can hold them."""

from __future__ import annotations

STRING_BYTES_MAX = 32_767
"""A string of a record has a length of 16 bits."""


def fits_in_record(text: str) -> bool:
    """Whether a record can hold it."""
    return 4 * len(text) <= STRING_BYTES_MAX or len(text.encode()) <= STRING_BYTES_MAX


def java_length(text: str) -> int:
    """Its length as Java counts: code units of UTF-16."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
