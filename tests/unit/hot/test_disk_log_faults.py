"""Tests of one partition's log on a disk that fails: promised records stay, and a fault that passes leaves no trace."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.refusal import refuses
from tests.scenario import run_alone, run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import DiskFault, Op, SimDisk
from tests.unit.hot.fixtures import (
    DIRECTORY,
    NOW,
    FixedClock,
    append,
    batch,
    config,
    disk,
    offsets,
    open_log,
    read_all,
    run_scenario,
)
from tiered.errors import Code, Refused, Unavailable
from tiered.hot.disk_log import DiskLog
from tiered.hot.segments import Segment, parse_lines
from tiered.producers.states import ProducerStates

NEW_FILES = (".log", ".index", ".timeindex")


@pytest.mark.parametrize("suffix", NEW_FILES)
@run_by(run_alone)
async def test_failed_roll_leaves_no_file_that_hides_later_records(*, suffix: str) -> None:
    on = disk()
    log = await open_log(on)
    for number in range(10):
        append(log, batch(number))
    on.faults.append(DiskFault("open", path=f"{10:020d}{suffix}", error="EMFILE"))
    with pytest.raises(Refused):
        append(log, batch(10, size=300))
    assert append(log, batch(10, size=1)).base_offset == 10, "a smaller one still fits into the old segment"
    again = await open_log(on.clone())
    assert again.end_offset == 11
    assert offsets(read_all(again)) == list(range(11))


@run_by(run_alone)
async def test_next_flush_syncs_files_of_a_cancelled_flush() -> None:
    for stops_at in range(1, 9):
        on = disk(stops_at)
        log = await open_log(on)
        append(log, batch(0))
        on.sync_seconds = lambda: 0.001
        flushing = asyncio.ensure_future(log.flush())
        synced: list[Op] = []
        on.on_op = synced.append
        while len(synced) < stops_at - 1 and not flushing.done():
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        assert await log.flush(1) == 1
        on.on_op = None
        for seed in range(20):
            again = await open_log(on.crash_image(random.Random(seed)), same_boot=False, recovery_point=1)
            assert offsets(read_all(again)) == [0], f"flushed, yet gone; the first flush was stopped at {stops_at}"


@run_by(run_alone)
async def test_next_flush_syncs_files_of_a_failed_flush() -> None:
    for verb in ("open", "sync_dir"):
        on = disk()
        log = await open_log(on)
        append(log, batch(0))
        on.faults.append(DiskFault(verb, path="log/t-0" if verb == "sync_dir" else "leader-epoch", error="EMFILE"))
        with pytest.raises(Unavailable) as caught:
            await log.flush()
        assert not caught.value.final
        assert await log.flush(1) == 1
        for seed in range(20):
            again = await open_log(on.crash_image(random.Random(seed)), same_boot=False, recovery_point=1)
            assert offsets(read_all(again)) == [0]
            assert again.epochs.lineage == ((0, 0),)


@run_by(run_alone)
async def test_next_flush_makes_the_deletion_of_segments_durable() -> None:
    """Otherwise a power cut may leave the segment checkpoint empty, and the next start would read every header."""
    on = disk()
    log = await open_log(on)
    for number in range(30):
        append(log, batch(number))
    await log.flush()
    await log.drop_local_below(log.segments.closed()[0].next_offset)
    await log.flush()
    checkpoint = "log/t-0/segment-checkpoint"
    whole = on.open(checkpoint).size()
    for seed in range(20):
        after = on.crash_image(random.Random(seed))
        assert after.open(checkpoint).size() == whole
        assert (await open_log(after, same_boot=False, recovery_point=30)).end_offset == 30


@run_by(run_alone)
async def test_deletion_of_old_segments_keeps_the_proof_of_the_active_one() -> None:
    on = disk()
    log = await open_log(on)
    for number in range(30):
        append(log, batch(number))
    await log.flush()
    proved = _read_active_segment(on)
    await log.drop_local_below(log.segments.closed()[0].next_offset)
    assert _read_active_segment(on) == proved


def _read_active_segment(on: SimDisk) -> Segment:
    file = on.open("log/t-0/segment-checkpoint")
    newest = max(parse_lines(file.pread(0, file.size())).items())[1]
    assert newest.index_checksums is not None
    return newest


@run_by(run_alone)
async def test_segment_checkpoint_stays_small_after_many_flushes() -> None:
    on = disk()
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(500):
        append(log, batch(number))
        await log.flush()
    size = on.open("log/t-0/segment-checkpoint").size()
    assert size < 20_000, "a line for each flush, for ever, would be read at each start"
    again = await open_log(on.after_power_cut(), same_boot=False, recovery_point=500)
    assert again.end_offset == 500


async def write_one_producer(on: SimDisk) -> DiskLog:
    """Writes 30 durable batches of producer 7."""
    log = await open_log(on, config())
    for number in range(30):
        append(log, batch(number, producer=7, sequence=number))
    await log.flush()
    return log


@pytest.mark.parametrize("damage", ["gone", "short", "zeros"])
@run_by(run_alone)
async def test_damaged_producer_snapshot_is_rebuilt_before_upload(*, damage: str) -> None:
    """The next leader may have no other producer state than the uploaded snapshot. A damaged snapshot is therefore
    built again from the log."""
    on = disk()
    log = await write_one_producer(on)
    view = log.segments.closed()[-1]
    whole = log.segments.data(view.base_offset).producer_snapshot
    assert len(ProducerStates.from_snapshot(whole, view.next_offset)) == 1
    path = f"{DIRECTORY}/{view.next_offset:020d}.snapshot"
    held = on.open_files
    if damage == "gone":
        on.remove(path)
    else:
        file = on.open(path)
        size, held = file.size(), on.open_files - 1
        if damage == "short":
            file.truncate(size - 5)
        else:
            file.pwrite(0, bytes(size))
    made = log.segments.data(view.base_offset).producer_snapshot
    assert ProducerStates.from_snapshot(made, view.next_offset).encode_snapshot() == whole
    if damage != "gone":
        file.close()
        assert not on.exists(path) and on.open_files == held - 1, "nobody keeps open what is gone"


@pytest.mark.parametrize("seed", first_seeds(10, 30))
@run_by(run_alone)
async def test_producers_of_deleted_segments_survive_a_power_cut(*, seed: int) -> None:
    """The records are in the bucket. If a producer sends the last of them again, the log must not write it twice."""
    on = disk()
    log = await write_one_producer(on)
    log.roll()
    await log.drop_local_below(30)
    await on.sync_dir(DIRECTORY)  # as some later flush does
    again = await open_log(on.crash_image(random.Random(seed)), same_boot=False)
    assert again.local_start_offset == again.end_offset == 30
    assert append(again, batch(29, producer=7, sequence=29)).is_duplicate


def test_appends_refused_by_a_full_disk_are_logged_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        on, clock = disk(), FixedClock()
        log = await open_log(on, clock=clock)
        on.faults.append(DiskFault("append", error="ENOSPC", times=-1))
        for _ in range(3):
            for number in range(5):
                with pytest.raises(Refused):
                    append(log, batch(number))
            clock.wall += 10_000

    asyncio.run(scenario())
    said = [each.message for each in caplog.records if each.message.startswith("disk refused a write partition=t-0")]
    assert [line.partition("suppressed=")[2].split()[0] for line in said] == ["0", "4", "4"]


@run_by(run_alone)
async def test_epoch_of_a_refused_append_does_not_name_older_records_that_follow() -> None:
    """A leader whose disk was full wrote nothing in its epoch. The next leader has more records of the old epoch: under
    the wrong epoch they would differ from the leader's, and the follower would truncate them."""
    on = disk()
    leader, log = await open_log(disk()), await open_log(on)
    for number in range(3):
        append(leader, batch(number))
    log.append_as_follower(read_all(leader)[: len(read_all(leader)) // 3], now_ms=NOW)
    on.faults.append(DiskFault("append", error="ENOSPC"))
    with pytest.raises(Refused):
        append(log, batch(1), epoch=1)
    log.append_as_follower(read_all(leader, 1), now_ms=NOW)
    assert (log.epochs.lineage, log.end_offset) == (((0, 0),), 3)


@run_by(run_alone)
async def test_log_refuses_records_after_a_failed_fsync() -> None:
    """After a failed fsync the state of the page cache is unknown: a second fsync that succeeds proves nothing."""
    on = disk()
    log = await open_log(on)
    append(log, batch(0))
    on.faults.append(DiskFault("sync", path=".log"))
    with pytest.raises(Unavailable):
        await log.flush()
    on._failed = ""  # as a file system that was mounted anew
    with pytest.raises(Unavailable) as caught:
        await log.flush()
    assert caught.value.final and log.flushed_offset == 0
    for take in (lambda: append(log, batch(1)), log.roll):
        with refuses(Code.KAFKA_STORAGE_ERROR):
            take()
    assert log.end_offset == 1


@run_by(run_alone)
async def test_log_whose_restart_failed_can_be_maintained_and_closed() -> None:
    """Once, local retention of such a log was an IndexError, which ended the broker as a bug does."""
    on = disk()
    log = await open_log(on)
    append(log, batch(0))
    on.faults.append(DiskFault("open", path=".timeindex", error="EMFILE", times=-1))
    with pytest.raises(Unavailable):
        log.truncate_fully_and_start_at(20, (), None)
    assert log.status.write_failure
    assert await log.drop_local_below(30) == 0
    assert (log.local_start_offset, log.end_offset) == (20, 20)
    assert log.read(20, 100, end_offset=20) is None
    log.close()


@run_by(run_alone)
async def test_next_flush_makes_epochs_below_the_log_start_durable() -> None:
    """No batch of this log carries these epochs: they are in the epoch file only."""
    on = disk()
    log = await open_log(on)
    log.truncate_fully_and_start_at(20, ((1, 0), (4, 10)), None)
    await log.flush()
    for seed in range(20):
        again = await open_log(on.crash_image(random.Random(seed)), same_boot=False, recovery_point=20)
        assert (again.local_start_offset, again.end_offset) == (20, 20)
        assert again.epochs.lineage == ((1, 0), (4, 10))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rolled", [(), (3,), (5,), (1, 2, 3, 4, 5)])
@run_by(run_scenario)
async def test_retries_of_the_last_five_batches_are_found_after_any_start(
    on: SimDisk, *, rolled: tuple[int, ...], clean: bool
) -> None:
    """The batches may be in any segments, and the newest producer snapshot at any offset."""
    log = await open_log(on)
    for number in range(6):
        append(log, batch(number, producer=7, sequence=number))
        if number in rolled:
            log.roll()
    if clean:
        await log.close_clean()
    else:
        await log.flush()
    again = await open_log(on, clean=clean)
    assert [append(again, batch(n, producer=7, sequence=n)).base_offset for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert again.end_offset == 6
