"""Tests of the state that a start finds in the data directory: how the last process ended, and which logs are still
valid."""

from __future__ import annotations

import asyncio
import random

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import TOPIC_ID, append, batch, open_log
from tiered.durability.data_directory import ROOT, DataDirectory, DirectoryState
from tiered.hot import checkpoints
from tiered.ids import TopicPartition

AT, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
ANOTHER_ID = "BBBBBBBBBBBBBBBBBBBBBB"


async def opened(on: SimDisk) -> tuple[DataDirectory, DirectoryState]:
    directory = DataDirectory(on)
    return directory, await directory.open("c", 1, "d")


@run_by(run_alone)
async def test_page_cache_is_whole_in_the_boot_that_wrote_it() -> None:
    on = SimDisk(random.Random(1))
    directory, found = await opened(on)
    assert not found.same_boot
    await directory.write_boot_mark("one")
    await on.sync_dir(".")  # as the first flush of a log does
    assert (await opened(on.after_kill()))[1].same_boot
    assert not (await opened(on.after_power_cut()))[1].same_boot


@run_by(run_alone)
async def test_page_cache_is_not_trusted_after_an_io_error() -> None:
    on = SimDisk(random.Random(1))
    directory, _ = await opened(on)
    await directory.write_boot_mark("one")
    directory.proof_file.remove()
    assert not (await opened(on.after_kill()))[1].same_boot


@run_by(run_alone)
async def test_entries_of_a_clean_stop_hold_for_one_start() -> None:
    on = SimDisk(random.Random(1))
    directory, _ = await opened(on)
    log = await open_log(on)
    append(log, batch(0))
    left = log.make_clean_entry(0, False)
    assert left is not None
    await directory.mark_clean([(AT, left)], "one")
    directory, found = await opened(on)
    assert found.clean and found.clean_entries == {AT: left}
    directory, again = await opened(on)
    assert not again.clean and not again.clean_entries, "the mark is gone, and the proof has the entries still"
    await directory.write_boot_mark("one")
    _, found = await opened(on.after_kill())
    assert found.same_boot and not found.clean and not found.clean_entries


@run_by(run_alone)
async def test_cut_during_a_write_of_offsets_is_not_in_that_write() -> None:
    on = SimDisk(random.Random(1))
    directory, _ = await opened(on)
    log = await open_log(on)
    for number in range(3):
        append(log, batch(number))
    log.truncate_to(2)
    on.sync_seconds = lambda: 0.001
    saving = asyncio.ensure_future(directory.save_offsets({AT: log}))
    await asyncio.sleep(0)
    log.truncate_to(1)
    await saving
    assert (log.truncations.made, log.truncations.checkpointed) == (2, 1)


@run_by(run_alone)
async def test_truncation_waits_for_a_lower_recovery_point_on_the_disk() -> None:
    """A write of offsets that began earlier still has the higher one."""
    on = SimDisk(random.Random(1))
    directory, _ = await opened(on)
    log = await open_log(on)
    for number in range(3):
        append(log, batch(number))
    await log.flush()
    on.sync_seconds = lambda: 0.001
    saving = asyncio.ensure_future(directory.save_offsets({AT: log}))
    await asyncio.sleep(0)
    assert not log.plan_truncation(2)
    await saving
    assert log.truncations.must_lower_point
    await log.flush()  # a flush raises it no more
    await directory.save_offsets({AT: log})
    assert log.plan_truncation(2)
    _, found = await opened(on.after_power_cut())
    assert found.recovery_points == {AT: 2}


@run_by(run_alone)
async def test_logs_of_deleted_topics_go_with_their_checkpoints() -> None:
    """One topic was deleted, and one was recreated under its name: neither begins with old records."""
    on = SimDisk(random.Random(1))
    directory, _ = await opened(on)
    append(await open_log(on), batch(0))
    on.make_dirs(f"{ROOT}/{OTHER}")
    metadata = checkpoints.encode_metadata(TOPIC_ID)
    await checkpoints.save(on, f"{ROOT}/{OTHER}", checkpoints.METADATA_FILE, metadata)
    noted = {AT: 1, OTHER: 2}
    found = DirectoryState("d", True, False, noted, noted)
    kept, _ = await directory.delete_stray_logs({AT: TOPIC_ID, OTHER: TOPIC_ID}, found)
    assert kept.recovery_points == kept.log_starts == noted
    again, _ = await directory.delete_stray_logs({AT: TOPIC_ID, OTHER: ANOTHER_ID}, found)
    assert again.recovery_points == again.log_starts == {AT: 1}
    assert on.exists(f"{ROOT}/{AT}") and not on.exists(f"{ROOT}/{OTHER}")
    none, _ = await directory.delete_stray_logs({}, found)
    assert not none.recovery_points and not on.exists(f"{ROOT}/{AT}")
