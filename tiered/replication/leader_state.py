"""One partition as its leader sees it: how far the copies are, what is committed, and where a new leader must begin.

Pure: positions in, high watermark and wishes for the in-sync set out. Rules R2, R3, R5 and R6 of docs/INVARIANTS.md.
Positions count appended offsets, or fsynced ones when the topic says `flush=ack`; the carrier says which it reports.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tiered.errors import Fenced, check_invariant
from tiered.replication.progress import NEVER_NS, FollowerProgress

Lineage = Sequence[tuple[int, int]]
"""(leader epoch, its first offset), in order."""


class ProposedIsr(NamedTuple):
    """What the leader wants the in-sync set to be, based on `partition_epoch`: (node id, incarnation number) of each
    member, itself included, by node id."""

    partition_epoch: int
    members: tuple[tuple[int, int], ...]

    @property
    def isr(self) -> frozenset[int]:
        return frozenset(node for node, _ in self.members)


class LeaderState:
    """What the leader of `leader_epoch`, which begins at `epoch_start`, knows since `began_ns`. `end` is the leader's
    own position; all offsets are exclusive ends. `high_watermark` is what it knows to be committed from before."""

    def __init__(
        self,
        node_id: int,
        leader_epoch: int,
        isr: Collection[int],
        *,
        replicas: Collection[int],
        epoch_start: int,
        partition_epoch: int = 0,
        high_watermark: int = 0,
        began_ns: int = 0,
    ) -> None:
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self.end = high_watermark
        self.epoch_start = epoch_start
        self.high_watermark = high_watermark
        self.deleted_to = 0
        """Records below may be said to be deleted: nobody joins the in-sync set who could bring them back."""
        self._began_ns = began_ns
        self._isr = frozenset(isr)
        self._proposed: frozenset[int] = frozenset()
        """Everybody in a wish based on this partition epoch that the metadata log may yet take."""
        self._change_in_flight = False
        self._outcome_unknown = False
        self._maximal_isr: frozenset[int] = self._isr
        """Who must have a record before it is committed: committed and proposed members."""
        self._is_sole_member = self._maximal_isr == {node_id}
        self._followers: dict[int, FollowerProgress] = {}

    def __repr__(self) -> str:
        offsets = f"end={self.end} high_watermark={self.high_watermark} epoch_start={self.epoch_start}"
        return f"<leader {self.node_id} {offsets} isr={sorted(self._isr)} proposed={sorted(self._proposed)}>"

    @property
    def isr(self) -> frozenset[int]:
        """The in-sync set that the metadata log has committed."""
        return self._isr

    @property
    def is_sole_member(self) -> bool:
        """Whether nobody else counts, so that what the leader has is committed."""
        return self._is_sole_member

    def has_min_isr(self, min_isr: int) -> bool:
        """Whether enough copies are in sync; fewer replicas than `min_isr` ask for all of them."""
        in_sync = len(self._isr)
        return in_sync >= min_isr or in_sync >= len(self.replicas)

    # -- positions ----------------------------------------------------------------------------------------------------

    def advance(self, end: int, min_isr: int) -> bool:
        """The leader's own position is `end`; one below the last is no news, as when a topic that counted appends
        begins to count fsyncs. Whether the high watermark moved."""
        if end > self.end:
            self.end = end
        return self._advance_high_watermark(min_isr)

    def record_fetch(
        self,
        broker: int,
        incarnation: int,
        offset: int,
        *,
        log_end: int,
        now_ns: int,
        min_isr: int,
        log_start: int = 0,
        local_start: int = 0,
    ) -> bool:
        """A follower asks for `offset`: it has all below, on its own disk from `local_start` on, and serves nothing
        below `log_start`. `Fenced` for a broker that is no replica, and for another incarnation than the one that was
        heard last and is in sync (rule R6). Whether the high watermark moved."""
        if broker not in self.replicas or broker == self.node_id:
            raise Fenced(f"broker {broker} is none of the other replicas {self.replicas}")
        known = self._followers.get(broker)
        if known is None or known.incarnation != incarnation:
            if known is not None and broker in self._isr:
                raise Fenced(f"broker {broker} fetches as one incarnation, and another is in sync")
            in_sync = broker in self._isr  # from before this leader: its time counts from when that began
            known = FollowerProgress(incarnation, caught_up_ns=self._began_ns if in_sync else NEVER_NS)
            self._followers[broker] = known
        known.record_fetch(offset, log_end, now_ns)
        known.log_start, known.local_start = log_start, local_start
        return self._advance_high_watermark(min_isr)

    def record_repeated_fetch(self, broker: int, incarnation: int, offset: int, now_ns: int) -> bool:
        """A member of the ISR asks for the leader's log end, as it did before: that moves nothing, and it has caught up
        now. False when it is not that simple."""
        known = self._followers.get(broker)
        if known is None or known.incarnation != incarnation or known.offset != offset or broker not in self._isr:
            return False
        known.record_fetch(offset, offset, now_ns)
        return True

    def follower_offset(self, broker: int) -> int | None:
        """How far a follower was heard to be."""
        follower = self._followers.get(broker)
        return follower.offset if follower is not None else None

    def in_sync_followers(self) -> list[tuple[int, int, int]]:
        """(broker, first offset on its disk, end) of each other member of the ISR that was heard."""
        known = self._followers
        return [(node, known[node].local_start, known[node].offset) for node in self._isr if node in known]

    # -- the log start ------------------------------------------------------------------------------------------------

    def record_deletion(self, offset: int) -> None:
        """Records below `offset` are deleted: a follower that does not know of it joins no more."""
        self.deleted_to = max(self.deleted_to, offset)

    def is_deleted_on_isr(self, offset: int) -> bool:
        """True if no other member of the in-sync set, committed or proposed, would serve records below `offset` as the
        next leader."""
        known, own = self._followers, self.node_id
        others = (node for node in self._maximal_isr if node != own)
        return offset == 0 or all(node in known and known[node].log_start >= offset for node in others)

    # -- the in-sync set ----------------------------------------------------------------------------------------------

    def can_join_isr(self, broker: int) -> bool:
        """Whether a follower has all that is committed, and all from before this leader (rule R2), and nothing that was
        deleted."""
        follower = self._followers.get(broker)
        return (
            follower is not None
            and follower.offset >= max(self.high_watermark, self.epoch_start)
            and follower.log_start >= self.deleted_to
        )

    def should_join_isr(self, broker: int, now_ns: int, lag_ns: int) -> bool:
        """Whether a follower outside may be proposed for the ISR, and would stay in it."""
        return broker not in self._isr and self.can_join_isr(broker) and not self.is_lagging(broker, now_ns, lag_ns)

    def is_lagging(self, broker: int, now_ns: int, lag_ns: int) -> bool:
        """Whether a member is behind for so long that it should leave."""
        if broker == self.node_id:
            return False
        follower = self._followers.get(broker)
        if follower is None:
            return now_ns - self._began_ns > lag_ns
        return follower.is_lagging(self.end, now_ns, lag_ns)

    def next_isr_change(
        self, now_ns: int, lag_ns: int, live: Mapping[int, int], stopping: Collection[int] = ()
    ) -> ProposedIsr | None:
        """The in-sync set as it should be, by `live`, the incarnation numbers of the live brokers, and those who are
        about to stop and join none; None when it is so, or while an answer is awaited. After one that was never
        answered it is said even where nothing changes: only a newer partition epoch tells that the other one is not
        granted any more."""
        if self._change_in_flight or self.node_id not in live:
            return None
        may_join = live.keys() - {*stopping} | self._isr
        members = [(broker, live[broker]) for broker in self.replicas if broker in live and broker in may_join]
        wanted = [member for member in members if self._belongs_in_isr(*member, now_ns, lag_ns)]
        proposed = ProposedIsr(self.partition_epoch, tuple(sorted(wanted)))
        return proposed if self._outcome_unknown or proposed.isr != self._isr else None

    def _belongs_in_isr(self, broker: int, incarnation: int, now_ns: int, lag_ns: int) -> bool:
        if broker in self._isr:
            return not self.is_lagging(broker, now_ns, lag_ns)
        known = self._followers.get(broker)
        if known is None or known.incarnation != incarnation:
            return False
        # What was said for it before and never answered counts, and proves nothing of another incarnation.
        return self.should_join_isr(broker, now_ns, lag_ns)

    def begin_isr_change(self, proposed: ProposedIsr) -> None:
        """An ISR is under way to the metadata log: from now on it counts together with the committed one (rule R3)."""
        assert proposed.partition_epoch == self.partition_epoch and not self._change_in_flight, proposed
        self._change_in_flight = True
        self._proposed |= proposed.isr
        self._update_maximal_isr()

    def reject_isr_change(self, proposed: ProposedIsr, min_isr: int) -> bool:
        """The controller did not grant it. It counts no more, unless an earlier one may have been granted unheard.
        Whether the high watermark moved."""
        if proposed.partition_epoch != self.partition_epoch or not self._change_in_flight:
            return False
        self._change_in_flight = False
        if not self._outcome_unknown:
            self._proposed = frozenset()
            self._update_maximal_isr()
        return self._advance_high_watermark(min_isr)

    def isr_change_unknown(self, proposed: ProposedIsr) -> None:
        """Nobody knows whether it is granted: it counts until the metadata log has something newer, and may be asked
        for again meanwhile."""
        if proposed.partition_epoch == self.partition_epoch and self._change_in_flight:
            self._change_in_flight, self._outcome_unknown = False, True

    def apply_isr(self, isr: Collection[int], replicas: Collection[int], partition_epoch: int, min_isr: int) -> bool:
        """The metadata log has it; what was proposed on an older one can be granted no more. Whether the high watermark
        moved."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self._followers = {node: each for node, each in self._followers.items() if node in self.replicas}
        self._isr, self._proposed = frozenset(isr), frozenset()
        self._change_in_flight = self._outcome_unknown = False
        self._update_maximal_isr()
        moved = self._advance_high_watermark(min_isr)
        self.check()
        return moved

    def check(self) -> None:
        """What always holds."""
        check_invariant(self.high_watermark <= self.end, "high watermark beyond the end", self)
        check_invariant(self.node_id in self._isr, "a leader that is not in sync", self)
        check_invariant(self._isr | self._proposed == self._maximal_isr, "counted are others than members", self)

    def _advance_high_watermark(self, min_isr: int) -> bool:
        if not self.has_min_isr(min_isr):
            return False
        lowest = self.end if self._is_sole_member else min(self._position_of(broker) for broker in self._maximal_isr)
        if lowest <= self.high_watermark:
            return False
        check_invariant(lowest <= self.end, "a member of the in-sync set is beyond the leader", self)
        self.high_watermark = lowest
        return True

    def _update_maximal_isr(self) -> None:
        self._maximal_isr = self._isr | self._proposed
        self._is_sole_member = self._maximal_isr == {self.node_id}

    def _position_of(self, broker: int) -> int:
        if broker == self.node_id:
            return self.end
        follower = self._followers.get(broker)
        return follower.offset if follower else 0


