"""Tests of the checker DURABLE: it reports what a power cut could take, and what a start leaves of no record."""

from __future__ import annotations

from contextlib import suppress

from tests.sim.harness.disk import SimDisk
from tests.sim.harness.durable_logs import DurableLogs, find_leftovers, find_lost, has_saved
from tests.unit.hot.fixtures import DIRECTORY, NOW, batch, open_log, run_scenario
from tiered.broker.data_directory import DataDirectory
from tiered.errors import Unavailable
from tiered.hot import checkpoints


def test_offset_that_was_never_fsynced_is_reported() -> None:
    async def scenario(disk: SimDisk) -> None:
        log = await open_log(disk)
        log.append(batch(0), leader_epoch=0, now_ms=NOW)
        await log.flush()
        assert [*find_lost(log)] == []
        log.append(batch(1), leader_epoch=0, now_ms=NOW)
        assert [*find_lost(log)] == []
        log._writer.unsynced.flushed_offset = log.end_offset
        assert [*find_lost(log)] == ["fsynced is 2, and a power cut takes bytes of segment 0"]

    run_scenario(scenario)


def test_segment_whose_name_is_not_durable_is_reported() -> None:
    async def scenario(disk: SimDisk) -> None:
        log = await open_log(disk)
        log.append(batch(0), leader_epoch=0, now_ms=NOW)
        await disk.open(f"{DIRECTORY}/{0:020d}.log").sync()
        log._writer.unsynced.flushed_offset = log.end_offset
        assert [*find_lost(log)] == ["fsynced is 1, and a power cut takes the name of segment 0"]

    run_scenario(scenario)


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


def test_segment_beyond_the_end_is_reported() -> None:
    async def scenario(disk: SimDisk) -> None:
        log = await open_log(disk)
        log.append(batch(0), leader_epoch=0, now_ms=NOW)
        assert [*find_leftovers(log)] == []
        disk.open(f"{DIRECTORY}/{9:020d}.log", create=True)
        disk.open(f"{DIRECTORY}/{9:020d}.snapshot", create=True)
        assert [*find_leftovers(log)] == [
            f"segment {9:020d}.log is none of [0]",
            f"producers of {9:020d}.snapshot, the end is 1",
        ]

    run_scenario(scenario)


def test_epochs_that_the_records_contradict_are_reported() -> None:
    async def scenario(disk: SimDisk) -> None:
        log = await open_log(disk)
        log.append(batch(0), leader_epoch=0, now_ms=NOW)
        log.append(batch(1), leader_epoch=3, now_ms=NOW)
        assert [*find_leftovers(log)] == []
        log.epochs.truncate_from(1)
        assert [*find_leftovers(log)] == ["epochs ((0, 0),), and 1 is of epoch 3"]

    run_scenario(scenario)


def test_file_that_a_power_cut_takes_is_not_saved() -> None:
    async def scenario(disk: SimDisk) -> None:
        disk.make_dirs("log")
        await checkpoints.save(disk, "log", "f", b"new")
        assert has_saved(disk, "log", "f", b"new") and not has_saved(disk, "log", "f", b"newer")
        disk.open("log/g", create=True).append([b"new"])
        assert not has_saved(disk, "log", "g", b"new")

    run_scenario(scenario)


def test_mark_of_a_clean_stop_that_a_start_leaves_is_reported() -> None:
    found: list[str] = []

    async def scenario(disk: SimDisk) -> None:
        directory = DataDirectory(disk)
        with DurableLogs(lambda rule, what: found.append(what)).watch():
            await directory.open("c", 1, "d")
            await directory.mark_clean(())
            await directory.open("c", 1, "d")
            assert found == []
            await directory.mark_clean(())
            disk.sync_dir = _fail  # type: ignore[method-assign]
            with suppress(Unavailable):
                await directory.open("c", 1, "d")

    async def _fail(path: str) -> None:
        return None

    run_scenario(scenario)
    assert found == ["a start leaves the mark of a clean stop"]
