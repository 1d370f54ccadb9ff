"""One decision in progress: the state that it reads and changes, and the records, replies and events that it makes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tiered.deadlines import Deadlines
from tiered.errors import Code, Corrupt, check_invariant
from tiered.ids import TopicPartition
from tiered.quotas.shares import TRANSACTION_BYTES, OnRefused, count_holder, has_room, ignore_refusal, is_scarce, refuse
from tiered.shard import CoordinatorRecord, CoordinatorResult, Now
from tiered.transactions.limits import NO_TIMEOUT_MS, TransactionSettings
from tiered.transactions.metadata import (
    EPOCH_MAX,
    NEW_STATES,
    NO_PRODUCER_EPOCH,
    TRANSITIONS,
    TransactionMetadata,
    TransactionState,
)
from tiered.transactions.records import read_key, read_value, transaction_record
from tiered.transactions.requests import Event, MarkersDue, Reply

ID_BYTES, PARTITION_BYTES = 800, 150
"""Estimates of the memory of a transactional id without its text, and of a partition in its transaction."""
TIMEOUT, MARKERS, EXPIRY = "timeout", "markers", "expiry"
"""Kinds of deadlines: a transaction's timeout, markers that are due at once, the next check for expired ids."""


@dataclass(slots=True)
class ShardState:
    """All state of a shard: the state of its log, and the soft state beside it."""

    settings: TransactionSettings
    transactions: dict[str, TransactionMetadata] = field(default_factory=dict)
    """Hard state: the newest value of each transactional id. Only `apply` changes it."""
    last_epochs: dict[str, int] = field(default_factory=dict)
    """Soft state: the epoch that a producer had before the present one, for a repeated InitProducerId."""
    unmarked: dict[str, frozenset[TopicPartition]] = field(default_factory=dict)
    """Soft state: partitions of decided transactions that have no marker yet."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    keyed: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """The ids that stand for idempotency keys, the one that changed last at the end."""
    skipped_records: int = 0
    """Records that `apply` could not read."""
    memory_bytes: int = 0
    """Estimate of the memory that the ids take."""
    other_shards_bytes: Callable[[], int] = lambda: 0
    """Memory that the ids of the broker's other shards take."""

    holders: dict[str, str] = field(default_factory=dict)
    """Holders of ids that have one: the caller that began first since the load. The log does not know it."""
    by_holder: dict[str, int] = field(default_factory=dict)
    """Memory of all ids of each holder."""
    find_own: Callable[[str], int] | None = None
    """Returns the memory of a holder's ids in all shards of the broker; None if this shard is the only one."""
    on_refused: OnRefused = ignore_refusal

    def claim(self, transactional_id: str, holder: str) -> None:
        """Lets an id count for a holder, unless it counts for one already."""
        if holder and transactional_id not in self.holders:
            self.holders[transactional_id] = holder
            count_holder(self.by_holder, holder, size_of(transactional_id, self.transactions.get(transactional_id)))

    def has_room(self, holder: str, more: int) -> bool:
        """True if a holder may take `more` bytes. Reports a refusal."""
        bound, free = self.settings.bytes_max, self.free_bytes
        held, own = bound - free, 0
        if more <= free and (not holder or not is_scarce(bound, held + more)):
            return True
        if holder:
            own = self.by_holder.get(holder, 0) if self.find_own is None else self.find_own(holder)
            if has_room(bound, held, own, more):
                return True
        refuse(TRANSACTION_BYTES, bound, held, holder, own, more, self.on_refused)
        return False

    @property
    def free_bytes(self) -> int:
        """Estimate of the memory that is left for more ids of this shard."""
        return self.settings.bytes_max - self.memory_bytes - self.other_shards_bytes()

    def put(self, transactional_id: str, value: TransactionMetadata | None) -> None:
        """Sets the newest value of an id, or removes the id."""
        before = self.transactions.get(transactional_id)
        growth = size_of(transactional_id, value) - size_of(transactional_id, before)
        self.memory_bytes += growth
        if self.holders:
            count_holder(self.by_holder, self.holders.get(transactional_id, ""), growth)
            if value is None:
                self.holders.pop(transactional_id, None)
        if before is not None and before.request_hash:
            del self.keyed[transactional_id]
        if value is not None and value.request_hash:
            self.keyed[transactional_id] = None
        if value is not None:
            self.transactions[transactional_id] = value
        elif before is not None:
            del self.transactions[transactional_id]

    def apply(self, records: Iterable[CoordinatorRecord]) -> None:
        """Applies records in order. Counts and skips records of unknown kinds and records that it cannot read."""
        for key, value, _ in records:
            try:
                transactional_id = read_key(key)
                metadata = None if value is None else read_value(value)
            except Corrupt:
                self.skipped_records += 1
                continue
            if transactional_id is None:
                self.skipped_records += 1
            else:
                self.put(transactional_id, metadata)

    def last_epoch(self, transactional_id: str) -> int:
        """Returns the epoch before the present one; NO_PRODUCER_EPOCH if it is not known."""
        return self.last_epochs.get(transactional_id, NO_PRODUCER_EPOCH)


