"""Tests of the batches that a start accepts: valid batches in the order of a log, and nothing else."""

from __future__ import annotations

import random

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, offsets, open_log, read_all
from tiered.durability.data_directory import DataDirectory
from tiered.hot.checkpoints import EPOCHS_FILE
from tiered.hot.leader_epochs import Lineage
from tiered.ids import TopicPartition
from tiered.records.batch import encode_batch


def leader_batch(base: int, epoch: int) -> bytes:
    """Returns a batch of one record, as a leader of `epoch` wrote it."""
    return encode_batch([(NOW, None, b"%d" % base + b"." * 60, ())], base_offset=base, leader_epoch=epoch)


async def write_log_file(on: SimDisk, *batches: bytes) -> None:
    """Writes the log file of the segment at offset 0 without validation of its batches."""
    log = await open_log(on, config(segment_bytes=1 << 20))
    log.close()
    on.open(f"{DIRECTORY}/{0:020d}.log").append(batches)


@run_by(run_alone)
async def test_batch_of_an_earlier_epoch_after_a_later_one_is_truncated() -> None:
    on = disk()
    await write_log_file(on, leader_batch(0, 3), leader_batch(1, 5), leader_batch(2, 3), leader_batch(3, 5))
    log = await open_log(on, same_boot=False)
    assert log.end_offset == 2 and log.epochs.lineage == ((3, 0), (5, 1))


@run_by(run_alone)
async def test_batches_behind_a_hole_are_truncated() -> None:
    on = disk()
    await write_log_file(on, leader_batch(0, 3), leader_batch(1, 3), leader_batch(5, 3))
    log = await open_log(on, same_boot=False)
    assert log.end_offset == 2 and offsets(read_all(log)) == [0, 1]


@pytest.mark.parametrize(
    ("start", "lineage"),
    [(0, ((0, 0), (1, 2), (2, 5))), (3, ((1, 3), (2, 5))), (4, ((1, 4), (2, 5)))],
)
@run_by(run_alone)
async def test_epochs_of_records_below_a_lost_log_start_are_found_in_the_log(*, start: int, lineage: Lineage) -> None:
    """The log start on disk may be older than the epochs there. A follower with other records of epoch 0 up to offset 4
    would otherwise hear that the epoch ends at 4, and keep them."""
    on = disk()
    log = await open_log(on)
    for number, epoch in enumerate((0, 0, 1, 1, 1)):
        append(log, batch(number), epoch)
    log.advance_start(4)
    append(log, batch(5), 2)
    log.close()
    again = await open_log(on.after_kill(), start_offset=start)
    assert again.epochs.lineage == lineage
    if start == 0:
        assert again.epochs.end_offset_for(0, again.end_offset) == (0, 2)


@run_by(run_alone)
async def test_epochs_of_a_log_whose_lost_start_was_its_end_are_found_in_the_log() -> None:
    on = disk()
    log = await open_log(on)
    for number in range(5):
        append(log, batch(number), 3)
    log.advance_start(5)
    log.close()
    assert (await open_log(on.after_kill())).epochs.lineage == ((3, 0),)


@run_by(run_alone)
async def test_epochs_that_a_truncation_removed_are_found_in_the_log() -> None:
    """The log started at its end, so the truncation left no epoch. The log start is lost: the records are back. A
    follower with other records of epoch 4 would hear that this epoch ends at offset 3, and keep those below."""
    on = disk()
    log = await open_log(on)
    for number in range(5):
        append(log, batch(number), 3)
    log.advance_start(5)
    log.truncate_to(3)
    await log.flush()
    log.roll()
    assert log.epochs.lineage == ()
    again = await open_log(on.after_kill())
    assert again.epochs.lineage == ((3, 0),)
    append(again, batch(3), 5)
    assert again.epochs.end_offset_for(4, again.end_offset) == (3, 3)


@run_by(run_alone)
async def test_epochs_of_a_restart_are_not_believed_if_older_records_are_back() -> None:
    """The fsync of the file with the epochs may make its new name durable before the removals in its directory. A
    follower would take its records of epoch 1 for those of epoch 2, find that the leader has the same, and keep them.
    """
    on = disk()
    log = await open_log(on)
    for number, epoch in enumerate((0, 0, 1, 1, 1, 1)):
        append(log, batch(number), epoch)
    await log.flush()
    after_cut = on.clone()
    log.truncate_fully_and_start_at(8, ((0, 0), (2, 3), (3, 6)), None)
    name = f"{DIRECTORY}/{EPOCHS_FILE}"
    after_cut.remove(name)
    after_cut.open(name, create=True).append([on.open(name).map()])
    again = await open_log(after_cut, same_boot=False, recovery_point=6)
    assert (again.end_offset, again.epochs.lineage) == (6, ((0, 0), (1, 2)))


