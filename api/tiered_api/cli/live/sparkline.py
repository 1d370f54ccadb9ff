"""The course of a number as a line of characters, and its trend in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tiered.time_text import format_seconds

LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Returns the last `width` values, from the lowest level for 0 to the highest for the largest of them."""
    shown = [max(value, 0) for value in values[-width:]]
    top = max(shown, default=0)
    if not top:
        return LEVELS[0] * len(shown)
    return "".join(LEVELS[min(int(value * len(LEVELS) / top), len(LEVELS) - 1)] for value in shown)


def describe_trend(samples: Sequence[tuple[float, int]]) -> str:
    """Returns in words how a lag changes, from samples of seconds and records in their order."""
    if len(samples) < 2:
        return ""
    (first, before), (last, now) = samples[0], samples[-1]
    rate = (now - before) / (last - first)
    if now == 0 and before == 0:
        return "no lag"
    if abs(rate) < 0.05:
        return "does not change"
    if rate > 0:
        return f"grows by {rate:,.1f} records/s"
    return f"falls by {-rate:,.1f} records/s, gone in {format_seconds(now / -rate)}"
