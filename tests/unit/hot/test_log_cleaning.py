"""Tests of a clean on disk: reads, restarts, followers and truncations of a log with gaps, and its limits."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace

import pytest

from tests.scenario import run_alone, run_by
from tests.seeds import first_seeds
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.unit.hot.cleaning import clean, facts, put, read_all, resources, run_inline, served
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
    open_log,
)
from tests.unit.hot.transactions import TransactionWriter
from tiered.config.settings import TopicConfig
from tiered.errors import Corrupt, Refused, Unavailable
from tiered.hot import log_cleaning
from tiered.hot.disk_log import DiskLog
from tiered.hot.log_cleaning import LogChanged
from tiered.hot.time_lookup import TimeLookups
from tiered.records.batch import decode_header, encode_batch, stamp
from tiered.records.model import Codec
from tiered.records.native import walk

KEYS = 5


def compacted(**changes: object) -> TopicConfig:
    return config(**{"cleanup_policy": ("compact",), "segment_bytes": 1024, **changes})


async def filled(on: SimDisk, records: int = 60, *, clock: FixedClock | None = None) -> DiskLog:
    """Returns a log with several closed segments, all flushed, in which each key has many values."""
    log = await open_log(on, compacted(), clock=clock)
    for number in range(records):
        put(log, f"k{number % KEYS}", f"v{number}")
    log.roll()
    await log.flush()
    return log


def last_of_each(records: list[tuple[int, str, str | None]]) -> list[tuple[int, str, str | None]]:
    latest = {key: offset for offset, key, _ in records}
    return [each for each in records if latest[each[1]] == each[0]]


def names(on: SimDisk) -> list[str]:
    return on.list(DIRECTORY)


@run_by(run_alone)
async def test_clean_keeps_the_last_record_of_each_key_in_one_segment() -> None:
    log = await filled(disk())
    before, segments, end = served(log), log.segments.count, log.end_offset
    log.configure(compacted(segment_bytes=1 << 20))
    result = await clean(log)
    assert served(log) == last_of_each(before) and len(served(log)) == KEYS
    assert log.segments.count == 2 < segments
    assert (result.clean_to, log.end_offset, log.local_start_offset) == (end, end, 0)
    assert result.records_read == 60 and result.records_kept == KEYS and result.bytes_after < result.bytes_before
    assert log.compaction.find_cleanable(log.start_offset, end, NOW).dirty_bytes == 0


@run_by(run_alone)
async def test_reader_that_stands_in_a_gap_gets_the_next_record() -> None:
    log = await filled(disk())
    log.configure(compacted(segment_bytes=1 << 20))
    await clean(log)
    after = put(log, "new", "1")
    whole = served(log)
    for offset in range(log.end_offset):
        following = next(each for each in whole if each[0] >= offset)
        assert facts(read_all(log, offset))[0] == following, offset
    assert log.read(0, 1 << 20, end_offset=10) is None, "nothing is left below the limit"
    assert whole[-1] == (after, "new", "1")


@run_by(run_alone)
async def test_reader_during_a_clean_gets_whole_batches_and_each_last_record() -> None:
    """The positions at which a reader continues are those of the files that are there."""
    log = await open_log(disk(), compacted())
    for number in range(60):
        put(log, f"k{number % KEYS}" if number % 3 else f"only{number}", f"v{number}")
    log.roll()
    await log.flush()
    before, seen = served(log), 0

    async def admit(_: int) -> None:
        nonlocal seen
        seen += 1
        found = facts(read_all(log, max_bytes=1))
        assert set(last_of_each(before)) <= set(found) <= set(before) and found == sorted(found)

    await log.compaction.clean(
        log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW), replace(resources(), admit=admit)
    )
    assert seen > 10


@run_by(run_alone)
async def test_slice_that_was_read_before_keeps_its_bytes() -> None:
    on = disk()
    log = await filled(on)
    found = log.read(0, 400, end_offset=log.end_offset)
    assert found is not None
    data = found.file.pread(found.start, found.length)
    await clean(log)
    assert found.file.pread(found.start, found.length) == data
    assert any(name.endswith(".deleted") for name in names(on))
    assert await log.delete_dropped_files(NOW + 60_000) > 0


@pytest.mark.parametrize("policy", [("compact",), ("delete",)])
@pytest.mark.parametrize("power_cut", [False, True])
@run_by(run_alone)
async def test_cleaned_log_is_whole_after_a_restart_under_any_policy(
    *, policy: tuple[str, ...], power_cut: bool
) -> None:
    on = disk()
    log = await filled(on)
    await clean(log)
    put(log, "new", "1")
    await log.flush()
    whole, state, end = served(log), log.compaction.state, log.end_offset
    again = on.after_power_cut() if power_cut else on.after_kill()
    reopened = await open_log(
        again, compacted(cleanup_policy=policy), same_boot=not power_cut, recovery_point=0 if power_cut else end
    )
    assert served(reopened) == whole and reopened.end_offset == end and not reopened.suspect
    assert reopened.compaction.state == state and not reopened.segments.gaps


@run_by(run_alone)
async def test_segment_without_a_record_left_keeps_its_last_batch() -> None:
    log = await filled(disk())
    segments = [(each.base_offset, each.next_offset) for each in log.segments.closed()]
    await clean(log)
    for base, end in segments:
        [view] = [each for each in log.segments.closed() if each.base_offset == base]
        heads, at = [], 0
        while at < view.size:
            heads.append(decode_header(view.log.file.pread(at, 61)))
            at += heads[-1].size
        assert heads[-1].next_offset == end == view.next_offset
    assert len(served(log)) == KEYS


@run_by(run_alone)
async def test_lookup_by_time_finds_records_and_no_batch_without_one() -> None:
    on = disk()
    log = await open_log(on, compacted())
    for number in range(30):
        data = encode_batch(
            [(NOW + number, b"k%d" % (number % 3), b"v", ())], producer_id=number, producer_epoch=0, base_sequence=0
        )
        append(log, bytearray(data))
    late = encode_batch([(NOW + 99, b"k0", b"v", ())], producer_id=99, producer_epoch=0, base_sequence=0)
    append(log, bytearray(late))
    append(log, bytearray(encode_batch([(NOW + 50, b"k0", b"v", ())])))
    log.roll()
    await log.flush()
    await clean(log)
    kept = {each[0] for each in served(log)}
    assert kept == {28, 29, 31} and max_timestamp(log) == NOW + 50
    for at in range(30):
        assert await offset_for_timestamp(log, NOW + at, TimeLookups()) == (max(at, 28), NOW + max(at, 28), 0)
    assert await offset_for_timestamp(log, NOW + 40, TimeLookups()) == (31, NOW + 50, 0)
    assert await offset_for_timestamp(log, NOW + 60, TimeLookups()) is None


@run_by(run_alone)
async def test_dirty_part_is_cleaned_against_the_clean_part() -> None:
    log = await filled(disk())
    await clean(log)
    put(log, "k0", "newest")
    put(log, "k1", None)
    log.roll()
    await log.flush()
    found = log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW)
    assert found.first_dirty == 60 and found.clean_bytes > 0 and found.dirty_bytes > 0
    before = served(log)
    await clean(log)
    assert served(log) == last_of_each(before)


@run_by(run_alone)
async def test_keys_beyond_the_memory_are_cleaned_in_several_cleans() -> None:
    log = await open_log(disk(), compacted())
    for turn in range(2):
        for number in range(40):
            put(log, f"k{number}", f"{turn}")
    log.roll()
    await log.flush()
    before, cleans = served(log), 0
    while log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW).dirty_bytes:
        found = log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW)
        small = resources(map_bytes=1)
        result = await log.compaction.clean(found._replace(dirty_bytes=1), small)
        assert result.clean_to > found.first_dirty
        cleans += 1
        if cleans > 100:
            break
    assert served(log) == last_of_each(before)


@run_by(run_alone)
async def test_compressed_keys_that_fit_into_the_memory_are_cleaned_in_one_pass() -> None:
    log = await open_log(disk(), compacted(segment_bytes=1 << 20))
    for first in range(0, 10_000, 1000):
        rows = [(NOW, b"key-%05d" % (first + number), b"", ()) for number in range(1000)]
        append(log, bytearray(encode_batch(rows, codec=Codec.GZIP)))
    log.roll()
    await log.flush()
    result = await clean(log, map_bytes=1 << 20)
    assert (result.is_map_full, result.clean_to, result.records_kept) == (False, 10_000, 10_000)


@run_by(run_alone)
async def test_tombstone_goes_after_its_horizon_unless_older_records_remain() -> None:
    clock = FixedClock()
    log = await filled(disk(), clock=clock)
    put(log, "k0", None)
    log.roll()
    await log.flush()
    await clean(log)
    assert (60, "k0", None) in served(log)
    clock.wall += log.config.delete_retention_ms
    put(log, "other", "1")
    log.roll()
    await log.flush()
    await log.compaction.clean(
        log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW), resources(), keeps_tombstones=True
    )
    assert (60, "k0", None) in served(log)
    put(log, "other", "2")
    log.roll()
    await log.flush()
    await clean(log)
    assert (60, "k0", None) not in served(log) and not [each for each in served(log) if each[1] == "k0"]


@run_by(run_alone)
async def test_tombstone_stays_while_the_clock_is_known_to_be_fast() -> None:
    clock = FixedClock()
    log = await filled(disk(), clock=clock)
    put(log, "k0", None)
    right_ms, retention_ms = clock.wall, log.config.delete_retention_ms
    for number, (at_ms, stays) in enumerate([(0, True), (retention_ms - 1, True), (retention_ms, False)]):
        put(log, "other", str(number))
        log.roll()
        await log.flush()
        clock.wall += 2 * retention_ms
        await log.compaction.clean(
            log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW), resources(), right_ms + at_ms
        )
        assert ((60, "k0", None) in served(log)) == stays, number


@run_by(run_alone)
async def test_horizon_counts_from_the_first_clean_that_leaves_no_older_record() -> None:
    """A clean that keeps tombstones sets none: older records may lie in the bucket."""
    clock = FixedClock()
    log = await filled(disk(), clock=clock)
    put(log, "k0", None)
    for number, (keeps_tombstones, is_there) in enumerate([(True, True)] * 2 + [(False, True), (False, False)]):
        put(log, "other", str(number))
        log.roll()
        await log.flush()
        found = log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW)
        await log.compaction.clean(found, resources(), keeps_tombstones=keeps_tombstones)
        assert ((60, "k0", None) in served(log)) == is_there, number
        clock.wall += log.config.delete_retention_ms


@run_by(run_alone)
async def test_tombstone_from_a_cleaned_log_stays_for_delete_retention_ms() -> None:
    """Its horizon counts from the leader's clean. The older value goes here later, and only then the time begins."""
    clock = FixedClock()
    leader, follower = await filled(disk(), clock=clock), await open_log(disk(), compacted(), clock=clock)
    follower.append_as_follower(read_all(leader), now_ms=NOW)
    put(leader, "k0", None)
    leader.roll()
    await leader.flush()
    await clean(leader)
    retention_ms = leader.config.delete_retention_ms
    clock.wall += 2 * retention_ms
    follower.append_as_follower(read_all(leader, 60), now_ms=NOW, may_have_gaps=True)
    for number, (wait_ms, stays) in enumerate([(0, True), (retention_ms - 1, True), (1, False)]):
        clock.wall += wait_ms
        put(follower, "other", str(number))
        follower.roll()
        await follower.flush()
        await clean(follower)
        assert [each for each in served(follower) if each[1] == "k0"] == [(60, "k0", None)] * stays, number


