"""A cut is settled once it is durable and noted: until then nothing may be appended."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.harness.disk import DiskFault, Op
from tests.unit.hot.fixtures import DIRECTORY, append, batch, config, disk, open_log
from tiered.errors import Unavailable
from tiered.hot.checkpoints import SEGMENTS_FILE
from tiered.hot.segments import parse_lines
from tiered.hot.unsynced_truncations import Cuts

CHECKPOINT = f"{DIRECTORY}/{SEGMENTS_FILE}"


def test_a_cut_has_to_be_durable_and_noted() -> None:
    cuts = Cuts()
    assert not cuts.unsettled
    cuts.made += 1
    assert cuts.unsettled
    cuts.note(1)
    assert cuts.unsettled, "what was cut off may come back"
    cuts.made += 1
    cuts.sync(2)
    assert cuts.unsettled, "the point noted lies above the second one"
    cuts.note(2)
    assert not cuts.unsettled


def test_only_a_flush_of_all_that_began_after_the_cut_settles_it() -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on, config(segment_bytes=1 << 20))
        for number in range(6):
            append(log, batch(number))
        on.sync_seconds = lambda: 0.1
        early = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        log.truncate_to(3)
        log.cuts.note(log.cuts.made)
        await early
        assert log.cuts.unsettled
        await log.flush(3)
        assert log.cuts.unsettled
        await log.flush()
        assert not log.cuts.unsettled

    asyncio.run(told())


def test_records_written_while_a_sync_runs_are_not_durable() -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on, config(segment_bytes=1 << 20))
        for number in range(3):
            append(log, batch(number))
        on.sync_seconds = lambda: 0.01
        syncing = asyncio.create_task(log.flush(3))
        await asyncio.sleep(0)
        append(log, batch(3))
        assert await syncing == log.flushed_offset == 3

    asyncio.run(told())


def test_the_segment_checkpoint_never_says_what_a_cut_took_back() -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on, config(segment_bytes=1 << 20))
        for number in range(6):
            append(log, batch(number))
        noted: list[bytes] = []

        def look(op: Op) -> None:
            if op.path == CHECKPOINT:
                noted.append(on.open(CHECKPOINT, write=False).pread(0, 1 << 20))

        on.observer = look
        on.sync_seconds = lambda: 0.01
        syncing = asyncio.create_task(log.flush())
        await asyncio.sleep(0)
        log.truncate_to(3)
        for number in range(3, 6):
            append(log, batch(number, size=20))
        await syncing
        ends = [segment for data in noted for segment in parse_lines(data).values() if segment.next_offset == 6]
        assert ends and {segment.size for segment in ends} == {log.size_bytes}

    asyncio.run(told())


def test_a_log_that_was_closed_in_the_middle_of_a_cut_is_opened_with_that_cut_to_settle() -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on)
        for number in range(6):
            append(log, batch(number))
        log.close()
        assert not (await open_log(on)).cuts.unsettled
        again = await open_log(on, cut=True)
        assert again.cuts.unsettled
        await again.flush()
        again.cuts.note(again.cuts.made)
        assert not again.cuts.unsettled

    asyncio.run(told())


@pytest.mark.parametrize(("error", "final"), [("ENOSPC", False), ("EIO", True)])
def test_a_log_whose_cut_failed_says_whether_the_disk_did(error: str, final: bool) -> None:
    async def told() -> None:
        on = disk()
        log = await open_log(on)
        for number in range(6):
            append(log, batch(number))
        on.faults.append(DiskFault("append", error=error))
        with pytest.raises(Unavailable) as caught:
            log.truncate_to(3)
        assert caught.value.final is final
        with pytest.raises(Unavailable) as caught:
            await log.flush()
        assert caught.value.final is final
        assert log.broken and log.failed is final

    asyncio.run(told())
