"""Tests of cuts that are not durable yet: nothing may be appended before a cut is durable and noted."""

from __future__ import annotations

import asyncio

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault, Op
from tests.unit.hot.fixtures import DIRECTORY, append, batch, config, disk, open_log
from tiered.errors import Unavailable
from tiered.hot.checkpoints import SEGMENTS_FILE
from tiered.hot.segments import parse_lines
from tiered.hot.unsynced_truncations import UnsyncedTruncations

CHECKPOINT = f"{DIRECTORY}/{SEGMENTS_FILE}"


def test_cut_is_settled_once_it_is_durable_and_noted() -> None:
    cuts = UnsyncedTruncations()
    assert not cuts.is_unsettled
    cuts.made += 1
    assert cuts.is_unsettled
    cuts.mark_checkpointed(1, 0)
    assert cuts.is_unsettled, "what was cut off may come back"
    cuts.made += 1
    cuts.mark_synced(2)
    assert cuts.is_unsettled, "the point noted lies above the second one"
    cuts.mark_checkpointed(2, 0)
    assert not cuts.is_unsettled


def test_truncation_waits_for_a_recovery_point_at_or_below_its_end() -> None:
    cuts = UnsyncedTruncations(checkpointed_point=40)
    assert not cuts.must_lower_point and cuts.recovery_point(50) == 50
    cuts.planned_end = 30
    assert cuts.must_lower_point and (cuts.recovery_point(50), cuts.recovery_point(20)) == (30, 20)
    cuts.begin_checkpoint(30)
    assert cuts.must_lower_point, "a crash may leave the earlier point"
    cuts.mark_checkpointed(0, 30)
    assert not cuts.must_lower_point


def test_recovery_point_that_is_being_written_counts_as_written() -> None:
    cuts = UnsyncedTruncations(checkpointed_point=10, planned_end=30)
    cuts.begin_checkpoint(40)
    assert cuts.must_lower_point


@run_by(run_alone)
async def test_only_a_full_flush_that_began_after_the_cut_settles_it() -> None:
    on = disk()
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(6):
        append(log, batch(number))
    on.sync_seconds = lambda: 0.1
    early = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    log.truncate_to(3)
    log.truncations.mark_checkpointed(log.truncations.made, log.recovery_point)
    await early
    assert log.truncations.is_unsettled
    await log.flush(3)
    assert log.truncations.is_unsettled
    await log.flush()
    assert not log.truncations.is_unsettled


@run_by(run_alone)
async def test_cut_epoch_is_gone_after_a_kill() -> None:
    """The leader of a later epoch may have other records of an earlier epoch at these offsets."""
    on = disk()
    log = await open_log(on)
    for number, epoch in enumerate((0, 0, 5)):
        append(log, batch(number), epoch)
    await log.flush()
    log.truncate_to(2)
    append(log, batch(2), 3)
    again = await open_log(on.after_kill())
    assert again.epochs.lineage == ((0, 0), (3, 2))


@run_by(run_alone)
async def test_truncation_removes_the_producers_of_truncated_records() -> None:
    """Before the next start, the log may grow beyond the offset of that snapshot with batches of other producers."""
    on = disk()
    log = await open_log(on)
    for number in range(6):
        if number == 3:
            log.roll()
        append(log, batch(number))
    await log.close_clean()
    snapshot = f"{6:020d}.snapshot"
    assert snapshot in on.list(DIRECTORY)
    log = await open_log(on, clean=True)
    log.truncate_to(5)
    assert snapshot not in on.list(DIRECTORY)


@run_by(run_alone)
async def test_cut_never_leaves_an_index_that_points_behind_the_end() -> None:
    on = disk()
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(20):
        append(log, batch(number))
    await log.flush()
    index, data = (f"{DIRECTORY}/{0:020d}.{suffix}" for suffix in ("index", "log"))
    ends: list[tuple[int, int]] = []

    def look(_: Op) -> None:
        entries = on.open(index, write=False).pread(0, 1 << 20)
        ends.append((int.from_bytes(entries[-4:], "big"), on.open(data, write=False).size()))

    on.on_op = look
    log.truncate_to(5)
    on.on_op = None
    assert ends and all(last < size for last, size in ends)


@run_by(run_alone)
async def test_restarted_log_has_no_epoch_from_its_start_on() -> None:
    on = disk()
    log = await open_log(on)
    append(log, batch(0))
    log.truncate_fully_and_start_at(4, ((0, 0), (3, 2), (5, 4), (6, 7)), None)
    assert log.epochs.lineage == ((0, 0), (3, 2))


@run_by(run_alone)
async def test_records_written_while_a_sync_runs_are_not_durable() -> None:
    on = disk()
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(3):
        append(log, batch(number))
    on.sync_seconds = lambda: 0.01
    syncing = asyncio.create_task(log.flush(3))
    await asyncio.sleep(0)
    append(log, batch(3))
    assert await syncing == log.flushed_offset == 3


@run_by(run_alone)
async def test_segment_checkpoint_has_no_truncated_records() -> None:
    on = disk()
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(6):
        append(log, batch(number))
    noted: list[bytes] = []

    def look(op: Op) -> None:
        if op.path == CHECKPOINT:
            noted.append(on.open(CHECKPOINT, write=False).pread(0, 1 << 20))

    on.on_op = look
    on.sync_seconds = lambda: 0.01
    syncing = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    log.truncate_to(3)
    for number in range(3, 6):
        append(log, batch(number, size=20))
    await syncing
    ends = [segment for data in noted for segment in parse_lines(data).values() if segment.next_offset == 6]
    assert ends and {segment.size for segment in ends} == {log.segments.size_bytes}


@run_by(run_alone)
async def test_fsync_keeps_the_checkpoint_line_of_a_roll_meanwhile() -> None:
    on = disk()
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(6):
        append(log, batch(number))
    on.sync_seconds = lambda: 0.01
    syncing = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    append(log, batch(6))
    log.roll()
    append(log, batch(7))
    await syncing
    assert parse_lines(on.open(CHECKPOINT, write=False).pread(0, 1 << 20))[0].next_offset == 7


@run_by(run_alone)
async def test_cut_that_a_close_interrupted_is_unsettled_after_open() -> None:
    on = disk()
    log = await open_log(on)
    for number in range(6):
        append(log, batch(number))
    log.close()
    assert not (await open_log(on)).truncations.is_unsettled
    again = await open_log(on, cut=True)
    assert again.truncations.is_unsettled
    await again.flush()
    again.truncations.mark_checkpointed(again.truncations.made, again.recovery_point)
    assert not again.truncations.is_unsettled


@pytest.mark.parametrize(("error", "final"), [("ENOSPC", False), ("EIO", True)])
@run_by(run_alone)
async def test_failed_truncation_reports_if_the_disk_failed(*, error: str, final: bool) -> None:
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
    assert log.status.write_failure and log.status.has_disk_failed is final
