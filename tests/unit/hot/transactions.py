"""Writers of transactions for the tests of logs: data and markers of many producers, as a leader writes them."""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.unit.hot.fixtures import NOW
from tiered.hot.disk_log import DiskLog
from tiered.producers.verification import UnverifiedProducer
from tiered.records.batch import encode_batch
from tiered.records.marker import TransactionMarker, encode_marker
from tiered.records.native import walk


class Txn(NamedTuple):
    """One ended transaction, and the offsets of its records."""

    producer_id: int
    offsets: tuple[int, ...]
    marker_offset: int
    commit: bool


def transactional_batch(
    producer: int, sequence: int, *, epoch: int = 0, size: int = 40, key: bytes | None = None
) -> bytearray:
    return bytearray(
        encode_batch(
            [(NOW, key, b"v" * size, ())],
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
    )


class TransactionWriter:
    """Writes to one log as its leader does, and remembers what it wrote."""

    def __init__(self, log: DiskLog) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.ended: list[Txn] = []

    def write(self, producer: int, *, size: int = 40, key: bytes | None = None) -> int:
        """Appends one record to the open transaction of a producer, or begins one. Returns its offset."""
        producers, sequence = self.log.producers, self.sequences.get(producer, 0)
        guard = producers.guards.begin(UnverifiedProducer(producer, 0, sequence), False)
        data = transactional_batch(producer, sequence, size=size, key=key)
        offset = self.log.append(data, leader_epoch=0, now_ms=NOW, guard=guard).base_offset
        producers.guards.end(guard)
        self.sequences[producer] = sequence + 1
        self.open.setdefault(producer, []).append(offset)
        return offset

    def end(self, producer: int, *, commit: bool) -> int:
        """Appends the marker of a producer. Returns its offset."""
        marker = encode_marker(TransactionMarker(producer, 0, commit, 0), NOW)
        offset = self.log.append(marker, leader_epoch=0, now_ms=NOW, from_coordinator=True).base_offset
        self.ended.append(Txn(producer, tuple(self.open.pop(producer)), offset, commit))
        return offset

    def write_at_random(self, rng: random.Random, steps: int, producers: int = 4) -> None:
        """Writes and ends transactions of several producers that take turns."""
        for _ in range(steps):
            producer = rng.randrange(producers)
            if producer in self.open and rng.random() < 0.3:
                self.end(producer, commit=rng.random() < 0.5)
            else:
                self.write(producer, size=rng.randrange(20, 200))

    def expected(self, offset: int, end: int) -> list[tuple[int, int]]:
        """Returns what a reader of `[offset, end)` has to know: the aborted transactions that reach into the range."""
        found = [
            (txn.producer_id, txn.offsets[0])
            for txn in self.ended
            if not txn.commit and txn.marker_offset >= offset and txn.offsets[0] < end
        ]
        return sorted(found, key=lambda each: each[1])

    @property
    def stable_offset(self) -> int:
        return min((offsets[0] for offsets in self.open.values()), default=self.log.end_offset)


def check_reads(log: DiskLog, writer: TransactionWriter, max_bytes: int = 500) -> int:
    """Reads all committed records piece by piece, and compares the aborted transactions. Returns how many pieces had
    any."""
    log.producers.txns.on_high_watermark(log.end_offset)
    assert log.first_unstable_offset == writer.stable_offset
    offset, with_aborted = log.local_start_offset, 0
    while True:
        found, aborted = log.read_committed(offset, max_bytes, end_offset=writer.stable_offset)
        if found is None:
            return with_aborted
        last = walk(found.file.pread(found.start, found.length)).batches[-1].last_offset
        assert list(aborted) == writer.expected(offset, last + 1), (offset, last)
        with_aborted += bool(aborted)
        offset = last + 1
