"""Rules of transaction markers in one partition: which has to be written, which is repeated, which is refused.

Pure. Keeps the part of I14 that a marker can break. A marker ends the transaction that it was decided for, and no later
one.
"""

from __future__ import annotations

from tiered.errors import Code, Refused
from tiered.producers.entry import ProducerStateEntry
from tiered.records.marker import TransactionMarker


def is_marker_due(marker: TransactionMarker, producer: ProducerStateEntry | None) -> bool:
    """Returns True if the marker has to be written; False if it is in the log and changed all that it can change.

    Raises `Refused`: INVALID_PRODUCER_EPOCH for a marker of an earlier epoch, or of an earlier transaction of a
    producer whose epoch moves with each transaction (KIP-890). TRANSACTION_COORDINATOR_FENCED for a marker of a
    coordinator that was replaced.
    """
    if producer is None:
        return True
    is_open = producer.txn_first_offset >= 0
    who = f"marker of producer {marker.producer_id} epoch {marker.producer_epoch}"
    if marker.producer_epoch < producer.epoch:
        raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{who}: the last seen epoch is {producer.epoch}")
    if marker.producer_epoch == producer.epoch and marker.moves_epoch and is_open:
        raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{who}: a later transaction is open in this epoch")
    if marker.coordinator_epoch < producer.coordinator_epoch:
        why = f"{who}: coordinator epoch {marker.coordinator_epoch} is below {producer.coordinator_epoch}"
        raise Refused(Code.TRANSACTION_COORDINATOR_FENCED, why)
    is_known = marker.producer_epoch == producer.epoch and marker.coordinator_epoch == producer.coordinator_epoch
    return is_open or not is_known


def find_ended_epoch(marker: TransactionMarker) -> int:
    """Returns the last epoch whose guards end with the marker. Where the epoch moves, a guard of the marker's own epoch
    is for the next transaction."""
    return marker.producer_epoch - 1 if marker.moves_epoch else marker.producer_epoch


def is_abort_due(marker: TransactionMarker, producer: ProducerStateEntry | None, pending_epoch: int = -1) -> bool:
    """Returns True if an abort marker that no coordinator sends ends an open transaction; False if it is repeated.
    `pending_epoch` is that of a transaction that only the group coordinator knows, or -1.

    Raises `Refused` for any other one. Otherwise any client could fence producers and coordinators, and displace
    producers by ids that nobody has.
    """
    who = f"abort of producer {marker.producer_id} epoch {marker.producer_epoch}"
    open_epoch = producer.epoch if producer is not None and producer.txn_first_offset >= 0 else pending_epoch
    if open_epoch < 0:
        written = (producer.epoch, producer.coordinator_epoch) if producer is not None else None
        if written != (marker.producer_epoch, marker.coordinator_epoch):
            raise Refused(Code.INVALID_TXN_STATE, f"{who}: no transaction of the producer is open here")
        return False
    if marker.producer_epoch != open_epoch + marker.moves_epoch:
        raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{who}: the open transaction has epoch {open_epoch}")
    coordinator_epoch = max(producer.coordinator_epoch, 0) if producer is not None else 0
    if marker.coordinator_epoch > coordinator_epoch:
        why = f"coordinator epoch {marker.coordinator_epoch} is above {coordinator_epoch}"
        raise Refused(Code.INVALID_REQUEST, f"{who}: {why}")
    return True
