"""The record functions: in C if the extension was built, in plain Python otherwise, with the same names and results.

`TIERED_PURE=1` forces plain Python, for tests and to exclude the extension as the cause of a problem.
"""

from __future__ import annotations

import os

NATIVE: bool
"""True if the C extension is in use."""
WHY_PURE = ""
"""The reason why it is not in use."""

try:
    if os.environ.get("TIERED_PURE") == "1":
        raise ImportError("TIERED_PURE=1")
    from tiered.records._native import (
        arrow,
        check_records,
        crc32c,
        encode_records,
        filter_batches,
        find_keyless,
        find_text,
        first_at_or_after,
        fit,
        hash_rows,
        json_elements,
        json_entries,
        json_repeated_name,
        json_spans,
        murmur2,
        outside,
        put_keys,
        rows,
        some_rows,
        split_records,
        time_range,
        walk,
    )

    NATIVE = True
except ImportError as error:
    from tiered.records.pure import (
        arrow,
        check_records,
        crc32c,
        encode_records,
        find_text,
        first_at_or_after,
        fit,
        hash_rows,
        json_elements,
        json_entries,
        json_repeated_name,
        json_spans,
        murmur2,
        outside,
        rows,
        some_rows,
        split_records,
        time_range,
        walk,
    )
    from tiered.records.pure_compact import filter_batches, find_keyless, put_keys

    NATIVE = False
    WHY_PURE = str(error)

__all__ = [
    "NATIVE",
    "WHY_PURE",
    "arrow",
    "check_records",
    "crc32c",
    "encode_records",
    "filter_batches",
    "find_keyless",
    "find_text",
    "first_at_or_after",
    "fit",
    "hash_rows",
    "json_elements",
    "json_entries",
    "json_repeated_name",
    "json_spans",
    "murmur2",
    "outside",
    "put_keys",
    "rows",
    "some_rows",
    "split_records",
    "time_range",
    "walk",
]