@run_by(run_alone)
async def test_retry_of_a_producer_is_known_after_its_records_went() -> None:
    on = disk()
    log = await open_log(on, compacted())
    first = put(log, "a", "1", producer=9)
    data = encode_batch([(NOW, b"a", b"1", ())], producer_id=9, producer_epoch=0, base_sequence=0)
    for number in range(30):
        put(log, "a", f"v{number}")
    log.roll()
    await log.flush()
    await clean(log)
    assert len(served(log)) == 1
    for name in names(on):
        if name.endswith(".snapshot"):
            on.remove(f"{DIRECTORY}/{name}")
    reopened = await open_log(on.after_kill(), compacted(), recovery_point=log.end_offset)
    retried = append(reopened, bytearray(data))
    assert retried.is_duplicate and retried.base_offset == first


@run_by(run_alone)
async def test_retry_is_known_though_a_later_batch_of_its_producer_is_truncated() -> None:
    """The clean counted that batch as the producer's last one, and dropped the one before it."""
    log = await open_log(disk(), compacted())
    first = put(log, "a", "1", producer=9)
    data = encode_batch([(NOW, b"a", b"1", ())], producer_id=9, producer_epoch=0, base_sequence=0)
    for number in range(30):
        put(log, "a", f"v{number}")
    log.roll()
    truncated = put(log, "a", "2", producer=9)
    await log.flush()
    await log.compaction.clean(log.compaction.find_cleanable(log.start_offset, truncated, NOW), resources())
    copy = await open_log(disk(), compacted())
    copy.append_as_follower(read_all(log), now_ms=NOW, may_have_gaps=True)
    copy.truncate_to(truncated)
    retried = append(copy, bytearray(data))
    assert retried.is_duplicate and retried.base_offset == first
    assert [each[0] for each in served(log)] == [truncated - 1, truncated]


