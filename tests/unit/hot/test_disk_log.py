"""Tests of one partition's log: the results that producers and readers get, and the files on the disk afterwards."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Awaitable, Callable

import pytest

from tests.refusal import refuses
from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.unit.hot.fixtures import (
    DIRECTORY,
    NOW,
    FixedClock,
    append,
    batch,
    config,
    disk,
    max_timestamp,
    offset_for_timestamp,
    offsets,
    open_log,
    read_all,
)
from tiered.errors import Code, Corrupt, Refused, Unavailable
from tiered.hot.disk_log import DiskLog, LogAppendInfo
from tiered.hot.time_lookup import TimeLookups
from tiered.producers.limits import ProducerLimits
from tiered.producers.states import ProducerStates
from tiered.records.native import walk


def run_scenario(scenario: Callable[[SimDisk], Awaitable[None]]) -> None:
    asyncio.run(_tell(scenario))


async def _tell(scenario: Callable[[SimDisk], Awaitable[None]]) -> None:
    await scenario(disk())


async def fill_log(on: SimDisk, batches: int = 30, *, clock: FixedClock | None = None, **settings: object) -> DiskLog:
    """Returns a log of `batches` batches with one record each, about 141 bytes: three segments."""
    log = await open_log(on, config(**settings), clock=clock)
    for number in range(batches):
        append(log, batch(number, at=NOW))
    return log


def refusal(call: Callable[[], object]) -> Code:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.code


@run_by(run_scenario)
async def test_reads_of_any_size_return_all_records_in_order(on: SimDisk) -> None:
    log = await fill_log(on)
    whole = read_all(log)
    assert offsets(whole) == list(range(30))
    for size in (0, 1, 150, 1000, 1 << 20):
        assert read_all(log, max_bytes=size) == whole
    for start in range(30):
        assert offsets(read_all(log, start))[0] == start


@run_by(run_scenario)
async def test_read_begins_with_the_batch_of_its_offset_and_ends_at_its_limit(on: SimDisk) -> None:
    log = await open_log(on)
    for first in (0, 3, 6):
        append(log, batch(first, 3))
    found = log.read(4, 1 << 20, end_offset=9)
    assert found is not None
    assert offsets(found.file.pread(found.start, found.length)) == [3, 4, 5, 6, 7, 8]
    found = log.read(4, 1 << 20, end_offset=7)
    assert found is not None
    assert offsets(found.file.pread(found.start, found.length)) == [3, 4, 5]
    assert log.read(4, 1 << 20, end_offset=5) is None, "a batch that crosses the end is not whole yet"
    assert log.read(9, 100, end_offset=9) is None


@run_by(run_scenario)
async def test_read_outside_of_the_log_is_out_of_range(on: SimDisk) -> None:
    log = await fill_log(on)
    assert refusal(lambda: log.read(31, 1, end_offset=30)) is Code.OFFSET_OUT_OF_RANGE
    log.advance_start(7)
    assert refusal(lambda: log.read(6, 1, end_offset=30)) is Code.OFFSET_OUT_OF_RANGE
    assert offsets(read_all(log))[0] == 7


@run_by(run_scenario)
async def test_log_start_never_goes_back_and_never_beyond_the_end(on: SimDisk) -> None:
    log = await fill_log(on)
    log.advance_start(7)
    log.advance_start(3)
    assert log.start_offset == 7
    log.advance_start(1000)
    assert log.start_offset == log.end_offset == 30


@run_by(run_scenario)
async def test_log_that_began_anew_is_not_durable(on: SimDisk) -> None:
    log = await fill_log(on)
    await log.flush()
    assert log.flushed_offset == 30
    log.truncate_fully_and_start_at(5, ((0, 0),), None)
    append(log, batch(5, at=NOW))
    assert log.flushed_offset <= 5


@run_by(run_scenario)
async def test_snapshot_at_the_base_of_each_segment_stays(on: SimDisk) -> None:
    log = await fill_log(on)
    log.roll()
    bases = [segment.base_offset for segment in log.segments.closed()] + [log.end_offset]
    assert len(bases) > 3
    names = on.list(DIRECTORY)
    assert [base for base in bases[1:] if f"{base:020d}.snapshot" not in names] == []


class ListingDisk(SimDisk):
    """A disk that counts how often a directory was listed."""

    listed = 0

    def list(self, path: str) -> list[str]:
        self.listed += 1
        return super().list(path)


@run_by(run_alone)
async def test_roll_does_not_list_the_directory_of_its_log() -> None:
    """It may have the files of very many segments, and a roll runs between the requests of all clients."""
    on = ListingDisk(random.Random(1))
    log = await fill_log(on)
    log.roll()
    on.listed = 0
    for number in range(30, 60):
        append(log, batch(number, at=NOW))
        log.roll()
    assert on.listed == 0
    bases = [segment.base_offset for segment in log.segments.closed()] + [log.end_offset]
    kept = {int(name[:20]) for name in on.list(DIRECTORY) if name.endswith(".snapshot")}
    assert kept == set(bases[1:])


@run_by(run_scenario)
async def test_closed_segments_are_found_by_their_end(on: SimDisk) -> None:
    log = await fill_log(on)
    log.roll()
    closed = log.segments.closed()
    assert len(closed) == 3
    for above in range(log.end_offset + 2):
        expected = [each for each in closed if each.next_offset > above]
        assert log.segments.closed(above) == expected
        for limit in range(3):
            assert log.segments.closed(above, limit) == expected[:limit]


@run_by(run_scenario)
async def test_small_index_closes_no_segment_of_a_few_batches(on: SimDisk) -> None:
    """Owners of topics choose the size and the interval, and each segment costs the broker four files and an upload."""
    log = await fill_log(on, 300, segment_index_bytes=4, index_interval_bytes=0, segment_bytes=1 << 20)
    assert log.segments.count == 1


@run_by(run_scenario)
async def test_name_of_the_snapshot_is_durable_before_the_segments_below_it_go(on: SimDisk) -> None:
    log = await fill_log(on)
    changes: list[str] = []
    on.on_op = lambda op: changes.append(f"{op.verb} {op.path}")
    await log.drop_local_below(log.segments.closed()[0].next_offset)
    first_gone = next(number for number, change in enumerate(changes) if change.endswith(".deleted"))
    assert f"sync_dir {DIRECTORY}" in changes[:first_gone]


@run_by(run_scenario)
async def test_retry_gets_the_offsets_of_the_first_try(on: SimDisk) -> None:
    log = await open_log(on)
    first = append(log, batch(0, 2, producer=7, sequence=0))
    append(log, batch(2, 1, producer=7, sequence=2))
    assert first == LogAppendInfo(0, 1, -1, False)
    assert append(log, batch(0, 2, producer=7, sequence=0)) == LogAppendInfo(0, 1, -1, True)
    both = batch(2, 1, producer=7, sequence=2) + batch(3, 1, producer=7, sequence=3)
    assert append(log, both) == LogAppendInfo(2, 3, -1, False)
    assert offsets(read_all(log)) == [0, 1, 2, 3]


@run_by(run_scenario)
async def test_retry_gets_the_first_offsets_after_a_clean_stop(on: SimDisk) -> None:
    log = await open_log(on)
    for number in range(6):
        append(log, batch(number, producer=7, sequence=number))
    await log.close_clean()
    again = await open_log(on, clean=True)
    assert [append(again, batch(n, producer=7, sequence=n)).base_offset for n in range(1, 6)] == [1, 2, 3, 4, 5]
    assert again.end_offset == 6
    assert again.flushed_offset == 6


async def find_newest(log: DiskLog) -> tuple[int, int, int] | None:
    return await offset_for_timestamp(log, max_timestamp(log), TimeLookups())


@run_by(run_scenario)
async def test_time_lookup_finds_the_first_record_at_or_after_a_time(on: SimDisk) -> None:
    log = await open_log(on)
    times = [5, 9, 7, 7, 20, 11, 30, 2, 31, 40] * 3
    for number, time in enumerate(times):
        append(log, batch(number, at=NOW + time * 10 - number), epoch=number // 10)
    stamps = [NOW + time * 10 for time in times]
    for asked in range(NOW, NOW + 410, 5):
        first = next((i for i, stamp in enumerate(stamps) if stamp >= asked), None)
        found = await offset_for_timestamp(log, asked, TimeLookups())
        assert found == (None if first is None else (first, stamps[first], first // 10))
    assert await find_newest(log) == (9, NOW + 400, 0)
    log.advance_start(10)
    assert await find_newest(log) == (19, NOW + 400, 1)


@run_by(run_scenario)
async def test_segments_roll_by_size_and_by_age(on: SimDisk) -> None:
    log = await fill_log(on, segment_ms=1000)
    assert [view.size <= 1500 for view in log.segments.closed()] == [True] * (log.segments.count - 1)
    assert log.segments.count == 3
    assert not log.is_roll_due(NOW + 999)
    assert log.is_roll_due(NOW + 1000)
    log.roll()
    log.roll()
    assert log.segments.count == 4
    assert log.segments.active.base_offset == log.end_offset == 30


@run_by(run_scenario)
async def test_segment_data_from_inside_a_segment_has_relative_positions(on: SimDisk) -> None:
    log = await fill_log(on)
    first = log.segments.closed()[0]
    cut = log.segments.data(first.base_offset, from_offset=6)
    whole = log.segments.data(first.base_offset)
    assert (cut.base_offset, cut.next_offset) == (6, first.next_offset)
    assert offsets(cut.log.file.pread(cut.log.start, cut.log.length)) == list(range(6, first.next_offset))
    assert whole.log.length == first.size
    position = 0
    for number in range(0, len(cut.offset_index), 8):
        relative, position = (int.from_bytes(cut.offset_index[number + at : number + at + 4], "big") for at in (0, 4))
        entry = walk(cut.log.file.pread(cut.log.start + position, 200), max_batches=1).batches[0]
        assert entry.last_offset == 6 + relative
    assert position > 0
    assert cut.lineage == ((0, 6),)
    assert ProducerStates.from_snapshot(whole.producer_snapshot, whole.next_offset).end_offset == whole.next_offset


@run_by(run_scenario)
async def test_deleted_segments_end_at_once_and_their_files_after_the_delay(on: SimDisk) -> None:
    clock = FixedClock()
    log = await fill_log(on, clock=clock, file_delete_delay_ms=60_000)
    views = log.segments.closed()
    held = views[0].log
    assert await log.drop_local_below(views[0].next_offset + 1) == 1
    assert log.local_start_offset == views[0].next_offset
    assert held.file.pread(0, held.length), "who reads it already may finish"
    assert await log.delete_dropped_files(NOW + 59_999) == 0
    assert await log.delete_dropped_files(NOW + 60_000) == 3
    assert not [name for name in on.list(DIRECTORY) if name.endswith(".deleted")]
    assert await log.drop_local_below(1000) == 1, "the active segment never goes"


@run_by(run_scenario)
async def test_truncation_removes_records_producers_epochs_and_index_entries(on: SimDisk) -> None:
    log = await open_log(on)
    for number in range(30):
        append(log, batch(number, producer=7, sequence=number), epoch=number // 10)
    before = read_all(log)
    log.truncate_to(15)
    assert log.end_offset > 15, "the segments above come first: a power cut could bring them back"
    log.truncate_to(15)
    assert log.end_offset == 15
    assert read_all(log) == before[: len(read_all(log))]
    assert list(log.epochs.lineage) == [(0, 0), (1, 10)]
    assert append(log, batch(15, producer=7, sequence=15), epoch=3).base_offset == 15
    assert list(log.epochs.lineage) == [(0, 0), (1, 10), (3, 15)]
    for _ in range(2):
        log.truncate_to(0)
    assert (log.end_offset, log.local_start_offset, len(log.producers)) == (0, 0, 0)


@pytest.mark.parametrize("policy", ["delete", "compact"])
@run_by(run_scenario)
async def test_truncation_removes_a_damaged_header_above_its_offset(on: SimDisk, *, policy: str) -> None:
    log = await open_log(on, config(cleanup_policy=policy))
    for number in range(40):
        append(log, batch(number))
    await log.flush()
    before, keep = read_all(log), log.segments.closed()[1]
    cut = keep.base_offset + 3
    last = walk(keep.log.file.pread(0, keep.size)).batches[-1]
    flip_length(on, keep.base_offset, last.position)
    for _ in range(2):
        log.truncate_to(cut)
        await log.flush()
    assert log.end_offset == cut and offsets(read_all(log)) == [*range(cut)] and before.startswith(read_all(log))
    append(log, batch(cut))
    after = read_all(log)
    assert read_all(await open_log(on.after_kill(), config(cleanup_policy=policy))) == after


@run_by(run_scenario)
async def test_truncation_changes_nothing_if_the_log_is_damaged_below_its_offset(on: SimDisk) -> None:
    log = await open_log(on, config(cleanup_policy="compact", index_interval_bytes=1 << 16))
    for number in range(40):
        append(log, batch(number))
    await log.flush()
    base, names = log.segments.closed()[1].base_offset, on.list(DIRECTORY)
    flip_length(on, base, 0)
    with pytest.raises(Corrupt):
        log.truncate_to(base + 3)
    assert (log.end_offset, log.status.write_failure, on.list(DIRECTORY)) == (40, "", names)


def flip_length(on: SimDisk, base: int, position: int) -> None:
    """Makes the length in a batch header negative."""
    on.flip_bit(f"{DIRECTORY}/{base:020d}.log", 8 * (position + 8) + 7)


@run_by(run_scenario)
async def test_kill_after_a_truncation_leaves_the_start_of_the_last_epoch(on: SimDisk) -> None:
    """The truncation writes index entries. A start walks only the batches after them for epochs."""
    log = await open_log(on, config(segment_bytes=1 << 20))
    for number in range(20):
        append(log, batch(number), epoch=number // 10)
        if number == 5:
            await log.flush()
    log.truncate_to(18)
    again = await open_log(on.after_kill(), config(segment_bytes=1 << 20))
    assert (again.end_offset, again.epochs.lineage) == (18, ((0, 0), (1, 10)))


@pytest.mark.parametrize(("start", "cut", "then"), [(5, 12, 5), (15, 12, 12), (15, 0, 0)])
@run_by(run_scenario)
async def test_log_does_not_end_below_its_start_after_a_cut(on: SimDisk, *, start: int, cut: int, then: int) -> None:
    """Records that are appended at the log start are read, also after the next start, which uses the start offset of
    the checkpoint."""
    log = await open_log(on)
    for number in range(20):
        append(log, batch(number))
    log.advance_start(start)
    for _ in range(2):
        log.truncate_to(cut)
    assert (log.start_offset, log.end_offset) == (then, cut)
    append(log, batch(cut), epoch=1)
    assert log.read(cut, 1, end_offset=cut + 1) is not None
    log.close()
    again = await open_log(on, start_offset=log.start_offset)
    assert again.end_offset == cut + 1 and again.read(cut, 1, end_offset=cut + 1) is not None


@run_by(run_scenario)
async def test_restarted_log_has_the_history_of_the_offsets_below(on: SimDisk) -> None:
    log = await fill_log(on)
    states = ProducerStates(100)
    states.apply(walk(batch(0, producer=9, sequence=4)).batches[0], NOW)
    log.truncate_fully_and_start_at(100, ((0, 0), (4, 60)), states.encode_snapshot())
    assert (log.end_offset, log.local_start_offset, log.segments.count) == (100, 100, 1)
    assert log.epochs.lineage == ((0, 0), (4, 60))
    assert append(log, batch(0, producer=9, sequence=5), epoch=5).base_offset == 100
    log.close()
    again = await open_log(on)
    assert (again.end_offset, again.epochs.lineage) == (101, ((0, 0), (4, 60), (5, 100)))


@run_by(run_scenario)
async def test_log_restarted_at_the_cold_end_knows_as_many_producers_as_set(on: SimDisk) -> None:
    """`tiered.producer.ids.max.per.partition` is 40,000. Once, the log kept 10,000, which is the default."""
    before = ProducerStates(0, ProducerLimits(40_000, 200_000))
    one = walk(batch(0, producer=9, sequence=4)).batches[0]
    for number in range(10_001):
        before.apply(one._replace(producer_id=number, base_offset=number, last_offset=number), NOW)
    limits = ProducerLimits(40_000, 200_000)
    log = await open_log(on, limits=limits)
    append(log, batch(0, producer=9, sequence=0))
    log.truncate_fully_and_start_at(10_001, ((0, 0),), before.encode_snapshot())
    assert len(log.producers) == limits.producer_count == 10_001
    log.close()
    assert limits.producer_count == 0


@run_by(run_scenario)
async def test_fsync_that_cannot_begin_makes_no_progress(on: SimDisk) -> None:
    """Its indexes find no room. Nobody waits for it, and the disk is not stalled."""
    log = await fill_log(on)
    on.faults.append(DiskFault("append", "index", "ENOSPC", times=-1))
    with pytest.raises(Unavailable):
        await log.flush()
    assert log.flush_progress_ns is None
    on.faults.clear()
    await log.flush()
    assert log.flush_progress_ns is None and log.flushed_offset == log.end_offset


@run_by(run_scenario)
async def test_full_disk_refuses_appends_and_loses_no_record(on: SimDisk) -> None:
    log = await fill_log(on, 5)
    whole = read_all(log)
    on.faults.append(DiskFault("append", error="ENOSPC", times=-1))
    assert refusal(lambda: append(log, batch(5, producer=1, sequence=0))) is Code.KAFKA_STORAGE_ERROR
    for number in range(20):
        assert refusal(lambda number=number: append(log, batch(number))) is Code.KAFKA_STORAGE_ERROR  # type: ignore[misc]
    assert read_all(log) == whole
    on.faults.clear()
    assert append(log, batch(5, producer=1, sequence=0)).base_offset == 5
    again = await open_log(on)
    assert read_all(again) == read_all(log)


@run_by(run_scenario)
async def test_log_takes_records_again_after_a_full_disk_at_a_roll(on: SimDisk) -> None:
    log = await fill_log(on, 9)
    for verb in (".timeindex", "segment-checkpoint", ".snapshot"):
        on.faults.append(DiskFault("append", path=verb, error="ENOSPC"))
        assert refusal(log.roll) is Code.KAFKA_STORAGE_ERROR
    log.roll()
    assert append(log, batch(9)).base_offset == 9
    assert offsets(read_all(log)) == list(range(10))
    again = await open_log(on)
    assert read_all(again) == read_all(log)
    assert again.segments.closed()[0].next_offset == 9


@run_by(run_scenario)
async def test_failed_fsync_is_final(on: SimDisk) -> None:
    log = await fill_log(on, 3)
    on.faults.append(DiskFault("sync"))
    with pytest.raises(Unavailable) as first:
        await log.flush()
    assert first.value.final
    with pytest.raises(Unavailable):
        await log.flush()
    assert log.flushed_offset == 0
    assert refusal(lambda: append(log, batch(3))) is Code.KAFKA_STORAGE_ERROR
    assert offsets(read_all(log)) == [0, 1, 2]


@run_by(run_scenario)
async def test_concurrent_flushes_share_an_fsync(on: SimDisk) -> None:
    log = await fill_log(on, 3)
    await log.flush()
    synced: list[str] = []
    on.on_op = lambda op: synced.append(op.path) if op.verb == "sync" else None
    on.sync_seconds = lambda: 0.001
    append(log, batch(3))
    assert await asyncio.gather(*[log.flush(4) for _ in range(50)]) == [4] * 50
    assert len(synced) == 1


@run_by(run_scenario)
async def test_fsync_goes_on_if_its_caller_gives_up(on: SimDisk) -> None:
    """Once, each try began it anew: on a disk that took longer than the caller's timeout, none came to its end."""
    log = await fill_log(on, 3)
    await log.flush()
    pauses = [0.01]
    on.sync_seconds = pauses.pop  # a second fsync is an IndexError
    append(log, batch(3))
    for _ in range(3):
        flushing = asyncio.create_task(log.flush(4))
        for _ in range(3):
            await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.gather(flushing, return_exceptions=True)
        assert flushing.cancelled() and log.flushed_offset == 3
    assert await log.flush(4) == 4 and not pauses