class TransactionDecision:
    """Collects records, replies and events. Each record changes the state at once."""

    __slots__ = ("events", "now", "records", "replies", "state")

    def __init__(self, state: ShardState, now: Now) -> None:
        self.state = state
        self.now = now
        self.records: list[CoordinatorRecord] = []
        self.replies: list[tuple[int, Reply]] = []
        self.events: list[Event] = []

    def result(self) -> CoordinatorResult[Reply, Event]:
        """Returns what the decision made."""
        return CoordinatorResult(tuple(self.records), tuple(self.replies), tuple(self.events))

    def write(
        self, transactional_id: str, value: TransactionMetadata, last_epoch: int | None = None
    ) -> TransactionMetadata:
        """Writes the next state of an id, and adjusts its deadline. `last_epoch` (None: as it was) is soft state."""
        before = self.state.transactions.get(transactional_id)
        permitted = NEW_STATES if before is None else TRANSITIONS[before.state]
        check_invariant(value.state in permitted, transactional_id, before, value)
        self.records.append(transaction_record(transactional_id, value))
        self.state.put(transactional_id, value)
        if last_epoch is not None:
            self.state.last_epochs[transactional_id] = last_epoch
        schedule_timeout(self.state, transactional_id, value, self.now)
        return value

    def remove(self, transactional_id: str) -> None:
        """Removes a transactional id."""
        self.records.append(transaction_record(transactional_id, None))
        self.state.put(transactional_id, None)
        self.state.last_epochs.pop(transactional_id, None)

    def request_markers(self, transactional_id: str) -> None:
        """Asks for the markers of a decided transaction, in the partitions that have none yet."""
        value = self.state.transactions[transactional_id]
        self.events.append(
            MarkersDue(
                transactional_id,
                value.producer_id,
                value.producer_epoch,
                value.commits,
                self.state.unmarked[transactional_id],
                value.client_version,
            )
        )


def size_of(transactional_id: str, value: TransactionMetadata | None) -> int:
    """Returns an estimate of the memory of an id with its value."""
    if value is None:
        return 0
    kept = len(value.request_hash) + len(value.reply)
    return ID_BYTES + 2 * len(transactional_id) + PARTITION_BYTES * len(value.partitions) + kept


def schedule_timeout(state: ShardState, transactional_id: str, value: TransactionMetadata, now: Now) -> None:
    """Sets the deadline of an ongoing transaction, and removes that of any other."""
    key = (TIMEOUT, transactional_id, "")
    if value.state is not TransactionState.ONGOING or value.timeout_ms == NO_TIMEOUT_MS:
        state.deadlines.cancel(key)
    elif key not in state.deadlines:
        left_ms = value.started_ms + value.timeout_ms - now.expiry_ms
        state.deadlines.set(key, now.mono_ms + min(max(left_ms, 0), value.timeout_ms))


def check_producer(
    value: TransactionMetadata | None, producer_id: int, producer_epoch: int
) -> Code | TransactionMetadata:
    """Returns the metadata if the request comes from the present producer of the id, else the code of the refusal.

    The last epoch is that of a fence. A transaction of it could not be ended: no marker has a later epoch.
    """
    if value is None or value.producer_id != producer_id:
        return Code.INVALID_PRODUCER_ID_MAPPING
    if value.producer_epoch != producer_epoch or producer_epoch == EPOCH_MAX:
        return Code.PRODUCER_FENCED
    return value
