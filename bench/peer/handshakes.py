"""TLS handshakes of new connections, beside a loop in C that does nothing but OpenSSL's handshakes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peer.clients import HERE, compile_program
from bench.peer.machine import CpuWindow
from bench.peer.tls import add_tls, write_key
from bench.peer.workload import MEMORY, Figures, Leg, Metric, Workload, cpu, rate
from tests.ports import free_port

SOURCES = HERE / "openssl"
THREADS = 16
"""Clients: each has one connection at a time."""
TIMEOUT_SECONDS = 60.0
START_SECONDS = 5.0
OWN_BYTES = iter(range(2, 250))
"""Last bytes of the clients' addresses. Each run has its own, because closed connections keep ports for a minute."""


def build_handshakes() -> Path:
    linked = ["-lssl", "-lcrypto"]
    return compile_program("handshakes", sorted(SOURCES.glob("*.c")), linked, "OpenSSL's headers (libssl-dev)")


@contextmanager
def openssl_server(key: Path) -> Iterator[tuple[int, int]]:
    """Yields process id and port of the loop in C."""
    port = free_port()
    process = subprocess.Popen([str(build_handshakes()), "serve", str(port), str(key)])
    try:
        until = time.perf_counter() + START_SECONDS
        while not _shake_hands(port, 0.0):
            if time.perf_counter() > until:
                raise RuntimeError("the loop of OpenSSL does not start")
            time.sleep(0.05)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()


def _shake_hands(port: int, seconds: float) -> float:
    """Runs clients for some seconds; 0 for one handshake each. Returns handshakes a second, 0 if there is no server."""
    command = [str(build_handshakes()), "connect", str(port), str(THREADS), str(seconds), str(next(OWN_BYTES))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode != 0:
        if seconds:
            raise RuntimeError(f"the clients failed: {done.stderr}")
        return 0.0
    counts: dict[str, float] = json.loads(done.stdout)
    return counts["handshakes"] / counts["seconds"]


def measure(leg: Leg) -> Figures:
    """Measures the loop in C, then the broker, with the same key."""
    warm, seconds = leg.scale.warm_seconds, leg.scale.timed_seconds
    with openssl_server(write_key(leg.root)[0]) as (pid, port):
        alone, alone_cpu, foreign = _measure(pid, port, seconds)
    broker = leg.broker(leg.root)
    broker.settings["max.connection.creation.rate"] = "100000"
    port = int(str(add_tls(broker, leg.root)["bootstrap.servers"]).rpartition(":")[2])
    with broker:
        _shake_hands(port, warm)
        of_broker, broker_cpu, more_foreign = _measure(broker.pid, port, seconds)
        return {
            "share": alone_cpu / broker_cpu,
            "rate": of_broker,
            "cpu": broker_cpu * 1e6,
            "openssl_rate": alone,
            "openssl_us": alone_cpu * 1e6,
            "peak_rss_mb": broker.peak_rss() / 1e6,
            "foreign": max(foreign, more_foreign),
        }


def _measure(pid: int, port: int, seconds: float) -> tuple[float, float, float]:
    """Returns handshakes a second, seconds of CPU that the server takes for one, and the share of other processes."""
    window = CpuWindow([pid])
    reached = _shake_hands(port, seconds)
    usage = window.close()
    return reached, usage.broker_cpu / (reached * usage.seconds), usage.foreign_share


WORKLOADS = (
    Workload(
        "handshakes", "TLS handshakes of new connections, per CPU second, as share of OpenSSL alone",
        (
            Metric("share", "x", 0.7, at_most=False, is_own=True), rate("handshakes/s"), cpu("us"),
            Metric("openssl_us", "us"), MEMORY,
        ),
        measure,
    ),
)  # fmt: skip
