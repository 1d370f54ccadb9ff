"""Metrics of the process, under the names that Prometheus' own clients use, and of the build.

Only a real process has them: in a simulation one process runs several brokers.
"""

from __future__ import annotations

import os
import platform
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tiered import __version__
from tiered.metrics import Metrics

PROC = Path("/proc/self")


def add_process_metrics(metrics: Metrics) -> None:
    """Adds the metrics, without memory and descriptors on a system without /proc."""
    began = time.time()
    build = metrics.gauge("tiered_build_info", "1; the labels say which build runs.", ("version", "python"))
    build.set(1, __version__, platform.python_version())
    started = metrics.gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")
    started.set(_read_start_time() or began)
    cpu = metrics.counter("process_cpu_seconds_total", "User and system time of the process.")
    cpu.set_function(lambda: sum(os.times()[:2]))

    def gauge(name: str, help: str, read: Callable[[], float]) -> None:
        with suppress(OSError, ValueError, IndexError):
            read()
            metrics.gauge(name, help).set_function(read)

    page = resource.getpagesize()
    gauge("process_virtual_memory_bytes", "Virtual memory of the process.", lambda: _read_statm(0) * page)
    gauge("process_resident_memory_bytes", "Resident memory of the process.", lambda: _read_statm(1) * page)
    gauge("process_open_fds", "Open file descriptors.", lambda: len(os.listdir(PROC / "fd")) - 1)
    gauge(
        "process_max_fds",
        "How many file descriptors may be open.",
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def _read_statm(field: int) -> float:
    return float((PROC / "statm").read_text().split()[field])


def _read_start_time() -> float:
    """Returns the start of the process in seconds since 1970; 0 if the system does not tell."""
    with suppress(OSError, ValueError, IndexError, StopIteration):
        ticks = float((PROC / "stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
        return float(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    return 0.0
