"""Producer state of one partition: the last batches of each producer, and the open transactions.

Pure. Keeps I11, I12, and the part of I14 and I16 that one partition can keep. The last five batches of each producer
are retained, because a client sends up to five requests before it waits for a reply. A retry of one of them gets the
offset of the first try. Snapshots have Kafka's `.snapshot` format, version 1, which has the last batch only.

The number of producer ids is bounded, because clients may invent ids. If there is no room for a new id, a leader
forgets the producer that wrote longest ago, provided that it wrote nothing for `IDLE_MS`. Otherwise the leader refuses
the new producer: a retry of a forgotten producer would be written twice. Holders have shares of the room
(`quotas.shares`): one above its share replaces an idle producer of its own, or is refused. Producers that the log or a
snapshot gave have no known holder. Followers, and a broker that loads its logs,
cannot refuse. They keep the producers that wrote last, and so does the leader. All times are of the monotonic clock:
somebody may set the wall clock.

A keyed id stands for an idempotency key of HTTP. It writes one batch, whose epoch and first sequence are a hash of the
request. The batch in the log is the proof that the key was used. The keyed id of a transaction writes as any other
transactional producer does. Keyed ids take half of the room of a partition at most, so that keys do not displace
producers.

A marker makes its producer known too. If no batch is known of the producer, its entry proves no retry. It only fences
earlier epochs and coordinators. The coordinator of the transaction does that as well, before any transaction begins
here. So these entries are the first to be forgotten, and a marker displaces no producer with batches. A keyed id whose
transaction has ended takes no room of keys for the same reason.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from tiered.errors import Code, Corrupt, Refused, check_invariant
from tiered.ids import KEYED_FROM
from tiered.ports import Buffer
from tiered.producers.aborted_txns import AbortedTxn
from tiered.producers.verification import UnverifiedProducer, VerificationGuard, VerificationGuards
from tiered.quotas.shares import (
    IDEMPOTENCY_KEYS,
    PARTITION_PRODUCER_IDS,
    PRODUCER_IDS,
    Holdings,
    Pot,
    PotRefused,
    count_holder,
    has_room,
    is_scarce,
    refuse,
)
from tiered.records.marker import TransactionMarker, decode_marker
from tiered.records.model import CONTROL, TRANSACTIONAL, BatchHeader, WalkedBatch
from tiered.records.native import crc32c

BATCHES_RETAINED = 5
UNSEEN = -1
"""The producer is known from a snapshot or the log: it has not written since this process started."""
SEQUENCE_MAX = 2**31 - 1

FENCES_BEYOND = 100
"""Producers without batches that a full partition knows beyond its limit: a repeated marker has to find the first."""

IDLE_MS = 600_000
"""After this time no client retries a batch: by default clients stop after two to five minutes."""
OWN_LOOKED_AT_MAX = 1_000
"""Most idle producers of a partition that are looked at for one of a holder: a refusal has to stay cheap."""

_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_VERSION = 1
_MARKER_OFFSET = itemgetter(1)
_LAST_OFFSET = itemgetter(3)
"""Sort key of snapshot entries."""


class BatchMetadata(NamedTuple):
    """One batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class ProducerStateEntry:
    """The last batches and the transaction of one producer id in this partition."""

    producer_id: int
    epoch: int
    batches: list[BatchMetadata] = field(default_factory=list)
    timestamp: int = -1
    """Timestamp of the last record."""
    coordinator_epoch: int = -1
    txn_first_offset: int = -1
    last_seen_ms: int = field(default=UNSEEN, compare=False)
    """When the producer last wrote, by the monotonic clock."""
    txn_began_ms: int = field(default=UNSEEN, compare=False)
    """When the open transaction began here, by the monotonic clock."""
    marker_end: int = field(default=-1, compare=False)
    """End offset of the last marker. -1 if no marker is known, or if only a snapshot knows of it."""
    holder: str = field(default="", compare=False)
    """The holder that the producer counts for; "" if it is not known."""

    @property
    def is_fence(self) -> bool:
        """True if the entry proves no retry and has no transaction: it fences earlier epochs and coordinators only."""
        return not self.batches and self.txn_first_offset < 0

    def find_batch(
        self, first_sequence: int, last_sequence: int, *, transactional: bool = False
    ) -> BatchMetadata | None:
        """Returns the batch with these sequences, which a retry repeats.

        A transactional batch repeats only a batch of the open transaction. librdkafka gives the sequence of an aborted
        batch, whose reply it never got, to a batch of its next transaction. Taken for a retry, that one would be lost.
        """
        if transactional and self.txn_first_offset < 0:
            return None
        for written in self.batches:
            if written.first_sequence == first_sequence and written.last_sequence == last_sequence:
                return None if transactional and written.base_offset < self.txn_first_offset else written
        return None