@run_by(run_alone)
async def test_aborted_records_go_and_readers_are_told_of_what_stays() -> None:
    on = disk()
    log = await open_log(on)
    writer = TransactionWriter(log)
    for number in range(12):
        writer.write(3, size=100)
        writer.end(3, commit=number % 3 == 0)
        put(log, "k", f"v{number}")
    log.roll()
    await log.flush()
    log.configure(compacted())
    log.producers.txns.on_high_watermark(log.end_offset)
    await clean(log)
    found, aborted = log.read_committed(0, 1 << 20, end_offset=log.end_offset)
    assert found is not None
    heads = []
    data, at = found.file.pread(found.start, found.length), 0
    while at < len(data):
        heads.append(decode_header(data, at))
        at += heads[-1].size
    assert len([each for each in heads if each.is_transactional and each.count and not each.is_control]) == 0
    assert len(served(log)) == 1, "records without a key go too"
    reopened = await open_log(on.after_kill(), compacted(), recovery_point=log.end_offset)
    assert reopened.read_committed(0, 1 << 20, end_offset=log.end_offset)[1] == aborted
    assert reopened.first_unstable_offset == reopened.end_offset


@run_by(run_alone)
async def test_open_transaction_bounds_the_clean() -> None:
    log = await filled(disk())
    log.configure(config())
    writer = TransactionWriter(log)
    begun = writer.write(3)
    log.configure(compacted())
    for number in range(60):
        put(log, f"k{number % KEYS}", "later")
    log.roll()
    await log.flush()
    assert log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW).first_uncleanable <= begun
    assert log.compaction.find_cleanable(log.start_offset, 30, NOW).first_uncleanable <= 30, (
        "nor anything above the high watermark"
    )


