"""A start accepts valid batches in the order in which a log has them, and nothing else."""

from __future__ import annotations

import asyncio
import random

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, offsets, open_log, read_all
from tiered.broker.data_directory import DataDirectory
from tiered.ids import TopicPartition
from tiered.records.batch import encode_batch


def copied(base: int, epoch: int) -> bytes:
    """A batch of one record, as a leader of `epoch` wrote it."""
    return encode_batch([(NOW, None, b"%d" % base + b"." * 60, ())], base_offset=base, leader_epoch=epoch)


async def written(on: SimDisk, *batches: bytes) -> None:
    """The log file of a segment that begins at 0, whatever a log would say of these batches."""
    log = await open_log(on, config(segment_bytes=1 << 20))
    log.close()
    on.open(f"{DIRECTORY}/{0:020d}.log").append(batches)


def test_batch_of_an_earlier_epoch_after_a_later_one_is_truncated() -> None:
    async def told() -> None:
        on = disk()
        await written(on, copied(0, 3), copied(1, 5), copied(2, 3), copied(3, 5))
        log = await open_log(on, same_boot=False)
        assert log.end_offset == 2 and log.epochs.lineage == ((3, 0), (5, 1))

    asyncio.run(told())


def test_nothing_is_taken_behind_a_hole() -> None:
    async def told() -> None:
        on = disk()
        await written(on, copied(0, 3), copied(1, 3), copied(5, 3))
        log = await open_log(on, same_boot=False)
        assert log.end_offset == 2 and offsets(read_all(log)) == [0, 1]

    asyncio.run(told())


def test_a_log_that_lost_durable_records_is_settled_before_it_grows() -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on)
        append(log, batch(0))
        log.close()
        assert not (await open_log(on, recovery_point=1)).truncations.is_unsettled
        assert (await open_log(on, recovery_point=2)).truncations.is_unsettled

    asyncio.run(told())


def test_what_the_page_cache_holds_does_not_count_as_durable() -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on)
        for number in range(3):
            append(log, batch(number))
        again = await open_log(on.after_kill(), same_boot=True, recovery_point=1)
        assert (again.end_offset, again.flushed_offset) == (3, 1)
        await again.flush()
        assert again.flushed_offset == 3

    asyncio.run(told())


def test_log_that_ends_below_its_start_restarts_there() -> None:
    """Records that were not deleted are lost. An append below the log start would be unreadable."""

    async def told() -> None:
        on = disk()
        log = await open_log(on)
        append(log, batch(0))
        log.close()
        again = await open_log(on, start_offset=7)
        assert (again.local_start_offset, again.end_offset) == (7, 7)
        assert append(again, batch(0)).base_offset == 7

    asyncio.run(told())


def test_a_log_that_was_closed_cleanly_is_durable() -> None:
    async def told() -> None:
        for seed in range(10):
            on = disk()
            log = await open_log(on)
            for number in range(20):
                append(log, batch(number, producer=7, sequence=number))
            await log.close_clean()
            again = await open_log(on.crash_image(random.Random(seed)), clean=True, recovery_point=20)
            assert offsets(read_all(again)) == list(range(20)) and not again.suspect

    asyncio.run(told())


def test_a_recovery_point_is_what_was_fsynced() -> None:
    async def told() -> None:
        on, tp = disk(), TopicPartition("t", 0)
        log = await open_log(on)
        append(log, batch(0))
        await log.flush()
        append(log, batch(1))
        directory = DataDirectory(on)
        await directory.open("c", 1, "d")
        await directory.save_offsets({tp: log})
        assert (await DataDirectory(on.after_kill()).open("c", 1, "d")).recovery_points == {tp: 1}

    asyncio.run(told())


def test_segments_after_a_torn_one_are_deleted() -> None:
    """The log may end where it began once more, and take it for its own."""

    async def told() -> None:
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

    asyncio.run(told())


def test_producers_of_truncated_records_are_forgotten() -> None:
    """The power failed: of the next segment only the snapshot is there, and the log may end there once more."""

    async def told() -> None:
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

    asyncio.run(told())


def test_epochs_without_a_batch_are_removed() -> None:
    """The log would tell a follower where that epoch ends, and its next leader that it has seen it."""

    async def told() -> None:
        on = disk()
        log = await open_log(on)
        for number, epoch in enumerate((0, 0, 5)):
            append(log, batch(number), epoch)
        log.close()
        first = f"{DIRECTORY}/{0:020d}.log"
        on.open(first).truncate(on.open(first).size() - 10)
        again = await open_log(on, same_boot=False)
        assert again.end_offset == 2 and again.epochs.lineage == ((0, 0),)

    asyncio.run(told())
