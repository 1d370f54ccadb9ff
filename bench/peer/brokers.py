"""The two brokers of a comparison, each as its users start it, on fresh data, behind the same interface."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from bench.peer.machine import children_of, cpu_of, memory_of, private_and_shared
from bench.peer.wire import api_versions_request, is_acknowledged, send_request
from tests.peer.kafka import BROKER, format_directory, java
from tests.ports import hold_ports

START_SECONDS = 180.0
STOP_SECONDS = 180.0
STEP_SECONDS = 0.002
PORT_STEP = 1
"""`tiered.processes.port.step` of a broker of several processes."""
READY = b"tiered is ready"
SAME_SETTINGS = {"log.segment.delete.delay.ms": "500"}
"""Set on both brokers: warm-up rounds are deleted before the next round, and their files have to go at once."""

KAFKA_FLAGS = [
    "-server", "-Xms1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
]  # fmt: skip
"""Flags of Kafka's own start script."""


def broker_environment() -> dict[str, str]:
    """Returns a broker's environment. A shell may disable Python's compiled modules; an installed broker has them."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class MeasuredBroker(ABC):
    """One broker on a directory of its own.

    The context manager starts it, and leaves no process behind. It leaves no file either, unless it `keeps` them until
    the end of all legs. With very many files that is fair to the next leg: ext4 reuses an inode only minutes after it
    became free, and for each new inode it searches all of those. Then the creation of 10,000 partitions takes ten times
    as long.
    """

    name: str
    processes = 1
    """Number of processes that take requests."""

    def __init__(self, root: Path, settings: Mapping[str, str] | None = None, *, keep_files: bool = False) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=root))
        held = hold_ports(self.processes, PORT_STEP)
        self.port: int = held[0].getsockname()[1]
        for each in held:
            each.close()
        self.address = f"127.0.0.1:{self.port}"
        self.settings = {**SAME_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._output = self.directory / "output"
        self._keep_files = keep_files

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command that starts it, and prepares its files first."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """True if it was started and not stopped since."""
        return self._process is not None

    @property
    def pids(self) -> tuple[int, ...]:
        """Returns the ids of all its processes."""
        return (self.pid,) if self.processes == 1 else (self.pid, *children_of(self.pid))

    def spawn(self) -> float:
        """Starts the process. Returns its start time at once."""
        command = self.command()
        with self._output.open("ab") as output:
            started = time.perf_counter()
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True, env=broker_environment()
            )
        return started

    def start(self) -> None:
        """Starts it and returns once it answers requests."""
        started = self.spawn()
        while time.perf_counter() - started < START_SECONDS:
            self.check_alive()
            try:
                send_request(self.port, api_versions_request())
            except OSError:
                time.sleep(STEP_SECONDS)
            else:
                return
        raise RuntimeError(f"{self.name} did not answer: {self.output_tail()}")

    def check_alive(self) -> None:
        """Raises RuntimeError with its last lines if the process has ended."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}: {self.output_tail()}")

    def output_tail(self) -> str:
        """Returns the end of its output."""
        return self._output.read_text(errors="replace")[-2000:]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> float:
        """Stops it in order (SIGTERM). Returns the seconds that it took."""
        process, self._process = self._process, None
        if process is None:
            return 0.0
        start = time.perf_counter()
        others = children_of(process.pid) if self.processes > 1 and how == signal.SIGKILL else ()
        process.send_signal(how)
        for pid in others:  # each has a session of its own
            with suppress(ProcessLookupError):
                os.kill(pid, how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return time.perf_counter() - start

    def cpu(self) -> float:
        return sum(map(cpu_of, self.pids))

    def rss(self) -> int:
        return sum(map(memory_of, self.pids))

    def peak_rss(self) -> int:
        return sum(memory_of(pid, "VmHWM") for pid in self.pids)

    def memory(self) -> dict[str, float]:
        """Returns the memory that is its own, and what its processes share with each other or with other programs.

        `peak_rss` counts shared memory once for each process.
        """
        found = [private_and_shared(pid) for pid in self.pids]
        return {"private_mb": sum(own for own, _ in found) / 1e6, "shared_mb": max(shared for _, shared in found) / 1e6}

    def disk_bytes(self) -> int:
        """Returns the size of its directory."""
        return bytes_below(self.directory)

    def __enter__(self) -> MeasuredBroker:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills it at once, and removes its data unless it keeps them."""
        self.stop(signal.SIGKILL)
        if not self._keep_files:
            shutil.rmtree(self.directory, ignore_errors=True)


class KafkaBroker(MeasuredBroker):
    """Apache Kafka with stock settings: controller and broker in one process."""

    name = "kafka"

    def command(self) -> list[str]:
        file = format_directory(self.directory, self.address, self.settings)
        program, *rest = java(BROKER, [str(file)], heap="1g")
        return [program, *KAFKA_FLAGS, *rest]


class TieredBroker(MeasuredBroker):
    """`tiered serve` with its defaults, but room for more partitions. Its bucket is a directory beside its log."""

    name = "ours"

    @classmethod
    def of_processes(cls, count: int) -> type[TieredBroker]:
        """Returns the broker as one machine of so many processes (`tiered.processes`)."""
        return cls if count == 1 else type(f"TieredBrokerOf{count}", (cls,), {"processes": count})

    def spawn(self) -> float:
        self._output_start = self._output.stat().st_size if self._output.exists() else 0
        return super().spawn()

    def start(self) -> None:
        """Starts it and returns once it answers requests, with several processes once all of them are ready."""
        super().start()
        until = time.perf_counter() + START_SECONDS
        while self.processes > 1 and READY not in self._output.read_bytes()[self._output_start :]:
            self.check_alive()
            if time.perf_counter() > until:
                raise RuntimeError(f"not all processes of {self.name} are ready: {self.output_tail()}")
            time.sleep(STEP_SECONDS)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "tiered_api.cli.main", "serve", "--data-dir", str(self.directory / "data")]
        command += ["--http", "127.0.0.1:0", "--kafka", self.address]
        settings = {"tiered.partitions.max.per.broker": "20000", **self.settings}
        if self.processes > 1:
            settings |= {"tiered.processes": str(self.processes), "tiered.processes.port.step": str(PORT_STEP)}
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command


def bytes_below(directory: Path) -> int:
    """Returns the size of all files that stay during the count."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except OSError:  # it was deleted meanwhile
                continue
    return total


def wait_acknowledged(broker: MeasuredBroker, request: bytes, error_offset: int, port: int | None = None) -> None:
    """Sends a produce request until it is acknowledged, to the port of the leader if the broker has several."""
    until = time.perf_counter() + START_SECONDS
    while not is_acknowledged(port or broker.port, request, error_offset):
        broker.check_alive()
        if time.perf_counter() > until:
            raise RuntimeError(f"{broker.name} takes no record: {broker.output_tail()}")
        time.sleep(STEP_SECONDS)
