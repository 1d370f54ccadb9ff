"""What a workload is: a leg that runs on one broker and gives figures, and what is asked of each figure's ratio."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peer.brokers import MeasuredBroker

Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """How long legs are."""

    warm_rounds: int
    timed_rounds: int
    warm_seconds: float
    timed_seconds: float
    latency_warm_seconds: float
    latency_seconds: float
    idle_seconds: float


QUICK = Scale(1, 1, 4, 4, 8, 10, 10)
FULL = Scale(5, 3, 15, 10, 22, 60, 30)


@dataclass(frozen=True)
class Metric:
    """One figure of a leg. `goal` is for ours / Kafka: at least it, or at most it for what should be small."""

    key: str
    unit: str
    goal: float | None = None
    at_most: bool = True

    def is_met(self, low: float, high: float) -> bool | None:
        """Whether the whole interval clears the goal; None when there is none."""
        if self.goal is None:
            return None
        return high <= self.goal if self.at_most else low >= self.goal


@dataclass(frozen=True)
class Leg:
    """Where a leg may put things, and how long it may be."""

    root: Path
    scale: Scale
    broker: type[MeasuredBroker]


@dataclass(frozen=True)
class Workload:
    name: str
    title: str
    metrics: tuple[Metric, ...]
    run: Callable[[Leg], Figures]


def rate(unit: str, goal: float | None = None) -> Metric:
    return Metric("rate", unit, goal, at_most=False)


def cpu(unit: str, goal: float | None = None) -> Metric:
    return Metric("cpu", unit, goal)


MEMORY = Metric("peak_rss_mb", "MB")
