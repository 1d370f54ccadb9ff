"""One measured figure beside its goal, and the table that prints them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One measured value. `goal` is a floor, or a ceiling with `at_most`. Without a goal it is only reported."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_most: bool = False
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value <= self.goal if self.at_most else self.value >= self.goal


def number(value: float) -> str:
    """Formats three significant digits, with thousands grouped."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(figures: Sequence[Figure]) -> str:
    """Formats a Markdown table, one row a figure."""
    lines = ["| figure | measured | goal | | |", "| --- | ---: | ---: | --- | --- |"]
    for f in figures:
        goal = "" if f.goal is None else ("<= " if f.at_most else ">= ") + number(f.goal)
        verdict = {True: "met", False: "**missed**", None: ""}[f.is_met]
        lines.append(f"| {f.name} | {number(f.value)} {f.unit} | {goal} | {verdict} | {f.note} |")
    return "\n".join(lines)


def run_pairs(pairs: int, ours: Callable[[], T], theirs: Callable[[], T]) -> Iterator[tuple[T, T]]:
    """Runs (ours, theirs) in the order A B B A: a drift of the machine affects both alike."""
    for i in range(pairs):
        if i % 2 == 0:
            a = ours()
            b = theirs()
        else:
            b = theirs()
            a = ours()
        yield a, b


def median_ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Returns the median of the paired ratios ours / theirs, and the range of the pairs."""
    ratios = sorted(a / b for a, b in pairs)
    return statistics.median(ratios), ratios[0], ratios[-1]
