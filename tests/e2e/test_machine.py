"""Tests of `tiered serve` with several processes: one address for clients, one broker for each process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.e2e.serving import SECONDS, ServeProcess, run_tiered

TWO = ("-c", "tiered.processes=2", "-c", "offsets.topic.num.partitions=4")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for children in /proc")


def processes_of(machine: ServeProcess) -> dict[int, int]:
    """Returns the operating system's ids of the processes by their numbers."""
    children = Path(f"/proc/{machine.process.pid}/task/{machine.process.pid}/children").read_text().split()
    found = {}
    for pid in children:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "--process" in words:
            found[int(words[words.index("--process") + 1].partition("/")[0])] = int(pid)
    return found


def wait_for_log(machine: ServeProcess, text: str) -> None:
    end = time.monotonic() + SECONDS
    while text not in machine.log.read_text():
        assert time.monotonic() < end, machine.log.read_text()
        time.sleep(0.02)


def brokers_of(machine: ServeProcess) -> list[tuple[int, str]]:
    done = run_tiered("cluster", "brokers", "--brokers", machine.kafka, "--format", "json")
    assert done.returncode == 0, done.stderr
    return [(each["id"], each["state"]) for each in map(json.loads, done.stdout.splitlines())]


def test_processes_are_brokers_of_one_machine_behind_one_address(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", *TWO) as machine:
        assert machine.line.rstrip().endswith(f"store=file://{tmp_path}/data/bucket processes=2")
        assert brokers_of(machine) == [(1, "live"), (1001, "live")]
        at = ("--brokers", machine.kafka)
        assert run_tiered("topic", "create", "t", "-p", "4", *at).returncode == 0
        refused = run_tiered("topic", "create", "two", "-r", "2", *at)
        assert refused.returncode != 0 and "is not in 1..1, the number of machines" in refused.stdout
        leaders = {each["leader"] for each in machine.ask("GET", "/topics/t")[1]["partitions"]}
        assert leaders == {1, 1001}
        for key in range(20):
            body = {"records": [{"key": f"{key}", "value": key}]}
            status, answer = machine.ask("POST", "/topics/t", body, "application/vnd.kafka.json.v2+json")
            assert status == 200 and answer["offsets"][0]["error_code"] is None
        consumed = run_tiered("topic", "consume", "t", "-g", "g", "-n", "20", *at)
        assert consumed.returncode == 0 and consumed.stdout.count('"offset"') == 20, consumed.stderr
        assert (tmp_path / "data" / "process-1").is_dir()
        assert machine.stop() == 0
    log = machine.log.read_text()
    assert "process-0 | " in log and "broker stopped node_id=1001 clean=True" in log


def test_killed_process_returns_and_the_other_serves_meanwhile(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", *TWO) as machine:
        pids = processes_of(machine)
        os.kill(pids[1], signal.SIGKILL)
        wait_for_log(machine, "process-1 was killed by SIGKILL, and is started again in 1 s")
        assert machine.ask("GET", "/healthz")[0] in (200, 503)
        wait_for_log(machine, "process-1 is ready again")
        assert processes_of(machine)[0] == pids[0] and processes_of(machine)[1] != pids[1]
        assert brokers_of(machine) == [(1, "live"), (1001, "live")]


def test_restart_goes_process_by_process_behind_one_address(tmp_path: Path) -> None:
    config = tmp_path / "machine.properties"
    config.write_text("broker.rack=before\n")
    with ServeProcess(tmp_path / "data", *TWO, "--config", str(config)) as machine:
        pids = processes_of(machine)
        config.write_text("broker.rack=after\n")
        for pid in (machine.process.pid, *pids.values()):  # as `systemctl kill` does
            os.kill(pid, signal.SIGUSR1)
        end, codes = time.monotonic() + SECONDS, set()
        while "all processes were restarted" not in machine.log.read_text():
            assert time.monotonic() < end, machine.log.read_text()
            with contextlib.suppress(ConnectionResetError):  # taken by a process that stops: clients try again
                codes.add(machine.ask("GET", "/healthz")[0])
        assert codes == {200}
        brokers = machine.ask("GET", "/tiered/v1/cluster")[1]["brokers"]
        assert [(each["node_id"], each["state"], each["rack"]) for each in brokers] == [
            (1, "live", "after"),
            (1001, "live", "after"),
        ]
        assert processes_of(machine).keys() == pids.keys() and not set(processes_of(machine).values()) & set(
            pids.values()
        )
        log = machine.log.read_text()
        steps = ("restarting process-0", "process-0 is ready again", "restarting process-1", "process-1 is ready again")
        assert sorted(steps, key=log.index) == list(steps)
        assert len(re.findall(r"broker stopped node_id=\d+ clean=True", log)) == 2
        assert machine.stop() == 0


def test_single_broker_goes_on_after_the_signal_for_a_restart(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as single:
        os.kill(single.process.pid, signal.SIGUSR1)
        assert single.ask("GET", "/healthz")[0] == 200
        assert single.stop() == 0


def test_directory_of_a_single_process_becomes_the_first_of_two(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data") as single:
        single.create_topic("kept")
        assert single.produce("kept", "a", "b") == [0, 1]
    with ServeProcess(tmp_path / "data", *TWO) as machine:
        assert machine.values("kept") == ["a", "b"]
        assert brokers_of(machine) == [(1, "live"), (1001, "live")]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-c", "tiered.processes=65"), "a number from 1 to 64"),
        (("-c", "tiered.processes=2", "--store", "memory://"), "processes cannot share memory"),
        (("-c", "tiered.processes=2", "--kafka", "127.0.0.1:65500"), "would have the port 65600"),
        (("-c", "tiered.processes=64", "--kafka", "127.0.0.1:65500"), "more processes than cores"),
    ],
)
def test_impossible_machine_is_refused_before_it_writes(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    done = run_tiered("serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", *words)
    assert done.returncode != 0 and why in done.stderr
    assert not (tmp_path / "data").exists()


def test_port_in_use_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        step = 100 if port > 1200 else 1
        words = ("--kafka", f"127.0.0.1:{port - step}", "-c", f"tiered.processes.port.step={step}")
        done = run_tiered("serve", "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", *TWO, *words)
    # Another program may have the shared port.
    assert re.search(rf"cannot listen on 127.0.0.1:({port}|{port - step}): Address already in use", done.stderr)
    assert done.returncode != 0
    assert not (tmp_path / "data").exists()


def test_directory_that_one_process_cannot_use_is_told_before_any_starts(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "process-1").write_text("no directory")
    words = ("--data-dir", str(data), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0")
    done = run_tiered("serve", *words, *TWO)
    assert done.returncode == 2 and f"cannot use the data directory {data}/process-1: File exists" in done.stderr
    assert not (data / "log").exists() and not (data / "bucket").exists()


def test_second_machine_with_an_id_of_the_first_is_refused(tmp_path: Path) -> None:
    store = ("--store", f"file://{tmp_path}/bucket")
    with ServeProcess(tmp_path / "data", *TWO, *store) as machine:
        words = ("--data-dir", str(tmp_path / "other"), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0")
        done = run_tiered("serve", "--node-id", "1001", *words, *store, *TWO)
        assert done.returncode == 2 and "broker 1001 of this store" in done.stderr
        assert not list((tmp_path / "other").glob("**/log"))
        assert brokers_of(machine) == [(1, "live"), (1001, "live")]


def up_of(text: str) -> dict[str, str]:
    """Returns which processes have reported their metrics, by number."""
    return dict(re.findall(r'^tiered_machine_process_up\{process="(\d)"\} (\d)$', text, re.MULTILINE))


def test_metrics_at_the_shared_address_are_those_of_each_process(tmp_path: Path) -> None:
    with ServeProcess(tmp_path / "data", *TWO) as machine:
        status, text = machine.ask("GET", "/metrics")
        assert status == 200 and up_of(text) == {"0": "1", "1": "1"}
        started = re.findall(r'^process_start_time_seconds\{process="(\d)"\}', text, re.MULTILINE)
        assert sorted(started) == ["0", "1"] and text.count("# TYPE process_start_time_seconds") == 1
        for each in machine.ask("GET", "/tiered/v1/cluster")[1]["brokers"]:
            with urlopen(f"{each['http']}/metrics", timeout=SECONDS) as own:
                text = own.read().decode()
            assert "process_start_time_seconds " in text and not up_of(text)
        pids = processes_of(machine)
        os.kill(pids[1], signal.SIGSTOP)
        try:
            silent = machine.ask("GET", "/metrics")[1]
        finally:
            os.kill(pids[1], signal.SIGCONT)
        assert up_of(silent) == {"0": "1", "1": "0"}
        assert 'process_start_time_seconds{process="1"}' not in silent
