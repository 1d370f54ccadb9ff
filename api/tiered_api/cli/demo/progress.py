"""The progress output of the demo: numbered steps, a bar for the long ones, and the time of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tiered_api.cli.output import print_lines
from tiered_api.cli.progress import draw_progress


class Steps:
    """Numbered steps on stdout, bars on stderr. `seconds` of each step by its name."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str, words: str) -> Iterator[Callable[[str], None]]:
        """Prints one step and its time. Yields a function that takes the result of the step."""
        self._number += 1
        print_lines([f"[{self._number}/{self._total}] {words}"])
        outcome: list[str] = []
        started = time.monotonic()
        yield outcome.append
        self.seconds[name] = time.monotonic() - started
        print_lines(f"      {line}" for line in (*outcome, f"{self.seconds[name]:.1f} s"))


@contextmanager
def bar(total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Shows on a terminal how much of a step is left. The yielded function takes what was done since its last call."""
    done = 0
    with draw_progress(" " * 5) as progress:

        def advance(more: int) -> None:
            nonlocal done
            done += more
            progress.report(done, total, unit)

        yield advance
