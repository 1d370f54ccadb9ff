"""Ledger of replies to clients and of permitted losses: the durability checks of a run.

I1 no acknowledged record is lost, I2 it stands at the acknowledged offset, I3 offsets are dense, I4 one offset has one
value for all readers, I13 no reader gets a record that was not sent. A loss is permitted only where the run itself
declared it: `allow_loss` names the offsets whose only copies a power cut or a lost disk took.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.ids import PartitionId


class AckedRecord(NamedTuple):
    """An acknowledged record. `may_be_lost`: its last copy may be gone."""

    value: bytes
    may_be_lost: bool


@dataclass
class PartitionLedger:
    """One partition as its clients saw it."""

    acked: dict[int, AckedRecord] = field(default_factory=dict)
    read: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    """Offsets below may be gone by retention or DeleteRecords."""
    has_losses: bool = False
    """True if the log may now hold less than retention counted."""


class Ledger:
    """All partitions of a run. Values are unique in the whole run."""

    def __init__(self) -> None:
        self.sent: dict[bytes, PartitionId] = {}
        self.partitions: dict[PartitionId, PartitionLedger] = {}

    def partition(self, partition_id: PartitionId) -> PartitionLedger:
        return self.partitions.setdefault(partition_id, PartitionLedger())

    def record_sent(self, partition_id: PartitionId, value: bytes) -> None:
        """Records a send before its request: from now on the record may be read."""
        self.sent[value] = partition_id

    def record_acked(self, partition_id: PartitionId, offset: int, value: bytes) -> None:
        """Records the acknowledged offset."""
        known = self.partition(partition_id)
        before = known.acked.get(offset)
        assert before is None or before.may_be_lost or before.value == value, (
            f"I2: {partition_id} {offset} acknowledged twice"
        )
        seen = known.read.get(offset)
        assert seen is None or seen == value, (
            f"I4: {partition_id} {offset} was read as {seen!r}, then given to {value!r}"
        )
        known.acked[offset] = AckedRecord(value, False)

    def record_read(self, partition_id: PartitionId, offset: int, value: bytes) -> None:
        """Records a value that a reader got at this offset."""
        assert self.sent.get(value) == partition_id, (
            f"I13: {partition_id} {offset} holds {value!r}, which nobody sent there"
        )
        known = self.partition(partition_id)
        assert known.read.setdefault(offset, value) == value, (
            f"I4: {partition_id} {offset} is {value!r} and {known.read[offset]!r}"
        )
        acked = known.acked.get(offset)
        if acked is not None and acked.value != value:
            assert acked.may_be_lost, (
                f"I2: {partition_id} {offset} was acknowledged as {acked.value!r}, reads as {value!r}"
            )

    def allow_loss(self, partition_id: PartitionId, first: int) -> None:
        """Permits the loss of every record from `first` on; another value may get its offset."""
        known = self.partition(partition_id)
        known.has_losses = True
        for offset in [each for each in known.acked if each >= first]:
            known.acked[offset] = known.acked[offset]._replace(may_be_lost=True)
        for offset in [each for each in known.read if each >= first]:
            del known.read[offset]

    def allow_expiry(self, partition_id: PartitionId, start: int) -> None:
        """Permits the loss of records below `start`: the broker reported that its log starts there."""
        known = self.partition(partition_id)
        known.start = max(known.start, start)

    def check_expiry(self, partition_id: PartitionId, start: int, held_bytes: int, retention_bytes: int) -> None:
        """I22: checks a log start by retention, which leaves `held_bytes` above."""
        enough = held_bytes >= retention_bytes or self.partition(partition_id).has_losses
        assert retention_bytes >= 0 and enough, (
            f"I22: {partition_id} starts at {start}, {held_bytes} of {retention_bytes} bytes"
        )

    def audit(self, partition_id: PartitionId, dump: Mapping[int, bytes], start: int, end: int) -> None:
        """Checks the final content of a partition, `[start, end)`."""
        known = self.partition(partition_id)
        assert sorted(dump) == list(range(start, end)), f"I3: {partition_id} [{start}, {end}) reads as {sorted(dump)}"
        for offset, value in dump.items():
            self.record_read(partition_id, offset, value)
        for offset, acked in known.acked.items():
            if acked.may_be_lost or offset < known.start:
                continue
            assert dump.get(offset) == acked.value, (
                f"I1: {partition_id} {offset} {acked.value!r} was acknowledged "
                f"and is {dump.get(offset)!r} in [{start}, {end})"
            )
