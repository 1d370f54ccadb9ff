"""Summary of the legs of both sides: medians, the ratio with its confidence interval, and whether it meets the goal."""

from __future__ import annotations

import random
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import number
from bench.peer.workload import Figures, Metric, Workload

DRAWS = 10_000
CONFIDENCE = 0.95
FOREIGN_SHARE = 0.03
"""Share of our cores. A leg in which other processes used more is run again, and marked if that does not help."""
UNITS = re.compile("_(us|seconds|mb|percent|kb_each)$")
VERDICTS = {True: "met", False: "**missed**", None: ""}


@dataclass(frozen=True)
class Pair:
    """One leg of each side, run one after the other."""

    ours: Figures
    kafka: Figures


@dataclass(frozen=True)
class ReportRow:
    """One metric over all pairs. A ratio is ours / Kafka."""

    workload: str
    metric: str
    unit: str
    ours: float
    kafka: float
    ratio: float
    low: float
    high: float
    pairs: int
    noisy_pairs: int
    goal: float | None
    at_most: bool
    is_own: bool
    met: bool | None
    processes: int = 1
    """Processes of our broker."""


def confidence_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the bootstrap interval of the median."""
    rng = random.Random(len(ratios))
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    cut = int(DRAWS * (1 - CONFIDENCE) / 2)
    return medians[cut], medians[-1 - cut]


def _ratio(ours: float, kafka: float) -> float:
    """Returns ours / Kafka. Two costs too small for the clocks are equal."""
    if kafka:
        return ours / kafka
    return float("inf") if ours else 1.0


def make_row(workload: Workload, metric: Metric, pairs: Sequence[Pair], processes: int = 1) -> ReportRow:
    """Returns the row of one metric."""
    noisy = sum(max(pair.ours["foreign"], pair.kafka["foreign"]) > FOREIGN_SHARE for pair in pairs)
    ours = [pair.ours[metric.key] for pair in pairs]
    kafka = [pair.kafka[metric.key] for pair in pairs]
    ratios = [_ratio(a, b) for a, b in zip(ours, kafka, strict=True)]
    low, high = confidence_interval(ratios)
    is_met = metric.is_met(*confidence_interval(ours)) if metric.is_own else metric.is_met(low, high)
    return ReportRow(
        workload.name, metric.key, metric.unit, statistics.median(ours), statistics.median(kafka),
        statistics.median(ratios), low, high, len(pairs), noisy, metric.goal, metric.at_most, metric.is_own, is_met,
        processes,
    )  # fmt: skip


def name_workload(titles: dict[str, str], row: ReportRow) -> str:
    """Returns the title of a row's workload, with the number of processes if there are several."""
    return titles[row.workload] + (f", {row.processes} processes" if row.processes > 1 else "")


def table(titles: dict[str, str], rows: Sequence[ReportRow]) -> str:
    """Formats a Markdown table, one row a metric; `~` marks a ratio with noisy pairs."""
    lines = ["| workload | figure | ours | Kafka | ours / Kafka | 95 % | goal | |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- | ---: | --- |")
    last = ""
    for each in rows:
        title = name_workload(titles, each)
        title, last = "" if title == last else title, title
        figure = f"{UNITS.sub('', each.metric).replace('_', ' ')} ({each.unit})"
        ratio = f"{'~' if each.noisy_pairs else ''}{each.ratio:.2f}"
        goal = "" if each.goal is None else f"{'<=' if each.at_most else '>='} {each.goal:g}"
        goal += " (ours)" if each.is_own else ""
        cells = [title, figure, number(each.ours), number(each.kafka), ratio, f"{each.low:.2f}-{each.high:.2f}", goal]
        lines.append(f"| {' | '.join(cells)} | {VERDICTS[each.met]} |")
    return "\n".join(lines)
