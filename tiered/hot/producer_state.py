"""Idempotence and transactions of one partition: what each producer wrote last, and which offsets are undecided.

Pure. The last five batches of a producer are kept, as many as its clients send before an answer, so that a retry is
told the offset of its first try. Snapshots are in Kafka's `.snapshot` format, version 1, which holds the last one only.

Ids are bounded, and clients may invent them. A leader that has no room for a new one forgets the producer that wrote
longest ago, if that one cannot be about to retry (`IDLE_MS`). Else it refuses the new one: to forget a producer that
retries would be to write its records twice. Followers and starts have no choice, and keep those that wrote last: these
are the ones that the leader keeps.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused, check_invariant
from tiered.ports import Buffer
from tiered.records.batch import decode_records
from tiered.records.model import CONTROL, TRANSACTIONAL, WalkedBatch
from tiered.records.native import crc32c

BATCHES_RETAINED = 5
UNSEEN = -1
"""This process has not seen the producer write: it is known from a snapshot or the log."""
SEQUENCE_MAX = 2**31 - 1

IDLE_MS = 600_000
"""After so long no client tries a batch again: they give up after two to five minutes, unless told otherwise."""
PER_PARTITION = "tiered.producer.ids.max.per.partition"
TOTAL = "tiered.producer.ids.max"

_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_ABORTED = struct.Struct(">hqqqq")
_VERSION = 1
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_COMMIT = 1
_LAST_OFFSET = itemgetter(3)
"""Of an entry of a snapshot."""


class BatchMetadata(NamedTuple):
    """One batch that a producer wrote."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class AbortedTxn(NamedTuple):
    """One aborted transaction, as a line of Kafka's `.txnindex` (34 bytes)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    def encode(self) -> bytes:
        return _ABORTED.pack(0, *self)


def decode_aborted_txns(data: Buffer) -> list[AbortedTxn]:
    """All whole entries of a `.txnindex`; stops at the first of an unknown version."""
    out = []
    whole = len(data) // _ABORTED.size * _ABORTED.size
    for version, *fields in _ABORTED.iter_unpack(memoryview(data)[:whole]):
        if version != 0:
            break
        out.append(AbortedTxn(*fields))
    return out


@dataclass(slots=True)
class ProducerStateEntry:
    """What one producer id wrote last here."""

    producer_id: int
    epoch: int
    batches: list[BatchMetadata] = field(default_factory=list)
    timestamp: int = -1
    """Of its last record."""
    coordinator_epoch: int = -1
    txn_first_offset: int = -1
    last_seen_ms: int = field(default=UNSEEN, compare=False)
    """When it last wrote, by the broker's clock."""

    def find_batch(self, first_sequence: int, last_sequence: int) -> BatchMetadata | None:
        for written in self.batches:
            if written.first_sequence == first_sequence and written.last_sequence == last_sequence:
                return written
        return None


class ProducerLimits:
    """How many producers all logs of a broker may know of, together and each. `held`: how many they do."""

    __slots__ = ("per_partition", "producer_count", "total")

    def __init__(self, per_partition: int = 10_000, total: int = 200_000) -> None:
        self.per_partition = per_partition
        self.total = total
        self.producer_count = 0

    @property
    def is_nearly_full(self) -> bool:
        """True if there is little room left: then silent producers go sooner."""
        return self.producer_count * 10 >= self.total * 9