@run_by(run_alone)
async def test_records_that_are_not_flushed_are_not_cleaned() -> None:
    log = await open_log(disk(), compacted())
    for number in range(60):
        put(log, f"k{number % KEYS}", f"v{number}")
    assert log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW).dirty_bytes == 0


# -- followers --------------------------------------------------------------------------------------------------------


@run_by(run_alone)
async def test_marker_that_decided_a_clean_outlives_a_power_cut() -> None:
    """Once, a power cut took the marker of a transaction. The clean had dropped the older record of its key by it."""
    on = disk()
    log = await open_log(on, compacted())
    writer = TransactionWriter(log)
    old = put(log, "k", "old")
    writer.write(3, key=b"k")
    log.roll()
    await log.flush()
    marker = writer.end(3, commit=True)
    log.producers.txns.on_high_watermark(log.end_offset)
    assert log.flushed_offset <= marker
    result = await clean(log)
    assert result.clean_to == marker and old not in [each[0] for each in served(log)]
    for seed in range(8):
        found = await open_log(on.crash_image(random.Random(seed)), compacted(), same_boot=False, recovery_point=0)
        found.producers.txns.on_high_watermark(found.end_offset)
        assert found.end_offset == found.first_unstable_offset == marker + 1, seed


@run_by(run_alone)
async def test_follower_copies_a_cleaned_log_with_its_gaps() -> None:
    log = await filled(disk())
    await clean(log)
    put(log, "new", "1")
    on = SimDisk(random.Random(1))
    follower = await open_log(on, config())
    follower.append_as_follower(read_all(log), now_ms=NOW, may_have_gaps=True)
    assert served(follower) == served(log) and follower.end_offset == log.end_offset
    await follower.flush()
    reopened = await open_log(on.after_power_cut(), compacted(cleanup_policy=("delete",)), same_boot=False)
    assert served(reopened) == served(log) and reopened.end_offset == log.end_offset


