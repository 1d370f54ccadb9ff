"""Tests of transactions in a log that a leader or Kafka wrote: their index, the last stable offset, and both after a
start or a cut."""

from __future__ import annotations

import struct

from tests.scenario import run_alone, run_by
from tests.unit.hot.fixtures import DIRECTORY, NOW, batch, disk, open_log
from tiered.hot.disk_log import DiskLog
from tiered.producers.aborted_txns import MAX_OFFSET, AbortedTxn, decode_aborted_txns
from tiered.records.batch import encode_batch


def data(offset: int, sequence: int, producer: int) -> bytes:
    return encode_batch(
        [(NOW, None, b"v" * 80, ())],
        base_offset=offset,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=sequence,
        transactional=True,
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    record = (NOW, struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 1), ())
    return encode_batch(
        [record],
        base_offset=offset,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
    )


async def append_transactions(log: DiskLog) -> None:
    """Appends transactions: producer 1 commits `[0, 3)`, producer 2 aborts `[1, 5)`, producer 1 writes again at 3 and
    stays open."""
    written = [data(0, 0, 1), data(1, 0, 2), marker(2, 1, commit=True), data(3, 1, 1), marker(4, 2, commit=False)]
    for one in written:
        log.append_as_follower(one, now_ms=NOW)


def read_aborted(log: DiskLog) -> list[AbortedTxn]:
    log.roll()
    data = log.segments.data(log.segments.closed()[0].base_offset).txn_index
    return decode_aborted_txns(data, begin=0, end=MAX_OFFSET, where="t-0")


ABORTED = AbortedTxn(producer_id=2, first_offset=1, last_offset=4, last_stable_offset=3)


@run_by(run_alone)
async def test_stable_offset_waits_for_the_marker_and_the_high_watermark() -> None:
    log = await open_log(disk())
    await append_transactions(log)
    assert log.first_unstable_offset == 0, "decided, but not replicated as far as we know"
    log.producers.txns.on_high_watermark(5)
    assert log.first_unstable_offset == 3
    assert read_aborted(log) == [ABORTED]


@run_by(run_alone)
async def test_start_restores_transactions() -> None:
    for same_boot in (True, False):
        on = disk()
        log = await open_log(on)
        await append_transactions(log)
        await log.flush()
        if not same_boot:
            on.remove(f"{DIRECTORY}/{0:020d}.txnindex")
        again = await open_log(on, same_boot=same_boot)
        again.producers.txns.on_high_watermark(5)
        assert again.first_unstable_offset == 3
        assert read_aborted(again) == [ABORTED]


@run_by(run_alone)
async def test_truncation_removes_an_aborted_transaction() -> None:
    on = disk()
    log = await open_log(on)
    await append_transactions(log)
    log.truncate_to(4)
    log.producers.txns.on_high_watermark(4)
    assert log.first_unstable_offset == 1
    log.append_as_follower(marker(4, 2, commit=True), now_ms=NOW)
    log.producers.txns.on_high_watermark(5)
    assert log.first_unstable_offset == 3
    assert read_aborted(log) == []


@run_by(run_alone)
async def test_marker_that_cannot_be_read_ends_nothing() -> None:
    on = disk()
    log = await open_log(on)
    log.append_as_follower(data(0, 0, 1), now_ms=NOW)
    record = (NOW, b"\0\0\0\x09", b"\0\0\0\0\0\1", ())
    other = encode_batch(
        [record], base_offset=1, leader_epoch=0, producer_id=1, producer_epoch=0, transactional=True, control=True
    )
    log.append_as_follower(other, now_ms=NOW)
    log.append_as_follower(data(2, 1, 1), now_ms=NOW)
    for each in (log, await open_log(on.clone())):
        each.producers.txns.on_high_watermark(3)
        assert (each.end_offset, each.first_unstable_offset) == (3, 0)


@run_by(run_alone)
async def test_log_without_transactions_is_stable_to_its_end() -> None:
    log = await open_log(disk())
    log.append(batch(0, 3), leader_epoch=0, now_ms=NOW)
    assert log.first_unstable_offset == 3
