"""Audit after a run: each acknowledged record is there once, at its offset, in order; all copies are equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

PartitionKey = tuple[str, int]
EXAMPLES_MAX = 10
"""Maximum number of examples of each finding."""


class TransactionOutcome(Enum):
    """The outcome of a transaction as its client knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class ProducerEpoch(NamedTuple):
    """Producer id and epoch of a batch: a broker recognizes a repeated batch by them, and by nothing else."""

    producer_id: int
    epoch: int


@dataclass
class AuditFindings:
    """Findings by kind; none if everything is right. `resent` records are there twice because their producer sent them
    again under a new epoch by itself, before it had a reply. No broker can tell that, but none has to cause it either:
    it is a fault unless `resent_allowed` says why it may happen in this run."""

    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    resent: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    halves: list[str] = field(default_factory=list)
    """Transactions that are there in part, or although they were aborted."""
    superseded: list[str] = field(default_factory=list)
    """Keys of a compacted topic whose last record is gone, and records of it out of order."""
    uncopied: list[str] = field(default_factory=list)
    """Partitions whose copy in transactions is not what was copied, although the offsets say so."""
    resent_allowed: str = ""

    @property
    def is_ok(self) -> bool:
        resent = self.resent and not self.resent_allowed
        records = self.lost or self.duplicates or self.disorder or self.differing
        return not (records or self.halves or self.uncopied or self.superseded or resent)

    def __str__(self) -> str:
        counts = (
            f"acknowledged and lost {len(self.lost)}, duplicates {len(self.duplicates)}, out of order"
            f" {len(self.disorder)}, copies that differ {len(self.differing)}; halves of transactions"
            f" {len(self.halves)}, offsets without their records {len(self.uncopied)}; last records of keys that are"
            f" gone {len(self.superseded)}; sent again by a client under a new producer epoch {len(self.resent)}"
            + (f" (allowed: {self.resent_allowed})" if self.resent_allowed else "")
        )
        records = (self.lost, self.duplicates, self.disorder, self.differing)
        kinds = (*records, self.halves, self.uncopied, self.superseded, self.resent)
        return "\n".join([counts, *(each for kind in kinds for each in kind[:EXAMPLES_MAX])])


def check_records(
    acked: Mapping[str, Mapping[PartitionKey, Sequence[tuple[int, int]]]],
    logs: Mapping[PartitionKey, Sequence[tuple[int, bytes]]],
    sender: Callable[[PartitionKey, int], ProducerEpoch | None] = lambda place, offset: None,
) -> AuditFindings:
    """Checks the logs. `acked` has numbers and offsets by writer; `logs` offset and value, as a client reads them;
    `sender` returns the producer of the record at an offset."""
    found = AuditFindings()
    seen: dict[tuple[str, str], tuple[PartitionKey, int]] = {}
    numbers: dict[tuple[str, PartitionKey], dict[int, list[int]]] = {}
    """Offsets of each number by writer and partition, those of copies too: a client may know the later one."""
    for place, records in logs.items():
        last: dict[str, int] = {}
        for offset, value in records:
            name, number = _parse_value(value)
            key = (name, value.split()[0].decode())
            numbers.setdefault((name, place), {}).setdefault(number, []).append(offset)
            if key in seen:
                both = (sender(*seen[key]), sender(place, offset))
                said = f"{key[1]} at {seen[key][0]} {seen[key][1]} of {both[0]}, and at {place} {offset} of {both[1]}"
                (found.resent if _is_under_later_epoch(*both) else found.duplicates).append(said)
                continue
            seen[key] = (place, offset)
            if number <= last.get(name, -1):
                found.disorder.append(f"{place}: {key[1]} at {offset} after {last[name]}")
            last[name] = number
    for name, places in acked.items():
        for place, answers in places.items():
            there = numbers.get((name, place), {})
            for number, offset in answers:
                if number not in there:
                    found.lost.append(f"{place}: {name} {number}, acknowledged at {offset}")
                elif offset >= 0 and offset not in there[number]:
                    found.lost.append(f"{place}: {name} {number}, acknowledged at {offset}, is at {there[number][0]}")
    return found


def check_compacted(
    acked: Mapping[PartitionKey, Sequence[tuple[int, int]]],
    logs: Mapping[PartitionKey, Sequence[tuple[int, bytes]]],
    keys: int,
    *,
    may_repeat: bool = False,
) -> list[str]:
    """Returns the keys of one writer whose last acknowledged record is gone, without a later one of the key, and
    records out of order or at another offset. The key of a record is the rest of its number by `keys`. A client that
    began a new producer epoch `may_repeat` records."""
    found: list[str] = []
    for place, records in logs.items():
        there = {_parse_value(value)[1]: offset for offset, value in records}
        if not may_repeat and (list(there) != sorted(there) or len(there) != len(records)):
            found.append(f"{place}: records are there twice or out of order")
        last: dict[int, int] = {}
        for number, offset in acked.get(place, ()):
            last[number % keys] = max(number, last.get(number % keys, -1))
            if not may_repeat and 0 <= offset != there.get(number, offset):
                found.append(f"{place}: {number}, acknowledged at {offset}, is at {there[number]}")
        newest: dict[int, int] = {}
        for number in there:
            newest[number % keys] = max(number, newest.get(number % keys, -1))
        found += [
            f"{place}: key {key} ends with {newest.get(key)}, and {number} was acknowledged"
            for key, number in last.items()
            if newest.get(key, -1) < number
        ]
    return found