@run_by(run_alone)
async def test_follower_of_a_cleaned_log_learns_where_each_epoch_begins() -> None:
    """The first batch of an epoch stays, without records if need be. Kafka drops it."""
    on = disk()
    log = await open_log(on, compacted())
    for epoch in (3, 5, 8):
        for number in range(20):
            record = [(NOW, b"k", b"%d" % number, ())]
            data = (
                encode_batch(record, producer_id=7, producer_epoch=0, base_sequence=number)
                if epoch == 5
                else encode_batch(record)
            )
            append(log, bytearray(data), epoch)
    log.roll()
    await log.flush()
    log.configure(compacted(segment_bytes=1 << 20))
    begins = log.epochs.lineage
    for turn in range(2):
        await clean(log)
        follower = await open_log(disk(), compacted())
        follower.append_as_follower(read_all(log), now_ms=NOW, may_have_gaps=True)
        assert follower.epochs.lineage == begins[1:] == ((5, 20), (8, 40)), turn
        assert served(follower) == served(log) and (59, "k", "19") in served(log)
        append(log, bytearray(encode_batch([(NOW, b"other", b"v", ())])), 8)
        log.roll()
        await log.flush()


@run_by(run_alone)
async def test_follower_of_a_topic_that_was_never_compacted_refuses_a_gap() -> None:
    log = await filled(disk())
    await clean(log)
    follower = await open_log(SimDisk(random.Random(1)), config())
    with pytest.raises(Refused, match="does not follow"):
        follower.append_as_follower(read_all(log), now_ms=NOW)


@run_by(run_alone)
async def test_gap_wider_than_an_index_begins_a_segment() -> None:
    on = disk()
    follower = await open_log(on, compacted())
    wide = 2**31 + 10
    for offset in (0, wide, 3 * wide, 3 * wide + 1):
        data = batch(1, size=30)
        stamp(data, 0, offset, 0)
        follower.append_as_follower(data, now_ms=NOW, may_have_gaps=True)
    assert [each[0] for each in served(follower)] == [0, wide, 3 * wide, 3 * wide + 1]
    assert not follower.segments.gaps
    whole = served(follower)
    assert served(await open_log(on.after_kill(), compacted())) == whole


# -- bad days ---------------------------------------------------------------------------------------------------------


