"""The leader's state of one partition: positions of followers, ISR, high watermark, start of the leader epoch.

Pure: takes positions, returns the high watermark and the ISR changes to request. Keeps R2, R3, R5, R6 and I6. Positions
are log ends, or fsynced offsets if the topic has `flush=ack`; the caller decides which of the two it reports. Times are
monotonic nanoseconds of the leader. Does not send ISR changes and does not touch the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tiered.errors import Fenced, check_invariant
from tiered.ids import NO_EPOCH
from tiered.value import value

NEVER_NS = -(1 << 62)
"""The time of an event that has not happened yet."""

NO_BROKERS: frozenset[int] = frozenset()

Lineage = Sequence[tuple[int, int]]
"""Pairs of (leader epoch, its first offset), in order."""


@lru_cache(maxsize=1024)
def _share_set(nodes: tuple[int, ...]) -> frozenset[int]:
    """Returns the nodes as a set, mostly one object for equal nodes: a broker leads many partitions, and these have few
    different ISRs."""
    return frozenset(nodes)


class ProposedIsr(NamedTuple):
    """An ISR that the leader requests from the controller, based on `partition_epoch`. `members` are (node id,
    incarnation number), sorted by node id, the leader included."""

    partition_epoch: int
    members: tuple[tuple[int, int], ...]

    @property
    def isr(self) -> frozenset[int]:
        return frozenset(node for node, _ in self.members)


@dataclass(slots=True)
class FollowerProgress:
    """Progress of one follower, which has all records below `offset`. `caught_up_ns` is the last time at which it had
    everything that the leader had written by the fetch before (Kafka: lastCaughtUpTimeMs). So a follower that always
    reads everything there was stays in sync, however fast the leader writes."""

    incarnation: int
    offset: int = 0
    log_start: int = 0
    """The follower serves nothing below, whichever broker leads next."""
    local_start: int = 0
    """The first offset on the follower's disk."""
    caught_up_ns: int = NEVER_NS
    last_fetch_ns: int = NEVER_NS
    last_fetch_leader_end: int = 0
    """The leader's log end at the fetch before."""

    def record_fetch(self, offset: int, log_end: int, now_ns: int) -> None:
        """Records a fetch from `offset` while the leader's log ends at `log_end`."""
        if offset >= log_end:
            self.caught_up_ns = now_ns
        elif offset >= self.last_fetch_leader_end:
            self.caught_up_ns = max(self.caught_up_ns, self.last_fetch_ns)
        self.offset, self.last_fetch_ns, self.last_fetch_leader_end = offset, now_ns, log_end

    def is_lagging(self, end: int, now_ns: int, lag_ns: int) -> bool:
        """True if the follower has been behind for longer than `lag_ns`. A follower that has all records below `end`
        never lags: the controller notices a dead one by its missing heartbeats."""
        return self.offset < end and now_ns - self.caught_up_ns > lag_ns


class FollowerPosition(NamedTuple):
    """A follower's log end by its last fetch, and when it was caught up and fetched last; `NEVER_NS` if it never did
    under this leader."""

    node_id: int
    offset: int
    caught_up_ns: int = NEVER_NS
    last_fetch_ns: int = NEVER_NS


