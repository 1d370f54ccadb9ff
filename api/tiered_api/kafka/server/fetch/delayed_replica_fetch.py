"""One fetch of a follower under way: what it gets so far, and what it waits for.

That a follower asks for an offset says that it has everything below, so each partition is noted even when no room is
left for its records. It reads up to the log end, where consumers read up to the high watermark. As with theirs, a
wake-up only marks a partition, and the reading is done once per turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tiered.cold.manifest import Manifest
from tiered.errors import Code, Refused
from tiered.peers import FetchFrom
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import FollowerReadResult
from tiered_api.kafka.server.fetch import frames, replica_frames
from tiered_api.kafka.server.fetch.frames import Found
from tiered_api.kafka.server.fetch.replica_frames import ReplicaAsk
from tiered_api.kafka.server.socket_writer import Part

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import Connection, Slot
    from tiered_api.kafka.server.fetch.replica_handler import ReplicaFetches

WAIT_MAX_MS = 60_000
NAME = "Fetch of a follower"
TOLD_SECONDS = 5.0
"""For so long a follower is not told again what it was told: an answer may have been lost."""


class Told(NamedTuple):
    """The last that a follower asked of a partition at its end, what it was told then, and when."""

    asked: FetchFrom
    ends: tuple[int, Manifest | None, int] | None
    at: float


class ReplicaPoll:
    """One request until its answer. `_founds` has of each place what it gets; None at the end of a log."""

    __slots__ = (
        "_ask",
        "_connection",
        "_correlation_id",
        "_dirty",
        "_failed",
        "_fetches",
        "_founds",
        "_held_ns",
        "_left",
        "_news",
        "_now_ns",
        "_replicas",
        "_short",
        "_slot",
        "_timer",
        "_told",
        "_total",
        "_watched",
    )

    def __init__(
        self, fetches: ReplicaFetches, connection: Connection, correlation_id: int, ask: ReplicaAsk, max_bytes: int
    ) -> None:
        self._fetches = fetches
        self._connection = connection
        self._correlation_id = correlation_id
        self._ask = ask
        count = len(ask.places)
        self._founds: list[Found | None] = [None] * count
        self._replicas: list[LeaderReplica | None] = [None] * count
        self._left = max_bytes
        self._total = 0
        self._failed = False
        self._news = False
        """Whether a follower has to hear at once of what is no record: consumers read there, and may go further, or
        somebody waits for it to know where the log starts."""
        self._told = fetches.told(ask)
        self._now_ns = fetches.site.clock.mono_ns()
        self._held_ns = 0
        """How long a partition has to wait that is held to a rate."""
        self._short = -1
        """The first place that got less than there is, for want of room."""
        self._dirty: dict[int, None] = {}
        self._watched: list[tuple[LeaderReplica, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._slot: Slot | None = None

    @property
    def size(self) -> int:
        """How many partitions it asks for."""
        return len(self._ask.places)

    def read(self, first: tuple[str, int] | None) -> None:
        """Reads every partition once, from `first` on where it is asked for: whoever is early gets its bytes first."""
        order = list(range(self.size))
        if first is not None:
            names = [asked[:2] for asked in self._ask.places]
            at = names.index(first) if first in names else 0
            order = order[at:] + order[:at]
        for place in order:
            self._read(place)

    def is_done(self) -> bool:
        """Whether there is something to answer, an error among it."""
        return self._total > 0 or self._failed or self._news or self._ask.max_wait_ms <= 0 or not self._ask.places

    def answer(self) -> Sequence[Part]:
        """The answer with what was found. Where nothing was, it says how far the log is by now."""
        fetches = self._fetches
        fetches.site.replicated_bytes += self._total
        if self._short >= 0:
            fetches.turns[self._ask.node_id] = self._ask.places[self._short][:2]
        told: list[tuple[bytes, list[Found | bytes]]] = []
        now, at = asyncio.get_running_loop().time(), 0
        for echo, count in self._ask.topics:
            founds = [self._founds[place] or self._idle(place, now) for place in range(at, at + count)]
            some = [found for found in founds if found]
            if some:
                told.append((echo, some))
            at += count
        return frames.answer(replica_frames.VERSION, self._correlation_id, told, len(told))

    def _idle(self, place: int, now: float) -> bytes:
        """How far a log is of which there is nothing more; nothing when the follower knows."""
        replica, told = self._replicas[place], self._told
        assert replica is not None
        ends = replica.high_watermark, replica.manifest, replica.local_start_offset
        before = told.get(replica)
        if before is None or before.ends != ends or now - before.at > TOLD_SECONDS:
            told[replica] = Told(self._ask.places[place], ends, now)
            return replica_frames.idle(
                replica.partition, ends[0], replica.log_start_offset, ends[2], replica.cold_end_offset
            )
        return b""

    def _read(self, place: int) -> None:
        asked = self._ask.places[place]
        replica = self._replicas[place]
        try:
            if replica is None or replica.is_stopped:
                replica = self._replicas[place] = self._fetches.find(asked)
            told, ask = self._told.get(replica), self._ask
            if (
                told is not None
                and told.asked == asked
                and replica.handle_repeated_fetch(ask.node_id, ask.incarnation, asked.offset, self._now_ns)
            ):
                self._founds[place] = None
                if replica.follower_reads_enabled or replica.pending_deletions:
                    self._note_news(replica)
                return
            room = min(self._ask.most[place], self._left)
            if not self._total:
                room = max(room, 1)  # one batch at least, however large
            at_end = asked.offset == replica.log.end_offset
            throttled = None if at_end else self._fetches.throttled(replica, ask.node_id, self._now_ns)
            held_ns, most = throttled or (0, room)
            room = 0 if at_end or held_ns else max(min(room, most), 0)
            copied = replica.handle_follower_fetch(ask.node_id, ask.incarnation, asked, room)
        except Refused as refused:
            self._failed = True
            self._founds[place] = Found(asked.partition, refused.code.number)
            if replica is not None:
                self._told.pop(replica, None)
            return
        if copied.diverging is not None or copied.code is not Code.NONE:
            self._failed = True
        elif at_end:
            self._told[replica] = Told(asked, None, 0.0)
            self._founds[place] = None
            if replica.follower_reads_enabled or replica.pending_deletions:
                self._note_news(replica)
            return
        elif held_ns:
            self._held_ns = max(self._held_ns, held_ns)
        elif not copied.size or (self._total and copied.size > room):
            copied = copied._replace(data=b"")
            if self._short < 0:
                self._short = place
        self._told.pop(replica, None)
        if copied.size:
            self._fetches.gave(replica, ask.node_id, copied.size, self._now_ns)
        self._total += copied.size
        self._left -= copied.size
        self._founds[place] = _found(asked.partition, copied)

    def _note_news(self, replica: LeaderReplica) -> None:
        told = self._told.get(replica)
        if told is None or told.ends != (replica.high_watermark, replica.manifest, replica.local_start_offset):
            self._news = True

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self) -> None:
        """Keeps the answer's place, and answers when there is something or the time is up."""
        fetches = self._fetches
        self._slot = self._connection.reserve(self.leave)
        fetches.waiting[self] = None
        fetches.parked += self.size
        seconds = min(self._ask.max_wait_ms, WAIT_MAX_MS) / 1000
        if self._held_ns:
            seconds = min(seconds, self._held_ns / 1e9)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, fetches.guard, self._connection, self.finish, NAME)
        try:
            for place, replica in enumerate(self._replicas):
                if replica is not None:
                    replica.add_end_listener(self, place)
                    if replica.follower_reads_enabled:
                        replica.add_listener(self, place)
                    self._watched.append((replica, place))
        except Refused:
            self._failed = True
            loop.call_soon(fetches.guard, self._connection, self.finish, NAME)

    def leave(self) -> None:
        """Waits no more; nobody is there to be answered."""
        fetches = self._fetches
        if self in fetches.waiting:
            del fetches.waiting[self]
            fetches.parked -= self.size
        for replica, place in self._watched:
            replica.remove_end_listener(self, place)
            replica.remove_listener(self, place)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._slot = None

    def finish(self) -> None:
        """Answers with what there is."""
        slot = self._slot
        if slot is not None:
            self.leave()
            self._connection.answer(slot, self.answer())

    def woken(self, place: int) -> None:
        """There may be more of that partition."""
        if not self._dirty:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._fetches.guard, self._connection, self._look, NAME)
        self._dirty[place] = None

    def _look(self) -> None:
        dirty, self._dirty = self._dirty, {}
        slot = self._slot
        if slot is None:
            return
        stranger = self._fetches.stranger(self._ask)
        if stranger is not None:
            self.leave()
            self._connection.answer(slot, self._fetches.refusal(self._correlation_id, stranger))
            return
        self._now_ns = self._fetches.site.clock.mono_ns()
        for place in dirty:
            self._read(place)
        if self.is_done():
            self.finish()


def _found(index: int, copied: FollowerReadResult) -> Found:
    return Found(
        index,
        copied.code.number,
        copied.high_watermark,
        replica_frames.NONE,
        copied.log_start_offset,
        copied.data,
        replica_frames.tags(copied.local_start_offset, copied.cold_end_offset, copied.diverging),
    )
