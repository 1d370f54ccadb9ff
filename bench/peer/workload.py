"""A workload: a leg that runs on one broker and gives figures, and the goal for the ratio of each figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.peer.brokers import MeasuredBroker

Figures = dict[str, float]


@dataclass(frozen=True)
class Scale:
    """Length of legs."""

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
    """One figure of a leg. `goal` is for ours / Kafka: a floor, or a ceiling for figures that should be small.

    With `is_own` the goal is for our figure alone.
    """

    key: str
    unit: str
    goal: float | None = None
    at_most: bool = True
    is_own: bool = False

    def is_met(self, low: float, high: float) -> bool | None:
        """True if the whole interval meets the goal; None if there is no goal."""
        if self.goal is None:
            return None
        return high <= self.goal if self.at_most else low >= self.goal


@dataclass(frozen=True)
class Leg:
    """Directory and length of a leg."""

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
OF_PROCESSES = (Metric("private_mb", "MB"), Metric("shared_mb", "MB"))
"""Compared too where a machine has several processes: the memory of each, and what they share."""
