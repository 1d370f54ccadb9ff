"""A load under `spark-submit`: a standalone master with two workers, speculation on, and an executor that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pyspark
import pytest
from pyspark.sql import SparkSession

import pyspark_tiered
from pyspark_tiered import jars
from pyspark_tiered.proof.verify import verify
from tests.spark import filling
from tiered.ids import PartitionId

pytestmark = [pytest.mark.java, pytest.mark.also("tests/spark/test_load.py")]

TOPIC = filling.topic_id(1)
HOME = Path(pyspark.__file__).parent
PROGRAM = Path(pyspark_tiered.__file__).with_name("__main__.py")
PARTITIONS, RECORDS = 4, 20_000
DEPLOY = "org.apache.spark.deploy"
ENVIRONMENT = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program of Spark in a group of its own, which is killed at the end."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **ENVIRONMENT},
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_for(output: IO[str] | None, words: str) -> str:
    """Reads lines up to one with these words, and goes on reading in a thread. Returns that line."""
    assert output is not None
    found = next((line for line in output if words in line), "")
    assert found, f"the program ended before it printed {words!r}"
    threading.Thread(target=lambda: [None for _ in output], daemon=True).start()
    return found


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yields the URL of a master with two workers, and the process ids of the workers."""
    with ExitStack() as opened:
        program = str(HOME / "bin" / "spark-class")
        where = ("--host", "127.0.0.1", "--webui-port", "0")
        master = opened.enter_context(running(program, f"{DEPLOY}.master.Master", *where, "--port", "0"))
        url = wait_for(master.stdout, "Starting Spark master at ").split()[-1]
        workers = []
        for number in range(2):
            limits = ("--cores", "1", "--memory", "512m", "--work-dir", str(folder / f"worker{number}"))
            worker = opened.enter_context(running(program, f"{DEPLOY}.worker.Worker", *where, *limits, url))
            wait_for(worker.stdout, "Successfully registered with master")
            workers.append(worker.pid)
        yield url, workers


def children(parent: int) -> list[int]:
    """Returns the processes that a process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def kill_busy_executor(workers: list[int], ended: threading.Event) -> bool:
    """Kills the first executor that has started a process of Python. Returns false if the load ended before."""
    while not ended.wait(0.02):
        for worker in workers:
            for executor in children(worker):
                if children(executor):
                    os.kill(executor, signal.SIGKILL)
                    return True
    return False


def test_load_under_spark_submit_survives_a_killed_executor(spark: SparkSession, tmp_path: Path) -> None:
    store, warehouse = f"file://{tmp_path}/store", str(tmp_path / "tables")
    filling.create_topic(store, "t", TOPIC, PARTITIONS)
    for number in range(PARTITIONS):
        rows = [(filling.BASE_MS + i, b"k", b"%d" % i, ()) for i in range(RECORDS)]
        filling.upload(store, "t", PartitionId(TOPIC, number), list(filling.segments(rows, rows_per_batch=5)))
    with cluster(tmp_path) as (url, workers):
        conf = [part for key, value in CONF.items() for part in ("--conf", f"{key}={value}")]
        command = [str(HOME / "bin" / "spark-submit"), "--master", url, "--jars", f"{jars.cache_folder()}/*.jar", *conf]
        ended, killed = threading.Event(), list[bool]()
        killer = threading.Thread(target=lambda: killed.append(kill_busy_executor(workers, ended)))
        killer.start()
        try:
            done = subprocess.run(
                [*command, str(PROGRAM), "load", "--store", store, "--topic", "t", "--warehouse", warehouse,
                 "--format", "json"],
                capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, timeout=240,
            )  # fmt: skip
        finally:
            ended.set()
            killer.join()
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (steps[-1]["step"], steps[-1]["rows"]) == ("done", PARTITIONS * RECORDS)
    assert killed == [True]
    found = verify(store, "t", warehouse, spark=spark)
    assert (found.ok, found.rows) == (True, PARTITIONS * RECORDS)


def test_submit_without_the_jars_says_what_is_missing(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    filling.create_topic(store, "t", TOPIC, 1)
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[1]", str(PROGRAM), "load", "--store", store]
    done = subprocess.run(
        [*command, "--topic", "t", "--warehouse", str(tmp_path / "tables")],
        capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "spark-submit --jars" in done.stdout + done.stderr
