"""Words from outside, as records can hold them."""

from __future__ import annotations

WORD_BYTES_MAX = 32_767
"""A string of a record has a length of 16 bits."""


def fits(word: str) -> bool:
    """Whether a record can hold it."""
    return 4 * len(word) <= WORD_BYTES_MAX or len(word.encode()) <= WORD_BYTES_MAX


def java_length(word: str) -> int:
    """Its length as Java counts: code units of UTF-16."""
    return len(word) if word.isascii() else len(word.encode("utf-16-le")) // 2
