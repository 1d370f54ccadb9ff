"""Producer state of one partition: the last batches of each producer, and the open transactions.

Pure. Keeps I11, I12, and the part of I14 and I16 that one partition can keep. A retry of one of the last five batches
gets the offset of the first try. This file has the order of the rules, and applies what is in the log. The rules of
one batch are in append_checks.py, those of markers in marker_checks.py. Room for producers, and who has to make it, is
in known_producers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiered.ids import KEYED_FROM
from tiered.ports import Buffer
from tiered.producers.aborted_txns import AbortedTxn
from tiered.producers.append_checks import check_begins, check_epoch, check_sequence, check_transaction
from tiered.producers.entry import (
    BATCHES_RETAINED,
    SEQUENCE_MAX,
    UNSEEN,
    BatchMetadata,
    ProducerStateEntry,
    find_last_sequence,
)
from tiered.producers.idempotency_keys import check_unused, is_keyed
from tiered.producers.known_producers import KnownProducers
from tiered.producers.limits import ProducerLimits
from tiered.producers.marker_checks import find_ended_epoch, is_abort_due, is_marker_due
from tiered.producers.ongoing_txns import OngoingTxns
from tiered.producers.snapshot import decode_snapshot, encode_snapshot
from tiered.producers.verification import UnverifiedProducer, VerificationGuard, VerificationGuards
from tiered.records.marker import TransactionMarker, decode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL, BatchHeader, WalkedBatch


class ProducerStates:
    """All producers of one partition. All batches below `end_offset` are applied.

    `known` has the entries and the limits that they count against, `txns` the transactions whose outcome is open, and
    `guards` the producers that may begin a transaction.
    """

    __slots__ = ("_by_id", "end_offset", "guards", "is_incomplete", "known", "txns")

    def __init__(self, end_offset: int = 0, limits: ProducerLimits | None = None) -> None:
        self.end_offset = end_offset
        self.known = KnownProducers(limits or ProducerLimits())
        self._by_id = self.known.by_id
        self.txns = OngoingTxns()
        self.guards = VerificationGuards()
        self.is_incomplete = False
        """True if producers are missing that wrote below the local log only: a start found no snapshot of them."""

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._by_id.get(producer_id)

    def list_producers(self) -> list[ProducerStateEntry]:
        """Returns all known producers, by id."""
        return [self._by_id[producer_id] for producer_id in sorted(self._by_id)]

    def next_sequence(self, producer_id: int, epoch: int) -> int | None:
        """Returns the sequence number that this producer has to send next in this epoch.

        Returns None if any number is accepted, or if the epoch is over.
        """
        producer = self._by_id.get(producer_id)
        if producer is None:
            return 0 if self.end_offset == 0 else None
        if producer.epoch != epoch:
            return 0 if producer.epoch < epoch else None
        return producer.next_sequence

    # -- deciding -----------------------------------------------------------------------------------------------------

    def check_batches(
        self,
        batches: Sequence[WalkedBatch],
        now_ms: int,
        guard: VerificationGuard | None = None,
        *,
        from_coordinator: bool = False,
        holder: str = "",
    ) -> list[BatchMetadata]:
        """Checks the batches before an append. Returns the leading ones that are in the log already (a retry). New
        producers count for `holder`.

        Raises `Refused` with DUPLICATE_RESOURCE if a keyed id has written another batch. Also raises `Refused` if the
        rest does not follow in sequence, begins a transaction without a valid `guard`, leaves
        its open transaction, or comes from a new producer for which there is no room. Coordinators, which write on
        behalf of producers, have no sequences, and so no retries.
        """
        if (
            len(batches) == 1
            and guard is None
            and not from_coordinator
            and self._admit_usual_batch(batches[0], now_ms, holder)
        ):
            return []
        duplicates: list[BatchMetadata] = []
        accepted: dict[int, WalkedBatch] = {}
        """The last batch of each producer that is no retry."""
        for position, batch in enumerate(batches):
            if batch.producer_id < 0 or batch.attributes & CONTROL:  # marker_checks.py has the rules of markers
                continue
            before = accepted.get(batch.producer_id)
            if before is None and not from_coordinator and len(duplicates) == position:
                duplicate = self._find_duplicate(batch)
                if duplicate is not None:
                    duplicates.append(duplicate)
                    continue
            self._check_batch(batch, before, guard, from_coordinator=from_coordinator)
            accepted[batch.producer_id] = batch
        new = [producer_id for producer_id in accepted if producer_id not in self._by_id]
        if new:
            self.known.admit(new, now_ms, holder)
        return duplicates

    def _admit_usual_batch(self, batch: WalkedBatch, now_ms: int, holder: str) -> bool:
        """Returns True if the batch is the usual one, which needs no further check: the next one of a known producer,
        or the one of a new idempotency key. Makes room for a new key. Raises `Refused` if there is none."""
        attributes, producer_id, epoch, sequence = batch.attributes, *batch[8:11]
        producer = self._by_id.get(producer_id)
        if producer is None:
            if not is_keyed(producer_id) or attributes & (TRANSACTIONAL | CONTROL):
                return False
            self.known.admit((producer_id,), now_ms, holder)
            return True
        return (
            producer.epoch == epoch
            and bool(producer.batches)
            and sequence == (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX
            and attributes & (TRANSACTIONAL | CONTROL) == (TRANSACTIONAL if producer.txn_first_offset >= 0 else 0)
            and (producer_id < KEYED_FROM or producer.txn_first_offset >= 0)
        )

    def _find_duplicate(self, batch: WalkedBatch) -> BatchMetadata | None:
        """Returns the batch in the log that this one repeats."""
        producer = self._by_id.get(batch.producer_id)
        if producer is None or producer.epoch != batch.producer_epoch:
            return None
        is_transactional = batch.attributes & TRANSACTIONAL != 0
        return producer.find_batch(batch.base_sequence, find_last_sequence(batch), transactional=is_transactional)

    def _check_batch(
        self,
        batch: WalkedBatch,
        before: WalkedBatch | None,
        guard: VerificationGuard | None,
        *,
        from_coordinator: bool,
    ) -> None:
        """Refuses a batch that breaks a rule. `before` is the earlier batch of the producer in the same request."""
        producer = self._by_id.get(batch.producer_id)
        is_transactional = batch.attributes & TRANSACTIONAL != 0
        if is_transactional or before is not None or (producer is not None and producer.txn_first_offset >= 0):
            begun = before is not None and before.attributes & TRANSACTIONAL != 0
            check_transaction(batch, producer, begun, guard, self.guards)
        if from_coordinator:
            check_epoch(batch, producer.epoch if producer is not None else -1)
        elif is_keyed(batch.producer_id) and not is_transactional:
            check_unused(batch.producer_id, is_used=producer is not None or before is not None)
        else:
            last = None if before is None else (before.producer_epoch, find_last_sequence(before))
            check_sequence(batch, producer, last, is_empty=self.end_offset == 0)
            if is_transactional and guard is not None:
                check_begins(batch, producer, guard, self.guards)

    # -- transactions -------------------------------------------------------------------------------------------------

    def has_ongoing_txn(self, producer_id: int, epoch: int) -> bool:
        """True if the producer has an open transaction of this epoch here."""
        producer = self._by_id.get(producer_id)
        return producer is not None and producer.txn_first_offset >= 0 and producer.epoch == epoch

    def find_oldest_txn(self, now_ms: int) -> ProducerStateEntry | None:
        """Returns the producer of the oldest open transaction, or None. For a transaction from before this process
        started, the time counts from the first call."""
        oldest = self.txns.oldest_producer_id
        if oldest is None:
            return None
        producer = self._by_id[oldest]
        if producer.txn_began_ms == UNSEEN:
            producer.txn_began_ms = now_ms
        return producer

    def find_unverified(self, batch: BatchHeader) -> UnverifiedProducer | None:
        """Returns the producer of a batch that would begin a transaction here. Returns None for any other batch."""
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if not batch.is_transactional or producer_id < 0 or self.has_ongoing_txn(producer_id, epoch):
            return None
        return UnverifiedProducer(producer_id, epoch, batch.base_sequence)

    def check_transaction(self, producer_id: int, epoch: int, guard: VerificationGuard | None, now_ms: int) -> None:
        """Raises `Refused` if a coordinator's batch of this producer cannot go on with its transaction, or begin it."""
        probe = WalkedBatch(0, 0, 0, 0, 0, TRANSACTIONAL, 0, 0, producer_id, epoch, 0, 1)
        self.check_batches([probe], now_ms, guard, from_coordinator=True)

    def list_open_transactions_within(self, start: int, end: int) -> list[ProducerStateEntry]:
        """Returns the producers of the open transactions that have records below `end` only, and one from `start` on.
        Coordinators' records have no sequences: the last one of a transaction is not known, and may be anywhere."""
        began_below = [self._by_id[producer_id] for producer_id in self.txns.list_begun_below(end)]
        return [each for each in began_below if not each.batches or start <= each.batches[-1].last_offset < end]

    def is_marker_due(self, marker: TransactionMarker) -> bool:
        """Returns what `marker_checks.is_marker_due` says. No guard for that transaction is valid any longer, unless
        the marker is refused."""
        is_due = is_marker_due(marker, self._by_id.get(marker.producer_id))
        self.guards.invalidate(marker.producer_id, find_ended_epoch(marker))
        return is_due

    def is_abort_due(self, marker: TransactionMarker, pending_epoch: int = -1) -> bool:
        """Returns what `marker_checks.is_abort_due` says."""
        return is_abort_due(marker, self._by_id.get(marker.producer_id), pending_epoch)

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, batch: WalkedBatch, now_ms: int = UNSEEN) -> None:
        """Applies a data batch that is in the log since `now_ms`, with its final offsets."""
        self.end_offset = batch.last_offset + 1
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if producer_id < 0:
            return
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self.known.add(producer_id, epoch)
            self.known.trim(keep_id=producer_id)
        else:
            self._by_id.move_to_end(producer_id)
            if not producer.batches:
                self.known.drop_fence(producer)
            if producer.epoch != epoch:
                producer.epoch = epoch
                producer.batches.clear()
        if batch.base_sequence >= 0:  # coordinators write without sequences
            if len(producer.batches) == BATCHES_RETAINED:
                del producer.batches[0]
            last = (batch.base_sequence + batch.last_offset - batch.base_offset) & SEQUENCE_MAX
            producer.batches.append(
                BatchMetadata(batch.base_sequence, last, batch.base_offset, batch.last_offset, batch.max_timestamp)
            )
        producer.timestamp, producer.last_seen_ms = batch.max_timestamp, now_ms
        if batch.attributes & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset, producer.txn_began_ms = batch.base_offset, now_ms
            self.txns.begin(batch.base_offset, producer_id)
            self.guards.invalidate(producer_id, epoch)

    def end_transaction(self, marker: WalkedBatch, batch: Buffer, now_ms: int = UNSEEN) -> AbortedTxn | None:
        """Applies a control batch that is in the log since `now_ms`, with its bytes in `batch`.

        Its one record says how the transaction ended. A clean may have taken that record, after all records of the
        transaction: then it ends nothing. Returns the entry for the transaction index if it aborts a transaction.
        """
        assert marker.attributes & CONTROL
        if not marker.count:
            self.end_offset = marker.last_offset + 1
            return None
        _, _, commit, coordinator_epoch, _ = decode_marker(batch)
        self.end_offset = marker.last_offset + 1
        producer = self._by_id.get(marker.producer_id)
        if producer is None:
            producer = self.known.add(marker.producer_id, marker.producer_epoch)
        if producer.epoch != marker.producer_epoch:
            producer.epoch = marker.producer_epoch
            producer.batches.clear()
        producer.coordinator_epoch, producer.marker_end = coordinator_epoch, self.end_offset
        producer.timestamp, producer.last_seen_ms = marker.max_timestamp, now_ms
        self.known.on_marker(producer)
        self.guards.invalidate(marker.producer_id, marker.producer_epoch - 1)
        first, producer.txn_first_offset = producer.txn_first_offset, -1
        if first < 0:
            return None
        stable = self.txns.end(first, marker.last_offset)
        return None if commit else AbortedTxn(marker.producer_id, first, marker.last_offset, stable)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """Encodes all producers. Later starts trust the snapshot, so the state is checked first."""
        self.check()
        return encode_snapshot(self.list_producers())

    @classmethod
    def from_snapshot(
        cls, data: Buffer, end_offset: int, limits: ProducerLimits | None = None, *, where: str = ""
    ) -> ProducerStates:
        """Decodes the output of `encode_snapshot`. Raises `Corrupt` if the bytes are invalid."""
        states, producers = cls(end_offset), decode_snapshot(data, where)
        states.known.load(producers)
        ongoing = sorted((p.txn_first_offset, p.producer_id) for p in producers if p.txn_first_offset >= 0)
        states.txns = OngoingTxns(ongoing)
        states.known.join_limits(limits or ProducerLimits())
        return states

    def restore_batches(self, batches: Iterable[WalkedBatch]) -> None:
        """Adds older batches that a snapshot has no room for. The batches come from the log, oldest first."""
        older: dict[int, list[BatchMetadata]] = {}
        for batch in batches:
            producer = self._by_id.get(batch.producer_id)
            if producer is None or producer.epoch != batch.producer_epoch or batch.attributes & CONTROL:
                continue
            if batch.base_sequence < 0:
                continue
            if producer.batches and batch.last_offset < producer.batches[0].base_offset:
                last = find_last_sequence(batch)
                older.setdefault(batch.producer_id, []).append(
                    BatchMetadata(batch.base_sequence, last, batch.base_offset, batch.last_offset, batch.max_timestamp)
                )
        for producer_id, restored in older.items():
            self._by_id[producer_id].restore_older(restored)

    def restore_window(self, before: ProducerStates) -> None:
        """Adds older batches from the state of the same log before a truncation. They may be in the bucket only."""
        for producer in self._by_id.values():
            known = before.get(producer.producer_id)
            if known is not None and known.epoch == producer.epoch and producer.batches:
                first = producer.batches[0].base_offset
                producer.restore_older([each for each in known.batches if each.last_offset < first])

    def restore_others(self, before: ProducerStates) -> None:
        """Adds producers with batches that only another state of the same log knows, as those that wrote longest ago.

        One with an open transaction is left out: this state knows the transactions that are not decided.
        """
        for producer in reversed(before._by_id.values()):
            if producer.batches and producer.txn_first_offset < 0 and producer.producer_id not in self._by_id:
                self.known.add_oldest(producer)

    def check(self) -> None:
        """Checks the bounds and the order of all entries."""
        self.known.check()
        self.txns.check()