class ProducerStates:
    """All producers of one partition. `end_offset` is the offset up to which batches were applied. They count against
    `limits`, which they share with other partitions once they `join` them."""

    def __init__(self, end_offset: int = 0, limits: ProducerLimits | None = None) -> None:
        self.end_offset = end_offset
        self._limits = limits or ProducerLimits()
        self._producers: OrderedDict[int, ProducerStateEntry] = OrderedDict()
        """Who wrote last stands last."""
        self._ongoing_txns: dict[int, int] = {}
        """First offset of each open transaction -> producer id, in the order of offsets."""
        self._unreplicated_txns: list[tuple[int, int]] = []
        """(first offset, marker offset) of ended transactions whose marker may lie above the high watermark."""

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def list_producers(self) -> list[ProducerStateEntry]:
        """Every producer that is remembered, by id."""
        return [self._producers[producer_id] for producer_id in sorted(self._producers)]

    def next_sequence(self, producer_id: int, epoch: int) -> int | None:
        """Which number has to come next of this producer in this epoch; None: none has to, or its epoch is over."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return 0 if self.end_offset == 0 else None
        if producer.epoch != epoch:
            return 0 if producer.epoch < epoch else None
        return (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX if producer.batches else 0

    # -- room ---------------------------------------------------------------------------------------------------------

    def join_limits(self, limits: ProducerLimits) -> None:
        """Counts against these limits from now on."""
        self._limits.producer_count -= len(self._producers)
        self._limits = limits
        limits.producer_count += len(self._producers)
        self._trim()

    def leave_limits(self) -> None:
        """The log is closed, or has others now."""
        self.join_limits(ProducerLimits(self._limits.per_partition))

    def _add(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        producer = self._producers[producer_id] = ProducerStateEntry(producer_id, epoch)
        self._limits.producer_count += 1
        self._trim(keep_id=producer_id)
        return producer

    def _forget(self, producer_id: int) -> None:
        del self._producers[producer_id]
        self._limits.producer_count -= 1

    def _trim(self, keep_id: int = -1) -> None:
        """Forgets those that wrote longest ago, above the limit of one partition."""
        while len(self._producers) > self._limits.per_partition:
            oldest = self._oldest()
            if oldest is None or oldest.producer_id == keep_id:
                return
            self._forget(oldest.producer_id)

    def _oldest(self) -> ProducerStateEntry | None:
        """The one that wrote longest ago, of those without an open transaction."""
        return next((each for each in self._producers.values() if each.txn_first_offset < 0), None)

    def _make_room(self, new_producers: int, now_ms: int) -> None:
        """For `new` producers. `Refused` with what clients try again, where none is idle."""
        limits = self._limits
        while True:
            if len(self._producers) + new_producers > limits.per_partition:
                full = f"the partition knows {len(self._producers)} producer ids, {PER_PARTITION} is"
                full = f"{full} {limits.per_partition}"
            elif limits.producer_count + new_producers > limits.total:
                full = f"the broker knows {limits.producer_count} producer ids, {TOTAL} is {limits.total}"
            else:
                return
            oldest = self._oldest()
            if oldest is not None and oldest.last_seen_ms == UNSEEN:
                oldest.last_seen_ms = now_ms
            if oldest is None or now_ms - oldest.last_seen_ms < IDLE_MS:
                raise Refused(Code.THROTTLING_QUOTA_EXCEEDED, f"{full}, and none that was idle for ten minutes")
            self._forget(oldest.producer_id)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def find_duplicates(self, batches: Sequence[WalkedBatch], now_ms: int) -> list[BatchMetadata]:
        """The leading batches that stand in the log already (a retry); `Refused` when the rest does not follow on, or
        comes from a new producer for which there is no room."""
        known: list[BatchMetadata] = []
        new = 0
        tails: dict[int, tuple[int, int]] = {}
        for batch in batches:
            if batch.producer_id < 0:
                continue
            last = _last_sequence(batch)
            producer = self._producers.get(batch.producer_id)
            if producer is not None and batch.producer_id not in tails and producer.epoch == batch.producer_epoch:
                written = producer.find_batch(batch.base_sequence, last)
                if written is not None and len(known) == batches.index(batch):
                    known.append(written)
                    continue
            self._check_follows(batch, producer, tails.get(batch.producer_id))
            new += producer is None and batch.producer_id not in tails
            tails[batch.producer_id] = (batch.producer_epoch, last)
        if new:
            self._make_room(new, now_ms)
        return known

    def _check_follows(
        self, batch: WalkedBatch, producer: ProducerStateEntry | None, tail: tuple[int, int] | None
    ) -> None:
        if tail is None:
            if producer is None:
                # One that was forgotten may go on; a log that never held a record has nothing to go on from.
                if self.end_offset == 0 and batch.base_sequence != 0:
                    raise Refused(
                        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"producer {batch.producer_id}: sequence {batch.base_sequence} is not the first of this log",
                    )
                return
            tail = (producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1)
        epoch, last = tail
        who = f"producer {batch.producer_id} epoch {batch.producer_epoch}"
        if batch.producer_epoch < epoch:
            raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{who}: the last seen epoch is {epoch}")
        if batch.producer_epoch > epoch:
            if batch.base_sequence != 0:
                raise Refused(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{who}: a new epoch begins at 0, not {batch.base_sequence}"
                )
            return
        if last != -1 and batch.base_sequence != (last + 1) & SEQUENCE_MAX:
            raise Refused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{who}: sequence {batch.base_sequence} does not follow {last}"
            )
        if last == -1 and batch.base_sequence != 0:
            raise Refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{who}: sequence {batch.base_sequence} is not the first")

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, batch: WalkedBatch, now_ms: int = UNSEEN) -> None:
        """A data batch stands in the log since `now_ms`, with its final offsets."""
        self.end_offset = batch.last_offset + 1
        if batch.producer_id < 0:
            return
        producer = self._producers.get(batch.producer_id)
        if producer is None:
            producer = self._add(batch.producer_id, batch.producer_epoch)
        elif producer.epoch != batch.producer_epoch:
            producer.epoch = batch.producer_epoch
            producer.batches.clear()
        self._producers.move_to_end(batch.producer_id)
        if len(producer.batches) == BATCHES_RETAINED:
            del producer.batches[0]
        producer.batches.append(
            BatchMetadata(
                batch.base_sequence, _last_sequence(batch), batch.base_offset, batch.last_offset, batch.max_timestamp
            )
        )
        producer.timestamp, producer.last_seen_ms = batch.max_timestamp, now_ms
        if batch.attributes & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset = batch.base_offset
            self._ongoing_txns[batch.base_offset] = batch.producer_id

    def end_transaction(self, marker: WalkedBatch, batch: Buffer, now_ms: int = UNSEEN) -> AbortedTxn | None:
        """A control batch stands in the log since `now_ms`, its bytes in `batch`; its one record says how the
        transaction ended. Returns the entry for the transaction index when it aborts something."""
        assert marker.attributes & CONTROL
        commit, coordinator_epoch = _decode_marker(batch)
        self.end_offset = marker.last_offset + 1
        producer = self._producers.get(marker.producer_id)
        if producer is None:
            producer = self._add(marker.producer_id, marker.producer_epoch)
        if producer.epoch != marker.producer_epoch:
            producer.epoch = marker.producer_epoch
            producer.batches.clear()
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp, producer.last_seen_ms = marker.max_timestamp, now_ms
        self._producers.move_to_end(marker.producer_id)
        first, producer.txn_first_offset = producer.txn_first_offset, -1
        if first < 0:
            return None
        del self._ongoing_txns[first]
        self._unreplicated_txns.append((first, marker.last_offset))
        if commit:
            return None
        stable = next(iter(self._ongoing_txns), marker.last_offset + 1)
        return AbortedTxn(marker.producer_id, first, marker.last_offset, stable)

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions whose marker lies below the high watermark are decided for every reader."""
        if self._unreplicated_txns:
            self._unreplicated_txns = [ended for ended in self._unreplicated_txns if ended[1] >= high_watermark]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset whose fate a read_committed reader cannot know yet."""
        if not self._unreplicated_txns and not self._ongoing_txns:
            return None
        candidates = [first for first, _ in self._unreplicated_txns]
        candidates += [next(iter(self._ongoing_txns))] if self._ongoing_txns else []
        return min(candidates, default=None)

    def remove_expired(self, now_ms: int, idle_ms: int) -> None:
        """Forgets producers that wrote nothing for `idle_ms` and have no open transaction. The broker's clock counts
        (in Kafka their records' timestamps do): who replays old records is not forgotten between two tries. Of those
        that this process has not seen the time counts from the first look at them."""
        idle: list[int] = []
        for producer in self._producers.values():
            if producer.last_seen_ms == UNSEEN:
                producer.last_seen_ms = now_ms
            if producer.txn_first_offset < 0 and now_ms - producer.last_seen_ms >= idle_ms:
                idle.append(producer.producer_id)
        for producer_id in idle:
            self._forget(producer_id)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """Kafka's producer snapshot, version 1, of all producers; later starts will believe it."""
        self.check()
        entries = [_ENTRY.pack(*_entry_fields(self._producers[producer_id])) for producer_id in sorted(self._producers)]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _HEAD.pack(_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(
        cls, data: Buffer, end_offset: int, limits: ProducerLimits | None = None, *, where: str = ""
    ) -> ProducerStates:
        """The reverse of `snapshot`; Corrupt when the bytes do not prove themselves."""
        states = cls(end_offset)
        for entry in sorted(_decode_entries(data, where), key=_LAST_OFFSET):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = entry
            producer = ProducerStateEntry(producer_id, epoch, [], timestamp, coordinator_epoch, txn_first)
            if last_offset >= 0:
                first_sequence = (last_sequence - delta) & SEQUENCE_MAX
                producer.batches.append(
                    BatchMetadata(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
                )
            states._producers[producer_id] = producer
        open_ones = [p for p in states._producers.values() if p.txn_first_offset >= 0]
        for producer in sorted(open_ones, key=lambda p: p.txn_first_offset):
            states._ongoing_txns[producer.txn_first_offset] = producer.producer_id
        states._limits.producer_count = len(states._producers)
        states.join_limits(limits or ProducerLimits())
        return states

    def restore_batches(self, batches: Iterable[WalkedBatch]) -> None:
        """Fills windows with older batches of the log, oldest first, that a snapshot could not hold."""
        older: dict[int, list[BatchMetadata]] = {}
        for batch in batches:
            producer = self._producers.get(batch.producer_id)
            if producer is None or producer.epoch != batch.producer_epoch or batch.attributes & CONTROL:
                continue
            if producer.batches and batch.last_offset < producer.batches[0].base_offset:
                last = _last_sequence(batch)
                older.setdefault(batch.producer_id, []).append(
                    BatchMetadata(batch.base_sequence, last, batch.base_offset, batch.last_offset, batch.max_timestamp)
                )
        for producer_id, written in older.items():
            producer = self._producers[producer_id]
            room = BATCHES_RETAINED - len(producer.batches)
            producer.batches[:0] = written[-room:] if room else []

    def check(self) -> None:
        """What always holds."""
        for producer in self._producers.values():
            check_invariant(len(producer.batches) <= BATCHES_RETAINED, "window too large", producer)
            offsets = [offset for written in producer.batches for offset in (written.base_offset, written.last_offset)]
            check_invariant(offsets == sorted(offsets), "window out of order", producer)
        check_invariant(
            list(self._ongoing_txns) == sorted(self._ongoing_txns), "open transactions out of order", self._ongoing_txns
        )


def _decode_marker(batch: Buffer) -> tuple[bool, int]:
    """(is it a commit, coordinator epoch) of an end-transaction marker; Corrupt when it is none."""
    record = decode_records(batch)[0]
    if record.key is None or record.value is None or len(record.key) < 4 or len(record.value) < 6:
        raise Corrupt(f"control record at offset {record.offset} is no end of a transaction")
    kind = _MARKER_KEY.unpack_from(record.key)[1]
    return kind == _COMMIT, _MARKER_VALUE.unpack_from(record.value)[1]


def _last_sequence(batch: WalkedBatch) -> int:
    return (batch.base_sequence + batch.last_offset - batch.base_offset) & SEQUENCE_MAX


def _entry_fields(producer: ProducerStateEntry) -> tuple[int, ...]:
    last = producer.batches[-1] if producer.batches else BatchMetadata(-1, -1, -1, -1, -1)
    return (
        producer.producer_id,
        producer.epoch,
        last.last_sequence,
        last.last_offset,
        last.last_offset - last.base_offset,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )


def _decode_entries(data: Buffer, where: str) -> Iterable[tuple[int, ...]]:
    if len(data) < _HEAD.size + _COUNT.size:
        raise Corrupt("producer snapshot is short", where=where)
    version, crc = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise Corrupt(f"producer snapshot has version {version}", where=where)
    body = memoryview(data)[_HEAD.size :]
    if crc32c(body) != crc:
        raise Corrupt("producer snapshot's CRC does not hold", where=where)
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise Corrupt(f"producer snapshot of {count} producers has {len(data)} bytes", where=where)
    return _ENTRY.iter_unpack(body[_COUNT.size :])
