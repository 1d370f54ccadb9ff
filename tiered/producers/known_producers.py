"""The producers that one partition knows, in the order of their last write, and the room that they take.

Pure. If there is no room for a new producer, a leader forgets the one that wrote longest ago, provided that it wrote
nothing for `IDLE_MS`. Otherwise the leader refuses the new one: a retry of a forgotten producer would be written twice.
Holders have shares of the room (`quotas.shares`): one above its share replaces an idle producer of its own, or is
refused. Producers that the log or a snapshot gave have no known holder. Followers, and a broker that loads its logs,
cannot refuse. They keep the producers that wrote last, and so does the leader. All times are of the monotonic clock:
somebody may set the wall clock.

A marker makes its producer known too. If no batch is known of the producer, its entry is a fence: it proves no retry,
and fences earlier epochs and coordinators only. The coordinator of the transaction does that as well, before any
transaction begins here. So fences are the first to be forgotten, and a marker displaces no producer with batches.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from tiered.errors import check_invariant
from tiered.producers.entry import BATCHES_RETAINED, UNSEEN, ProducerStateEntry
from tiered.producers.idempotency_keys import (
    NONE_HELD,
    KeyCounts,
    count_own,
    find_oldest_key,
    is_keyed,
    takes_room_of_keys,
)
from tiered.producers.limits import ProducerLimits
from tiered.quotas.shares import (
    IDEMPOTENCY_KEYS,
    PARTITION_PRODUCER_IDS,
    PRODUCER_IDS,
    Pot,
    PotRefused,
    has_room,
    refuse,
)

FENCES_BEYOND = 100
"""Producers without batches that a full partition knows beyond its limit: a repeated marker has to find the first."""
IDLE_MS = 600_000
"""After this time no client retries a batch: by default clients stop after two to five minutes."""
OWN_LOOKED_AT_MAX = 1_000
"""Most idle producers of a partition that are looked at for one of a holder: a refusal has to stay cheap."""

_NONE_ADMITTED: dict[int, str] = {}
"""Shared by all partitions without such producers, and never changed."""


class _PotLevel(NamedTuple):
    """The level of a pot, and what is about to be taken of it."""

    pot: Pot
    bound: int
    held: int
    more: int

    @property
    def lack(self) -> int:
        """The lack of the pot; 0 or less if it has enough."""
        return self.held + self.more - self.bound


class KnownProducers:
    """The entries of one partition. They count against limits, which `join_limits` shares with other partitions."""

    __slots__ = ("_admitted", "_fences", "_holders", "_keys", "_limits", "by_id")

    def __init__(self, limits: ProducerLimits) -> None:
        self.by_id: OrderedDict[int, ProducerStateEntry] = OrderedDict()
        """Ordered by their last write, the newest last."""
        self._limits = limits
        self._keys = KeyCounts()
        self._holders = NONE_HELD
        """Number of producers of each known holder."""
        self._admitted = _NONE_ADMITTED
        """Holders of the new producers of the batches that were admitted last."""
        self._fences: dict[int, None] = {}
        """Producers without batches whose last entry in the log is a marker, in the order of their markers."""

    # -- entries ------------------------------------------------------------------------------------------------------

    def load(self, producers: Iterable[ProducerStateEntry]) -> None:
        """Takes the producers of a snapshot, in the order of their last writes, before any others."""
        for producer in producers:
            self.by_id[producer.producer_id] = producer
            self._keys.add(producer, 1)
            if producer.is_fence:
                self._add_fence(producer)
        self._limits.producer_count += len(self.by_id)

    def add(self, producer_id: int, epoch: int) -> ProducerStateEntry:
        """Adds a producer that the log has, as the one that wrote last. It counts for the holder that `admit` named."""
        producer = ProducerStateEntry(producer_id, epoch)
        if self._admitted:
            producer.holder = self._admitted.pop(producer_id, "")
        self._count_in(producer)
        return producer

    def add_oldest(self, producer: ProducerStateEntry) -> None:
        """Adds a producer with batches as the one that wrote longest ago."""
        self._count_in(producer)
        self.by_id.move_to_end(producer.producer_id, last=False)

    def on_marker(self, producer: ProducerStateEntry) -> None:
        """Notes that a marker is the last entry of a known producer."""
        self.by_id.move_to_end(producer.producer_id)
        if not producer.batches:
            self.drop_fence(producer)
            self._trim_fences(self._limits.per_partition + FENCES_BEYOND)
            self._add_fence(producer)

    def forget(self, producer_id: int) -> None:
        """Removes a producer."""
        producer = self.by_id[producer_id]
        self.drop_fence(producer)
        del self.by_id[producer_id]
        self._keys.add(producer, -1)
        self._count_holder(producer.holder, -1)
        self._limits.producer_count -= 1

    def remove_expired(self, now_ms: int, idle_ms: int) -> None:
        """Forgets producers that wrote nothing for `idle_ms` and have no open transaction.

        The monotonic clock counts, not the record timestamps as in Kafka: a producer that replays old records is not
        forgotten between two tries. For producers that this process has not seen write, the time counts from the first
        call.
        """
        idle_ids: list[int] = []
        for producer in self.by_id.values():
            if producer.last_seen_ms == UNSEEN:
                producer.last_seen_ms = now_ms
            if producer.txn_first_offset < 0 and now_ms - producer.last_seen_ms >= idle_ms:
                idle_ids.append(producer.producer_id)
        for producer_id in idle_ids:
            self.forget(producer_id)

    def _count_in(self, producer: ProducerStateEntry) -> None:
        self.by_id[producer.producer_id] = producer
        self._limits.producer_count += 1
        self._keys.add(producer, 1)
        self._count_holder(producer.holder, 1)

    def _count_holder(self, holder: str, count: int) -> None:
        """Counts a producer of a holder that came, or one that went if `count` is below 0."""
        self._limits.holdings.add(holder, count)
        self._holders = count_own(self._holders, holder, count)

    # -- fences -------------------------------------------------------------------------------------------------------

    def _add_fence(self, producer: ProducerStateEntry) -> None:
        """Notes that the last entry of a producer is a marker. Its keyed id takes no room of keys any longer."""
        self._fences[producer.producer_id] = None
        self._keys.add(producer, -1)

    def drop_fence(self, producer: ProducerStateEntry) -> None:
        """Notes that a producer is about to get a batch, or another marker."""
        if producer.producer_id in self._fences:
            del self._fences[producer.producer_id]
            self._keys.add(producer, 1)

    def _trim_fences(self, producers_max: int) -> None:
        """Forgets the oldest fences while the partition knows more producers than that."""
        while self._fences and len(self.by_id) > producers_max:
            self.forget(next(iter(self._fences)))

    # -- room ---------------------------------------------------------------------------------------------------------

    def join_limits(self, limits: ProducerLimits) -> None:
        """Counts the producers against these limits from now on."""
        self._limits.producer_count -= len(self.by_id)
        limits.producer_count += len(self.by_id)
        for holder, count in self._holders.items():
            self._limits.holdings.add(holder, -count)
            limits.holdings.add(holder, count)
        self._limits = limits
        self.trim()

    def leave_limits(self) -> None:
        """Stops counting against shared limits: the log is closed, or its producer state was replaced."""
        self.join_limits(ProducerLimits(self._limits.per_partition))

    def trim(self, keep_id: int = -1) -> None:
        """Forgets fences, then the producers that wrote longest ago, above the limit of one partition."""
        self._trim_fences(self._limits.per_partition)
        while len(self.by_id) > self._limits.per_partition:
            oldest = self._find_oldest()
            if oldest is None or oldest.producer_id == keep_id:
                return
            self.forget(oldest.producer_id)

    def admit(self, producer_ids: Sequence[int], now_ms: int, holder: str) -> None:
        """Makes room for new producers of a holder. Raises `PotRefused` if too few are idle and there are too few
        fences, or if the holder is above its share."""
        pots = self._make_room(len(producer_ids), sum(map(is_keyed, producer_ids)), now_ms, holder)
        above = [each for each in pots if holder and not has_room(*each[1:3], self._own(each.pot, holder), each.more)]
        if above:
            self._replace_own(above, now_ms, holder)
        self._admitted = dict.fromkeys(producer_ids, holder)

    def _make_room(self, new_producers: int, new_keyed: int, now_ms: int, holder: str) -> list[_PotLevel]:
        """Forgets fences and idle producers until no pot is too full, and returns the levels of the pots."""
        while True:
            pots = self._list_pots(new_producers, new_keyed)
            full = [each for each in pots if each.lack > 0]
            if not full:
                return pots
            is_full_of_keys = full[0].pot is IDEMPOTENCY_KEYS
            if not is_full_of_keys and max(each.lack for each in full) <= len(self._fences):
                self.forget(next(iter(self._fences)))
                continue
            oldest = find_oldest_key(self.by_id.values()) if is_full_of_keys else self._find_oldest()
            if oldest is not None and oldest.last_seen_ms == UNSEEN:
                oldest.last_seen_ms = now_ms
            if oldest is None or now_ms - oldest.last_seen_ms < IDLE_MS:
                raise self._refuse(full[0], holder)
            self._displace(oldest.producer_id)

    def _replace_own(self, above: list[_PotLevel], now_ms: int, holder: str) -> None:
        """Forgets as many idle producers of the holder as it takes new ones, or refuses and forgets none."""
        replaced = max(each.more for each in above)
        idle = self._find_idle(holder, now_ms, replaced, keyed=any(each.pot is IDEMPOTENCY_KEYS for each in above))
        if len(idle) < replaced:
            raise self._refuse(above[0], holder)
        for producer_id in idle:
            self._displace(producer_id)

    def _displace(self, producer_id: int) -> None:
        self._limits.keys_forgotten += is_keyed(producer_id)
        self.forget(producer_id)

    def _list_pots(self, new_producers: int, new_keyed: int) -> list[_PotLevel]:
        """Returns the pots that new producers are taken of."""
        limits = self._limits
        found = [
            _PotLevel(PARTITION_PRODUCER_IDS, limits.per_partition, len(self.by_id), new_producers),
            _PotLevel(PRODUCER_IDS, limits.total, limits.producer_count, new_producers),
        ]
        keys = _PotLevel(IDEMPOTENCY_KEYS, limits.keys_per_partition, self._keys.total, new_keyed)
        return [keys, *found] if new_keyed else found

    def _own(self, pot: Pot, holder: str) -> int:
        """Returns what a holder has of a pot."""
        if pot is PRODUCER_IDS:
            return self._limits.holdings.own(holder)
        return (self._keys.by_holder if pot is IDEMPOTENCY_KEYS else self._holders).get(holder, 0)

    def _refuse(self, level: _PotLevel, holder: str) -> PotRefused:
        own, on_refused = self._own(level.pot, holder), self._limits.holdings.on_refused
        return refuse(level.pot, level.bound, level.held, holder, own, level.more, on_refused)

    def _find_oldest(self) -> ProducerStateEntry | None:
        """Returns the producer that wrote longest ago, of those without an open transaction."""
        return next((each for each in self.by_id.values() if each.txn_first_offset < 0), None)

    def _find_idle(self, holder: str, now_ms: int, most: int, *, keyed: bool) -> list[int]:
        """Returns idle producers of a holder, of those that wrote longest ago. With `keyed`, only keyed ids that take
        room of keys. One that was not seen to write may have written just now."""
        found: list[int] = []
        for each in islice(self.by_id.values(), OWN_LOOKED_AT_MAX):
            is_unseen = each.last_seen_ms == UNSEEN
            if len(found) == most or (not is_unseen and now_ms - each.last_seen_ms < IDLE_MS):
                break
            is_wanted = not keyed or takes_room_of_keys(each)
            if is_wanted and each.holder == holder and each.txn_first_offset < 0 and not is_unseen:
                found.append(each.producer_id)
        return found

    def check(self) -> None:
        """Checks the windows of all entries, and the numbers of keys and of holders."""
        for producer in self.by_id.values():
            check_invariant(len(producer.batches) <= BATCHES_RETAINED, "window too large", producer)
            offsets = [offset for written in producer.batches for offset in (written.base_offset, written.last_offset)]
            check_invariant(offsets == sorted(offsets), "window out of order", producer)
        holders = Counter(each.holder for each in self.by_id.values() if each.holder)
        check_invariant(self._holders == holders, "numbers of holders are others", self._holders)
        keys = [each for number, each in self.by_id.items() if is_keyed(number) and number not in self._fences]
        check_invariant(self._keys.total == len(keys), "number of keyed ids is another", self._keys.total)
        holders = Counter(each.holder for each in keys if each.holder)
        check_invariant(self._keys.by_holder == holders, "numbers of holders of keys are others", self._keys.by_holder)
