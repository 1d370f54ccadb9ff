"""Transactions in one partition that this broker leads: the verification before their first record (KIP-890), and their
markers, with those that all disks have lost. Does not decide how a transaction ends."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol

from tiered.errors import Corrupt
from tiered.hot.disk_log import DiskLog
from tiered.hot.validation import LogAppendInfo
from tiered.ports import Buffer, Clock
from tiered.producers.verification import UnverifiedProducer, VerificationGuard
from tiered.records.batch import decode_header
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.model import ATTRIBUTES_END, HEADER_BYTES, PRODUCER, PRODUCER_AT, TRANSACTIONAL
from tiered.replication.append_admission import AppendAdmission


class MarkerAppends(Protocol):
    """The appends of the leader replica, as markers need them."""

    def append_admitted(self, data: bytearray, *, from_coordinator: bool) -> LogAppendInfo:
        """Writes a batch, without the checks of `AppendAdmission`."""

    def is_committed(self, end: int) -> bool:
        """True if all records below `end` are committed."""

    async def confirm_committed(self, end: int, timeout_ms: int) -> None:
        """Returns once all records below `end` are committed and may be acknowledged."""

    async def flush(self, end: int | None = None) -> None:
        """Fsyncs the log."""


class LeaderTransactions:
    """The transactions of one leader replica. `epoch_start` is the log end at the start of its leader epoch."""

    __slots__ = ("_admission", "_appends", "_clock", "_epoch_start", "_log", "lost_markers")

    def __init__(
        self,
        log: DiskLog,
        epoch_start: int,
        appends: MarkerAppends,
        admission: AppendAdmission,
        clock: Clock,
        lost_markers: Iterable[TransactionMarker],
    ) -> None:
        self._log = log
        self._epoch_start = epoch_start
        # The replica owns this object. Two that own each other stay in memory until the garbage collector comes by, and
        # it comes seldom: topics of ten thousand partitions that come and go would add up.
        self._appends: MarkerAppends = weakref.proxy(appends)
        self._admission = admission
        self._clock = clock
        self.lost_markers = list(lost_markers)
        """Markers that have to be written before any other record."""

    # -- the first record of a transaction ----------------------------------------------------------------------------

    def needs_verification(self, records: Buffer) -> UnverifiedProducer | None:
        """Returns the producer of produced records if they would begin a transaction here: its coordinator has to
        confirm first that the partition belongs to the transaction. Looks at the first batch only, as a produce request
        has one for each partition. Records that are no batch need no verification: an append refuses them."""
        if len(records) < HEADER_BYTES or not records[ATTRIBUTES_END - 1] & TRANSACTIONAL:
            return None
        producers = self._log.producers
        if producers.has_ongoing_txn(*PRODUCER.unpack_from(records, PRODUCER_AT)):
            return None
        try:
            head = decode_header(records)
        except Corrupt:
            return None
        return producers.find_unverified(head)

    def begin_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int = 0, *, moves_epoch: bool = False
    ) -> VerificationGuard:
        """Returns a guard with which the producer may begin a transaction once its coordinator has confirmed it.
        `end_verification` has to follow in any case. `moves_epoch`: the producer gets a new epoch with each
        transaction."""
        producer = UnverifiedProducer(producer_id, producer_epoch, base_sequence)
        return self._log.producers.guards.begin(producer, moves_epoch)

    def end_verification(self, guard: VerificationGuard) -> None:
        """Gives back a guard, used or not."""
        self._log.producers.guards.end(guard)

    def check_transaction(self, producer_id: int, epoch: int, guard: VerificationGuard | None) -> None:
        """Raises `Refused` if records of this transaction from a coordinator of this broker would be refused now."""
        self._admission.check(True)
        self._log.producers.check_transaction(producer_id, epoch, guard, self._clock.mono_ns() // 1_000_000)

    # -- markers ------------------------------------------------------------------------------------------------------

    async def append_marker(
        self, marker: TransactionMarker, *, timeout_ms: int = 30_000, may_wait: bool = True
    ) -> None:
        """Ends the transaction of a producer here: writes the marker unless it is in the log already. Returns once the
        marker is committed. A repeated call changes nothing. `may_wait`: waits first until a loss is reported.

        Raises `Refused` like an append with acks=all, and INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED for
        a marker that is too late.
        """
        if may_wait and self._admission.has_unreported_loss:
            timeout_ms = await self._admission.wait_loss_reported_within(timeout_ms)
        end = self.append_marker_now(marker)
        if not self._appends.is_committed(end):
            await self._appends.confirm_committed(end, timeout_ms)

    def append_marker_now(self, marker: TransactionMarker) -> int:
        """Writes the marker unless it is in the log already, without waiting. Returns the offset below which all
        records have to be committed before the marker is. Raises `Refused` like `append_marker`, but never
        REQUEST_TIMED_OUT."""
        self._admission.check(True)
        self.append_lost_markers()
        is_due = self._log.producers.is_marker_due(marker)
        return self._write_marker(marker) if is_due else self.find_marker_end(marker.producer_id)

    def find_marker_end(self, producer_id: int) -> int:
        """Returns the offset below which all records have to be committed before the last marker of a producer is. The
        log end would move on with each append, and a caller that tries again would wait for later records each time.

        A marker of which only a producer snapshot knows is older than this leader epoch.
        """
        producer = self._log.producers.get(producer_id)
        return producer.marker_end if producer is not None and producer.marker_end >= 0 else self._epoch_start

    def append_lost_markers(self) -> None:
        """Writes the lost markers without waiting. Otherwise these markers would end a later transaction of the same
        producer."""
        while self.lost_markers:
            self._write_marker(self.lost_markers[0])
            del self.lost_markers[0]

    async def write_lost_markers(self) -> None:
        """Writes the markers of cold transactions that all disks have lost. Call this at the start of the leadership,
        and once a loss is reported.

        Raises `Refused` or `Unavailable` if the disk is full or failed. The next append then writes the markers, or the
        rule for orphaned transactions does.
        """
        if self.lost_markers and not self._admission.has_unreported_loss and not self._admission.is_stopped:
            self.append_lost_markers()
            if self._log.synced_entry.fsynced_only:
                await self._appends.flush()

    def _write_marker(self, marker: TransactionMarker) -> int:
        """Every marker comes to the log this way. Returns the offset behind it."""
        data = encode_marker(marker, self._clock.wall_ms())
        return self._appends.append_admitted(data, from_coordinator=True).last_offset + 1
