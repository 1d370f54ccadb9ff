"""One partition as its leader sees it: how far the copies are, what is committed, and where a new leader must begin.

Pure: positions in, high watermark out. The rules are R2, R3 and R5 of docs/DESIGN.md. Positions count appended offsets,
or fsynced ones when the topic says `flush=ack`; the carrier says which it reports.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tiered.errors import Fenced

Lineage = Sequence[tuple[int, int]]
"""(leader epoch, its first offset), in order."""


@dataclass(slots=True)
class Follower:
    """One copy elsewhere: it has everything below `offset`."""

    incarnation: str
    offset: int


class Partition:
    """What the leader of `leader_epoch`, which begins at `epoch_start`, knows. `end` is the leader's own position; all
    offsets are exclusive ends."""

    def __init__(self, node_id: int, leader_epoch: int, isr: Collection[int], *, copies: int, epoch_start: int) -> None:
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.copies = copies
        self.end = 0
        self.epoch_start = epoch_start
        self.high_watermark = 0
        self._isr = frozenset(isr)
        self._proposed: frozenset[int] = frozenset()
        self._counted: frozenset[int] = self._isr
        """Who must have a record before it is committed: committed and proposed members."""
        self._alone = self._counted == {node_id}
        self._followers: dict[int, Follower] = {}

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync set that the metadata log has committed."""
        return self._isr

    @property
    def alone(self) -> bool:
        """Whether nobody else counts, so that what the leader has is committed."""
        return self._alone

    def may_ack(self, min_isr: int) -> bool:
        """Whether enough copies are in sync; fewer replicas than `min_isr` ask for all of them."""
        in_sync = len(self._isr)
        return in_sync >= min_isr or in_sync >= self.copies

    def advance(self, end: int, min_isr: int) -> bool:
        """The leader's own position is `end`; one below the last is no news, as when a topic that counted appends
        begins to count fsyncs. Whether the high watermark moved."""
        if end > self.end:
            self.end = end
        return self._move(min_isr)

    def fetched(self, broker: int, incarnation: str, offset: int, min_isr: int) -> bool:
        """A follower asks for `offset`: it has all below. `Fenced` for another incarnation than the one that was heard
        last and is in sync (rule R6). Whether the high watermark moved."""
        known = self._followers.get(broker)
        if known is not None and known.incarnation != incarnation and broker in self._isr:
            raise Fenced(f"broker {broker} fetches as {incarnation}, but {known.incarnation} is in sync")
        self._followers[broker] = Follower(incarnation, offset)
        return self._move(min_isr)

    def may_join(self, broker: int) -> bool:
        """Whether a follower may be proposed for the ISR (rule R2)."""
        follower = self._followers.get(broker)
        return follower is not None and follower.offset >= max(self.high_watermark, self.epoch_start)

    def propose(self, isr: Collection[int]) -> None:
        """An ISR is under way to the metadata log: from now on it counts together with the committed one (rule R3)."""
        self._proposed = frozenset(isr)
        self._count()

    def commit(self, isr: Collection[int], min_isr: int) -> bool:
        """The metadata log has it; nothing is proposed any more. Whether the high watermark moved."""
        self._isr, self._proposed = frozenset(isr), frozenset()
        self._count()
        return self._move(min_isr)

    def check(self) -> None:
        """What always holds."""
        assert self.high_watermark <= self.end, self
        assert self.node_id in self._isr, self

    def _move(self, min_isr: int) -> bool:
        if not self.may_ack(min_isr):
            return False
        lowest = self.end if self._alone else min(self._position(broker) for broker in self._counted)
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    def _count(self) -> None:
        self._counted = self._isr | self._proposed
        self._alone = self._counted == {self.node_id}

    def _position(self, broker: int) -> int:
        if broker == self.node_id:
            return self.end
        follower = self._followers.get(broker)
        return follower.offset if follower else 0


@dataclass(frozen=True, slots=True)
class Cold:
    """What the manifest and the newest cold segment say: offsets [start, end), and who wrote the last of them."""

    start: int
    end: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class Keep:
    """The local log agrees with what is cold: go on at its end."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The cold lineage wins: drop the local log, go on at `offset`, the cold end (rule R5)."""

    offset: int
    why: str


def reconcile(local_start: int, local_end: int, lineage: Lineage, cold: Cold) -> Keep | Restart:
    """What a new leader does with its log before it serves.

    Nothing is lost by dropping all of it: below the cold end the bucket has it, and what it holds beyond belongs to a
    history that parted before the cold end.
    """
    if local_end < cold.end:
        return Restart(cold.end, f"the local log ends at {local_end}, below the cold end {cold.end}")
    low = max(local_start, cold.start, *(each[0][1] for each in (lineage, cold.lineage) if each))
    if low < cold.end:
        ours, theirs = _between(lineage, low, cold.end), _between(cold.lineage, low, cold.end)
        if ours != theirs:
            return Restart(cold.end, f"the local log was written under {ours}, what is cold under {theirs}")
    return Keep()


def _between(lineage: Lineage, low: int, high: int) -> list[tuple[int, int]]:
    """The epochs that wrote [low, high), each with its first offset in there."""
    found: list[tuple[int, int]] = []
    for i, (epoch, start) in enumerate(lineage):
        next_start = lineage[i + 1][1] if i + 1 < len(lineage) else high
        if start < high and next_start > low and start < next_start:
            found.append((epoch, max(start, low)))
    return found