@run_by(run_scenario)
async def test_fsync_that_fails_after_its_caller_gave_up_ends_the_log(on: SimDisk) -> None:
    log = await fill_log(on, 3)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    on.sync_seconds = lambda: 0.001
    on.faults.append(DiskFault("sync", path=".log", skip=1))  # skips the check before the delay
    flushing = asyncio.create_task(log.flush(3))
    await asyncio.sleep(0)
    flushing.cancel()
    while not log.status.write_failure:
        await asyncio.sleep(0)
    with pytest.raises(Unavailable) as caught:
        await log.flush(3)
    del flushing
    gc.collect()
    assert caught.value.final and log.status.has_disk_failed and log.flushed_offset == 0 and not complaints
    assert refusal(lambda: append(log, batch(3))) is Code.KAFKA_STORAGE_ERROR


@run_by(run_scenario)
async def test_records_truncated_during_an_fsync_do_not_count_as_flushed(on: SimDisk) -> None:
    log = await fill_log(on, 8)
    on.sync_seconds = lambda: 0.001
    flushing = asyncio.ensure_future(log.flush(8))
    await asyncio.sleep(0)
    log.truncate_to(3)
    assert log.flushed_offset == 0
    assert await flushing == 3
    append(log, batch(3))
    assert log.flushed_offset == 3
    assert await log.flush(4) == 4


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["gone", "flipped", "short", "long", "zeros"])
@run_by(run_scenario)
async def test_damaged_index_is_rebuilt(on: SimDisk, *, suffix: str, damage: str) -> None:
    log = await fill_log(on)
    whole, sections = read_all(log), [log.segments.data(view.base_offset) for view in log.segments.closed()]
    log.close()
    for name in [name for name in on.list(DIRECTORY) if name.endswith(suffix)]:
        _damage(on, f"{DIRECTORY}/{name}", damage)
    for same_boot in (True, False):
        again = await open_log(on.clone(), same_boot=same_boot)
        assert read_all(again) == whole
        assert await offset_for_timestamp(again, NOW + 25, TimeLookups()) == (25, NOW + 25, 0)
        assert [again.segments.data(view.base_offset)[3:] for view in again.segments.closed()] == [
            one[3:] for one in sections
        ]


