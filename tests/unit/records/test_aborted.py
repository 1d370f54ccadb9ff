"""Tests of the batches of aborted transactions in a run of batches."""

from __future__ import annotations

from tests.spark.filling import TransactionalLog
from tiered.records.aborted import AbortedTransactions
from tiered.records.model import WalkedBatch
from tiered.records.native import walk

ONE, TWO = 11, 12


def kept_offsets(batches: list[WalkedBatch], aborted: list[tuple[int, int]]) -> list[int]:
    found = AbortedTransactions(aborted)
    kept = [batch for batch in batches if not found.has_batch(batch)]
    return [offset for batch in kept for offset in range(batch.base_offset, batch.last_offset + 1)]


def test_batches_of_an_aborted_transaction_end_at_its_marker() -> None:
    log = TransactionalLog()
    log.write(ONE, 2)  # 0, 1: aborted
    log.write(TWO, 1)  # 2: committed
    log.write(ONE, 1)  # 3: aborted
    log.end(ONE, commit=False)  # 4
    log.write(ONE, 1)  # 5: the next transaction, committed
    log.end(TWO, commit=True)  # 6
    log.end(ONE, commit=True)  # 7
    batches = list(walk(log.roll().log).batches)
    assert kept_offsets(batches, [(ONE, 0)]) == [2, 4, 5, 6, 7]
    assert kept_offsets(batches, []) == [*range(8)]


def test_run_that_begins_inside_an_aborted_transaction_lacks_its_rest() -> None:
    log = TransactionalLog()
    log.write(ONE, 1)  # 0
    log.write(ONE, 1)  # 1
    log.end(ONE, commit=False)  # 2
    log.write(ONE, 1)  # 3
    log.end(ONE, commit=False)  # 4
    batches = list(walk(log.roll().log).batches)
    assert kept_offsets(batches[1:], [(ONE, 3), (ONE, 0)]) == [2, 4]


def test_batches_outside_of_transactions_stay() -> None:
    log = TransactionalLog()
    log.write(ONE, 1, transactional=False)  # 0
    log.write(ONE, 1)  # 1
    log.end(ONE, commit=False)  # 2
    log.write(ONE, 1, transactional=False)  # 3
    batches = list(walk(log.roll().log).batches)
    assert kept_offsets(batches, [(ONE, 1)]) == [0, 2, 3]
