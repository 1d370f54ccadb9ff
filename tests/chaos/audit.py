"""Audit after a run: each acknowledged record is there once, at its offset, in order; all copies are equal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

PartitionKey = tuple[str, int]
EXAMPLES_MAX = 10
"""Maximum number of examples of each finding."""


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
    resent_allowed: str = ""

    @property
    def is_ok(self) -> bool:
        resent = self.resent and not self.resent_allowed
        return not (self.lost or self.duplicates or self.disorder or self.differing or resent)

    def __str__(self) -> str:
        counts = (
            f"acknowledged and lost {len(self.lost)}, duplicates {len(self.duplicates)}, out of order"
            f" {len(self.disorder)}, copies that differ {len(self.differing)}; sent again by a client under a new"
            f" producer epoch {len(self.resent)}"
            + (f" (allowed: {self.resent_allowed})" if self.resent_allowed else "")
        )
        kinds = (self.lost, self.duplicates, self.disorder, self.differing, self.resent)
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
    numbers: dict[tuple[str, PartitionKey], dict[int, int]] = {}
    for place, records in logs.items():
        last: dict[str, int] = {}
        for offset, value in records:
            name, number = _parse_value(value)
            key = (name, value.split()[0].decode())
            if key in seen:
                both = (sender(*seen[key]), sender(place, offset))
                said = f"{key[1]} at {seen[key][0]} {seen[key][1]} of {both[0]}, and at {place} {offset} of {both[1]}"
                (found.resent if _is_under_later_epoch(*both) else found.duplicates).append(said)
                continue
            seen[key] = (place, offset)
            if number <= last.get(name, -1):
                found.disorder.append(f"{place}: {key[1]} at {offset} after {last[name]}")
            last[name] = number
            numbers.setdefault((name, place), {})[number] = offset
    for name, places in acked.items():
        for place, answers in places.items():
            there = numbers.get((name, place), {})
            for number, offset in answers:
                if number not in there:
                    found.lost.append(f"{place}: {name} {number}, acknowledged at {offset}")
                elif offset >= 0 and there[number] != offset:
                    found.lost.append(f"{place}: {name} {number}, acknowledged at {offset}, is at {there[number]}")
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
    """Reads all records from the first offset to the present end through a client: old records come from the bucket.
    Returns these bounds, too."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "audit", "enable.auto.commit": False, "log_level": 0,
            "check.crcs": True, "auto.offset.reset": "error",
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
                if message.error():
                    raise KafkaException(message.error())
                topic, number = message.topic(), message.partition()
                offset, value = message.offset(), message.value()
                assert topic is not None and number is not None and offset is not None and value is not None
                place = (topic, number)
                found[place].append((offset, value))
                if offset + 1 >= bounds[place][1]:
                    missing.discard(place)
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
