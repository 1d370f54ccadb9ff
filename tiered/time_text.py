"""Times and spans of time as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(at_ms: int) -> str:
    """Returns a time as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(at_ms // 1000, UTC).isoformat(timespec="seconds")


def format_seconds(seconds: float) -> str:
    """Returns a span of time in one unit: 12 s, 3 min, 2 h."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
