"""The metrics in the form of OpenMetrics 1.0, made from Prometheus text. Pure.

Samples are the same in both forms. The description of a counter has its name without `_total`, and quotes have a
backslash there. The text has an end, so that a reader tells a text that was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable

COUNTER_END = "_total"
END = "# EOF"


def to_openmetrics(text: str) -> str:
    """Returns Prometheus text as OpenMetrics text."""
    return "\n".join((*_describe_counters(text.splitlines()), END, ""))


def _describe_counters(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if line.startswith("# "):
            mark, keyword, name, rest = line.split(" ", 3)
            yield " ".join((mark, keyword, name.removesuffix(COUNTER_END), rest.replace('"', '\\"')))
        elif line:
            yield line
