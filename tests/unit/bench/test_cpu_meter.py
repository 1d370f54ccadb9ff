"""Tests of the CPU meter of the benchmarks."""

from __future__ import annotations

import subprocess
import sys

from bench.cpu_meter import CpuMeter

BURNT = 0.06
DAEMON = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork() == 0:
    while time.process_time() < {BURNT}:
        pass
    print("burnt", flush=True)
    sys.stdin.read()
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    print("ended", flush=True)
sys.stdin.read()
"""


def test_meter_counts_a_worker_whose_end_its_parent_ignores() -> None:
    with CpuMeter(sample_seconds=60) as meter:
        command = [sys.executable, "-S", "-c", DAEMON]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as daemon:
            assert daemon.stdin is not None and daemon.stdout is not None
            assert daemon.stdout.readline() == "burnt\n"
            meter.sample()
            daemon.stdin.close()
            assert daemon.stdout.readline() == "ended\n"
    assert meter.seconds >= BURNT - 0.02
