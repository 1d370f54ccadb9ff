"""Tests of `tiered up` as a process: brokers that start together, are started again, and end with it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.forked_commands import ForkedProcess
from tests.e2e.serving import COMMAND, SECONDS, ServeProcess, run_tiered
from tests.seeds import chosen

ANYWHERE = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


class UpProcess:
    """A cluster on a directory, ready after construction."""

    def __init__(self, directory: Path, brokers: int, *settings: str, is_forked: bool = True) -> None:
        self.log = directory.with_name(directory.name + ".log")
        command = ["up", "--brokers", str(brokers), "--data-dir", str(directory), *ANYWHERE, *settings]
        own, theirs = os.pipe()
        with self.log.open("ab") as log, open(os.devnull, "rb") as nothing, open(theirs, "wb") as output:
            streams = (nothing.fileno(), output.fileno(), log.fileno())
            start = ForkedProcess if is_forked else _start
            self.process = start(command, os.environ, *streams)
        self._output = os.fdopen(own)
        self.line = self._output.readline()
        assert self.line, self.log.read_text()
        self.kafka = self.line.partition(" kafka=")[2].split()[0].split(",")
        self.urls = self.line.partition(" http=")[2].split()[0].split(",")
        self.store = self.line.partition(" store=")[2].split()[0]

    def pids(self) -> list[int]:
        """Returns the brokers' processes, in order."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = {}
        for pid in children:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            found[int(words[words.index("--node-id") + 1])] = int(pid)
        return [found[node] for node in sorted(found)]

    def wait_for_line(self, pattern: str) -> None:
        """Waits for a line in the output."""
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, self.log.read_text(), re.MULTILINE):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stops the cluster; returns its exit code."""
        self.process.send_signal(how)
        code = self.process.wait(SECONDS)
        self._output.close()
        return code


def _start(
    arguments: list[str], environment: Mapping[str, str], stdin: int, stdout: int, stderr: int
) -> subprocess.Popen[bytes]:
    """Starts a command as users do."""
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environment, stdin=stdin, stdout=stdout, stderr=stderr,
        # Ctrl-C works as in a terminal, also where the tests run in the background of a shell.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )  # fmt: skip


@contextmanager
def start_up(directory: Path, brokers: int = 1, *settings: str, is_forked: bool = True) -> Iterator[UpProcess]:
    cluster = UpProcess(directory, brokers, *settings, is_forked=is_forked)
    try:
        yield cluster
    finally:
        if cluster.process.poll() is None:
            cluster.stop()


def rows(verb: str, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """Returns the JSON output of `tiered cluster`, which must end with that exit code."""
    done = run_tiered("cluster", verb, *arguments, "--format", "json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")


@needs_proc
@pytest.mark.parametrize("how", chosen([signal.SIGINT, signal.SIGTERM], [signal.SIGINT]))
def test_killed_broker_restarts_at_its_address_and_all_end_cleanly(tmp_path: Path, how: signal.Signals) -> None:
    with start_up(tmp_path / "data") as cluster:
        assert run_tiered("topic", "create", "kept", "--brokers", cluster.kafka[0]).returncode == 0
        [first] = cluster.pids()
        os.kill(first, signal.SIGKILL)
        cluster.wait_for_line(r"^up +\| broker-1 was killed by SIGKILL, and is started again in 1 s$")
        cluster.wait_for_line(r"^up +\| broker-1 is ready again$")
        assert run_tiered("topic", "list", "kept", "--brokers", cluster.kafka[0]).returncode == 0
        [second] = cluster.pids()
        assert cluster.stop(how) == 0
        assert not Path(f"/proc/{second}").exists()
    assert re.search(r"^broker-1 \| .* broker stopped node_id=1 clean=True$", cluster.log.read_text(), re.MULTILINE)


@needs_proc
@pytest.mark.slow
def test_three_brokers_are_one_cluster_that_reports_its_problems(tmp_path: Path) -> None:
    quick = ("-c", "broker.session.timeout.ms=1500", "-c", "broker.heartbeat.interval.ms=300")
    with start_up(tmp_path / "data", 3, *quick, is_forked=False) as cluster:
        [one, two, three] = cluster.kafka
        brokers = rows("brokers", "--brokers", three)
        assert [(each["id"], each["address"], each["state"]) for each in brokers] == [
            (1, one, "live"), (2, two, "live"), (3, three, "live"),
        ]  # fmt: skip
        assert sum(each["controller"] for each in brokers) == 1
        assert run_tiered("topic", "create", "three", "-r", "3", "--brokers", one).returncode == 0
        assert run_tiered("topic", "create", "alone", "-p", "3", "--brokers", two).returncode == 0
        [well] = rows("health", "--brokers", two)
        assert (well["healthy"], well["nodes"]) == (True, [1, 2, 3])

        frozen = cluster.pids()[2]
        os.kill(frozen, signal.SIGSTOP)
        try:
            cluster.wait_for_line(r"^broker-[12] \| .*broker fenced node_id=3")
            [ill] = rows("health", "--brokers", one, code=10)
        finally:
            os.kill(frozen, signal.SIGCONT)
        [said] = [each for each in ill["broker_problems"] if each.startswith("broker 3: ")]
        assert said.startswith("broker 3: is fenced since ") and "see if its process runs" in said, said
        assert ill["nodes_down"] == [3] and ill["under_replicated_partitions"][-1] == "three/0"
        why = {f"{each['topic']}/{each['partition']}": each["why"] for each in ill["partitions"]}
        assert why.pop("three/0") == "broker 3 is fenced"
        assert set(why.values()) == {"waits for broker 3 (fenced): nobody else has all that was acknowledged"}
        assert ill["leaderless_partitions"] == sorted(why) and len(why) == 1
        assert all(each["since_ms"] > 0 for each in ill["partitions"])
        assert [each["state"] for each in rows("brokers", "--brokers", one)][:2] == ["live", "live"]

        os.kill(cluster.pids()[0], signal.SIGKILL)
        cluster.wait_for_line(r"^up +\| broker-1 is ready again$")
        again = run_tiered("cluster", "health", "--watch", "--exit-when-healthy", "--brokers", one)
        assert again.returncode == 0, again.stdout
        assert cluster.stop() == 0, cluster.log.read_text()
    stops = re.findall(r"^up +\| stopping (\S+)$", cluster.log.read_text(), re.MULTILINE)
    assert stops == ["broker-3", "broker-2", "broker-1"]


@needs_proc
def test_brokers_end_with_a_cluster_that_is_killed(tmp_path: Path) -> None:
    with start_up(tmp_path / "data") as cluster:
        [pid] = cluster.pids()
        cluster.stop(signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_refused_start_ends_all_brokers_with_its_exit_code(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "one") as broker:
        refused = run_tiered(
            "up",
            "--brokers",
            "1",
            "--data-dir",
            str(tmp_path / "two"),
            "--kafka",
            broker.kafka,
            "--http",
            "127.0.0.1:0",
        )
    assert (refused.returncode, refused.stdout) == (4, "")
    *_, said, last = refused.stderr.splitlines()
    assert said == f"broker-1 | tiered: cannot listen on {broker.kafka}: Address already in use"
    assert last == "up       | broker-1 did not start: it ended with exit code 4"


def test_directory_belongs_to_one_cluster_or_one_broker(tmp_path: Path) -> None:
    with start_up(tmp_path / "data"):
        second = run_tiered("up", "--data-dir", str(tmp_path / "data"), *ANYWHERE)
        assert second.returncode == 4 and "in use by process" in second.stderr
    alone = run_tiered("serve", "--data-dir", str(tmp_path / "data"), *ANYWHERE)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert alone.stderr.splitlines()[-1].endswith("is the directory of a cluster (tiered up): take another --data-dir")
