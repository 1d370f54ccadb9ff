"""Rules that a batch of an idempotent or transactional producer has to keep before it is appended.

Pure. Keeps I12, I16, and the part of I14 that one batch can break. Each rule takes the batch and the entry of its
producer, and raises `Refused` with the code that Kafka gives. The order of the rules, and retries, are in states.py.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.producers.entry import SEQUENCE_MAX, ProducerStateEntry
from tiered.producers.verification import VerificationGuard, VerificationGuards
from tiered.records.model import TRANSACTIONAL, WalkedBatch


def check_epoch(batch: WalkedBatch, epoch: int) -> None:
    """Refuses a batch of an epoch before the last one that was seen: another producer has fenced it."""
    if batch.producer_epoch < epoch:
        raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{_name(batch)}: the last seen epoch is {epoch}")


def check_sequence(
    batch: WalkedBatch, producer: ProducerStateEntry | None, before: tuple[int, int] | None, *, is_empty: bool
) -> None:
    """Refuses a batch that does not follow the one before it. A new epoch begins at 0.

    `before` is the epoch and the last sequence of the earlier batch of the same request, None if there is none.
    `is_empty`: the log never had a record.
    """
    if before is not None:
        epoch, last = before
    elif producer is not None:
        epoch, last = producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1
    else:
        # A forgotten producer may continue. In a log that never had a record there is nothing to continue.
        if is_empty and batch.base_sequence != 0:
            why = f"producer {batch.producer_id}: sequence {batch.base_sequence} is not the first of this log"
            raise Refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, why)
        return
    check_epoch(batch, epoch)
    if batch.producer_epoch > epoch:
        if batch.base_sequence != 0:
            raise _out_of_order(batch, f"a new epoch begins at 0, not {batch.base_sequence}")
    elif last == -1:
        if batch.base_sequence != 0:
            raise _out_of_order(batch, f"sequence {batch.base_sequence} is not the first")
    elif batch.base_sequence != (last + 1) & SEQUENCE_MAX:
        raise _out_of_order(batch, f"sequence {batch.base_sequence} does not follow {last}")


def check_transaction(
    batch: WalkedBatch,
    producer: ProducerStateEntry | None,
    begun: bool,
    guard: VerificationGuard | None,
    guards: VerificationGuards,
) -> None:
    """Refuses a batch that neither goes on with the open transaction of its producer nor may begin one. `begun`: an
    earlier batch of the same request began it."""
    open_epoch = producer.epoch if producer is not None and producer.txn_first_offset >= 0 else -1
    if not batch.attributes & TRANSACTIONAL:
        if begun or open_epoch >= 0:
            raise _invalid_state(batch, "a record outside of its open transaction")
    elif open_epoch >= 0:
        if batch.producer_epoch > open_epoch:
            raise _invalid_state(batch, f"the transaction of epoch {open_epoch} is still open here")
    elif not begun and not guards.is_valid(guard, batch.producer_id, batch.producer_epoch):
        raise _invalid_state(batch, "the partition is not known to belong to its transaction")


def check_begins(
    batch: WalkedBatch, producer: ProducerStateEntry | None, guard: VerificationGuard, guards: VerificationGuards
) -> None:
    """Refuses a batch that is not the first of its transaction. Requests that wait for one guard share it; the lowest
    sequence begins the transaction."""
    is_open = producer is not None and producer.txn_first_offset >= 0
    if is_open or not guards.is_valid(guard, batch.producer_id, batch.producer_epoch):
        return
    expected = 0 if guard.moves_epoch and (producer is None or not producer.batches) else guard.lowest_sequence
    if batch.base_sequence > expected:
        raise _out_of_order(batch, f"the transaction begins with sequence {expected}, not {batch.base_sequence}")


def _out_of_order(batch: WalkedBatch, why: str) -> Refused:
    return Refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{_name(batch)}: {why}")


def _invalid_state(batch: WalkedBatch, why: str) -> Refused:
    return Refused(Code.INVALID_TXN_STATE, f"{_name(batch)}: {why}")


def _name(batch: WalkedBatch) -> str:
    return f"producer {batch.producer_id} epoch {batch.producer_epoch}"
