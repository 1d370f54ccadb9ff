"""A large group of the classic protocol: all members join, one leaves, one more joins."""

from __future__ import annotations

import subprocess
import sys

from bench.peer.clients import create_topics
from bench.peer.machine import CpuWindow
from bench.peer.workload import Figures, Leg, Metric, Workload, cpu

TOPIC = "shared"
PARTITIONS = 2_000
MEMBERS = 200


def large_group(leg: Leg) -> Figures:
    with leg.broker(leg.root) as broker:
        create_topics(broker.address, {TOPIC: PARTITIONS})
        command = [sys.executable, "-m", "bench.peer.members", broker.address, TOPIC, str(PARTITIONS), str(MEMBERS)]
        times: Figures = {}
        usage = None
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            window = CpuWindow(broker.pids, process.pid)
            try:
                for line in process.stdout:
                    what, _, seconds = line.partition(" ")
                    times[f"{what}_seconds"] = float(seconds)
                    if what == "grown":
                        usage = window.close()
                        break
            finally:
                process.kill()  # two hundred LeaveGroups are not measured
        if usage is None:
            raise RuntimeError(f"the members ended with {process.returncode} after {times}")
        return {**times, "cpu": usage.broker_cpu, "foreign": usage.foreign_share}


WORKLOADS = (
    Workload(
        "group-200", "200 members over 2,000 partitions, cooperative-sticky",
        (
            Metric("joined_seconds", "s", 0.2), Metric("left_seconds", "s"), Metric("grown_seconds", "s"),
            cpu("s of CPU"),
        ),
        large_group,
    ),
)  # fmt: skip