@dataclass(frozen=True, slots=True)
class ColdLog:
    """What the manifest says: offsets [start, end), and who wrote the last of them; of what only sub-manifests name the
    lineage says nothing."""

    start: int
    end: int
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class KeepLocalLog:
    """The local log agrees with what is cold: go on at its end."""


@dataclass(frozen=True, slots=True)
class RestartAtColdEnd:
    """The cold lineage wins: drop the local log, go on at `offset`, the cold end (rule R5). `empty` when it ends there
    and holds nothing, so that no record is dropped."""

    offset: int
    why: str
    empty: bool = False


def reconcile(local_start: int, local_end: int, lineage: Lineage, cold: ColdLog) -> KeepLocalLog | RestartAtColdEnd:
    """What a new leader does with its log before it serves.

    Nothing is lost by dropping all of it: below the cold end the bucket has it, and what it holds beyond belongs to a
    history that parted before the cold end.
    """
    if local_end < cold.end:
        return RestartAtColdEnd(cold.end, f"the local log ends at {local_end}, below the cold end {cold.end}")
    low = max(local_start, cold.start, *(each[0][1] for each in (lineage, cold.lineage) if each))
    empty = local_start == local_end == cold.end
    if empty:  # a start over that broke off may have left the epochs of before
        low = max(cold.start, cold.lineage[0][1]) if cold.lineage else cold.start
    if low < cold.end:
        ours, theirs = _epochs_between(lineage, low, cold.end), _epochs_between(cold.lineage, low, cold.end)
        if ours != theirs:
            return RestartAtColdEnd(
                cold.end, f"the local log was written under {ours}, what is cold under {theirs}", empty
            )
    return KeepLocalLog()


def _epochs_between(lineage: Lineage, low: int, high: int) -> list[tuple[int, int]]:
    """The epochs that wrote [low, high), each with its first offset in there."""
    found: list[tuple[int, int]] = []
    for i, (epoch, start) in enumerate(lineage):
        next_start = lineage[i + 1][1] if i + 1 < len(lineage) else high
        if start < high and next_start > low and start < next_start:
            found.append((epoch, max(start, low)))
    return found
