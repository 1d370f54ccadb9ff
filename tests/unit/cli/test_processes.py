"""Tests of the start of a machine: how many processes it runs, and what it moves and marks before that."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import SimDisk
from tiered.config.settings import Settings
from tiered.durability.adopted_logs import ADOPTED_FILE, AdoptedLog, encode_adopted
from tiered.durability.data_directory import META_FILE
from tiered.durability.metadata_position import FILE, MetadataPosition, encode
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hot import checkpoints
from tiered.ids import TopicId, TopicPartition
from tiered.system.local_disk import LockFile
from tiered_api.cli.broker.processes import MachineStart, carry_out, find_predecessors, plan_start, settled_machine

ID = "KsXw4YCkQ2eAy3Yb0rDb3A"


def make_process(data: Path, process: int, *partitions: int, is_clean: bool = True) -> Path:
    """Makes the directory of a process that ran, and returns that of its logs."""
    folder = (data / f"process-{process}" if process else data) / "log"
    folder.mkdir(parents=True)
    node = 1 + 1000 * process
    (folder / META_FILE).write_text(f"version=1\ncluster.id=c\nnode.id={node}\ndirectory.id=d{process}\n")
    (folder / FILE).write_bytes(encode(MetadataPosition("c", 5, 1, 0, 2)))
    if is_clean:
        (folder / checkpoints.CLEAN_MARK).write_bytes(checkpoints.encode_clean_mark(f"i{process}"))
    for p in partitions:
        (folder / f"t-{p}").mkdir()
        (folder / f"t-{p}" / checkpoints.METADATA_FILE).write_bytes(checkpoints.encode_metadata(ID))
    return folder


def machine(data: Path) -> Settings:
    return Settings(data_dir=str(data))


def list_logs(data: Path, process: int) -> list[str]:
    folder = (data / f"process-{process}" if process else data) / "log"
    return sorted(each.name for each in folder.glob("t-*"))


def run(data: Path, wanted: int) -> MachineStart:
    start = plan_start(machine(data), wanted)
    with settled_machine(machine(data), wanted, start):
        return start


def test_plan_of_a_new_machine_writes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert plan_start(machine(data), 4) == MachineStart(4)
    data.mkdir()
    assert plan_start(machine(data), 4) == MachineStart(4)
    assert not list(data.iterdir())


@run_by(run_alone)
async def test_directory_of_a_new_process_survives_a_power_cut() -> None:
    disk = SimDisk(random.Random(1))
    disk.make_dirs("process-1")
    assert not all(disk.crash_image(random.Random(seed)).exists("process-1") for seed in range(20))
    await carry_out(disk, MachineStart(2))
    assert all(disk.crash_image(random.Random(seed)).exists("process-1") for seed in range(20))


def test_machine_moves_logs_to_the_processes_that_it_runs(tmp_path: Path) -> None:
    make_process(tmp_path, 0, 0, 1, 2, 3)
    assert run(tmp_path, 2).count == 2
    assert [list_logs(tmp_path, process) for process in (0, 1)] == [["t-0", "t-2"], ["t-1", "t-3"]]
    assert find_predecessors(machine(tmp_path), 2) == {0: frozenset({1})}, "the first one waits for the second"


def test_process_that_is_left_out_is_waited_for_by_nobody(tmp_path: Path) -> None:
    for process in (0, 1):
        make_process(tmp_path, process, process)
    assert run(tmp_path, 1).count == 1 and list_logs(tmp_path, 0) == ["t-0", "t-1"]
    assert find_predecessors(machine(tmp_path), 1) == {}


def test_process_with_logs_is_not_left_out_after_a_kill(tmp_path: Path) -> None:
    make_process(tmp_path, 0)
    make_process(tmp_path, 2, 0, is_clean=False)
    start = run(tmp_path, 1)
    assert (start.count, start.why, start.journal) == (3, "process-2 did not stop cleanly", None)
    assert list_logs(tmp_path, 2) == ["t-0"]


def test_log_that_two_processes_have_is_named_and_stays(tmp_path: Path) -> None:
    make_process(tmp_path, 0, 0)
    make_process(tmp_path, 1, 0, 1)
    start = run(tmp_path, 1)
    assert (start.count, start.why) == (2, "process-1 and process-0 both have a log of t-0")
    assert list_logs(tmp_path, 1) == ["t-0", "t-1"]


def test_new_process_is_marked_while_logs_cannot_move(tmp_path: Path) -> None:
    folder = make_process(tmp_path, 0, 0, 1, is_clean=False)
    start = run(tmp_path, 2)
    assert (start.count, start.marked) == (2, (1,)) and list_logs(tmp_path, 0) == ["t-0", "t-1"]
    assert (tmp_path / "process-1" / "log" / "share-due").exists()
    (folder / checkpoints.CLEAN_MARK).write_bytes(checkpoints.encode_clean_mark("i"))
    assert run(tmp_path, 2).marked == () and list_logs(tmp_path, 1) == ["t-1"]
    assert not (tmp_path / "process-1" / "log" / "share-due").exists()


def test_logs_do_not_move_on_before_the_cluster_knows_them(tmp_path: Path) -> None:
    make_process(tmp_path, 0)
    folder = make_process(tmp_path, 1, 0)
    adopted = AdoptedLog(TopicPartition("t", 0), TopicId(ID), 1, "d0", "i0")
    (folder / ADOPTED_FILE).write_bytes(encode_adopted([adopted]))
    start = run(tmp_path, 1)
    assert (start.count, start.why) == (2, "process-1 has logs that the cluster does not know there yet")


def test_directory_of_another_machine_is_refused(tmp_path: Path) -> None:
    make_process(tmp_path, 0, 0)
    make_process(tmp_path, 1, 1)
    with pytest.raises(
        Refused, match=r"process-1 belongs to node 1001, and would be that of node 1002|belongs to node 1"
    ):
        plan_start(Settings(data_dir=str(tmp_path), node_id=2), 2)


def test_damaged_journal_ends_the_start(tmp_path: Path) -> None:
    folder = make_process(tmp_path, 0, 0)
    (folder / "moves").write_bytes(b"{}")
    for wanted in (1, 2):
        with pytest.raises(Corrupt):
            plan_start(machine(tmp_path), wanted)


@pytest.mark.parametrize("process", [0, 1])
def test_nothing_moves_while_one_process_runs(tmp_path: Path, process: int) -> None:
    make_process(tmp_path, 0, 0, 1)
    folder = make_process(tmp_path, 1, 2, 3)
    start = plan_start(machine(tmp_path), 1)
    locked = folder.parent if process else tmp_path
    with (
        LockFile(str(locked / ".lock")),
        pytest.raises(Unavailable, match="is in use by process"),
        settled_machine(machine(tmp_path), 1, start),
    ):
        pass
    assert list_logs(tmp_path, 1) == ["t-2", "t-3"] and not (tmp_path / "log" / "moves").exists()


def test_directories_that_changed_since_the_plan_are_read_again(tmp_path: Path) -> None:
    make_process(tmp_path, 0, 0, 1)
    start = plan_start(machine(tmp_path), 2)
    make_process(tmp_path, 1, 2)
    with pytest.raises(Unavailable, match="changed during this start"), settled_machine(machine(tmp_path), 2, start):
        pass
    assert list_logs(tmp_path, 0) == ["t-0", "t-1"]
