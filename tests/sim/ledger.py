"""What clients were told, and what may be missing from it: the durability predicates of a run.

I1 no acknowledged record is lost, I2 it stands at the offset that was answered, I3 offsets are dense, I4 one offset has
one value for all readers, I13 nothing is read that nobody sent. A loss is allowed only where the run itself said so:
`may_lose` names the offsets whose only copies a power cut or a lost disk took away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiered.ids import PartitionId


class Acked(NamedTuple):
    """An acknowledged record. `forgivable`: its last copy may be gone."""

    value: bytes
    forgivable: bool


@dataclass
class Told:
    """One partition as its clients saw it."""

    acked: dict[int, Acked] = field(default_factory=dict)
    read: dict[int, bytes] = field(default_factory=dict)
    start: int = 0
    """Offsets below may be gone by retention or DeleteRecords."""
    lossy: bool = False
    """What is there now may be less than there was when retention counted it."""


class Ledger:
    """All partitions of a run. Values are unique in the whole run."""

    def __init__(self) -> None:
        self.sent: dict[bytes, PartitionId] = {}
        self.told: dict[PartitionId, Told] = {}

    def of(self, pid: PartitionId) -> Told:
        return self.told.setdefault(pid, Told())

    def send(self, pid: PartitionId, value: bytes) -> None:
        """Before the request: from now on it may be read."""
        self.sent[value] = pid

    def ack(self, pid: PartitionId, offset: int, value: bytes) -> None:
        """The broker answered with this offset."""
        told = self.of(pid)
        before = told.acked.get(offset)
        assert before is None or before.forgivable or before.value == value, f"I2: {pid} {offset} acknowledged twice"
        seen = told.read.get(offset)
        assert seen is None or seen == value, f"I4: {pid} {offset} was read as {seen!r}, then given to {value!r}"
        told.acked[offset] = Acked(value, False)

    def see(self, pid: PartitionId, offset: int, value: bytes) -> None:
        """A reader got this value at this offset."""
        assert self.sent.get(value) == pid, f"I13: {pid} {offset} holds {value!r}, which nobody sent there"
        told = self.of(pid)
        assert told.read.setdefault(offset, value) == value, (
            f"I4: {pid} {offset} is {value!r} and {told.read[offset]!r}"
        )
        acked = told.acked.get(offset)
        if acked is not None and acked.value != value:
            assert acked.forgivable, f"I2: {pid} {offset} was acknowledged as {acked.value!r}, reads as {value!r}"

    def may_lose(self, pid: PartitionId, first: int) -> None:
        """Every record from `first` on may be gone, or stand again under another value."""
        told = self.of(pid)
        told.lossy = True
        for offset in [each for each in told.acked if each >= first]:
            told.acked[offset] = told.acked[offset]._replace(forgivable=True)
        for offset in [each for each in told.read if each >= first]:
            del told.read[offset]

    def may_expire(self, pid: PartitionId, start: int) -> None:
        """Records below `start` may be gone: the broker said that its log starts there."""
        told = self.of(pid)
        told.start = max(told.start, start)

    def expired(self, pid: PartitionId, start: int, held_bytes: int, retention_bytes: int) -> None:
        """I22: the log starts here by retention, which leaves `held_bytes` above."""
        enough = held_bytes >= retention_bytes or self.of(pid).lossy
        assert retention_bytes >= 0 and enough, f"I22: {pid} starts at {start}, {held_bytes} of {retention_bytes} bytes"

    def audit(self, pid: PartitionId, dump: Mapping[int, bytes], start: int, end: int) -> None:
        """The final content of a partition, `[start, end)`."""
        told = self.of(pid)
        assert sorted(dump) == list(range(start, end)), f"I3: {pid} [{start}, {end}) reads as {sorted(dump)}"
        for offset, value in dump.items():
            self.see(pid, offset, value)
        for offset, acked in told.acked.items():
            if acked.forgivable or offset < told.start:
                continue
            assert dump.get(offset) == acked.value, (
                f"I1: {pid} {offset} {acked.value!r} was acknowledged and is {dump.get(offset)!r} in [{start}, {end})"
            )
