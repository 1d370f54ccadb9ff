"""Tests of producer state after a start: the last five batches of a producer are known, and a retry gets the offset of
its first try."""

from __future__ import annotations

import pytest

from tests.refusal import refuses
from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import SimDisk
from tests.unit.hot.fixtures import DIRECTORY, NOW, append, batch, config, disk, open_log, read_all
from tiered.errors import Code
from tiered.hot.disk_log import DiskLog
from tiered.producers.entry import BATCHES_RETAINED
from tiered.records.batch import encode_batch
from tiered.records.native import walk

BATCHES = 8


async def write_batches(on: SimDisk) -> DiskLog:
    """Writes batches of two producers that take turns."""
    log = await open_log(on)
    for sequence in range(BATCHES):
        for producer in (7, 8):
            append(log, batch(sequence, producer=producer, sequence=sequence))
    return log


def check_retries(log: DiskLog) -> None:
    """Checks that the last five batches of each producer are known, that older ones are out of order, and that the next
    one is accepted."""
    end = log.end_offset
    for place, producer in enumerate((7, 8)):
        for sequence in range(BATCHES - BATCHES_RETAINED, BATCHES):
            info = append(log, batch(sequence, producer=producer, sequence=sequence))
            assert (info.base_offset, info.is_duplicate) == (2 * sequence + place, True)
        with refuses(Code.OUT_OF_ORDER_SEQUENCE_NUMBER):
            append(log, batch(0, producer=producer, sequence=BATCHES - BATCHES_RETAINED - 1))
    assert log.end_offset == end, "nothing was written again"
    assert not append(log, batch(BATCHES, producer=7, sequence=BATCHES)).is_duplicate


@pytest.mark.parametrize(
    "rolled_after", [None, 3, BATCHES], ids=["no snapshot", "a snapshot in the middle", "at the end"]
)
@run_by(run_alone)
async def test_retries_are_found_after_a_kill(*, rolled_after: int | None) -> None:
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


@run_by(run_alone)
async def test_retries_are_found_after_a_clean_stop() -> None:
    on = disk()
    await (await write_batches(on)).close_clean()
    check_retries(await open_log(on.after_kill(), clean=True))


@run_by(run_alone)
async def test_retries_of_fsynced_batches_are_found_after_a_power_cut() -> None:
    on = disk()
    log = await write_batches(on)
    await log.flush()
    check_retries(await open_log(on.after_power_cut(), same_boot=False, recovery_point=log.end_offset))


@run_by(run_alone)
async def test_retries_are_found_after_later_batches_were_cut() -> None:
    on = disk()
    log = await write_batches(on)
    end = log.end_offset
    for sequence in range(BATCHES, BATCHES + 3):
        append(log, batch(sequence, producer=7, sequence=sequence))
    log.truncate_to(end)
    check_retries(log)


@run_by(run_alone)
async def test_retries_are_found_after_everything_local_was_cut() -> None:
    """The records below the local start are in the bucket. A follower that is cut back to there may lead next."""
    log = await write_batches(disk())
    log.roll()
    await log.drop_local_below(log.end_offset)
    start = log.local_start_offset
    append(log, batch(0, producer=9, sequence=0))
    log.truncate_to(start)
    assert (log.local_start_offset, log.end_offset) == (start, start)
    check_retries(log)


@run_by(run_alone)
async def test_retries_are_found_after_a_log_from_the_bucket_was_cut() -> None:
    written = await write_batches(disk())
    end, producers = written.end_offset, written.producers.encode_snapshot()
    log = await open_log(disk())
    log.truncate_fully_and_start_at(end, ((0, 0),), producers)
    log.producers.restore_batches(walk(read_all(written)).batches)
    append(log, batch(0, producer=9, sequence=0))
    log.truncate_to(end)
    assert log.epochs.lineage == ((0, 0),)
    check_retries(log)


@run_by(run_alone)
async def test_retries_are_found_after_segments_below_a_torn_snapshot_went() -> None:
    on = disk()
    log = await write_batches(on)
    for sequence in range(2):
        log.roll()
        append(log, batch(sequence, producer=9, sequence=sequence))
    dropped_to = log.segments.closed()[-2].next_offset
    for name in on.list(DIRECTORY):
        if name.endswith(".snapshot"):
            on.open(f"{DIRECTORY}/{name}").truncate(3)
    log = await open_log(on, same_boot=False)
    assert await log.drop_local_below(dropped_to)
    assert log.local_start_offset == dropped_to
    log = await open_log(on.after_kill())
    for place, producer in enumerate((7, 8)):
        info = append(log, batch(BATCHES - 1, producer=producer, sequence=BATCHES - 1))
        assert (info.base_offset, info.is_duplicate) == (2 * (BATCHES - 1) + place, True)


@pytest.mark.parametrize("seed", range(8))
@run_by(run_alone)
async def test_producers_from_before_the_log_start_survive_stop_and_power_cut(*, seed: int) -> None:
    """The log begins at the cold end. Only its snapshot knows the producers of the records below. A clean stop keeps
    that snapshot."""
    before = await write_batches(disk())
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
        info = append(log, batch(BATCHES - 1, producer=producer, sequence=BATCHES - 1))
        assert (info.base_offset, info.is_duplicate) == (2 * (BATCHES - 1) + place, True)


def test_flush_makes_the_snapshot_that_replaced_a_torn_one_durable() -> None:
    async def scenario() -> None:
        on = disk()
        log = await write_batches(on)
        log.roll()
        await log.flush()
        name = f"log/t-0/{log.end_offset:020d}.snapshot"
        on.open(name).truncate(3)
        log._writer.take_snapshot()
        await log.flush()
        check_retries(await open_log(on.after_power_cut(), same_boot=False, recovery_point=log.end_offset))


@run_by(run_alone)
async def test_retries_from_before_a_transaction_are_found_after_a_kill() -> None:
    """A start reads the last batches of a producer. Here a transaction begins behind them."""
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


@run_by(run_alone)
async def test_retries_behind_a_snapshot_in_the_segment_are_found_after_a_kill() -> None:
    """A clean stop writes a snapshot at the end of a log of several segments. The log continues in the last of these
    segments."""
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


@pytest.mark.parametrize("tiered", [False, True])
@run_by(run_alone)
async def test_only_a_tiered_log_waits_for_producers_from_its_lost_begin(*, tiered: bool) -> None:
    """Nobody else knows them. A tiered log asks the bucket instead, and its snapshots do not hide that."""
    on, settings = disk(), config(remote_storage_enable=tiered)
    log = await open_log(on, settings)
    for producer in (7, 8, 9):
        append(log, batch(0, producer=producer, sequence=0))
        log.roll()
    for name in on.list(DIRECTORY):
        if name.startswith(f"{0:020d}."):
            on.remove(f"{DIRECTORY}/{name}")
        elif name.endswith(".snapshot"):
            on.open(f"{DIRECTORY}/{name}").truncate(0)
    log = await open_log(on, settings, same_boot=False)
    assert log.producers.is_incomplete
    append(log, batch(0, producer=10, sequence=0))
    log.roll()
    assert await log.drop_local_below(3) == 2
    await log.close_clean()
    known = (await open_log(on.after_kill(), settings, clean=True)).producers
    assert [each.producer_id for each in known.list_producers()] == ([10] if tiered else [8, 9, 10])
    assert known.is_incomplete is tiered
