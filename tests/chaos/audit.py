"""After a run: what was acknowledged is there once, where it was said to be, in order; all copies are equal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tiered.records import batch

Place = tuple[str, int]
SAID = 10
"""Examples of each finding that are named."""


class Batch(NamedTuple):
    """A batch as a copy has it: equal CRC and epoch mean equal bytes."""

    first: int
    end: int
    epoch: int
    crc: int


@dataclass
class Findings:
    """What is wrong, by kind; nothing is as it should be."""

    lost: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    disorder: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)

    @property
    def well(self) -> bool:
        return not (self.lost or self.duplicates or self.disorder or self.unequal)

    def __str__(self) -> str:
        counts = (
            f"acknowledged and lost {len(self.lost)}, duplicates {len(self.duplicates)}, out of order"
            f" {len(self.disorder)}, copies that differ {len(self.unequal)}"
        )
        first = [*self.lost[:SAID], *self.duplicates[:SAID], *self.disorder[:SAID], *self.unequal[:SAID]]
        return "\n".join([counts, *first])


def judge(
    acked: Mapping[str, Mapping[Place, Sequence[tuple[int, int]]]], logs: Mapping[Place, Sequence[tuple[int, bytes]]]
) -> Findings:
    """`acked` by writer's name: numbers and offsets. `logs`: offset and value, as a client reads them."""
    found = Findings()
    seen: dict[tuple[str, str], tuple[Place, int]] = {}
    numbers: dict[tuple[str, Place], dict[int, int]] = {}
    for place, records in logs.items():
        last: dict[str, int] = {}
        for offset, value in records:
            name, number = _who(value)
            key = (name, value.split()[0].decode())
            if key in seen:
                found.duplicates.append(f"{key[1]} at {place} {offset} and at {seen[key][0]} {seen[key][1]}")
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


def _who(value: bytes) -> tuple[str, int]:
    words = value.split()[0].decode().split(".")
    return words[0], int(words[-1])


def read(address: str, places: Iterable[Place], seconds: float) -> dict[Place, list[tuple[int, bytes]]]:
    """Everything from the first offset to the end now, through a client: old records come from the bucket."""
    consumer = Consumer(
        {
            "bootstrap.servers": address, "group.id": "audit", "enable.auto.commit": False, "log_level": 0,
            "check.crcs": True, "auto.offset.reset": "error",
        }
    )  # fmt: skip
    deadline = time.monotonic() + seconds
    try:
        found: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in places}
        bounds = {place: _bounds(consumer, place, deadline) for place in found}
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
        return found
    finally:
        consumer.close()


def _bounds(consumer: Consumer, place: Place, deadline: float) -> tuple[int, int]:
    """The first offset and the end. librdkafka gives up when the leader has just changed."""
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=10)
            return low, high
        except KafkaException:
            if time.monotonic() > deadline:
                raise


def copies(directory: Path) -> dict[Place, list[Batch]]:
    """The batches in the log directory of a broker that has stopped; every CRC is checked."""
    found: dict[Place, list[Batch]] = {}
    for folder in sorted(path for path in (directory / "log").iterdir() if path.is_dir()):
        topic, _, number = folder.name.rpartition("-")
        if not number.isdigit() or topic.startswith("_"):
            continue
        batches = found.setdefault((topic, int(number)), [])
        for file in sorted(folder.glob("*.log")):
            data, at = file.read_bytes(), 0
            while at < len(data):
                head = batch.check(data, at)
                batches.append(Batch(head.base_offset, head.next_offset, head.leader_epoch, head.crc))
                at += head.size
    return found


def compare(those: Mapping[int, Mapping[Place, Sequence[Batch]]], found: Findings) -> int:
    """Adds where the copies of brokers differ. They may begin at different offsets (what is cold goes at different
    times), they end at the same one. How many batches were compared."""
    compared = 0
    for place in sorted({place for each in those.values() for place in each}):
        logs = {node: each.get(place, []) for node, each in those.items()}
        ends = {node: log[-1].end if log else -1 for node, log in logs.items()}
        if len(set(ends.values())) > 1:
            found.unequal.append(f"{place}: ends {ends}")
        start = max(log[0].first if log else 0 for log in logs.values())
        tails = {node: [each for each in log if each.first >= start] for node, log in logs.items()}
        first, *others = sorted(tails)
        compared += len(tails[first])
        for other in others:
            pairs = zip(tails[first], tails[other], strict=False)
            unequal = next((pair for pair in pairs if pair[0] != pair[1]), None)
            if unequal is not None:
                found.unequal.append(f"{place}: broker {first} has {unequal[0]}, broker {other} {unequal[1]}")
    return compared
