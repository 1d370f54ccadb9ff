"""The last five batches of a producer are known after every start: a retry gets the offset of its first try."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import append, batch, disk, open_log
from tiered.errors import Code, Refused
from tiered.hot.disk_log import DiskLog
from tiered.hot.producer_state import WINDOW

BATCHES = 8


async def written(on: SimDisk) -> DiskLog:
    """Two producers take turns."""
    log = await open_log(on)
    for sequence in range(BATCHES):
        for producer in (7, 8):
            append(log, batch(sequence, producer=producer, sequence=sequence))
    return log


def check_retries(log: DiskLog) -> None:
    """Of each producer the last five batches are known, older ones are out of order, and the next one goes on."""
    end = log.end_offset
    for place, producer in enumerate((7, 8)):
        for sequence in range(BATCHES - WINDOW, BATCHES):
            told = append(log, batch(sequence, producer=producer, sequence=sequence))
            assert (told.base_offset, told.duplicate) == (2 * sequence + place, True)
        with pytest.raises(Refused) as refused:
            append(log, batch(0, producer=producer, sequence=BATCHES - WINDOW - 1))
        assert refused.value.code is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.end_offset == end, "nothing was written again"
    assert not append(log, batch(BATCHES, producer=7, sequence=BATCHES)).duplicate


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
