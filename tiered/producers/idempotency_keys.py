"""Idempotency keys of HTTP in one partition: keyed producer ids, and the room that they take.

Pure. Keeps I11 for requests with a key. A keyed id stands for an idempotency key. It writes one batch,
whose epoch and first sequence are a hash of the request. The batch in the log is the proof that the key was used. The
keyed id of a transaction writes as any other transactional producer does.

Keyed ids take half of the room of a partition at most, so that keys do not displace producers. A keyed id whose
transaction has ended is a fence, and takes no room of keys.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiered.errors import Code, Refused
from tiered.ids import KEYED_FROM
from tiered.producers.entry import ProducerStateEntry
from tiered.quotas.shares import count_holder

NONE_HELD: dict[str, int] = {}
"""Shared by all partitions without holders, and never changed: a broker leads tens of thousands."""


def count_own(by_holder: dict[str, int], holder: str, count: int) -> dict[str, int]:
    """Returns the counts of holders after one took or gave back something."""
    if not holder:
        return by_holder
    own = {} if by_holder is NONE_HELD else by_holder
    count_holder(own, holder, count)
    return own or NONE_HELD


def is_keyed(producer_id: int) -> bool:
    """True if the id stands for an idempotency key."""
    return producer_id >= KEYED_FROM


def takes_room_of_keys(producer: ProducerStateEntry) -> bool:
    """True for a keyed id that proves a request, or has an open transaction."""
    return producer.producer_id >= KEYED_FROM and not producer.is_fence


def find_oldest_key(producers: Iterable[ProducerStateEntry]) -> ProducerStateEntry | None:
    """Returns the keyed id that wrote longest ago, of those with batches and without an open transaction. `producers`
    are in the order of their last write."""
    return next((each for each in producers if takes_room_of_keys(each) and each.txn_first_offset < 0), None)


def check_unused(producer_id: int, is_used: bool) -> None:
    """Raises `Refused` with DUPLICATE_RESOURCE if the key was used with another request."""
    if is_used:
        why = f"idempotency key {producer_id:x} was used here with another request"
        raise Refused(Code.DUPLICATE_RESOURCE, why)


class KeyCounts:
    """Numbers of keyed ids of one partition that take room of keys, in all and by holder."""

    __slots__ = ("by_holder", "total")

    def __init__(self) -> None:
        self.total = 0
        self.by_holder = NONE_HELD

    def add(self, producer: ProducerStateEntry, count: int) -> None:
        """Counts a producer that takes room of keys, or none any longer if `count` is below 0."""
        if producer.producer_id >= KEYED_FROM:
            self.total += count
            self.by_holder = count_own(self.by_holder, producer.holder, count)