@run_by(run_alone)
async def test_corrupt_batch_stops_the_clean_and_drops_nothing() -> None:
    on = disk()
    log = await filled(on)
    before = read_all(log)
    second = log.segments.closed()[1].base_offset
    on.flip_bit(f"{DIRECTORY}/{second:020d}.log", 8 * 70)
    with pytest.raises(Corrupt):
        await clean(log)
    assert len(read_all(log)) == len(before)
    assert not [name for name in names(on) if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("is_damaged", [False, True])
@run_by(run_alone)
async def test_large_batch_is_cleaned_after_a_check_in_pieces(
    *, is_damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_cleaning, "LARGE_BYTES", 300)
    on = disk()
    log = await open_log(on, compacted(max_message_bytes=1 << 20))
    put(log, "a", "1")
    start = len(read_all(log))
    put(log, "b", "large" * 100)
    put(log, "a", "2")
    log.roll()
    await log.flush()
    before = read_all(log)
    if is_damaged:
        on.flip_bit(f"{DIRECTORY}/{0:020d}.log", 8 * (start + 400))
        with pytest.raises(Corrupt, match=r"batch of [0-9]+ bytes"):
            await clean(log)
        assert len(read_all(log)) == len(before)
    else:
        await clean(log)
        assert served(log) == [(1, "b", "large" * 100), (2, "a", "2")]


@pytest.mark.parametrize(("bit", "is_clean"), [(0, False), (5, False), (30, False), (62, False), (5, True), (62, True)])
@run_by(run_alone)
async def test_batch_out_of_place_stops_the_clean_and_drops_nothing(*, bit: int, is_clean: bool) -> None:
    """No CRC covers a base offset. A wrong one could make an older record the last one of its key. In a part that was
    cleaned before, a batch may lawfully be anywhere in its gap."""
    on = disk()
    log = await filled(on)
    if is_clean:
        await clean(log)
        put(log, "k0", "newest")
        log.roll()
        await log.flush()
    kept = [each.size for each in log.segments.closed()]
    second = log.segments.closed()[1].base_offset
    on.flip_bit(f"{DIRECTORY}/{second:020d}.log", 8 * (7 - bit // 8) + bit % 8)
    with pytest.raises(Corrupt, match="out of place"):
        await clean(log)
    assert [each.size for each in log.segments.closed()][1:] == kept[1:]
    assert not [name for name in names(on) if name.endswith((".cleaned", ".swap"))]
    on.flip_bit(f"{DIRECTORY}/{second:020d}.log", 8 * (7 - bit // 8) + bit % 8)
    before = served(log)
    await clean(log)
    assert served(log) == last_of_each(before)


@run_by(run_alone)
async def test_snapshots_of_joined_segments_go_with_the_next_roll() -> None:
    on = disk()
    log = await filled(on)
    log.configure(compacted(segment_bytes=1 << 20))
    before = log.segments.count
    await clean(log)
    assert log.segments.count < before
    put(log, "k0", "newest")
    log.roll()
    bases = [each.base_offset for each in log.segments.closed()] + [log.end_offset]
    assert {int(name[:20]) for name in names(on) if name.endswith(".snapshot")} == set(bases[1:])


@pytest.mark.parametrize(("verb", "path"), [("append", ".log.cleaned"), ("sync_dir", ""), ("rename", ".log.cleaned")])
@run_by(run_alone)
async def test_disk_that_refuses_a_step_leaves_a_whole_log(*, verb: str, path: str) -> None:
    on = disk()
    log = await filled(on)
    before = served(log)
    on.faults.append(DiskFault(verb, path, error="ENOSPC" if verb == "append" else "EMFILE"))
    with pytest.raises(Unavailable):
        await clean(log)
    assert set(last_of_each(before)) <= set(served(log)) <= set(before) and not on.faults[0].times
    assert not [name for name in names(on) if name.endswith((".cleaned", ".swap"))]
    await clean(log)
    assert served(log) == last_of_each(before)


@pytest.mark.parametrize("at", [1, 3, 6, 9])
@run_by(run_alone)
async def test_truncation_in_the_middle_of_a_clean_wins(*, at: int) -> None:
    on = disk()
    log = await filled(on)
    before, steps = served(log), 0

    async def admit(_: int) -> None:
        nonlocal steps
        steps += 1
        if steps == at:
            for _ in range(2):
                log.truncate_to(20)
                await log.flush()

    tools = resources()
    with pytest.raises(LogChanged):
        await log.compaction.clean(
            log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW),
            type(tools)(run_inline, admit, tools.map_bytes, tools.read_bytes, 0.9, b"seed"),
        )
    assert log.end_offset == 20 and not [name for name in names(on) if name.endswith(".swap")]
    assert served(log) == [each for each in before if each[0] < 20]
    for number in range(20, 60):
        assert put(log, "x", "y") == number
    log.roll()
    await log.flush()
    assert log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW).first_dirty <= 20


@run_by(run_alone)
async def test_truncation_while_the_end_of_a_clean_is_saved_ends_it_as_changed() -> None:
    """Both write the file that says how far the log is clean. The later one is right."""
    on = disk()
    log = await filled(on)
    await clean(log)
    for _ in range(60):
        put(log, "k0", "later")
    log.roll()
    await log.flush()

    def truncate() -> float:
        if "compaction.tmp" in names(on):
            on.sync_seconds = lambda: 0.0
            log.truncate_to(30)
        return 0.0

    on.sync_seconds = truncate
    with pytest.raises(LogChanged):
        await clean(log)
    end = log.end_offset
    assert end < 120 and log.compaction.state is not None and log.compaction.state.clean_to == end
    await log.flush()
    reopened = await open_log(on.after_kill(), compacted(), recovery_point=end)
    assert reopened.compaction.state == log.compaction.state and reopened.end_offset == end
    put(reopened, "k0", "last")
    reopened.roll()
    await reopened.flush()
    await clean(reopened)
    assert [each[0] for each in served(reopened) if each[1] == "k0"] == [end]


@pytest.mark.parametrize("at", range(1, 40))
@run_by(run_alone)
async def test_clean_does_not_apply_keys_of_truncated_records_to_new_ones(*, at: int) -> None:
    log = await filled(disk())
    steps, expected = 0, []

    async def admit(_: int) -> None:
        nonlocal steps, expected
        steps += 1
        if steps == at:
            expected = await truncate_and_grow_again(log)

    with contextlib.suppress(LogChanged):
        await log.compaction.clean(
            log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW), replace(resources(), admit=admit)
        )
    if steps >= at:
        assert set(expected) <= set(served(log))
        assert log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW).first_dirty <= 57


async def truncate_and_grow_again(log: DiskLog) -> list[tuple[int, str, str | None]]:
    """Puts other records in the place of the last three. Returns the last record of each key."""
    for _ in range(2):
        log.truncate_to(57)
        await log.flush()
    for key in ("k3", "x", "y"):
        put(log, key, "new")
    log.roll()
    await log.flush()
    return last_of_each(served(log))


@run_by(run_alone)
async def test_truncation_below_the_clean_part_makes_what_follows_dirty() -> None:
    on = disk()
    log = await filled(on)
    await clean(log)
    log.truncate_to(57)
    await log.flush()
    end = log.end_offset
    for number in range(30):
        put(log, f"k{number % KEYS}", "again")
    log.roll()
    await log.flush()
    assert log.compaction.find_cleanable(log.start_offset, log.end_offset, NOW).first_dirty == end
    reopened = await open_log(on.after_kill(), compacted())
    assert reopened.compaction.state is not None and reopened.compaction.state.clean_to == end


@pytest.mark.parametrize("is_checkpointed", [False, True])
@run_by(run_alone)
async def test_unsynced_segment_that_a_power_cut_shortened_is_no_cleaned_one(*, is_checkpointed: bool) -> None:
    """Once, what was above counted, and the log began again with a hole that no clean had made."""
    on = disk()
    log = await open_log(on, compacted())
    for number in range(40):
        put(log, f"only{number}", "x")
    first, second = log.segments.closed()[:2]
    path = f"{DIRECTORY}/{first.base_offset:020d}.log"
    assert first.base_offset == 0 and second.base_offset > 3
    whole = on.open(path)
    batches = walk(whole.pread(0, whole.size()), 0).batches
    whole.truncate(batches[3].position)
    if not is_checkpointed:
        on.remove(f"{DIRECTORY}/segment-checkpoint")
    reopened = await open_log(on.after_kill(), compacted(), same_boot=False)
    assert reopened.end_offset == 3 and not reopened.segments.gaps


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", first_seeds(1, of=3))
@run_by(run_alone)
async def test_crash_at_any_step_of_a_clean_leaves_one_whole_log(*, seed: int) -> None:
    """A kill and a power cut after each change of the disk."""
    on = SimDisk(random.Random(seed))
    log = await filled(on, 40 + 5 * seed)
    before, end = served(log), log.end_offset
    images: list[tuple[str, SimDisk, bool]] = []

    def take(op: object) -> None:
        images.append((str(op), on.clone(), True))
        images.extend((str(op), on.crash_image(random.Random(f"{seed} {op} {draw}")), False) for draw in range(2))

    on.on_op = take
    await clean(log)
    on.on_op = None
    after = served(log)
    assert after == last_of_each(before) and len(images) > 60
    results: set[bool] = set()
    for op, image, same_boot in images:
        reopened = await open_log(image, compacted(), same_boot=same_boot, recovery_point=end)
        seen = served(reopened)
        assert set(after) <= set(seen) <= set(before), op
        assert seen == sorted(seen) and reopened.end_offset == end and not reopened.suspect, op
        assert not reopened.segments.gaps, op
        results.add(seen == after)
        left = [name for name in names(image) if name.endswith((".swap", ".cleaned"))]
        assert not left, op
        if reopened.compaction.find_cleanable(reopened.start_offset, end, NOW).dirty_bytes:
            await clean(reopened)
        assert served(reopened) == after, op
    assert results == {True, False}


@run_by(run_alone)
async def test_kill_in_a_swap_leaves_no_old_segment_though_its_line_is_back() -> None:
    """A flush beside the swap writes the lines of the old segments again. The second of them supersedes all of the
    first, with records of the same size, so the first one is as large as the cleaned one."""
    on, settings = disk(), compacted(segment_bytes=4096)
    log = await open_log(on, settings)
    for value in ("0", "1"):
        for key in range(KEYS):
            put(log, f"k{key}", value)
        log.roll()
    await log.flush()
    images: list[SimDisk] = []

    def take(op: object) -> None:
        if {f"{0:020d}.log.swap", f"{0:020d}.log"} <= set(names(on)):
            if not images:
                images.append(on.clone())
                log._writer.rewrite_checkpoint()  # as a flush does from time to time
            images.append(on.clone())

    on.on_op = take
    await clean(log)
    on.on_op = None
    assert len(images) > 2
    for image in images:
        reopened = await open_log(image, settings, same_boot=True)
        assert [each.next_offset for each in reopened.segments.closed()] == [2 * KEYS]
        assert served(reopened)[:KEYS] == served(log)[:KEYS]