def _damage(on: SimDisk, path: str, how: str) -> None:
    file = on.open(path)
    data = file.pread(0, file.size())
    after = {
        "gone": b"",
        "flipped": bytes([data[0] ^ 0x40]) + data[1:] if data else b"",
        "short": data[:-5],
        "long": data + b"\x01" * 24,
        "zeros": bytes(len(data)),
    }[how]
    file.truncate(0)
    file.append([after])
    if how == "gone":
        on.remove(path)


@pytest.mark.parametrize("name", ["leader-epoch-checkpoint", "segment-checkpoint", "partition.metadata"])
@pytest.mark.parametrize("damage", ["gone", "flipped", "short", "zeros"])
@run_by(run_scenario)
async def test_damaged_checkpoint_is_rebuilt(on: SimDisk, *, name: str, damage: str) -> None:
    log = await open_log(on)
    for number in range(30):
        append(log, batch(number), epoch=number // 8)
    written = read_all(log)
    log.close()
    if not (name == "partition.metadata" and damage == "flipped"):
        _damage(on, f"{DIRECTORY}/{name}", damage)
    again = await open_log(on)
    assert read_all(again) == written
    assert again.epochs.lineage == log.epochs.lineage


@run_by(run_scenario)
async def test_read_at_a_gap_of_a_shortened_segment_is_refused(on: SimDisk) -> None:
    log = await fill_log(on)
    first = log.segments.closed()[0]
    log.close()
    on.open(f"{DIRECTORY}/{first.base_offset:020d}.log").truncate(first.size - 1)
    again = await open_log(on)
    missing = first.next_offset - 1
    assert again.segments.gaps == [(missing, first.next_offset)]
    assert again.end_offset == 30
    with pytest.raises(Corrupt):
        again.read(missing, 100, end_offset=30)
    assert offsets(read_all(again, first.next_offset)) == list(range(first.next_offset, 30))


@run_by(run_scenario)
async def test_closed_log_touches_no_file_of_the_next_topic(on: SimDisk) -> None:
    """The directory may be of a topic that was made again, whose files have the same names."""
    log = await fill_log(on)
    second = log.segments.closed()[1].base_offset
    assert await log.drop_local_below(second) == 1
    log.close()
    held = {name: bytes(on.open(f"{DIRECTORY}/{name}").pread(0, 1 << 20)) for name in on.list(DIRECTORY)}
    for action in (log.roll, lambda: log.truncate_to(second)):
        with pytest.raises(Refused, match="is closed"):
            action()
    with pytest.raises(Unavailable, match="is closed"):
        log.read(second, 100, end_offset=30)
    for work in (log.delete_dropped_files(1 << 60), log.drop_local_below(30)):
        with pytest.raises(Unavailable, match="is closed"):
            await work
    assert {name: bytes(on.open(f"{DIRECTORY}/{name}").pread(0, 1 << 20)) for name in on.list(DIRECTORY)} == held


@run_by(run_scenario)
async def test_log_that_closes_on_a_full_disk_touches_no_file_after_it(on: SimDisk) -> None:
    log = await fill_log(on)
    second = log.segments.closed()[1].base_offset
    assert await log.drop_local_below(second) == 1
    on.faults = [DiskFault("append", DIRECTORY, "ENOSPC", times=-1)]
    with pytest.raises(Unavailable):
        log.close()
    on.faults = []
    held = on.list(DIRECTORY)
    with pytest.raises(Unavailable, match="is closed"):
        await log.delete_dropped_files(1 << 60)
    assert on.list(DIRECTORY) == held


@run_by(run_scenario)
async def test_drop_that_waits_for_an_fsync_takes_no_records_of_a_later_history(on: SimDisk) -> None:
    log = await fill_log(on)
    await log.flush()
    log.advance_start(25)
    waits, goes_on, delay = asyncio.Event(), asyncio.Event(), on.sync_delay

    async def wait(verb: str, path: str) -> None:
        if path.endswith(".snapshot") and not waits.is_set():
            waits.set()
            await goes_on.wait()
        await delay(verb, path)

    on.sync_delay = wait  # type: ignore[method-assign]
    dropping = asyncio.create_task(log.drop_local_below(25))
    await waits.wait()
    while log.end_offset:  # the next leader has none of these records
        log.plan_truncation(0)
        log.truncate_to(0)
        await log.flush()
    for number in range(30):
        append(log, batch(100 + number), epoch=1)
    goes_on.set()
    assert await dropping == 0
    assert (log.start_offset, log.local_start_offset) == (0, 0)
    assert offsets(read_all(log)) == list(range(30))


@run_by(run_scenario)
async def test_directory_of_another_topic_is_refused(on: SimDisk) -> None:
    (await fill_log(on, 1)).close()
    file = on.open(f"{DIRECTORY}/partition.metadata")
    file.truncate(0)
    file.append([b"version: 0\ntopic_id: BBBBBBBBBBBBBBBBBBBBBB"])
    with refuses(Code.INCONSISTENT_CLUSTER_ID):
        await open_log(on)


@run_by(run_scenario)
async def test_request_larger_than_a_segment_gets_a_segment_of_its_own(on: SimDisk) -> None:
    """Clients drop the records of a batch that a topic is too small for, and batches grow while a broker is away."""
    log = await open_log(on)
    large = batch(0, size=800) + batch(1, size=800)
    for data in (batch(0, size=80), large, batch(0, size=1800), batch(0, size=80)):
        append(log, data)
    assert [(each.base_offset, each.next_offset) for each in log.segments.closed()] == [(0, 1), (1, 3), (3, 4)]
    assert (log.segments.active.base_offset, log.end_offset) == (4, 5)
    again = await open_log(on.after_kill())
    assert again.end_offset == 5 and again.segments.count == 4


@pytest.mark.parametrize("turns", [1, 2])
@run_by(run_scenario)
async def test_flush_of_a_closed_log_writes_nothing_into_a_new_log_of_its_name(on: SimDisk, *, turns: int) -> None:
    """A deleted topic that is made again has a log of the same name, while the fsync of the old one still runs."""
    old = await fill_log(on, 9, segment_bytes=1 << 20)
    on.sync_seconds = lambda: 0.01
    flushing = asyncio.ensure_future(old.flush())
    for _ in range(turns):
        await asyncio.sleep(0)
    old.close()
    on.rename(DIRECTORY, f"{DIRECTORY}-delete")
    new = await open_log(on, config(segment_bytes=1 << 20))
    append(new, batch(0))
    before = {name: on.open(f"{DIRECTORY}/{name}").map().tobytes() for name in on.list(DIRECTORY)}
    (outcome,) = await asyncio.gather(flushing, return_exceptions=True)
    assert {name: on.open(f"{DIRECTORY}/{name}").map().tobytes() for name in on.list(DIRECTORY)} == before
    assert isinstance(outcome, Unavailable)
