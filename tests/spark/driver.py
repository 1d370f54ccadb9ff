"""A second Spark driver, in a process of its own, for the tests that need two."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For a handful of rows: to generate and compile code for a query takes longer than the query. `tiered demo`, of which
tests/e2e/test_demo.py is the test, runs as users do."""

FAST_START = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmn384m",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    **INTERPRETED,
}
"""For sessions that live for a minute: the better compiler would cost more than it saves, and so would more tasks."""


class OtherDriver:
    """A driver that gets orders by `start` and returns results by `result`; one order at a time."""

    def __init__(self, process: subprocess.Popen[str], orders: IO[str], answers: IO[str]) -> None:
        self._process = process
        self._orders = orders
        self._answers = answers

    def start(self, race: str, *arguments: str | int) -> None:
        self._orders.write(json.dumps([race, *arguments]) + "\n")
        self._orders.flush()

    def result(self) -> Any:
        return json.loads(self._answers.readline())

    def kill_after(self, seconds: float) -> bool:
        """Kills the driver with its JVM. Returns true if the order was done before that."""
        done, _, _ = select.select([self._answers], [], [], seconds)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        return bool(done)


@contextmanager
def other_driver() -> Iterator[OtherDriver]:
    """Yields `racing.py` as a process, ready."""
    program = Path(__file__).with_name("racing.py")
    with subprocess.Popen(
        [sys.executable, str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that a kill of the group ends the JVM too
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield OtherDriver(process, process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait(30)
