"""Record work at the speed of C where the extension was built, in plain Python elsewhere: same names, same results.

`TIERED_PURE=1` forces plain Python (tests, and to rule the extension out in the field).
"""

from __future__ import annotations

import os

NATIVE: bool
"""Whether the C extension does the work."""

try:
    if os.environ.get("TIERED_PURE") == "1":
        raise ImportError("TIERED_PURE=1")
    from tiered.records._native import (
        arrow,
        check_records,
        crc32c,
        encode_records,
        first_at_or_after,
        fit,
        json_spans,
        murmur2,
        outside,
        rows,
        some_rows,
        walk,
    )

    NATIVE = True
except ImportError:
    from tiered.records.pure import (
        arrow,
        check_records,
        crc32c,
        encode_records,
        first_at_or_after,
        fit,
        json_spans,
        murmur2,
        outside,
        rows,
        some_rows,
        walk,
    )

    NATIVE = False

__all__ = [
    "NATIVE",
    "arrow",
    "check_records",
    "crc32c",
    "encode_records",
    "first_at_or_after",
    "fit",
    "json_spans",
    "murmur2",
    "outside",
    "rows",
    "some_rows",
    "walk",
]
