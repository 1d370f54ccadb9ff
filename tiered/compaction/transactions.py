"""Decided transactions in a walk over the batches of a log.

Keeps I14 and I26. The walk sees each batch of a transaction before its marker. If the log start moved on meanwhile, the
walk misses batches and markers below it.

Records of aborted transactions go. A marker has to stay while any batch of its transaction is there. Without the
marker, a later reader would take the batch for one of an open transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, Protocol, TypeVar

from tiered.records.aborted import BatchFields
from tiered.records.model import TRANSACTIONAL


class MarkerKind(Enum):
    """The kind of a control batch."""

    COMMIT = "commit"
    ABORT = "abort"
    NONE = "none"
    """A control batch without a record: its marker was removed before."""
    OTHER = "other"
    """A control record that is no marker of a transaction."""


class AbortedFields(Protocol):
    """An aborted transaction, as an entry of a transaction index names it."""

    @property
    def producer_id(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def last_offset(self) -> int:
        """Returns the offset of its marker."""


Aborted = TypeVar("Aborted", bound=AbortedFields)


def merge_indexes(indexes: Iterable[tuple[int, Iterable[Aborted]]]) -> list[Aborted]:
    """Returns the aborted transactions of segments, each once. `indexes` has the end offset and the entries of each.

    The index of an earlier segment may name a marker that all disks lost later. The leader then wrote another one,
    which the segment of that marker names.
    """
    own: dict[tuple[int, int], Aborted] = {}
    ahead: dict[tuple[int, int], Aborted] = {}
    for end_offset, entries in indexes:
        for each in entries:
            found = own if each.last_offset < end_offset else ahead
            found[each.producer_id, each.first_offset] = each
    return [*own.values(), *(each for transaction, each in ahead.items() if transaction not in own)]


class CleanedTransactions(Generic[Aborted]):
    """The state of one walk. `aborted` are the aborted transactions that have a batch or their marker in it, in any
    order. All transactions in the walk are decided."""

    def __init__(self, aborted: Iterable[Aborted] = ()) -> None:
        self._ahead = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._aborted: dict[int, Aborted] = {}
        """Aborted transactions of which the marker is still to come, by producer id."""
        self._seen_aborted: set[int] = set()
        """Producer ids of those of which a batch was there."""
        self._seen_committed: set[int] = set()
        """Producer ids with a batch of a committed transaction whose marker is still to come."""
        self.kept: list[Aborted] = []
        """Aborted transactions whose marker stays for a batch that was there: the entries of the new index."""

    def is_aborted(self, batch: BatchFields) -> bool:
        """True if the batch, which is no control batch, has records of an aborted transaction.

        The caller passes the transactional batches in order. Others do not matter.
        """
        self._begin_up_to(batch.last_offset)
        if not batch.attributes & TRANSACTIONAL:
            return False
        if self._is_current(self._aborted.get(batch.producer_id), batch.last_offset):
            self._seen_aborted.add(batch.producer_id)
            return True
        self._seen_committed.add(batch.producer_id)
        return False

    def is_marker_needless(self, batch: BatchFields, kind: MarkerKind) -> bool:
        """True if no batch of the transaction that this control batch ends was there: the marker may go, after its
        delete horizon. The caller passes every control batch, in order."""
        self._begin_up_to(batch.last_offset)
        producer_id = batch.producer_id
        if kind is MarkerKind.ABORT:
            aborted = self._aborted.pop(producer_id, None)
            is_seen = producer_id in self._seen_aborted
            self._seen_aborted.discard(producer_id)
            if aborted is None or not is_seen or aborted.last_offset < batch.last_offset:
                return True
            self.kept.append(aborted)
            return False
        if kind is MarkerKind.COMMIT:
            needless = producer_id not in self._seen_committed
            self._seen_committed.discard(producer_id)
            return needless
        return kind is MarkerKind.NONE

    def _begin_up_to(self, offset: int) -> None:
        while self._ahead and self._ahead[-1].first_offset <= offset:
            aborted = self._ahead.pop()
            if not self._is_current(self._aborted.get(aborted.producer_id), offset):
                self._aborted[aborted.producer_id] = aborted

    @staticmethod
    def _is_current(aborted: Aborted | None, offset: int) -> bool:
        """True if the marker of a transaction is still to come at that offset, and not below the walk."""
        return aborted is not None and aborted.last_offset >= offset