@run_by(run_alone)
async def test_log_that_lost_durable_records_must_sync_before_appends() -> None:
    on = disk()
    log = await open_log(on)
    append(log, batch(0))
    log.close()
    assert not (await open_log(on, recovery_point=1)).truncations.is_unsettled
    assert (await open_log(on, recovery_point=2)).truncations.is_unsettled


@run_by(run_alone)
async def test_records_in_the_page_cache_do_not_count_as_durable() -> None:
    on = disk()
    log = await open_log(on)
    for number in range(3):
        append(log, batch(number))
    again = await open_log(on.after_kill(), same_boot=True, recovery_point=1)
    assert (again.end_offset, again.flushed_offset) == (3, 1)
    await again.flush()
    assert again.flushed_offset == 3


@run_by(run_alone)
async def test_log_that_ends_below_its_start_restarts_there() -> None:
    """Records that were not deleted are lost. An append below the log start would be unreadable."""
    on = disk()
    log = await open_log(on)
    append(log, batch(0))
    log.close()
    again = await open_log(on, start_offset=7)
    assert (again.local_start_offset, again.end_offset) == (7, 7)
    assert append(again, batch(0)).base_offset == 7


@run_by(run_alone)
async def test_log_is_durable_after_a_clean_stop() -> None:
    for seed in range(10):
        on = disk()
        log = await open_log(on)
        for number in range(20):
            append(log, batch(number, producer=7, sequence=number))
        await log.close_clean()
        again = await open_log(on.crash_image(random.Random(seed)), clean=True, recovery_point=20)
        assert offsets(read_all(again)) == list(range(20)) and not again.suspect


@run_by(run_alone)
async def test_recovery_point_is_the_fsynced_end() -> None:
    on, tp = disk(), TopicPartition("t", 0)
    log = await open_log(on)
    append(log, batch(0))
    await log.flush()
    append(log, batch(1))
    directory = DataDirectory(on)
    await directory.open("c", 1, "d")
    await directory.save_offsets({tp: log})
    assert (await DataDirectory(on.after_kill()).open("c", 1, "d")).recovery_points == {tp: 1}


@run_by(run_alone)
async def test_segments_after_a_torn_one_are_deleted() -> None:
    """Otherwise the log could grow to the base offset of such a segment again, and take its records for its own."""
    on = disk()
    log = await open_log(on)
    for number in range(6):
        append(log, batch(number))
        if number == 2:
            log.roll()
    log.close()
    first = f"{DIRECTORY}/{0:020d}.log"
    on.open(first).truncate(on.open(first).size() - 10)
    again = await open_log(on, same_boot=False)
    assert again.end_offset == 2
    assert [name for name in on.list(DIRECTORY) if name.endswith(".log")] == [f"{0:020d}.log"]


@run_by(run_alone)
async def test_producers_of_truncated_records_are_forgotten() -> None:
    """After a power cut only the producer snapshot of the next segment is left. The log may reach its offset again."""
    on = disk()
    log = await open_log(on)
    for number in range(3):
        append(log, batch(number, producer=7, sequence=number))
    log.roll()
    log.close()
    first, snapshot = f"{DIRECTORY}/{0:020d}.log", f"{3:020d}.snapshot"
    assert snapshot in on.list(DIRECTORY)
    on.remove(f"{DIRECTORY}/{3:020d}.log")
    on.open(first).truncate(on.open(first).size() - 10)
    again = await open_log(on, same_boot=False)
    assert again.end_offset == 2 and snapshot not in on.list(DIRECTORY)


@run_by(run_alone)
async def test_epochs_without_a_batch_are_removed() -> None:
    """Otherwise the log would report an end of that epoch to a follower, and its next leader would count the epoch as
    seen."""
    on = disk()
    log = await open_log(on)
    for number, epoch in enumerate((0, 0, 5)):
        append(log, batch(number), epoch)
    log.close()
    first = f"{DIRECTORY}/{0:020d}.log"
    on.open(first).truncate(on.open(first).size() - 10)
    again = await open_log(on, same_boot=False)
    assert again.end_offset == 2 and again.epochs.lineage == ((0, 0),)