_NONE_HELD: dict[str, int] = {}
_NONE_ADMITTED: dict[int, str] = {}
"""Shared by all partitions without such entries, and never changed: a broker leads tens of thousands."""


def _count(by_holder: dict[str, int], holder: str, count: int) -> dict[str, int]:
    """Returns the counts of holders after one took or gave back something."""
    if not holder:
        return by_holder
    own = {} if by_holder is _NONE_HELD else by_holder
    count_holder(own, holder, count)
    return own or _NONE_HELD


class _PotLevel(NamedTuple):
    """The level of a pot, and what is about to be taken of it."""

    pot: Pot
    bound: int
    held: int
    more: int


class ProducerLimits:
    """Limits on the producer ids of all logs of a broker, together and each. `producer_count` is how many they have
    now."""

    __slots__ = ("holdings", "keys_forgotten", "per_partition", "producer_count", "total")

    def __init__(self, per_partition: int = 10_000, total: int = 200_000) -> None:
        self.per_partition = per_partition
        self.total = total
        self.producer_count = 0
        self.keys_forgotten = 0
        """Keyed ids that had to make room for others before their time was over."""
        self.holdings = Holdings(PRODUCER_IDS, lambda: self.total, lambda: self.producer_count)

    @property
    def keys_per_partition(self) -> int:
        """Most keyed ids that a leader accepts in one partition."""
        return max(self.per_partition // 2, 1)

    @property
    def is_scarce(self) -> bool:
        """True if more than three quarters of the total are used: silent producers then expire sooner."""
        return is_scarce(self.total, self.producer_count)


class ProducerStates:
    """All producers of one partition. All batches below `end_offset` are applied.

    The producers count against `limits`. `join_limits` shares limits with other partitions.
    """

    __slots__ = (
        "_admitted",
        "_fences",
        "_guards",
        "_holders",
        "_key_holders",
        "_keyed",
        "_limits",
        "_ongoing_txns",
        "_producers",
        "_unreplicated_txns",
        "end_offset",
        "first_unstable_offset",
        "is_incomplete",
    )

    def __init__(self, end_offset: int = 0, limits: ProducerLimits | None = None) -> None:
        self.end_offset = end_offset
        self._limits = limits or ProducerLimits()
        self._producers: OrderedDict[int, ProducerStateEntry] = OrderedDict()
        """Ordered by their last write, the newest last."""
        self._ongoing_txns: dict[int, int] = {}
        """First offset of each open transaction -> producer id, in the order of offsets."""
        self._unreplicated_txns: list[tuple[int, int]] = []
        """(first offset, marker offset) of ended transactions whose marker may lie above the high watermark, in
        the order of markers."""
        self.first_unstable_offset: int | None = None
        """First offset whose outcome a read_committed reader cannot know yet. None if there is none."""
        self.is_incomplete = False
        """True if producers are missing that wrote below the local log only: a start found no snapshot of them."""
        self._guards = VerificationGuards()
        self._keyed = 0
        """Number of keyed ids that are no fences."""
        self._holders = _NONE_HELD
        """Number of producers of each known holder."""
        self._key_holders = _NONE_HELD
        """Number of keyed ids of each known holder that are no fences."""
        self._admitted = _NONE_ADMITTED
        """Holders of the new producers of the batches that were checked last."""
        self._fences: dict[int, None] = {}
        """Producers without batches whose last entry in the log is a marker, in the order of their markers."""

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._producers.get(producer_id)

    def list_producers(self) -> list[ProducerStateEntry]:
        """Returns all known producers, by id."""
        return [self._producers[producer_id] for producer_id in sorted(self._producers)]

    def next_sequence(self, producer_id: int, epoch: int) -> int | None:
        """Returns the sequence number that this producer has to send next in this epoch.

        Returns None if any number is accepted, or if the epoch is over.
        """
        producer = self._producers.get(producer_id)
        if producer is None:
            return 0 if self.end_offset == 0 else None
        if producer.epoch != epoch:
            return 0 if producer.epoch < epoch else None
        return (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX if producer.batches else 0

    # -- room ---------------------------------------------------------------------------------------------------------

    def join_limits(self, limits: ProducerLimits) -> None:
        """Counts the producers against these limits from now on."""
        self._limits.producer_count -= len(self._producers)
        limits.producer_count += len(self._producers)
        for holder, count in self._holders.items():
            self._limits.holdings.add(holder, -count)
            limits.holdings.add(holder, count)
        self._limits = limits
        self._trim()

    def leave_limits(self) -> None:
        """Stops counting against shared limits: the log is closed, or its producer state was replaced."""
        self.join_limits(ProducerLimits(self._limits.per_partition))

    def _add(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        producer = self._producers[producer_id] = ProducerStateEntry(producer_id, epoch)
        self._limits.producer_count += 1
        self._keyed += producer_id >= KEYED_FROM
        if self._admitted:
            producer.holder = self._admitted.pop(producer_id, "")
            self._count_holder(producer, 1)
        return producer

    def _count_holder(self, producer: ProducerStateEntry, count: int) -> None:
        """Counts a producer of a holder that came, or one that went if `count` is below 0."""
        self._limits.holdings.add(producer.holder, count)
        self._holders = _count(self._holders, producer.holder, count)
        if producer.producer_id >= KEYED_FROM:
            self._key_holders = _count(self._key_holders, producer.holder, count)

    def _forget(self, producer_id: int) -> None:
        self._drop_fence(producer_id)
        self._count_holder(self._producers.pop(producer_id), -1)
        self._limits.producer_count -= 1
        self._keyed -= producer_id >= KEYED_FROM

    def _add_fence(self, producer_id: int) -> None:
        """Notes that the last entry of a producer is a marker. Its keyed id takes no room of keys any longer."""
        self._fences[producer_id] = None
        self._count_key(producer_id, -1)

    def _drop_fence(self, producer_id: int) -> None:
        if producer_id in self._fences:
            del self._fences[producer_id]
            self._count_key(producer_id, 1)

    def _count_key(self, producer_id: int, count: int) -> None:
        """Counts a keyed id that takes room of keys again, or none any longer if `count` is below 0."""
        if producer_id >= KEYED_FROM:
            self._keyed += count
            self._key_holders = _count(self._key_holders, self._producers[producer_id].holder, count)

    def _trim(self, keep_id: int = -1) -> None:
        """Forgets fences, then the producers that wrote longest ago, above the limit of one partition."""
        self._trim_fences(self._limits.per_partition)
        while len(self._producers) > self._limits.per_partition:
            oldest = self._oldest()
            if oldest is None or oldest.producer_id == keep_id:
                return
            self._forget(oldest.producer_id)

    def _trim_fences(self, producers_max: int) -> None:
        """Forgets the oldest fences while the partition knows more producers than that."""
        while self._fences and len(self._producers) > producers_max:
            self._forget(next(iter(self._fences)))

    def _oldest(self) -> ProducerStateEntry | None:
        """Returns the producer that wrote longest ago, of those without an open transaction."""
        return next((each for each in self._producers.values() if each.txn_first_offset < 0), None)

    def _oldest_keyed(self) -> ProducerStateEntry | None:
        """Returns the keyed id that wrote longest ago, of those with batches and without an open transaction."""
        keyed = (each for each in self._producers.values() if each.producer_id >= KEYED_FROM)
        return next((each for each in keyed if each.txn_first_offset < 0 and not each.is_fence), None)

    def _find_idle(self, holder: str, now_ms: int, most: int, *, keyed: bool) -> list[int]:
        """Returns idle producers of a holder, of those that wrote longest ago. With `keyed`, only keyed ids that take
        room of keys. One that was not seen to write may have written just now."""
        found: list[int] = []
        for each in islice(self._producers.values(), OWN_LOOKED_AT_MAX):
            is_unseen = each.last_seen_ms == UNSEEN
            if len(found) == most or (not is_unseen and now_ms - each.last_seen_ms < IDLE_MS):
                break
            is_wanted = not keyed or (each.producer_id >= KEYED_FROM and not each.is_fence)
            if is_wanted and each.holder == holder and each.txn_first_offset < 0 and not is_unseen:
                found.append(each.producer_id)
        return found

    def _list_pots(self, new_producers: int, new_keyed: int) -> list[_PotLevel]:
        """Returns the pots that new producers are taken of."""
        limits = self._limits
        found = [
            _PotLevel(PARTITION_PRODUCER_IDS, limits.per_partition, len(self._producers), new_producers),
            _PotLevel(PRODUCER_IDS, limits.total, limits.producer_count, new_producers),
        ]
        keys = _PotLevel(IDEMPOTENCY_KEYS, limits.keys_per_partition, self._keyed, new_keyed)
        return [keys, *found] if new_keyed else found

    def _own(self, pot: Pot, holder: str) -> int:
        """Returns what a holder has of a pot."""
        if pot is PRODUCER_IDS:
            return self._limits.holdings.own(holder)
        return (self._key_holders if pot is IDEMPOTENCY_KEYS else self._holders).get(holder, 0)

    def _refuse(self, level: _PotLevel, holder: str) -> PotRefused:
        own, on_refused = self._own(level.pot, holder), self._limits.holdings.on_refused
        return refuse(level.pot, level.bound, level.held, holder, own, level.more, on_refused)

    def _make_room(self, new_producers: int, new_keyed: int, now_ms: int, holder: str) -> None:
        """Makes room for `new_producers` of a holder, of which `new_keyed` are keyed ids. Raises `PotRefused` if no
        producer is idle, and there are too few fences, or if the holder is above its share."""
        while True:
            pots = self._list_pots(new_producers, new_keyed)
            full = [each for each in pots if each.held + each.more > each.bound]
            if not full:
                break
            is_full_of_keys = full[0].pot is IDEMPOTENCY_KEYS
            if not is_full_of_keys and max(each.held + each.more - each.bound for each in full) <= len(self._fences):
                self._forget(next(iter(self._fences)))
                continue
            oldest = self._oldest_keyed() if is_full_of_keys else self._oldest()
            if oldest is not None and oldest.last_seen_ms == UNSEEN:
                oldest.last_seen_ms = now_ms
            if oldest is None or now_ms - oldest.last_seen_ms < IDLE_MS:
                raise self._refuse(full[0], holder)
            self._limits.keys_forgotten += oldest.producer_id >= KEYED_FROM
            self._forget(oldest.producer_id)
        above = [each for each in pots if holder and not has_room(*each[1:3], self._own(each.pot, holder), each.more)]
        if not above:
            return
        replaced = max(each.more for each in above)
        idle = self._find_idle(holder, now_ms, replaced, keyed=any(each.pot is IDEMPOTENCY_KEYS for each in above))
        if len(idle) < replaced:
            raise self._refuse(above[0], holder)
        for producer_id in idle:
            self._limits.keys_forgotten += producer_id >= KEYED_FROM
            self._forget(producer_id)

    # -- deciding -----------------------------------------------------------------------------------------------------

    def find_duplicates(
        self,
        batches: Sequence[WalkedBatch],
        now_ms: int,
        guard: VerificationGuard | None = None,
        *,
        from_coordinator: bool = False,
        holder: str = "",
    ) -> list[BatchMetadata]:
        """Returns the leading batches that are in the log already (a retry). New producers count for `holder`.

        Raises `Refused` with DUPLICATE_RESOURCE if a keyed id has written another batch. Also raises `Refused` if the
        rest does not follow in sequence, begins a transaction without a valid `guard`, leaves
        its open transaction, or comes from a new producer for which there is no room. Coordinators, which write on
        behalf of producers, have no sequences, and so no retries.
        """
        if len(batches) == 1 and guard is None and not from_coordinator and self._is_next(batches[0], now_ms, holder):
            return []
        duplicates: list[BatchMetadata] = []
        new = new_keyed = 0
        accepted: dict[int, tuple[int, int, bool]] = {}
        for batch in batches:
            if batch.producer_id < 0 or batch.attributes & CONTROL:  # `is_marker_due` has the rules of markers
                continue
            last = _last_sequence(batch)
            producer = self._producers.get(batch.producer_id)
            is_first = batch.producer_id not in accepted
            if producer is not None and is_first and producer.epoch == batch.producer_epoch and not from_coordinator:
                duplicate = producer.find_batch(
                    batch.base_sequence, last, transactional=batch.attributes & TRANSACTIONAL != 0
                )
                if duplicate is not None and len(duplicates) == batches.index(batch):
                    duplicates.append(duplicate)
                    continue
            is_transactional = batch.attributes & TRANSACTIONAL != 0
            if is_transactional or not is_first or (producer is not None and producer.txn_first_offset >= 0):
                begun = not is_first and accepted[batch.producer_id][2]
                self._check_transaction(batch, producer, begun, guard)
            if from_coordinator:
                self._check_epoch(batch, producer.epoch if producer is not None else -1)
            elif batch.producer_id >= KEYED_FROM and not is_transactional:
                if producer is not None or not is_first:
                    why = f"idempotency key {batch.producer_id:x} was used here with another request"
                    raise Refused(Code.DUPLICATE_RESOURCE, why)
            else:
                self._check_follows(batch, producer, accepted.get(batch.producer_id))
                if is_transactional and guard is not None:
                    self._check_begins(batch, producer, guard)
            is_new = producer is None and is_first
            new += is_new
            new_keyed += is_new and batch.producer_id >= KEYED_FROM
            accepted[batch.producer_id] = (batch.producer_epoch, last, is_transactional)
        if new:
            self._make_room(new, new_keyed, now_ms, holder)
            self._admitted = dict.fromkeys((each for each in accepted if each not in self._producers), holder)
        return duplicates

    def _is_next(self, batch: WalkedBatch, now_ms: int, holder: str) -> bool:
        """True for the usual batch: the next one of a known producer, or the one of a new idempotency key. False if the
        whole check has to look. Raises `Refused` if there is no room for a new key."""
        attributes, producer_id, epoch, sequence = batch.attributes, *batch[8:11]
        producer = self._producers.get(producer_id)
        if producer is None:
            if producer_id < KEYED_FROM or attributes & (TRANSACTIONAL | CONTROL):
                return False
            self._make_room(1, 1, now_ms, holder)
            self._admitted = {producer_id: holder}
            return True
        return (
            producer.epoch == epoch
            and bool(producer.batches)
            and sequence == (producer.batches[-1].last_sequence + 1) & SEQUENCE_MAX
            and attributes & (TRANSACTIONAL | CONTROL) == (TRANSACTIONAL if producer.txn_first_offset >= 0 else 0)
            and (producer_id < KEYED_FROM or producer.txn_first_offset >= 0)
        )

    def _check_follows(
        self, batch: WalkedBatch, producer: ProducerStateEntry | None, tail: tuple[int, int, bool] | None
    ) -> None:
        if tail is not None:
            epoch, last = tail[:2]
        elif producer is not None:
            epoch, last = producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1
        else:
            # A forgotten producer may continue. In a log that never had a record there is nothing to continue.
            if self.end_offset == 0 and batch.base_sequence != 0:
                raise Refused(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {batch.producer_id}: sequence {batch.base_sequence} is not the first of this log",
                )
            return
        if batch.producer_epoch < epoch:
            self._check_epoch(batch, epoch)
        if batch.producer_epoch > epoch:
            if batch.base_sequence != 0:
                raise Refused(
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"{_name(batch)}: a new epoch begins at 0, not {batch.base_sequence}",
                )
            return
        if last != -1 and batch.base_sequence != (last + 1) & SEQUENCE_MAX:
            raise Refused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_name(batch)}: sequence {batch.base_sequence} does not follow {last}",
            )
        if last == -1 and batch.base_sequence != 0:
            raise Refused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_name(batch)}: sequence {batch.base_sequence} is not the first",
            )

    def _check_epoch(self, batch: WalkedBatch, epoch: int) -> None:
        if batch.producer_epoch < epoch:
            raise Refused(Code.INVALID_PRODUCER_EPOCH, f"{_name(batch)}: the last seen epoch is {epoch}")

    # -- transactions -------------------------------------------------------------------------------------------------

    def has_ongoing_txn(self, producer_id: int, epoch: int) -> bool:
        """True if the producer has an open transaction of this epoch here."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.txn_first_offset >= 0 and producer.epoch == epoch

    def find_oldest_txn(self, now_ms: int) -> ProducerStateEntry | None:
        """Returns the producer of the oldest open transaction, or None. For a transaction from before this process
        started, the time counts from the first call."""
        oldest = next(iter(self._ongoing_txns.values()), None)
        if oldest is None:
            return None
        producer = self._producers[oldest]
        if producer.txn_began_ms == UNSEEN:
            producer.txn_began_ms = now_ms
        return producer

    def find_unverified(self, batch: BatchHeader) -> UnverifiedProducer | None:
        """Returns the producer of a batch that would begin a transaction here. Returns None for any other batch."""
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if not batch.is_transactional or producer_id < 0 or self.has_ongoing_txn(producer_id, epoch):
            return None
        return UnverifiedProducer(producer_id, epoch, batch.base_sequence)

    def begin_verification(self, producer: UnverifiedProducer, moves_epoch: bool) -> VerificationGuard:
        """Returns a guard with which the producer may begin a transaction. `end_verification` has to follow in any
        case."""
        return self._guards.begin(producer, moves_epoch)

    def end_verification(self, guard: VerificationGuard) -> None:
        """Gives back a guard."""
        self._guards.end(guard)

    def invalidate_verifications(self) -> None:
        """Makes all guards invalid: another leader may end transactions from now on."""
        self._guards.clear()

    def check_transaction(self, producer_id: int, epoch: int, guard: VerificationGuard | None, now_ms: int) -> None:
        """Raises `Refused` if a coordinator's batch of this producer cannot go on with its transaction, or begin it."""
        probe = WalkedBatch(0, 0, 0, 0, 0, TRANSACTIONAL, 0, 0, producer_id, epoch, 0, 1)
        self.find_duplicates([probe], now_ms, guard, from_coordinator=True)

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest transaction without a marker; None if there is none."""
        return next(iter(self._ongoing_txns), None)

    def has_open_transaction_below(self, offset: int) -> bool:
        """True if a transaction without a marker began below `offset`."""
        return next(iter(self._ongoing_txns), offset) < offset

    def list_open_transactions_within(self, start: int, end: int) -> list[ProducerStateEntry]:
        """Returns the producers of the open transactions that have records below `end` only, and one from `start` on.
        Coordinators' records have no sequences: the last one of a transaction is not known, and may be anywhere."""
        began_below = [self._producers[each] for first, each in self._ongoing_txns.items() if first < end]
        return [each for each in began_below if not each.batches or start <= each.batches[-1].last_offset < end]

    def _check_transaction(
        self,
        batch: WalkedBatch,
        producer: ProducerStateEntry | None,
        begun: bool,
        guard: VerificationGuard | None,
    ) -> None:
        """Checks that the batch goes on with the open transaction of its producer, or may begin one. `begun`: an
        earlier batch of the same request began it."""
        open_epoch = producer.epoch if producer is not None and producer.txn_first_offset >= 0 else -1
        if not batch.attributes & TRANSACTIONAL:
            if begun or open_epoch >= 0:
                raise Refused(Code.INVALID_TXN_STATE, f"{_name(batch)}: a record outside of its open transaction")
        elif open_epoch >= 0:
            if batch.producer_epoch > open_epoch:
                why = f"{_name(batch)}: the transaction of epoch {open_epoch} is still open here"
                raise Refused(Code.INVALID_TXN_STATE, why)
        elif not begun and not self._guards.is_valid(guard, batch.producer_id, batch.producer_epoch):
            why = f"{_name(batch)}: the partition is not known to belong to its transaction"
            raise Refused(Code.INVALID_TXN_STATE, why)

    def _check_begins(self, batch: WalkedBatch, producer: ProducerStateEntry | None, guard: VerificationGuard) -> None:
        """Checks that no other batch has to begin the transaction."""
        is_open = producer is not None and producer.txn_first_offset >= 0
        if is_open or not self._guards.is_valid(guard, batch.producer_id, batch.producer_epoch):
            return
        expected = 0 if guard.moves_epoch and (producer is None or not producer.batches) else guard.lowest_sequence
        if batch.base_sequence > expected:
            raise Refused(
                Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{_name(batch)}: the transaction begins with sequence {expected}, not {batch.base_sequence}",
            )

    def is_marker_due(self, marker: TransactionMarker) -> bool:
        """Returns True if the marker has to be written; False if it is in the log and changed all that it can change.
        In either case no guard for that transaction is valid any longer.

        Raises `Refused`: INVALID_PRODUCER_EPOCH for a marker of an earlier epoch, or of an earlier transaction of a
        producer whose epoch moves with each transaction (KIP-890). TRANSACTION_COORDINATOR_FENCED for a marker of a
        coordinator that was replaced.
        """
        producer = self._producers.get(marker.producer_id)
        # Where the epoch moves, the guard of the marker's epoch is for the next transaction.
        ended_epoch = marker.producer_epoch - 1 if marker.moves_epoch else marker.producer_epoch
        if producer is None:
            self._guards.invalidate(marker.producer_id, ended_epoch)
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
        self._guards.invalidate(marker.producer_id, ended_epoch)
        is_known = marker.producer_epoch == producer.epoch and marker.coordinator_epoch == producer.coordinator_epoch
        return is_open or not is_known

    def is_abort_due(self, marker: TransactionMarker, pending_epoch: int = -1) -> bool:
        """Returns True if an abort marker that no coordinator sends ends an open transaction; False if it is repeated.
        `pending_epoch` is that of a transaction that only the group coordinator knows, or -1.

        Raises `Refused` for any other one. Otherwise any client could fence producers and coordinators, and displace
        producers by ids that nobody has.
        """
        producer = self._producers.get(marker.producer_id)
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

    # -- applying -----------------------------------------------------------------------------------------------------

    def apply(self, batch: WalkedBatch, now_ms: int = UNSEEN) -> None:
        """Applies a data batch that is in the log since `now_ms`, with its final offsets."""
        self.end_offset = batch.last_offset + 1
        producer_id, epoch = batch.producer_id, batch.producer_epoch
        if producer_id < 0:
            return
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch)
            self._trim(keep_id=producer_id)
        else:
            self._producers.move_to_end(producer_id)
            if not producer.batches:
                self._drop_fence(producer_id)
            if producer.epoch != epoch:
                producer.epoch = epoch
                producer.batches.clear()
        if batch.base_sequence >= 0:  # coordinators write without sequences
            if len(producer.batches) == BATCHES_RETAINED:
                del producer.batches[0]
            producer.batches.append(
                BatchMetadata(
                    batch.base_sequence,
                    _last_sequence(batch),
                    batch.base_offset,
                    batch.last_offset,
                    batch.max_timestamp,
                )
            )
        producer.timestamp, producer.last_seen_ms = batch.max_timestamp, now_ms
        if batch.attributes & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset, producer.txn_began_ms = batch.base_offset, now_ms
            self._ongoing_txns[batch.base_offset] = batch.producer_id
            if self.first_unstable_offset is None:
                self.first_unstable_offset = batch.base_offset
            self._guards.invalidate(batch.producer_id, batch.producer_epoch)

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
        producer = self._producers.get(marker.producer_id)
        if producer is None:
            producer = self._add(marker.producer_id, marker.producer_epoch)
        if producer.epoch != marker.producer_epoch:
            producer.epoch = marker.producer_epoch
            producer.batches.clear()
        producer.coordinator_epoch, producer.marker_end = coordinator_epoch, self.end_offset
        producer.timestamp, producer.last_seen_ms = marker.max_timestamp, now_ms
        self._producers.move_to_end(marker.producer_id)
        if not producer.batches:
            self._drop_fence(marker.producer_id)
            self._trim_fences(self._limits.per_partition + FENCES_BEYOND)
            self._add_fence(marker.producer_id)
        self._guards.invalidate(marker.producer_id, marker.producer_epoch - 1)
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
        """Drops ended transactions whose marker is below the high watermark: every reader can know their outcome."""
        ended = self._unreplicated_txns
        if ended and ended[0][1] < high_watermark:
            del ended[: bisect_left(ended, high_watermark, key=_MARKER_OFFSET)]
            self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first_ended = min(self._unreplicated_txns, default=None)
        first_open = next(iter(self._ongoing_txns), None)
        found = [] if first_ended is None else [first_ended[0]]
        self.first_unstable_offset = min(found if first_open is None else [*found, first_open], default=None)

    def remove_expired(self, now_ms: int, idle_ms: int) -> None:
        """Forgets producers that wrote nothing for `idle_ms` and have no open transaction.

        The monotonic clock counts, not the record timestamps as in Kafka: a producer that replays old records is not
        forgotten between two tries. For producers that this process has not seen write, the time counts from the first
        call.
        """
        idle_ids: list[int] = []
        for producer in self._producers.values():
            if producer.last_seen_ms == UNSEEN:
                producer.last_seen_ms = now_ms
            if producer.txn_first_offset < 0 and now_ms - producer.last_seen_ms >= idle_ms:
                idle_ids.append(producer.producer_id)
        for producer_id in idle_ids:
            self._forget(producer_id)

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def encode_snapshot(self) -> bytes:
        """Encodes all producers as Kafka's producer snapshot, version 1. Later starts trust it, so the state is checked
        first."""
        self.check()
        entries = [_ENTRY.pack(*_entry_fields(self._producers[producer_id])) for producer_id in sorted(self._producers)]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _HEAD.pack(_VERSION, crc32c(body)) + body

    @classmethod
    def from_snapshot(
        cls, data: Buffer, end_offset: int, limits: ProducerLimits | None = None, *, where: str = ""
    ) -> ProducerStates:
        """Decodes the output of `encode_snapshot`. Raises `Corrupt` if the bytes are invalid."""
        states = cls(end_offset)
        for entry in sorted(_decode_entries(data, where), key=_LAST_OFFSET):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = entry
            producer = ProducerStateEntry(producer_id, epoch, [], timestamp, coordinator_epoch, txn_first)
            if last_offset >= 0 and last_sequence >= 0:
                first_sequence = (last_sequence - delta) & SEQUENCE_MAX
                producer.batches.append(
                    BatchMetadata(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
                )
            states._producers[producer_id] = producer
        states._keyed = sum(producer_id >= KEYED_FROM for producer_id in states._producers)
        for producer in states._producers.values():
            if producer.is_fence:
                states._add_fence(producer.producer_id)
        open_ones = [p for p in states._producers.values() if p.txn_first_offset >= 0]
        for producer in sorted(open_ones, key=lambda p: p.txn_first_offset):
            states._ongoing_txns[producer.txn_first_offset] = producer.producer_id
        states._find_first_unstable()
        states._limits.producer_count = len(states._producers)
        states.join_limits(limits or ProducerLimits())
        return states

    def restore_batches(self, batches: Iterable[WalkedBatch]) -> None:
        """Adds older batches that a snapshot has no room for. The batches come from the log, oldest first."""
        older: dict[int, list[BatchMetadata]] = {}
        for batch in batches:
            producer = self._producers.get(batch.producer_id)
            if producer is None or producer.epoch != batch.producer_epoch or batch.attributes & CONTROL:
                continue
            if batch.base_sequence < 0:
                continue
            if producer.batches and batch.last_offset < producer.batches[0].base_offset:
                last = _last_sequence(batch)
                older.setdefault(batch.producer_id, []).append(
                    BatchMetadata(batch.base_sequence, last, batch.base_offset, batch.last_offset, batch.max_timestamp)
                )
        for producer_id, restored in older.items():
            self._restore(self._producers[producer_id], restored)

    def restore_window(self, before: ProducerStates) -> None:
        """Adds older batches from the state of the same log before a truncation. They may be in the bucket only."""
        for producer in self._producers.values():
            known = before.get(producer.producer_id)
            if known is not None and known.epoch == producer.epoch and producer.batches:
                first = producer.batches[0].base_offset
                self._restore(producer, [each for each in known.batches if each.last_offset < first])

    def restore_others(self, before: ProducerStates) -> None:
        """Adds producers with batches that only another state of the same log knows, as those that wrote longest ago.

        One with an open transaction is left out: this state knows the transactions that are not decided.
        """
        for producer in reversed(before._producers.values()):
            if producer.batches and producer.txn_first_offset < 0 and producer.producer_id not in self._producers:
                self._add(producer.producer_id, producer.epoch)
                self._producers[producer.producer_id] = producer
                self._count_holder(producer, 1)
                self._producers.move_to_end(producer.producer_id, last=False)

    def _restore(self, producer: ProducerStateEntry, older: list[BatchMetadata]) -> None:
        room = BATCHES_RETAINED - len(producer.batches)
        producer.batches[:0] = older[-room:] if room else []

    def check(self) -> None:
        """Checks the bounds and the order of all entries."""
        for producer in self._producers.values():
            check_invariant(len(producer.batches) <= BATCHES_RETAINED, "window too large", producer)
            offsets = [offset for written in producer.batches for offset in (written.base_offset, written.last_offset)]
            check_invariant(offsets == sorted(offsets), "window out of order", producer)
        keyed = sum(each >= KEYED_FROM and each not in self._fences for each in self._producers)
        check_invariant(self._keyed == keyed, "number of keyed ids is another", self._keyed)
        holders = Counter(each.holder for each in self._producers.values() if each.holder)
        check_invariant(self._holders == holders, "numbers of holders are others", self._holders)
        takers = [
            each for number, each in self._producers.items() if number >= KEYED_FROM and number not in self._fences
        ]
        holders = Counter(each.holder for each in takers if each.holder)
        check_invariant(self._key_holders == holders, "numbers of holders of keys are others", self._key_holders)
        known = self.first_unstable_offset
        self._find_first_unstable()
        check_invariant(known == self.first_unstable_offset, "first unstable offset is another", known)
        check_invariant(
            list(self._ongoing_txns) == sorted(self._ongoing_txns), "open transactions out of order", self._ongoing_txns
        )


def _name(batch: WalkedBatch) -> str:
    return f"producer {batch.producer_id} epoch {batch.producer_epoch}"


def _last_sequence(batch: WalkedBatch) -> int:
    if batch.base_sequence < 0:
        return -1
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
        raise Corrupt("CRC of the producer snapshot is wrong", where=where)
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        raise Corrupt(f"producer snapshot of {count} producers has {len(data)} bytes", where=where)
    return _ENTRY.iter_unpack(body[_COUNT.size :])