def check_transactions(
    outcomes: Mapping[str, Mapping[int, TransactionOutcome]], size: int, logs: Iterable[Sequence[tuple[int, bytes]]]
) -> list[str]:
    """Returns the transactions, each of `size` records, that a committed reader does not see whole or not at all.
    `outcomes` has those of each writer by their number, which is the second word of a record."""
    counts: dict[tuple[str, int], int] = {}
    for records in logs:
        for _, value in records:
            transaction = (_parse_value(value)[0], int(value.split()[1]))
            counts[transaction] = counts.get(transaction, 0) + 1
    allowed = {
        TransactionOutcome.COMMITTED: (size,),
        TransactionOutcome.ABORTED: (0,),
        TransactionOutcome.UNKNOWN: (0, size),
    }
    known = {(name, number): outcome for name, those in outcomes.items() for number, outcome in those.items()}
    return [
        f"{name} {number}, {outcome.value}: {count} of {size} records"
        for name, number in sorted(known.keys() | counts.keys())
        for outcome in (known.get((name, number), TransactionOutcome.UNKNOWN),)
        for count in (counts.get((name, number), 0),)
        if count not in allowed[outcome]
    ]


def check_copies(
    sources: Mapping[int, Sequence[tuple[int, bytes]]], copies: Mapping[int, Sequence[tuple[int, bytes]]]
) -> list[str]:
    """Returns how the copies of partitions differ from what committed readers see there: in count or in order."""
    found = []
    for partition, records in sources.items():
        wanted = [value for _, value in records]
        there = [value for _, value in copies[partition]]
        if there != wanted:
            pairs = enumerate(zip_longest(wanted, there, fillvalue=b"nothing"))
            at, (source, copy) = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
            said = f"{len(wanted)} records, {len(there)} copies"
            found.append(f"{partition}: {said}; number {at} is {copy.split()[0]!r}, not {source.split()[0]!r}")
    return found


def _is_under_later_epoch(first: ProducerEpoch | None, second: ProducerEpoch | None) -> bool:
    """True if the second batch is of a later epoch of the same producer."""
    if first is None or second is None:
        return False
    return first.producer_id == second.producer_id >= 0 and first.epoch < second.epoch


def _parse_value(value: bytes) -> tuple[str, int]:
    words = value.split()[0].decode().split(".")
    return words[0], int(words[-1])


def read_all(
    address: str, places: Iterable[PartitionKey], seconds: float
) -> tuple[dict[PartitionKey, list[tuple[int, bytes]]], dict[PartitionKey, tuple[int, int]]]:
    """Reads all committed records from the first offset to the present end through a client: old records come from the
    bucket. Returns these bounds, too."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "audit", "enable.auto.commit": False, "log_level": 0,
            "check.crcs": True, "auto.offset.reset": "error", "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )  # fmt: skip
    deadline = time.monotonic() + seconds
    try:
        found: dict[PartitionKey, list[tuple[int, bytes]]] = {place: [] for place in places}
        bounds = {place: _fetch_bounds(consumer, place, deadline) for place in found}
        consumer.assign([TopicPartition(*place, bounds[place][0]) for place in found])
        missing = {place for place, (low, high) in bounds.items() if low < high}
        while missing:
            assert time.monotonic() < deadline, f"not read within {seconds} s: {sorted(missing)}"
            for message in consumer.consume(1000, timeout=1.0):
                error, offset = message.error(), message.offset()
                topic, number = message.topic(), message.partition()
                assert topic is not None and number is not None and offset is not None
                place = (topic, number)
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    # An open transaction ends a partition before its bound: then the audit waits in vain.
                    if offset >= bounds[place][1]:
                        missing.discard(place)
                    continue
                if error is not None:
                    raise KafkaException(error)
                value = message.value()
                assert value is not None
                found[place].append((offset, value))
        return found, bounds
    finally:
        consumer.close()


def _fetch_bounds(consumer: Consumer, place: PartitionKey, deadline: float) -> tuple[int, int]:
    """Returns the first offset and the end. librdkafka gives up if the leader has just changed."""
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=10)
            return low, high
        except KafkaException:
            if time.monotonic() > deadline:
                raise