class LeaderState:
    """The state that the leader of `leader_epoch` keeps of its partition. The epoch starts at `epoch_start`; this
    leader began at `began_ns`. `end` is the leader's own position. All offsets are exclusive ends. `high_watermark` is
    at first what was known to be committed under earlier leaders."""

    __slots__ = (
        "_began_ns",
        "_change_in_flight",
        "_followers",
        "_is_sole_member",
        "_isr",
        "_maximal_isr",
        "_outcome_unknown",
        "_proposed",
        "deleted_to",
        "end",
        "epoch_start",
        "high_watermark",
        "leader_epoch",
        "node_id",
        "partition_epoch",
        "replicas",
    )

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
        """Records below may be reported as deleted: no follower that could bring them back joins the ISR."""
        self._began_ns = began_ns
        self._isr = _share_set(tuple(isr))
        self._proposed = NO_BROKERS
        """Members of every proposed ISR, based on this partition epoch, that the metadata log may still accept."""
        self._change_in_flight = False
        self._outcome_unknown = False
        self._maximal_isr: frozenset[int] = self._isr
        """Members of the committed ISR and of proposed ones: a record is committed once all of them have it."""
        self._is_sole_member = self._maximal_isr == {node_id}
        self._followers: dict[int, FollowerProgress] = {}

    def __repr__(self) -> str:
        offsets = f"end={self.end} high_watermark={self.high_watermark} epoch_start={self.epoch_start}"
        return f"<leader {self.node_id} {offsets} isr={sorted(self._isr)} proposed={sorted(self._proposed)}>"

    @property
    def isr(self) -> frozenset[int]:
        """The ISR that the metadata log has."""
        return self._isr

    @property
    def is_sole_member(self) -> bool:
        """True if no other replica counts, so that all records of the leader are committed."""
        return self._is_sole_member

    @property
    def began_ns(self) -> int:
        """When this leader began."""
        return self._began_ns

    def has_min_isr(self, min_isr: int) -> bool:
        """True if enough replicas are in the ISR: `min_isr`, or all of them if there are fewer replicas."""
        in_sync = len(self._isr)
        return in_sync >= min_isr or in_sync >= len(self.replicas)

    # -- positions ----------------------------------------------------------------------------------------------------

    def advance(self, end: int, min_isr: int) -> bool:
        """Sets the leader's own position. A lower one than before changes nothing; that happens when a topic that
        counted appends begins to count fsyncs. Returns True if the high watermark moved."""
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
        """Records that a follower fetches from `offset`: it has all records below, those from `local_start` on its own
        disk, and serves nothing below `log_start`. Returns True if the high watermark moved. Raises `Fenced` for a
        broker that is not a replica, and for another incarnation than the last one if the broker is in the ISR (R6)."""
        if broker not in self.replicas or broker == self.node_id:
            raise Fenced(f"broker {broker} is not one of the other replicas {self.replicas}")
        known = self._followers.get(broker)
        if known is None or known.incarnation != incarnation:
            if known is not None and broker in self._isr:
                raise Fenced(f"broker {broker} fetches as another incarnation than the one that is in sync")
            in_sync = broker in self._isr  # since an earlier leader: its lag counts from the start of this one
            known = FollowerProgress(incarnation, caught_up_ns=self._began_ns if in_sync else NEVER_NS)
            self._followers[broker] = known
        known.record_fetch(offset, log_end, now_ns)
        known.log_start, known.local_start = log_start, local_start
        return self._advance_high_watermark(min_isr)

    def record_repeated_fetch(self, broker: int, incarnation: int, offset: int, now_ns: int) -> bool:
        """Records that a member of the ISR repeats its fetch at the leader's log end: its position stays and it is
        caught up now. Returns False if the case is not that simple."""
        known = self._followers.get(broker)
        if known is None or known.incarnation != incarnation or known.offset != offset or broker not in self._isr:
            return False
        known.record_fetch(offset, offset, now_ns)
        return True

    def follower_offset(self, broker: int) -> int | None:
        """Returns a follower's log end, by its last fetch; None if it has not fetched."""
        follower = self._followers.get(broker)
        return follower.offset if follower is not None else None

    def list_followers(self) -> list[FollowerPosition]:
        """Returns where each other replica is, in order."""
        known = self._followers
        return [
            FollowerPosition(node, each.offset, each.caught_up_ns, each.last_fetch_ns)
            if (each := known.get(node)) is not None
            else FollowerPosition(node, 0)
            for node in sorted(self.replicas)
            if node != self.node_id
        ]

    def in_sync_followers(self) -> list[tuple[int, int, int]]:
        """Returns (broker, first offset on its disk, log end) of each other member of the ISR that has fetched."""
        known = self._followers
        return [(node, known[node].local_start, known[node].offset) for node in self._isr if node in known]

    # -- the log start ------------------------------------------------------------------------------------------------

    def record_deletion(self, offset: int) -> None:
        """Records that everything below `offset` is deleted: a follower that does not know of it can no longer join the
        ISR."""
        self.deleted_to = max(self.deleted_to, offset)

    def is_deleted_on_isr(self, offset: int) -> bool:
        """True if no other member of the ISR, committed or proposed, would serve records below `offset` as the next
        leader."""
        known, own = self._followers, self.node_id
        others = (node for node in self._maximal_isr if node != own)
        return offset == 0 or all(node in known and known[node].log_start >= offset for node in others)

    def low_watermark(self, log_start: int) -> int:
        """Returns the offset below which neither this leader, which starts at `log_start`, nor another member of the
        ISR, committed or proposed, would serve records as the next leader."""
        known = self._followers
        others = self._maximal_isr - {self.node_id}
        return min((log_start, *(known[node].log_start if node in known else 0 for node in others)))

    # -- ISR ----------------------------------------------------------------------------------------------------------

    def can_join_isr(self, broker: int) -> bool:
        """True if a follower has all committed records, all records from before this leader epoch (R2), and none that
        was deleted."""
        follower = self._followers.get(broker)
        return (
            follower is not None
            and follower.offset >= max(self.high_watermark, self.epoch_start)
            and follower.log_start >= self.deleted_to
        )

    def should_join_isr(self, broker: int, now_ns: int, lag_ns: int) -> bool:
        """True if a follower outside the ISR can join it and would stay in it."""
        return broker not in self._isr and self.can_join_isr(broker) and not self.is_lagging(broker, now_ns, lag_ns)

    def is_lagging(self, broker: int, now_ns: int, lag_ns: int) -> bool:
        """True if a member is behind for so long that it should leave the ISR."""
        if broker == self.node_id:
            return False
        follower = self._followers.get(broker)
        if follower is None:
            return now_ns - self._began_ns > lag_ns
        return follower.is_lagging(self.end, now_ns, lag_ns)

    def next_isr_change(
        self, now_ns: int, lag_ns: int, live: Mapping[int, int], barred: Collection[int] = ()
    ) -> ProposedIsr | None:
        """Returns the ISR to request from the controller, or None if the ISR is right or a request is in flight. `live`
        maps live brokers to their incarnation numbers; `barred` are brokers that do not join: they are about to stop,
        or their disk is full.

        After a request with unknown outcome, returns a change even if the ISR is the same. Only a newer partition epoch
        proves that the lost request can no longer be applied.
        """
        if self._change_in_flight or self.node_id not in live:
            return None
        may_join = live.keys() - {*barred} | self._isr
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
        # A proposal with unknown outcome counts, but proves nothing about another incarnation.
        return self.should_join_isr(broker, now_ns, lag_ns)

    def begin_isr_change(self, proposed: ProposedIsr) -> None:
        """Notes that a proposed ISR is on its way to the metadata log: from now on it counts beside the committed one
        (R3)."""
        assert proposed.partition_epoch == self.partition_epoch and not self._change_in_flight, proposed
        self._change_in_flight = True
        self._proposed |= proposed.isr
        self._update_maximal_isr()

    def reject_isr_change(self, proposed: ProposedIsr, min_isr: int) -> bool:
        """Notes that the controller refused a proposed ISR. It no longer counts, unless an earlier request has an
        unknown outcome. Returns True if the high watermark moved."""
        if proposed.partition_epoch != self.partition_epoch or not self._change_in_flight:
            return False
        self._change_in_flight = False
        if not self._outcome_unknown:
            self._proposed = NO_BROKERS
            self._update_maximal_isr()
        return self._advance_high_watermark(min_isr)

    def isr_change_unknown(self, proposed: ProposedIsr) -> None:
        """Notes that the outcome of a request is unknown. The proposed ISR counts until the metadata log has a newer
        partition epoch; it may be proposed again meanwhile."""
        if proposed.partition_epoch == self.partition_epoch and self._change_in_flight:
            self._change_in_flight, self._outcome_unknown = False, True

    def apply_isr(self, isr: Collection[int], replicas: Collection[int], partition_epoch: int, min_isr: int) -> bool:
        """Takes over an ISR from the metadata log. A proposal based on an older partition epoch can no longer be
        accepted. Returns True if the high watermark moved."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch = partition_epoch
        self.replicas = tuple(replicas)
        self._followers = {node: each for node, each in self._followers.items() if node in self.replicas}
        self._isr, self._proposed = _share_set(tuple(isr)), NO_BROKERS
        self._change_in_flight = self._outcome_unknown = False
        self._update_maximal_isr()
        moved = self._advance_high_watermark(min_isr)
        self.check()
        return moved

    def check(self) -> None:
        """Checks invariants that always hold."""
        check_invariant(self.high_watermark <= self.end, "the high watermark is beyond the log end", self)
        check_invariant(self.node_id in self._isr, "the leader is not in the ISR", self)
        check_invariant(
            self._isr | self._proposed == self._maximal_isr,
            "the maximal ISR is not the committed and the proposed one",
            self,
        )
        check_invariant(self._followers.keys() <= {*self.replicas}, "progress of a broker that is no replica", self)

    def _advance_high_watermark(self, min_isr: int) -> bool:
        if not self.has_min_isr(min_isr):
            return False
        lowest = self.end if self._is_sole_member else min(self._position_of(broker) for broker in self._maximal_isr)
        if lowest <= self.high_watermark:
            return False
        check_invariant(lowest <= self.end, "a member of the ISR is beyond the leader's log end", self)
        self.high_watermark = lowest
        return True

    def _update_maximal_isr(self) -> None:
        self._maximal_isr = self._isr | self._proposed if self._proposed else self._isr
        self._is_sole_member = self._maximal_isr == {self.node_id}

    def _position_of(self, broker: int) -> int:
        if broker == self.node_id:
            return self.end
        follower = self._followers.get(broker)
        return follower.offset if follower else 0


@value
class ColdLog:
    """The cold part of a log, by its manifest: offsets [start, end) and the lineage of the last of them. The lineage
    lacks segments that only sub-manifests name."""

    start: int
    end: int
    lineage: Lineage


@value
class KeepLocalLog:
    """The local log agrees with the cold segments: continue at its end."""


@value
class RestartAtColdEnd:
    """The cold lineage wins: drop the local log and continue at `offset`, the cold end (R5). `empty` if the local log
    ends there and holds nothing, so that no record is dropped."""

    offset: int
    why: str
    empty: bool = False


def reconcile(
    local_start: int,
    local_end: int,
    lineage: Lineage,
    cold: ColdLog,
    epoch_after_gap: Callable[[int], int] | None = None,
) -> KeepLocalLog | RestartAtColdEnd:
    """Decides what a new leader does with its log before it serves (R5).

    Dropping all of the log loses nothing. Records below the cold end are in the bucket. Records above it belong to a
    history that diverged below the cold end.

    `epoch_after_gap` is given if compaction may have removed offsets, here or in the bucket. It returns the leader
    epoch of the first local batch after a gap at an offset, or -1 if no gap is there. Epochs may then begin elsewhere
    in the one lineage than in the other. The epoch of the last cold offset decides: both logs are the same below it if
    the same leader wrote it.
    """
    if local_end < cold.end:
        return RestartAtColdEnd(cold.end, f"the local log ends at {local_end}, below the cold end {cold.end}")
    low = max(local_start, cold.start, *(each[0][1] for each in (lineage, cold.lineage) if each))
    empty = local_start == local_end == cold.end
    if empty:  # an interrupted restart may have left the old leader epochs
        low = max(cold.start, cold.lineage[0][1]) if cold.lineage else cold.start
    if low < cold.end:
        if epoch_after_gap is not None and _is_of_one_epoch(cold.end - 1, lineage, cold.lineage, epoch_after_gap):
            return KeepLocalLog()
        ours, theirs = _epochs_between(lineage, low, cold.end), _epochs_between(cold.lineage, low, cold.end)
        if ours != theirs:
            return RestartAtColdEnd(
                cold.end, f"the local log was written under {ours}, the cold segments under {theirs}", empty
            )
    return KeepLocalLog()


def _is_of_one_epoch(
    offset: int, lineage: Lineage, cold_lineage: Lineage, epoch_after_gap: Callable[[int], int]
) -> bool:
    """True if the same leader epoch wrote the last cold `offset` here and in the bucket. The bucket knows it: an
    upload ends with a batch. In a local gap it may be any epoch from that before the gap to that after it."""
    ours, theirs = _epoch_at(lineage, offset), _epoch_at(cold_lineage, offset)
    return ours == theirs or NO_EPOCH < ours < theirs <= epoch_after_gap(offset)


def _epoch_at(lineage: Lineage, offset: int) -> int:
    return next((epoch for epoch, start in reversed(lineage) if start <= offset), NO_EPOCH)


def _epochs_between(lineage: Lineage, low: int, high: int) -> list[tuple[int, int]]:
    """Returns the epochs that wrote [low, high), each with its first offset in that range."""
    found: list[tuple[int, int]] = []
    for i, (epoch, start) in enumerate(lineage):
        next_start = lineage[i + 1][1] if i + 1 < len(lineage) else high
        if start < high and next_start > low and start < next_start:
            found.append((epoch, max(start, low)))
    return found
