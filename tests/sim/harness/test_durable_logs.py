"""Tests of the checker DURABLE: it reports what a power cut could take, and what a start leaves of no record."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.scenario import run_by
from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_bytes import Folder, Inode
from tests.sim.harness.durable_logs import DurableLogs, find_leftovers, find_lost, has_saved
from tests.unit.hot.cleaning import clean, put
from tests.unit.hot.fixtures import DIRECTORY, NOW, batch, config, open_log, run_scenario
from tiered.durability.data_directory import ROOT, DataDirectory
from tiered.errors import Unavailable
from tiered.hot import checkpoints
from tiered.ids import TopicPartition


@run_by(run_scenario)
async def test_offset_that_was_never_fsynced_is_reported(disk: SimDisk) -> None:
    log = await open_log(disk)
    log.append(batch(0), leader_epoch=0, now_ms=NOW)
    await log.flush()
    assert [*find_lost(log)] == []
    log.append(batch(1), leader_epoch=0, now_ms=NOW)
    assert [*find_lost(log)] == []
    log._writer.unsynced.flushed_offset = log.end_offset
    assert [*find_lost(log)] == ["fsynced is 2, and a power cut takes bytes of segment 0"]


@run_by(run_scenario)
async def test_segment_whose_name_is_not_durable_is_reported(disk: SimDisk) -> None:
    log = await open_log(disk)
    log.append(batch(0), leader_epoch=0, now_ms=NOW)
    await disk.open(f"{DIRECTORY}/{0:020d}.log").sync()
    log._writer.unsynced.flushed_offset = log.end_offset
    assert [*find_lost(log)] == ["fsynced is 1, and a power cut takes the name of segment 0"]


def test_log_that_grows_before_its_cut_is_durable_is_reported() -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            log = await open_log(disk)
            for number in range(4):
                log.append(batch(number), leader_epoch=0, now_ms=NOW)
            await log.flush()
            log.truncate_to(2)
            await log.flush()
            log.append(batch(7), leader_epoch=1, now_ms=NOW)
            assert found == []
            await log.flush()
            log.truncate_to(2)
            log.append(batch(8), leader_epoch=2, now_ms=NOW)

    run_scenario(scenario)
    assert found == [f"t-0 grows from 2: a power cut brings the end of {0:020d}.log back"]


def test_log_that_grows_while_its_cut_file_can_come_back_is_reported() -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            log = await open_log(disk)
            log.append(batch(0, 4), leader_epoch=0, now_ms=NOW)
            await log.flush()
            log.truncate_fully_and_start_at(9, (), None)
            log.append(batch(9), leader_epoch=1, now_ms=NOW)

    run_scenario(scenario)
    assert found == [f"t-0 grows from 9: a power cut brings {0:020d}.log back"]


def test_log_may_grow_while_only_deleted_records_can_come_back() -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            log = await open_log(disk)
            log.append(batch(0, 4), leader_epoch=0, now_ms=NOW)
            await log.flush()
            log.advance_start(4)
            log.truncate_fully_and_start_at(2, (), None)
            log.append(batch(2, 4), leader_epoch=1, now_ms=NOW)

    run_scenario(scenario)
    assert found == []


def test_segment_that_is_dropped_after_a_cut_is_none_of_its_remains() -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            log = await open_log(disk)
            log.append(batch(0, 4), leader_epoch=0, now_ms=NOW)
            log.roll()
            log.append(batch(4, 4), leader_epoch=0, now_ms=NOW)
            await log.flush()
            log.truncate_to(4)
            await log.flush()
            log.advance_start(4)
            assert await log.drop_local_below(4) == 1
            log.append(batch(4), leader_epoch=1, now_ms=NOW)

    run_scenario(scenario)
    assert found == []


@pytest.mark.parametrize(
    ("records", "expected"), [(2, []), (1, ["t-0 grows from 8: its recovery point is 9, beyond the batch"])]
)
def test_empty_log_grows_by_the_batch_that_holds_its_recovery_point(records: int, expected: list[str]) -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            log = await open_log(disk)
            log.append(batch(0, 4), leader_epoch=0, now_ms=NOW)
            log.truncate_fully_and_start_at(9, (), None)
            await log.flush()
            disk.make_dirs(ROOT)
            await DataDirectory(disk).save_offsets({TopicPartition("t", 0): log})
            log.truncate_fully_and_start_at(8, (), None)
            log.append(batch(8, records), leader_epoch=1, now_ms=NOW)

    run_scenario(scenario)
    assert found == expected


def test_clean_that_a_power_cut_undoes_is_reported_if_it_loses_records() -> None:
    """A start after a kill finishes the swap of a clean, and the next flush makes its names durable."""
    settings = config(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0)
    lost: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        log = await open_log(disk, settings)
        for number in range(6):
            put(log, f"k{number % 2}", str(number))
            log.roll()
        await log.flush()
        images: list[SimDisk] = []
        disk.on_op = lambda op: images.append(disk.clone())
        await clean(log)
        undone = 0
        for image in images:
            reopened = await open_log(image, settings, recovery_point=log.flushed_offset)
            assert [*find_lost(reopened)] == []
            folder = image._find(DIRECTORY)
            assert isinstance(folder, Folder)
            old = folder.durable.get(f"{0:020d}.log")
            if isinstance(old, Inode) and old is not folder.names.get(f"{0:020d}.log"):
                undone += 1
                for node in folder.durable.values():
                    if isinstance(node, Inode):
                        node.durable[15:16] = b"\x07"  # the leader epoch of the first batch: another history
                lost.extend(find_lost(reopened))
        assert undone and len(lost) == undone

    run_scenario(scenario)
    assert set(lost) == {"fsynced is 6, and a power cut takes the name of segment 0"}


@run_by(run_scenario)
async def test_segment_beyond_the_end_is_reported(disk: SimDisk) -> None:
    log = await open_log(disk)
    log.append(batch(0), leader_epoch=0, now_ms=NOW)
    assert [*find_leftovers(log)] == []
    disk.open(f"{DIRECTORY}/{9:020d}.log", create=True)
    disk.open(f"{DIRECTORY}/{9:020d}.snapshot", create=True)
    assert [*find_leftovers(log)] == [
        f"segment {9:020d}.log is none of [0]",
        f"producers of {9:020d}.snapshot, the end is 1",
    ]


@run_by(run_scenario)
async def test_epochs_that_the_records_contradict_are_reported(disk: SimDisk) -> None:
    log = await open_log(disk)
    log.append(batch(0), leader_epoch=0, now_ms=NOW)
    log.append(batch(1), leader_epoch=3, now_ms=NOW)
    assert [*find_leftovers(log)] == []
    log.epochs.truncate_from(1)
    assert [*find_leftovers(log)] == ["epochs ((0, 0),), and 1 is of epoch 3"]


@run_by(run_scenario)
async def test_file_that_a_power_cut_takes_is_not_saved(disk: SimDisk) -> None:
    disk.make_dirs("log")
    await checkpoints.save(disk, "log", "f", b"new")
    assert has_saved(disk, "log", "f", b"new") and not has_saved(disk, "log", "f", b"newer")
    disk.open("log/g", create=True).append([b"new"])
    assert not has_saved(disk, "log", "g", b"new")


def test_mark_of_a_clean_stop_that_a_start_leaves_is_reported() -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        directory = DataDirectory(disk)
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            await directory.open("c", 1, "d")
            await directory.mark_clean((), "one")
            await directory.open("c", 1, "d")
            assert found == []
            await directory.mark_clean((), "one")
            disk.sync_dir = _fail  # type: ignore[method-assign]
            with suppress(Unavailable):
                await directory.open("c", 1, "d")

    async def _fail(path: str) -> None:
        return None

    run_scenario(scenario)
    assert found == ["a start leaves the mark of a clean stop"]
