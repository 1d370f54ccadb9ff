"""CPU seconds of this process and its descendants, by samples of /proc.

PySpark's daemon ignores the end of its workers, so no process ever gets their CPU time. Only samples count it.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bench.broker import TICKS

SAMPLE_SECONDS = 0.1

Process = tuple[int, int]
"""Number of a process and the time of its start, because numbers are used again."""


class CpuMeter:
    """Counts while it is entered. A process that ends loses what it used after the last sample."""

    def __init__(self, sample_seconds: float = SAMPLE_SECONDS) -> None:
        self._sample_seconds = sample_seconds
        self._before: dict[Process, int] = {}
        self._used: dict[Process, int] = {}
        self._sampling = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> CpuMeter:
        self._before = _read_ticks()
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    @property
    def seconds(self) -> float:
        """Returns the CPU seconds that were used until the last sample, without those of the samples."""
        used = sum(ticks - self._before.get(process, 0) for process, ticks in self._used.items())
        return used / TICKS - self._sampling

    def sample(self) -> None:
        """Looks at all processes."""
        self._used |= _read_ticks()

    def _run(self) -> None:
        while not self._stop.wait(self._sample_seconds):
            self.sample()
        self._sampling = time.thread_time()


def _read_ticks() -> dict[Process, int]:
    """Returns the ticks that this process and each living descendant have used, without their children."""
    children: dict[int, list[int]] = {}
    found: dict[int, tuple[Process, int]] = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split() if entry.name.isdecimal() else []
        except OSError:  # it ended meanwhile
            continue
        if fields:
            number = int(entry.name)
            children.setdefault(int(fields[1]), []).append(number)
            found[number] = (number, int(fields[19])), int(fields[11]) + int(fields[12])
    ticks: dict[Process, int] = {}
    waiting = [os.getpid()]
    while waiting:
        number = waiting.pop()
        if number in found:
            process, used = found[number]
            ticks[process] = used
        waiting += children.get(number, [])
    return ticks
