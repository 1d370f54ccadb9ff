"""Meters of the work between two moments: calls of Python functions, executed bytecodes, allocated blocks."""

from __future__ import annotations

import asyncio
import os
import selectors
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Protocol

COUNTS = os.path.dirname(__file__)
MARKS = "/absent/counts"
NATIVE = "tiered.records._native"
COUNTED = 5
"""Rounds of each request; their median counts."""


def _codes(*functions: Callable[..., Any]) -> set[int]:
    return {id(each.__code__) for each in functions}


TURN = _codes(
    asyncio.base_events.BaseEventLoop._run_once,  # type: ignore[attr-defined]
    asyncio.selector_events.BaseSelectorEventLoop._process_events,  # type: ignore[attr-defined]
    selectors.DefaultSelector.select,
    asyncio.TimerHandle.__lt__,
)
"""Functions of a turn of the event loop, which many requests share, and the order of its timers: how many are compared
depends on the microseconds between earlier ones."""


class Meter(Protocol):
    """Counts from `begin` to `end`, which may come again and again."""

    @property
    def total(self) -> int: ...
    def begin(self) -> None: ...
    def end(self) -> None: ...


class NoMeter:
    """Counts nothing: for what only prepares."""

    total: int = 0

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


class CallMeter:
    """Calls of Python functions. A coroutine that goes on counts as a call. Only functions in files below `within`
    count."""

    def __init__(self, within: tuple[str, ...] = ("",)) -> None:
        self.functions: Counter[CodeType] = Counter()
        self._is_counted = Counted(within)

    @property
    def total(self) -> int:
        return self.functions.total()

    def begin(self) -> None:
        sys.setprofile(self._on_event)

    def end(self) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, detail: Any) -> None:
        if event == "call" and self._is_counted(frame.f_code):
            self.functions[frame.f_code] += 1


class NativeMeter:
    """Calls of our functions in C. Each walks over batches or records, which no other meter sees."""

    def __init__(self) -> None:
        self.total = 0

    def begin(self) -> None:
        sys.setprofile(self._on_event)

    def end(self) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, detail: Any) -> None:
        if event == "c_call" and detail.__module__ == NATIVE:
            self.total += 1


class BytecodeMeter:
    """Executed bytecodes."""

    def __init__(self) -> None:
        self.functions: Counter[CodeType] = Counter()
        self._is_counted = Counted(("",))

    @property
    def total(self) -> int:
        return self.functions.total()

    def begin(self) -> None:
        sys.settrace(self._on_call)

    def end(self) -> None:
        sys.settrace(None)

    def _on_call(self, frame: FrameType, event: str, detail: Any) -> Any:
        if not self._is_counted(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_bytecode

    def _on_bytecode(self, frame: FrameType, event: str, detail: Any) -> Any:
        if event == "opcode":
            self.functions[frame.f_code] += 1
        return self._on_bytecode


class BlockMeter:
    """Most blocks of memory that are in use at once, above those at the beginning."""

    def __init__(self) -> None:
        self.total = 0
        self._before: int | None = None

    def begin(self) -> None:
        if self._before is None:
            self._before = sys.getallocatedblocks()
        sys.setprofile(self._on_event)

    def end(self) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, detail: Any) -> None:
        more = sys.getallocatedblocks() - (self._before or 0)
        if more > self.total:
            self.total = more


class Counted:
    """The decision about a function, by its code: those of these counts and of a turn do not count."""

    def __init__(self, within: tuple[str, ...]) -> None:
        self._within = within
        self._known: dict[int, bool] = {}

    def __call__(self, code: CodeType) -> bool:
        known = self._known.get(id(code))
        if known is None:
            name = code.co_filename
            is_ours = id(code) in TURN or name.startswith(COUNTS)
            known = self._known[id(code)] = name.startswith(self._within) and not is_ours
        return known


class MarkMeter:
    """Looks for absent files before and after the work: marks in a list of system calls, `MARKS/NAME/begin` and so on.
    `new` is the first mark of a meter."""

    total: int = 0

    def __init__(self, name: str) -> None:
        self._name = name
        self._mark("new")

    def begin(self) -> None:
        self._mark("begin")

    def end(self) -> None:
        self._mark("end")

    def _mark(self, what: str) -> None:
        os.access(f"{MARKS}/{self._name}/{what}", os.F_OK)
