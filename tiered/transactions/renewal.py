"""New producer ids after a loss of `__transaction_state` (R5): the epochs that are left may be outdated.

Data partitions may have seen later epochs, above all where a snapshot from the bucket replaced the log. They would
refuse a producer with an earlier epoch for as many attempts as it lags behind. So each id has to get a new producer id.
An open transaction stays open until its timeout, and is aborted with the highest epoch, which no partition refuses.
"""

from __future__ import annotations

from tiered.transactions.metadata import EPOCH_EXHAUSTED, TransactionMetadata


def renew_producer(value: TransactionMetadata, now_ms: int, new_producer_id: int) -> TransactionMetadata:
    """Returns the value of an id whose next InitProducerId gives a new producer id.

    The decision of a decided transaction stands. Only then `new_producer_id` is needed: its producer goes on with that.
    """
    if value.state.is_prepared:
        return value._replace(next_producer_id=new_producer_id, updated_ms=now_ms)
    return value._replace(producer_epoch=max(value.producer_epoch, EPOCH_EXHAUSTED), updated_ms=now_ms)
