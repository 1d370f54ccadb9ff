"""The last five batches of a producer are known after every start: a retry gets the offset of its first try."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, open_log
from tiered.errors import Code, Refused
from tiered.hot.disk_log import DiskLog
from tiered.hot.producer_state import BATCHES_RETAINED
from tiered.records.batch import encode_batch

BATCHES = 8


async def written(on: SimDisk) -> DiskLog:
    """Two producers take turns."""
    log = await open_log(on)
    for sequence in range(BATCHES):
        for producer in (7, 8):
            append(log, batch(sequence, producer=producer, sequence=sequence))
    return log


def check_retries(log: DiskLog) -> None:
    """The last five batches of each producer are known, older ones are out of order, and the next one is accepted."""
    end = log.end_offset
    for place, producer in enumerate((7, 8)):
        for sequence in range(BATCHES - BATCHES_RETAINED, BATCHES):
            told = append(log, batch(sequence, producer=producer, sequence=sequence))
            assert (told.base_offset, told.is_duplicate) == (2 * sequence + place, True)
        with pytest.raises(Refused) as refused:
            append(log, batch(0, producer=producer, sequence=BATCHES - BATCHES_RETAINED - 1))
        assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == end, "nothing was written again"
    assert not append(log, batch(BATCHES, producer=7, sequence=BATCHES)).is_duplicate


@pytest.mark.parametrize(
    "rolled_after", [None, 3, BATCHES], ids=["no snapshot", "a snapshot in the middle", "at the end"]
)
def test_retries_of_the_last_five_batches_are_known_after_a_kill(rolled_after: int | None) -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on)
        for sequence in range(BATCHES):
            if sequence == rolled_after:
                log.roll()
            for producer in (7, 8):
                append(log, batch(sequence, producer=producer, sequence=sequence))
        if rolled_after == BATCHES:
            log.roll()
        check_retries(await open_log(on.after_kill()))

    asyncio.run(told())


def test_retries_of_the_last_five_batches_are_known_after_a_clean_stop() -> None:
    async def told() -> None:
        on = disk()
        await (await written(on)).close_clean()
        check_retries(await open_log(on.after_kill(), clean=True))

    asyncio.run(told())


def test_retries_of_the_last_five_batches_that_were_fsynced_are_known_after_a_power_cut() -> None:
    async def told() -> None:
        on = disk()
        log = await written(on)
        await log.flush()
        check_retries(await open_log(on.after_power_cut(), same_boot=False, recovery_point=log.end_offset))

    asyncio.run(told())


def test_retries_of_the_last_five_batches_are_known_after_what_followed_was_cut() -> None:
    async def told() -> None:
        on = disk()
        log = await written(on)
        end = log.end_offset
        for sequence in range(BATCHES, BATCHES + 3):
            append(log, batch(sequence, producer=7, sequence=sequence))
        log.truncate_to(end)
        check_retries(log)

    asyncio.run(told())


@pytest.mark.parametrize("seed", range(8))
def test_producers_from_before_the_log_start_survive_stop_and_power_cut(seed: int) -> None:
    """The log was begun behind what is cold. Its snapshot alone knows who wrote that, and the stop leaves it alone."""

    async def told() -> None:
        before = await written(disk())
        on = disk(seed)
        log = await open_log(on)
        log.truncate_fully_and_start_at(
            before.end_offset, before.epochs.lineage, before._writer.producers.encode_snapshot()
        )
        await log.flush()
        await log.close_clean()
        on = on.after_kill()
        log = await open_log(on, clean=True)
        append(log, batch(BATCHES, producer=9, sequence=0))
        log = await open_log(on.after_power_cut(), same_boot=False, recovery_point=before.end_offset)
        for place, producer in enumerate((7, 8)):
            told = append(log, batch(BATCHES - 1, producer=producer, sequence=BATCHES - 1))
            assert (told.base_offset, told.is_duplicate) == (2 * (BATCHES - 1) + place, True)

    asyncio.run(told())


def test_a_snapshot_that_took_the_place_of_a_torn_one_is_durable_after_a_flush() -> None:
    async def told() -> None:
        on = disk()
        log = await written(on)
        log.roll()
        await log.flush()
        name = f"log/t-0/{log.end_offset:020d}.snapshot"
        on.open(name).truncate(3)
        log._writer.take_snapshot()
        await log.flush()
        check_retries(await open_log(on.after_power_cut(), same_boot=False, recovery_point=log.end_offset))


def test_retries_from_before_a_transaction_are_known_after_a_kill() -> None:
    """A start reads the last batches of a producer that only goes on. Here a transaction begins behind them."""

    async def told() -> None:
        on = disk()
        log = await open_log(on)
        for sequence in range(BATCHES):
            append(log, batch(sequence, producer=7, sequence=sequence))
        value = [(NOW, None, b"v" * 60, ())]
        log.append_as_follower(
            encode_batch(
                value, base_offset=BATCHES, leader_epoch=0,
                producer_id=7, producer_epoch=0, base_sequence=BATCHES, transactional=True,
            ),
            now_ms=NOW,
        )  # fmt: skip
        again = await open_log(on.after_kill())
        for sequence in range(BATCHES - BATCHES_RETAINED + 1, BATCHES):
            retried = append(again, batch(sequence, producer=7, sequence=sequence))
            assert (retried.base_offset, retried.is_duplicate) == (sequence, True)

    asyncio.run(told())


def test_retries_from_behind_a_snapshot_in_the_same_segment_are_known_after_a_kill() -> None:
    """A clean stop leaves one at the end of a log of several segments, and the log goes on in the last of them."""

    async def told() -> None:
        on, large = disk(), config(segment_bytes=1 << 20)
        log = await open_log(on, large)
        for sequence in range(BATCHES):
            if sequence == 2:
                log.roll()
            if sequence == BATCHES - 2:
                await log.close_clean()
                assert f"{log.end_offset:020d}.snapshot" in on.list(DIRECTORY)
                log = await open_log(on, large, clean=True)
            for producer in (7, 8):
                append(log, batch(sequence, producer=producer, sequence=sequence))
        check_retries(await open_log(on.after_kill(), large))

    asyncio.run(told())
