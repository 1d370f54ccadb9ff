"""Tests of a machine that starts with another number of processes: its logs move by renames, with every record."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.serving import COMMAND, SECONDS, ServeProcess, run_tiered
from tiered.durability.data_directory import META_FILE, ROOT
from tiered.durability.log_mover import JOURNAL, begin_moves, make_journal, read_directory
from tiered.durability.move_plan import plan_moves
from tiered.errors import Unavailable
from tiered.hot import checkpoints
from tiered.system.local_disk import LocalDisk, LockFile

PARTITIONS = 200

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parent on Linux alone")


def processes(count: int) -> tuple[str, ...]:
    return ("-c", f"tiered.processes={count}", "-c", "offsets.topic.num.partitions=4")


def files(data: Path) -> dict[str, int]:
    """Returns the inode of each file of a log with records."""
    found = [each for folder in data.glob("**/t-*") for each in folder.glob("*.log")]
    return {f"{each.parent.name}/{each.name}": each.stat().st_ino for each in found}


def count_logs(data: Path) -> dict[str, int]:
    """Returns the number of logs of the topic by process."""
    return Counter(each.relative_to(data).parts[0] for each in data.glob("**/log/t-*"))


def produce(machine: ServeProcess, partitions: int, text: str) -> None:
    body = {"records": [{"partition": p, "value": f"{text} {p}"} for p in range(partitions)]}
    status, answer = machine.ask("POST", "/topics/t", body, "application/vnd.kafka.json.v2+json")
    assert status == 200 and not any(each["error_code"] for each in answer["offsets"]), answer


def values(machine: ServeProcess, count: int, *words: str) -> Counter[tuple[int, int, str]]:
    """Returns partition, offset and value of the next records of the topic."""
    done = run_tiered(
        "topic", "consume", "t", "-n", str(count), "--no-pretty-print", "--brokers", machine.kafka, *words
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return Counter((each["partition"], each["offset"], json.loads(each["value"])) for each in found)


def expected(partitions: int, *texts: str) -> Counter[tuple[int, int, str]]:
    return Counter((p, offset, f"{text} {p}") for p in range(partitions) for offset, text in enumerate(texts))


def replicas(machine: ServeProcess) -> dict[int, int]:
    done = run_tiered("cluster", "brokers", "--brokers", machine.kafka, "--format", "json")
    assert done.returncode == 0, done.stderr
    return {each["id"]: each["replicas"] for each in map(json.loads, done.stdout.splitlines())}


def create(data: Path, partitions: int) -> None:
    """One process with a topic of that many partitions, each with a record."""
    with ServeProcess(data, *processes(1)) as machine:
        at = ("--brokers", machine.kafka)
        assert run_tiered("topic", "create", "t", "-p", str(partitions), *at).returncode == 0
        produce(machine, partitions, "one")


def test_logs_of_one_process_move_to_four_and_to_two(tmp_path: Path) -> None:
    data = tmp_path / "data"
    create(data, PARTITIONS)
    inodes, texts = files(data), ["one"]
    assert len(inodes) == PARTITIONS
    for count in (4, 2, 1):
        with ServeProcess(data, *processes(count)) as machine:
            share = PARTITIONS // count
            names = ["log", *(f"process-{number}" for number in range(1, count))]
            assert count_logs(data) == dict.fromkeys(names, share)
            assert {name: inode for name, inode in files(data).items() if name in inodes} == inodes
            assert values(machine, len(texts) * PARTITIONS) == expected(PARTITIONS, *texts)
            texts.append(f"with {count}")
            produce(machine, PARTITIONS, texts[-1])
            found = replicas(machine)
            assert sorted(found) == [1 + 1000 * number for number in range(count)], "others are unregistered"
        log = machine.log.read_text()
        assert "possible_loss" not in log and "log is gone" not in log
    assert {name: inode for name, inode in files(data).items() if name in inodes} == inodes
    for process in (1, 2, 3):
        assert not (data / f"process-{process}" / ROOT / META_FILE).exists()


def test_group_goes_on_where_it_was_after_its_logs_moved(tmp_path: Path) -> None:
    data = tmp_path / "data"
    create(data, 4)
    with ServeProcess(data, *processes(1)) as machine:
        assert values(machine, 4, "-g", "g") == expected(4, "one")
    with ServeProcess(data, *processes(2)) as machine:
        produce(machine, 4, "two")
        found = values(machine, 4, "-g", "g")
        assert found == expected(4, "one", "two") - expected(4, "one")


def wait_for_health(machine: ServeProcess) -> None:
    end = time.monotonic() + SECONDS
    while (
        "Healthy:                         true"
        not in (said := run_tiered("cluster", "health", "--brokers", machine.kafka)).stdout
    ):
        assert time.monotonic() < end, said.stdout


@pytest.mark.also("tests/e2e/test_process_moves.py::test_logs_of_one_process_move_to_four_and_to_two")
def test_replicas_move_while_another_machine_leads(tmp_path: Path) -> None:
    words = ("--store", f"file://{tmp_path}/bucket")
    with ServeProcess(tmp_path / "two", *words, "--node-id", "2", *processes(1)) as other:
        with ServeProcess(tmp_path / "one", *words, *processes(2)) as machine:
            at = ("--brokers", machine.kafka)
            assert run_tiered("topic", "create", "t", "-p", "4", "-r", "2", *at).returncode == 0
            produce(machine, 4, "one")
        produce(other, 4, "two")
        with ServeProcess(tmp_path / "one", *words, *processes(1)) as machine:
            wait_for_health(machine)
            assert replicas(machine) == {1: 4, 2: 4}
            produce(machine, 4, "three")
        with ServeProcess(tmp_path / "one", *words, *processes(2)) as machine:
            wait_for_health(machine)
            assert replicas(machine) == {1: 2, 1001: 2, 2: 4}
            assert other.stop() == 0
            assert values(machine, 12) == expected(4, "one", "two", "three")


def wait_for_free_locks(data: Path) -> None:
    """Waits until the children of a killed machine have ended, as they do by themselves."""
    end = time.monotonic() + SECONDS
    for path in (data / ".machine.lock", data / ".lock", *data.glob("process-*/.lock")):
        while True:
            try:
                LockFile(str(path)).check_free()
                break
            except Unavailable:
                assert time.monotonic() < end, path
                time.sleep(0.01)


SIGNS = (f"{ROOT}/{JOURNAL}", "process-1/log/adopted", "process-1/log/meta.properties")
"""Files that appear one after the other while logs move. The last one stays."""


@pytest.mark.parametrize("first", [0, pytest.param(len(SIGNS) - 1, marks=pytest.mark.also("values"))])
def test_machine_that_is_killed_while_logs_move_goes_on(tmp_path: Path, first: int) -> None:
    data = tmp_path / "data"
    create(data, 40)
    inodes = files(data)
    words = ["serve", "--data-dir", str(data), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0", *processes(3)]
    with (tmp_path / "killed.log").open("wb") as output:
        machine = subprocess.Popen([*COMMAND, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        end = time.monotonic() + SECONDS
        try:
            while not any((data / sign).exists() for sign in SIGNS[first:]):
                assert machine.poll() is None and time.monotonic() < end
        finally:
            machine.kill()
            machine.wait()
    wait_for_free_locks(data)
    with ServeProcess(data, *processes(3)) as machine_again:
        assert values(machine_again, 40) == expected(40, "one")
        assert len(replicas(machine_again)) == 3 and files(data) == inodes
        assert sorted(count_logs(data).values()) == [13, 13, 14]
    log = machine_again.log.read_text()
    assert "log is gone" not in log and not list(data.glob("**/adopted")) and not (data / ROOT / JOURNAL).exists()


@pytest.mark.also("tests/e2e/test_process_moves.py::test_machine_that_is_killed_while_logs_move_goes_on")
def test_new_process_after_a_kill_gets_its_share_after_a_clean_stop(tmp_path: Path) -> None:
    data = tmp_path / "data"
    create(data, 4)
    with ServeProcess(data, *processes(1)) as machine:
        machine.stop(signal.SIGKILL)
    for logs in ({"log": 4}, {"log": 2, "process-1": 2}, {"log": 2, "process-1": 2}):
        with ServeProcess(data, *processes(2)) as machine:
            assert machine.line.rstrip().endswith("processes=2")
            assert count_logs(data) == logs and values(machine, 4) == expected(4, "one")
    log = machine.log.read_text()
    assert log.count("logs do not move to new processes, because process-0 did not stop cleanly") == 1
    assert log.count("logs moved between the processes of this machine logs=2") == 1
    assert not list(data.glob("**/share-due"))


def test_other_number_of_processes_is_refused_while_one_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    create(data, 4)
    with ServeProcess(data, *processes(2)):
        for count in (1, 3):
            words = ("--data-dir", str(data), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0", *processes(count))
            done = run_tiered("serve", *words)
            assert done.returncode == 4 and "is in use by process" in done.stderr
        assert count_logs(data) == {"log": 2, "process-1": 2}


def test_damaged_journal_ends_the_start_with_its_name(tmp_path: Path) -> None:
    data = tmp_path / "data"
    create(data, 2)
    (data / ROOT / JOURNAL).write_bytes(b'{"crc":"00000000","body":{"version":1}}')
    done = run_tiered(
        "serve", "--data-dir", str(data), "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0", *processes(2)
    )
    assert done.returncode not in (0, 4) and f"{ROOT}/{JOURNAL}" in done.stderr, done.stderr
    assert count_logs(data) == {"log": 2}


def test_hundred_gigabytes_move_without_a_copy(tmp_path: Path) -> None:
    """A thousand logs with sparse files of 100 MiB."""
    disk = LocalDisk(str(tmp_path))

    async def move() -> None:
        disk.make_dirs(ROOT)
        await checkpoints.save(disk, ROOT, META_FILE, b"version=1\ncluster.id=c\nnode.id=1\ndirectory.id=d\n")
        await checkpoints.save(disk, ROOT, checkpoints.CLEAN_MARK, checkpoints.encode_clean_mark("i"))
        for p in range(1_000):
            folder = tmp_path / ROOT / f"t-{p}"
            folder.mkdir()
            (folder / checkpoints.METADATA_FILE).write_bytes(checkpoints.encode_metadata("KsXw4YCkQ2eAy3Yb0rDb3A"))
            with (folder / f"{0:020d}.log").open("wb") as file:
                file.truncate(100 << 20)
        inodes, used = files(tmp_path), disk.space().free
        found = [read_directory(disk, process, 1) for process in range(4)]
        await begin_moves(disk, make_journal(found, plan_moves(found, 4), 1, 4))
        assert files(tmp_path) == inodes and len(inodes) == 1_000
        assert sum(each.stat().st_size for each in tmp_path.glob("**/*.log")) == 1_000 * 100 << 20
        assert set(count_logs(tmp_path).values()) == {250}
        assert used - disk.space().free < 1 << 30, "nothing was copied"

    asyncio.run(move())
    disk.close()
    assert os.path.isdir(tmp_path / "process-3" / ROOT)
