"""Batches of aborted transactions in a log, by the list of a Fetch response or of a transaction index.

A list names each aborted transaction by its producer id and its first offset. The transaction ends at the producer's
next control batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from tiered.records.model import CONTROL, TRANSACTIONAL

AbortedTransaction = tuple[int, int]
"""One aborted transaction: (producer id, first offset)."""


class BatchFields(Protocol):
    """The fields of a batch that decide: a header and a walked batch have them."""

    @property
    def last_offset(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def producer_id(self) -> int: ...


class AbortedTransactions:
    """Finds the batches of aborted transactions in a run of batches.

    `aborted` are the transactions that end at or above the first batch of the run, in any order.
    """

    __slots__ = ("_ahead", "_producer_ids")

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._ahead: list[tuple[int, int]] = []
        self._producer_ids: set[int] = set()
        self.add(aborted)

    def add(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Adds transactions that end at or above the next batch."""
        self._ahead += ((first, producer_id) for producer_id, first in aborted)
        self._ahead.sort(reverse=True)

    def has_batch(self, batch: BatchFields) -> bool:
        """True if the batch has records of an aborted transaction. The caller passes every batch, in order."""
        ahead = self._ahead
        while ahead and ahead[-1][0] <= batch.last_offset:
            self._producer_ids.add(ahead.pop()[1])
        if batch.attributes & CONTROL:
            self._producer_ids.discard(batch.producer_id)
            return False
        return bool(batch.attributes & TRANSACTIONAL) and batch.producer_id in self._producer_ids
