"""Tests of the directory of a machine: joined while logs move, apart while its processes run."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import DurableBytes
from tests.sim.harness.machine_directory import join_directories, split_directory


def make(*paths: str, boot: int = 1) -> DurableBytes:
    """Returns a disk with durable files at these paths."""

    async def fill(disk: SimDisk) -> None:
        disk.make_dirs("log")
        await disk.sync_dir(".")
        for path in paths:
            disk.make_dirs(f"log/{path}")
            await disk.sync_dir("log")
            file = disk.open(f"log/{path}/0.log", create=True)
            file.append([path.encode()])
            await file.sync()
            await disk.sync_dir(f"log/{path}")

    contents = DurableBytes(boot=boot)
    asyncio.run(fill(SimDisk(random.Random(1), contents)))
    return contents


def logs(contents: DurableBytes) -> list[str]:
    disk = SimDisk(random.Random(1), contents)
    found = disk.list("log")
    assert all(disk.open(f"log/{each}/0.log").pread(0, 9) == each.encode() for each in found)
    return found


@pytest.mark.parametrize("is_cut", [False, True])
def test_log_moves_between_processes_of_one_tree(is_cut: bool) -> None:
    machine = join_directories({0: make("a-0"), 1: make("b-0", boot=3)})
    disk = SimDisk(random.Random(2), machine.whole)
    assert disk.list("process-1/log") == ["b-0"]
    disk.rename("log/a-0", "process-1/log/a-0")
    asyncio.run(disk.sync_dir("process-1/log"))
    whole = disk.contents.crash_image(random.Random(3)) if is_cut else disk.contents
    parts = split_directory(machine, whole)
    assert (logs(parts[0]), logs(parts[1])) == ([], ["a-0", "b-0"])
    assert [parts[number].boot for number in (0, 1)] == ([2, 4] if is_cut else [1, 3])
    assert [part.root.names.keys() for part in parts.values()] == [{"log"}, {"log"}]


def test_directory_of_a_new_process_is_taken_from_the_tree() -> None:
    machine = join_directories({0: make("a-0"), 1: DurableBytes()})
    disk = SimDisk(random.Random(2), machine.whole)
    assert not disk.exists("process-1")
    disk.make_dirs("process-1/log")
    parts = split_directory(machine, disk.contents)
    assert not any(each.touches([parts[0].root]) for each in parts[0].journal), "the name of the process is gone"
    assert SimDisk(random.Random(2), parts[1]).exists("log") and logs(parts[0]) == ["a-0"]


def test_tree_with_a_move_that_a_power_cut_may_undo_stays_whole() -> None:
    machine = join_directories({0: make("a-0"), 1: make()})
    disk = SimDisk(random.Random(2), machine.whole)
    disk.rename("log/a-0", "process-1/log/a-0")
    with pytest.raises(AssertionError, match="moves are not durable"):
        split_directory(machine, disk.contents)
