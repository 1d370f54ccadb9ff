"""The progress output of the demo: numbered steps, a bar for the long ones, and the time of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tiered_api.cli.output import print_lines


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
def bar(total: int, unit: str) -> Iterator[Callable[[int], Any]]:
    """Shows a progress bar, which the yielded function advances; nothing if stderr is no terminal."""
    from tqdm import tqdm

    with tqdm(total=total, unit=unit, unit_scale=True, disable=not sys.stderr.isatty(), leave=False) as shown:
        yield shown.update
