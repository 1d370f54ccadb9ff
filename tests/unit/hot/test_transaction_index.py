"""Tests of the transaction index: a read_committed reader gets each aborted transaction of its range, after any start,
truncation or damage."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.scenario import run_alone, run_by
from tests.sim.harness.disk import DiskFault, SimDisk
from tests.unit.hot.fixtures import DIRECTORY, append, batch, config, disk, open_log, run_scenario
from tests.unit.hot.transactions import TransactionWriter, check_reads
from tiered.errors import Corrupt
from tiered.hot import log_writer
from tiered.hot.disk_log import DiskLog
from tiered.hot.transaction_index import RECENT_MAX
from tiered.producers.aborted_txns import (
    ENTRY_BYTES,
    MAX_OFFSET,
    AbortedTxn,
    decode_aborted_txns,
    encode_aborted_txns,
    find_in_entries,
    find_in_index,
)

ABORTED = [AbortedTxn(1, 3, 8, 5), AbortedTxn(2, 5, 9, 10), AbortedTxn(1, 12, 20, 11), AbortedTxn(3, 11, 30, 31)]


def txn_index_files(on: SimDisk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in on.list(DIRECTORY) if name.endswith(".txnindex")]


def rewrite(on: SimDisk, path: str, change: Callable[[bytes], bytes]) -> None:
    file = on.open(path)
    data = change(file.pread(0, file.size()))
    file.truncate(0)
    file.append([data])


# -- entries ----------------------------------------------------------------------------------------------------------


def test_encoded_entries_have_kafkas_layout() -> None:
    data = encode_aborted_txns(ABORTED[:1])
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (1, 3, 8, 5))
    assert decode_aborted_txns(encode_aborted_txns(ABORTED), begin=0, end=31, where="x") == ABORTED


@pytest.mark.parametrize(("offset", "end"), [(0, 4), (0, 6), (8, 9), (9, 10), (9, 12), (13, 31), (30, 31), (31, 40)])
def test_search_finds_each_transaction_that_reaches_into_the_range(offset: int, end: int) -> None:
    wanted = [each for each in ABORTED if each.last_offset >= offset and each.first_offset < end]
    for found in (find_in_index(encode_aborted_txns(ABORTED), offset, end), find_in_entries(ABORTED, offset, end)):
        assert found.aborted == wanted
        assert found.is_complete == any(
            each.last_stable_offset >= end for each in ABORTED if each.last_offset >= offset
        )


@pytest.mark.parametrize(
    "data",
    [
        encode_aborted_txns(ABORTED)[:-1],
        b"\0\1" + encode_aborted_txns(ABORTED)[2:],
        encode_aborted_txns(ABORTED[::-1]),
        encode_aborted_txns([ABORTED[0], ABORTED[0]]),
        encode_aborted_txns([AbortedTxn(1, 8, 8, 9)]),
        encode_aborted_txns([AbortedTxn(1, -1, 8, 9)]),
        encode_aborted_txns([AbortedTxn(1, 3, 8, 10)]),
        encode_aborted_txns([AbortedTxn(1, 3, 40, 4)]),
        encode_aborted_txns([AbortedTxn(1, 0, 1, 2)]),
        encode_aborted_txns([ABORTED[1], AbortedTxn(1, 12, 20, 9)]),
    ],
    ids=[
        "half an entry", "version 1", "markers out of order", "a marker twice", "no record before the marker",
        "a negative offset", "stable beyond the marker", "beyond the segment", "below the segment", "stable goes back",
    ],
)  # fmt: skip
def test_index_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_aborted_txns(data, begin=2, end=31, where="x")


# -- reads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@run_by(run_scenario)
async def test_reader_gets_the_aborted_transactions_of_each_piece(on: SimDisk, *, seed: int) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write_at_random(random.Random(seed), 150)
    assert log.segments.count > 4
    assert check_reads(log, writer) > 3
    log.roll()
    assert check_reads(log, writer) > 3


@run_by(run_scenario)
async def test_log_without_aborted_transactions_has_no_index(on: SimDisk) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    for _ in range(30):
        writer.write(1)
        writer.end(1, commit=True)
    assert check_reads(log, writer) == 0
    assert txn_index_files(on) == []


@run_by(run_scenario)
async def test_older_entries_of_the_active_segment_are_read_from_its_file(on: SimDisk) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20))
    writer = TransactionWriter(log)
    for _ in range(RECENT_MAX * 2):
        writer.write(1)
        writer.end(1, commit=False)
    assert log.segments.count == 1
    assert check_reads(log, writer, max_bytes=5000) > 10


@run_by(run_scenario)
async def test_transactions_that_overlap_are_found_among_older_and_newer_entries(on: SimDisk) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20))
    writer = TransactionWriter(log)
    writer.write(1)
    for number in range(RECENT_MAX + 10):
        writer.write(1 + (number + 1) % 2)
        writer.write(1 + number % 2)
        writer.end(1 + number % 2, commit=False)
    assert log.segments.count == 1 and check_reads(log, writer, max_bytes=300) > 10


def test_full_index_closes_the_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "INDEX_BYTES_MAX", 10 * ENTRY_BYTES)

    async def scenario(on: SimDisk) -> None:
        log = await open_log(on, config(segment_bytes=1 << 20))
        writer = TransactionWriter(log)
        for _ in range(35):
            writer.write(1)
            writer.end(1, commit=False)
        assert log.segments.count == 4
        assert check_reads(log, writer) > 3

    run_scenario(scenario)


@run_by(run_scenario)
async def test_upload_names_transactions_whose_marker_is_in_a_later_segment(on: SimDisk) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write(1)
    log.roll()
    writer.write(2)
    log.roll()
    writer.end(1, commit=False)
    writer.end(2, commit=True)
    log.roll()
    first, second, third = log.segments.closed()
    for segment in (first, second, third):
        data = log.segments.data(segment.base_offset).txn_index
        entries = decode_aborted_txns(data, begin=0, end=MAX_OFFSET, where="x")
        assert [(each.first_offset, each.last_offset) for each in entries] == [(0, 2)]


# -- starts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@run_by(run_scenario)
async def test_reader_gets_the_same_after_a_kill_or_a_power_cut(on: SimDisk, *, seed: int) -> None:
    rng = random.Random(seed)
    log = await open_log(on)
    writer = TransactionWriter(log)
    recovery_point = 0
    for _ in range(12):
        writer.write_at_random(rng, 12)
        if rng.random() < 0.5:
            recovery_point = await log.flush(rng.choice([None, log.end_offset]))
        if rng.random() < 0.2:
            log._writer.take_snapshot()
    check_reads(await open_log(on.clone()), writer)
    again = await open_log(on.crash_image(rng), same_boot=False, recovery_point=recovery_point)
    check_reads(again, survivor(writer, again))
    third = await open_log(on.clone(), clean=True)
    check_reads(third, writer)


@run_by(run_scenario)
async def test_snapshot_without_its_index_is_not_believed_above_the_flush(on: SimDisk) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20))
    writer = TransactionWriter(log)
    writer.write_at_random(random.Random(1), 60)
    log._writer.take_snapshot()
    for path in txn_index_files(on):
        on.remove(path)
    again = await open_log(on.clone(), config(segment_bytes=1 << 20), same_boot=False, recovery_point=1)
    assert check_reads(again, writer) > 3


@pytest.mark.parametrize("seed", range(8))
@run_by(run_scenario)
async def test_entries_below_the_flushed_offset_survive_a_power_cut(on: SimDisk, *, seed: int) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20))
    writer = TransactionWriter(log)
    writer.write_at_random(random.Random(1), 60)
    log._writer.take_snapshot()
    flushed = await log.flush(log.end_offset)
    again = await open_log(
        on.crash_image(random.Random(seed)),
        config(segment_bytes=1 << 20),
        same_boot=False,
        recovery_point=flushed,
    )
    assert check_reads(again, writer) > 3


def survivor(writer: TransactionWriter, log: DiskLog) -> TransactionWriter:
    """Returns the transactions of a log that lost its end."""
    left = TransactionWriter(log)
    for known in log.producers.list_producers():
        left.sequences[known.producer_id] = known.batches[-1].last_sequence + 1 if known.batches else 0
    for txn in writer.ended:
        kept = tuple(offset for offset in txn.offsets if offset < log.end_offset)
        if txn.marker_offset < log.end_offset:
            left.ended.append(txn)
        elif kept:
            left.open.setdefault(txn.producer_id, []).extend(kept)
    for producer, offsets in writer.open.items():
        kept = tuple(offset for offset in offsets if offset < log.end_offset)
        if kept:
            left.open.setdefault(producer, []).extend(kept)
    return left


@run_by(run_scenario)
async def test_entries_above_the_log_end_go_before_records_take_their_offsets(on: SimDisk) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write(1)
    await log.flush()
    end = log.end_offset
    entry = AbortedTxn(1, 0, end + 2, end + 3).encode()
    on.open(f"{DIRECTORY}/{0:020d}.txnindex", create=True).append([entry])
    on = on.clone()
    again = await open_log(on, same_boot=False, recovery_point=end)
    assert txn_index_files(on) == []
    later = TransactionWriter(again)
    later.open, later.sequences = {1: [0]}, {1: 1}
    later.write(1)
    later.write(1)
    later.end(1, commit=True)
    assert check_reads(again, later) == 0


# -- truncation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@run_by(run_scenario)
async def test_truncation_keeps_the_transactions_below_it(on: SimDisk, *, seed: int) -> None:
    rng = random.Random(seed)
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write_at_random(rng, 120)
    log.truncate_to(rng.randrange(1, log.end_offset))
    left = survivor(writer, log)
    check_reads(log, left)
    left.write_at_random(rng, 40)
    check_reads(log, left)
    await log.flush()
    check_reads(await open_log(on.clone()), left)


@run_by(run_scenario)
async def test_deleted_segments_leave_the_transactions_above_them(on: SimDisk) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write_at_random(random.Random(4), 150)
    middle = log.segments.closed()[2].next_offset
    await log.drop_local_below(middle)
    log.advance_start(middle)
    assert check_reads(log, writer) > 2
    check_reads(await open_log(on.clone(), start_offset=middle), writer)


# -- damage -----------------------------------------------------------------------------------------------------------


def swap(data: bytes) -> bytes:
    return data[ENTRY_BYTES:] + data[:ENTRY_BYTES]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half an entry": lambda data: data[:-3],
    "an entry is missing": lambda data: data[:-ENTRY_BYTES],
    "empty": lambda data: b"",
    "version 9": lambda data: b"\0\x09" + data[2:],
    "offset out of range": lambda data: data[:18] + b"\x7f" * 8 + data[26:],
    "out of order": swap,
    "another first offset": lambda data: data[:10] + (0).to_bytes(8, "big") + data[18:],
    "an entry twice": lambda data: data[:ENTRY_BYTES] + data,
    "noise": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@run_by(run_scenario)
async def test_damaged_index_of_a_closed_segment_is_rebuilt(on: SimDisk, *, damage: str) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write_at_random(random.Random(1), 150)
    log.roll()
    await log.flush()
    for path in txn_index_files(on):
        rewrite(on, path, DAMAGES[damage])
    assert check_reads(await open_log(on.clone()), writer) > 3
    again = await open_log(on.clone(), same_boot=False, recovery_point=log.end_offset)
    assert check_reads(again, writer) > 3


@pytest.mark.parametrize("damage", DAMAGES)
@run_by(run_scenario)
async def test_damaged_index_of_the_active_segment_is_rebuilt_at_the_start(on: SimDisk, *, damage: str) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20))
    writer = TransactionWriter(log)
    writer.write_at_random(random.Random(1), 150)
    log._writer.take_snapshot()
    await log.flush()
    (path,) = txn_index_files(on)
    rewrite(on, path, DAMAGES[damage])
    for same_boot in (True, False):
        again = await open_log(
            on.clone(), config(segment_bytes=1 << 20), same_boot=same_boot, recovery_point=log.end_offset
        )
        assert check_reads(again, writer) > 3


@run_by(run_scenario)
async def test_index_that_cannot_be_rebuilt_refuses_the_read(on: SimDisk, *, caplog: pytest.LogCaptureFixture) -> None:
    log = await open_log(on)
    writer = TransactionWriter(log)
    writer.write(1)
    writer.write(1)
    writer.end(1, commit=False)
    log.roll()
    append(log, batch(0))
    await log.flush()
    log_file = on.open(f"{DIRECTORY}/{0:020d}.log")
    rewrite(on, f"{DIRECTORY}/{0:020d}.txnindex", lambda data: data[:-1])
    second = int.from_bytes(log_file.pread(8, 4), "big") + 12
    log_file.pwrite(second + 16, b"\x01")  # the magic of the second batch
    log.producers.txns.on_high_watermark(log.end_offset)
    for _ in range(3):
        with pytest.raises(Corrupt, match="cannot be read"):
            log.read_committed(0, 10, end_offset=log.end_offset)
    assert caplog.text.count("is rebuilt from the log") == 1, "no reader makes the broker walk the segment again"


@run_by(run_scenario)
async def test_full_disk_delays_an_entry_and_breaks_nothing(on: SimDisk) -> None:
    log = await open_log(on, config(segment_bytes=1 << 20))
    writer = TransactionWriter(log)
    writer.write(1)
    on.faults.append(DiskFault("append", ".txnindex", "ENOSPC", times=-1))
    writer.end(1, commit=False)
    writer.write(1)
    writer.end(1, commit=False)
    assert check_reads(log, writer, max_bytes=10) == 4
    check_reads(await open_log(on.clone()), writer)
    on.faults.clear()
    append(log, batch(0, producer=9, sequence=0))
    assert on.open(f"{DIRECTORY}/{0:020d}.txnindex").size() == 2 * ENTRY_BYTES
    check_reads(log, writer)


@run_by(run_alone)
async def test_log_with_aborted_transactions_is_not_in_the_list_of_clean_logs() -> None:
    log = await open_log(disk())
    writer = TransactionWriter(log)
    writer.write(1)
    writer.end(1, commit=False)
    log.producers.known.remove_expired(0, 0)
    log.producers.known.remove_expired(10**15, 0)
    assert len(log.producers) == 0
    assert log.make_clean_entry(0, False) is None
