"""The machine under a benchmark: its cores, the use of their CPU time, and waits until it is quiet."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KTHREADD = 2
QUIET_SECONDS = 3.0
QUIET_SHARE, QUIET_IO_SHARE = 0.04, 0.01
TOUCH_BYTES = 16 << 30
TOUCH_FILE = 1 << 30


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds of a process and its ended children; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS


def memory_of(pid: int, field: str = "VmRSS") -> int:
    """Returns bytes: VmRSS now, and VmHWM, its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def children_of(pid: int) -> tuple[int, ...]:
    """Returns the ids of a process's children; none if it is gone."""
    try:
        return tuple(int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except OSError:
        return ()


def private_and_shared(pid: int) -> tuple[int, int]:
    """Returns the bytes of a process's pages that no other process has, and of those that others have too."""
    private = shared = 0
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_"):
            private += int(line.split()[1]) * 1024
        elif line.startswith("Shared_"):
            shared += int(line.split()[1]) * 1024
    return private, shared


def kernel_seconds() -> float:
    """Returns the CPU seconds of the kernel's own threads: write-back of the brokers' data is no foreign work."""
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdecimal():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # the process ended meanwhile
            continue
        if int(fields[1]) == KTHREADD:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def busy_seconds(cores: Iterable[int]) -> float:
    """Returns the CPU seconds in which the cores were not idle. Time that a hypervisor took counts too."""
    wanted = {f"cpu{core}" for core in cores}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in wanted:
            user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
            total += user + nice + system + irq + softirq + steal
    return total / TICKS


def pin_cores(text: str) -> tuple[int, ...]:
    """Binds this process and its children to some cores: `2,3`, `all`, or "" for the last two."""
    available = sorted(os.sched_getaffinity(0))
    if text == "all":
        cores = available
    elif text:
        cores = [int(core) for core in text.split(",")]
    else:
        cores = available[-2:]
    os.sched_setaffinity(0, cores)
    return tuple(cores)


@dataclass(frozen=True)
class CpuUsage:
    """CPU use of a period."""

    seconds: float
    broker_cpu: float
    foreign_share: float
    """Share of the cores that neither brokers nor clients nor the kernel's threads used."""


class CpuWindow:
    """CPU use from construction to `close`: of all brokers (process ids), and of other processes on our cores."""

    def __init__(self, brokers: Iterable[int], client: int = 0) -> None:
        self._brokers = frozenset(brokers)
        self._pids = self._brokers | {os.getpid()} | ({client} if client else set())
        self._cores = sorted(os.sched_getaffinity(0))
        self._kernel = kernel_seconds()
        self._busy = busy_seconds(self._cores)
        self._own_cpu = self._used(self._pids)
        self._broker_cpu = self._used(self._brokers)
        self._start = time.perf_counter()

    def close(self) -> CpuUsage:
        """Ends the period and returns its use."""
        seconds = time.perf_counter() - self._start
        cpu = self._used(self._brokers) - self._broker_cpu
        ours = self._used(self._pids) - self._own_cpu
        busy = busy_seconds(self._cores) - self._busy
        kernel = kernel_seconds() - self._kernel
        return CpuUsage(seconds, cpu, max(0.0, busy - ours - kernel) / (seconds * len(self._cores)))

    def _used(self, pids: Iterable[int]) -> float:
        return sum(cpu_of(pid) for pid in pids)


def io_share() -> float:
    """Returns the share of the last ten seconds in which a process waited for the disk; 0 if the kernel has none."""
    try:
        text = Path("/proc/pressure/io").read_text()
    except OSError:
        return 0.0
    return float(text.split("avg10=")[1].split()[0]) / 100


def wait_quiet(limit_seconds: float) -> float:
    """Waits, up to a limit, until our cores were idle for a moment and the disk has written the last leg's data.

    Returns the last busy share.
    """
    cores = sorted(os.sched_getaffinity(0))
    until = time.monotonic() + limit_seconds
    while True:
        before, start = busy_seconds(cores), time.perf_counter()
        time.sleep(QUIET_SECONDS)
        share = (busy_seconds(cores) - before) / ((time.perf_counter() - start) * len(cores))
        if (share <= QUIET_SHARE and io_share() <= QUIET_IO_SHARE) or time.monotonic() > until:
            return share


def measure_wakeup_delay(seconds: float) -> tuple[float, float]:
    """Returns how late a process wakes up that sleeps one millisecond at a time: p99 and p99.9, in seconds.

    No latency of a broker below that can be measured.
    """
    late: list[float] = []
    start = time.perf_counter()
    due = start
    while due < start + seconds:
        due += 0.001
        time.sleep(max(0.0, due - time.perf_counter()))
        late.append(time.perf_counter() - due)
    late.sort()
    return late[len(late) * 99 // 100], late[len(late) * 999 // 1000]


def touch_memory(directory: Path) -> None:
    """Fills the page cache once: a guest's memory is backed on first touch, which would slow down the first leg."""
    piece = bytes(8 << 20)
    for number in range(TOUCH_BYTES // TOUCH_FILE):
        with (directory / f"touch-{number}").open("wb", buffering=0) as file:
            for _ in range(TOUCH_FILE // len(piece)):
                file.write(piece)
    for file_path in directory.glob("touch-*"):
        file_path.unlink()
    os.sync()
