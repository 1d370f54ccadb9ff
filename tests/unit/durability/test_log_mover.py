"""Tests of the renames that move logs between processes: a machine that dies at any step ends in the same state."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import Op, SimDisk
from tests.sim.harness.durable_bytes import Folder
from tiered.durability.adopted_logs import ADOPTED_FILE, AdoptedLog, parse_adopted
from tiered.durability.data_directory import META_FILE, ROOT
from tiered.durability.log_mover import (
    CHECKPOINTS,
    JOURNAL,
    begin_moves,
    finish_moves,
    log_folder,
    make_journal,
    mark_new,
    read_directory,
    read_journal,
)
from tiered.durability.move_plan import plan_moves
from tiered.errors import Refused
from tiered.hot import checkpoints
from tiered.ids import TopicPartition

ID = "KsXw4YCkQ2eAy3Yb0rDb3A"


async def make_process(disk: SimDisk, process: int, *partitions: int, is_fsynced: bool = True) -> None:
    """A process that stopped cleanly, with logs of one record each. `is_fsynced`: the flush of a log made the folders
    above it durable."""
    folder = log_folder(process)
    disk.make_dirs(folder)
    text = f"version=1\ncluster.id=c\nnode.id={1 + 1000 * process}\ndirectory.id=d{process}\n"
    await checkpoints.save(disk, folder, META_FILE, text.encode())
    for p in partitions:
        disk.make_dirs(f"{folder}/t-{p}")
        await checkpoints.save(disk, f"{folder}/t-{p}", checkpoints.METADATA_FILE, checkpoints.encode_metadata(ID))
        await checkpoints.save(disk, f"{folder}/t-{p}", f"{0:020d}.log", b"record %d" % p)
    rows = checkpoints.encode_rows(
        checkpoints.encode_offset_rows((TopicPartition("t", p), 100 + p) for p in partitions)
    )
    for name in CHECKPOINTS:
        await checkpoints.save(disk, folder, name, rows)
    await checkpoints.save(disk, folder, checkpoints.CLEAN_MARK, checkpoints.encode_clean_mark(f"i{process}"))
    for path in (folder.removesuffix(f"/{ROOT}"), ".") if is_fsynced else ():
        await disk.sync_dir(path)


async def start_machine(disk: SimDisk, count: int, processes: int) -> None:
    """Moves the logs as a start with `count` processes does, of a machine with directories of `processes`."""
    journal = read_journal(disk)
    if journal is not None:
        await finish_moves(disk, journal)
        return
    found = [read_directory(disk, process, 1) for process in range(processes)]
    moves = plan_moves(found, count)
    if moves and not any(each.has_adopted for each in found):
        await begin_moves(disk, make_journal(found, moves, 1, count))


def contents(node: Any) -> Any:
    return {name: contents(each) for name, each in node.names.items()} if isinstance(node, Folder) else bytes(node.data)


def state(disk: SimDisk) -> Any:
    return contents(disk._contents.root)


async def four(disk: SimDisk) -> None:
    await make_process(disk, 0, *range(8))


async def two(disk: SimDisk) -> None:
    for process, partitions in enumerate(((0, 1), (2,), (3, 4), (5, 6, 7))):
        await make_process(disk, process, *partitions)


@pytest.mark.parametrize(("count", "make"), [(4, four), (2, two)])
@run_by(run_alone)
async def test_machine_that_dies_at_any_step_ends_in_the_same_state(*, count: int, make: Any) -> None:
    disk = SimDisk(random.Random(1))
    await make(disk)
    before = disk.clone()
    images: list[SimDisk] = []

    def note(op: Op) -> None:
        images.extend(
            (disk.clone(), disk.crash_image(random.Random(op.number)), disk.crash_image(random.Random(-op.number)))
        )

    disk.on_op = note
    await start_machine(disk, count, 4)
    done = state(disk)
    assert len(images) > 60 and done != state(before)
    for image in images:
        await start_machine(image, count, 4)
        assert state(image) == done
        after = image.crash_image(random.Random(1))
        await start_machine(after, count, 4)  # the removal of the journal alone may be undone
        assert state(after) == done


@pytest.mark.parametrize("seed", range(10))
@run_by(run_alone)
async def test_power_cut_takes_no_clean_mark_that_the_journal_names(*, seed: int) -> None:
    disk = SimDisk(random.Random(1))
    await make_process(disk, 0, 0)
    await make_process(disk, 1, 1, is_fsynced=False)
    images: list[SimDisk] = []
    disk.on_op = lambda op: images.append(disk.crash_image(random.Random(op.number + 100 * seed)))
    await start_machine(disk, 1, 2)
    begun = [image for image in images if read_journal(image) is not None]
    assert len(begun) > 10
    for image in begun:
        await start_machine(image, 1, 2)
        assert [name for name in image.list(log_folder(0)) if name.startswith("t-")] == ["t-0", "t-1"]


@run_by(run_alone)
async def test_logs_move_to_a_first_process_that_has_no_directory() -> None:
    disk = SimDisk(random.Random(1))
    await make_process(disk, 1, 1, 2)
    await start_machine(disk, 1, 2)
    assert [name for name in disk.list(log_folder(0)) if name.startswith("t-")] == ["t-1", "t-2"]


@run_by(run_alone)
async def test_each_log_has_its_lines_and_its_giver_where_it_is() -> None:
    disk = SimDisk(random.Random(1))
    await two(disk)
    await start_machine(disk, 2, 4)
    names: set[str] = set()
    for process in (0, 1):
        folder = log_folder(process)
        logs = {name for name in disk.list(folder) if name.startswith("t-")}
        assert len(logs) == 4 and not logs & names
        names |= logs
        for name in CHECKPOINTS:
            lines = checkpoints.parse_offsets(checkpoints.load(disk, folder, name) or b"")
            assert lines == {TopicPartition("t", int(each[2:])): 100 + int(each[2:]) for each in logs}
        for each in parse_adopted(checkpoints.load(disk, folder, ADOPTED_FILE) or b"", "x"):
            giver = 2 if each.tp.partition in (3, 4) else 3
            assert each == AdoptedLog(each.tp, each.topic_id, 1 + 1000 * giver, f"d{giver}", f"i{giver}")
            assert f"{each.tp}" in logs
    for process in (2, 3):
        found = read_directory(disk, process, 1)
        assert not found.logs and not found.directory_id, "it counts as new, should it run again"
    assert not disk.exists(f"{ROOT}/{JOURNAL}")


@run_by(run_alone)
async def test_giver_that_stays_keeps_its_directory_and_its_lines() -> None:
    disk = SimDisk(random.Random(1))
    await four(disk)
    await start_machine(disk, 4, 4)
    found = read_directory(disk, 0, 1)
    assert (found.directory_id, found.incarnation, len(found.logs)) == ("d0", "i0", 2)
    lines = checkpoints.parse_offsets(checkpoints.load(disk, log_folder(0), checkpoints.RECOVERY_POINTS) or b"")
    assert len(lines) == 8, "should it run too early, it finds logs gone and is not whole"


@run_by(run_alone)
async def test_moves_do_not_go_on_after_a_giver_ran() -> None:
    disk = SimDisk(random.Random(1))
    await two(disk)
    found = [read_directory(disk, process, 1) for process in range(4)]
    journal = make_journal(found, plan_moves(found, 2), 1, 2)
    disk.remove(f"{log_folder(3)}/{checkpoints.CLEAN_MARK}")
    with pytest.raises(Refused, match="process-3 ran since its logs began to move"):
        await begin_moves(disk, journal)
    assert len(read_directory(disk, 2, 1).logs) == 2, "nothing has moved"


@run_by(run_alone)
async def test_log_moves_over_no_other_log() -> None:
    disk = SimDisk(random.Random(1))
    await two(disk)
    found = [read_directory(disk, process, 1) for process in range(4)]
    journal = make_journal(found, plan_moves(found, 2), 1, 2)
    (first, *_) = journal.moves
    disk.make_dirs(f"{log_folder(first.receiver)}/{first.tp}")
    with pytest.raises(Refused, match=r"cannot move: there is a .* already"):
        await begin_moves(disk, journal)
    disk.remove(f"{log_folder(first.receiver)}/{first.tp}")
    await start_machine(disk, 2, 4)
    assert sum(len(read_directory(disk, process, 1).logs) for process in (0, 1)) == 8


@run_by(run_alone)
async def test_mark_of_a_new_process_is_there_until_it_is_not_needed() -> None:
    disk = SimDisk(random.Random(1))
    await make_process(disk, 0, *range(4))
    await mark_new(disk, range(3), (1, 2))
    after = disk.crash_image(random.Random(1))
    assert [read_directory(after, process, 1).is_marked for process in range(3)] == [False, True, True]
    await mark_new(after, range(3), (2,))
    await mark_new(after, range(2), ())
    assert [read_directory(after, process, 1).is_marked for process in range(3)] == [False, False, True]
