"""The work of a call in steps of Python, which are the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_steps(work: Callable[[], object]) -> int:
    """Returns how many lines of Python a call runs, each pass of a loop included."""
    steps = 0

    def trace(frame: FrameType, event: str, detail: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps
