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
from tiered.peers import PartitionFetch
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import FollowerReadResult
from tiered_api.kafka.server.fetch import frames, replica_frames
from tiered_api.kafka.server.fetch.frames import PartitionResult
from tiered_api.kafka.server.fetch.replica_frames import ParsedReplicaFetch
from tiered_api.kafka.server.socket_writer import Part

if TYPE_CHECKING:
    from tiered_api.kafka.server.connection import ClientConnection, ResponseSlot
    from tiered_api.kafka.server.fetch.replica_handler import ReplicaFetchHandler

WAIT_MAX_MS = 60_000
NAME = "Fetch of a follower"
LAST_REPLY_SECONDS = 5.0
"""For so long a follower is not told again what it was told: an answer may have been lost."""


class LastReply(NamedTuple):
    """The last that a follower asked of a partition at its end, what it was told then, and when."""

    request: PartitionFetch
    ends: tuple[int, Manifest | None, int] | None
    replied_at: float


class DelayedReplicaFetch:
    """One request until its answer. `_results` has of each place what it gets; None at the end of a log."""

    __slots__ = (
        "_bytes_left",
        "_changed",
        "_connection",
        "_correlation_id",
        "_fetches",
        "_first_truncated",
        "_has_error",
        "_has_news",
        "_last_replies",
        "_now_ns",
        "_replicas",
        "_request",
        "_results",
        "_slot",
        "_throttled_ns",
        "_timer",
        "_total_bytes",
        "_watched",
    )

    def __init__(
        self,
        fetches: ReplicaFetchHandler,
        connection: ClientConnection,
        correlation_id: int,
        request: ParsedReplicaFetch,
        max_bytes: int,
    ) -> None:
        self._fetches = fetches
        self._connection = connection
        self._correlation_id = correlation_id
        self._request = request
        count = len(request.partitions)
        self._results: list[PartitionResult | None] = [None] * count
        self._replicas: list[LeaderReplica | None] = [None] * count
        self._bytes_left = max_bytes
        self._total_bytes = 0
        self._has_error = False
        self._has_news = False
        """Whether a follower has to hear at once of what is no record: consumers read there, and may go further, or
        somebody waits for it to know where the log starts."""
        self._last_replies = fetches.last_replies(request)
        self._now_ns = fetches.context.clock.mono_ns()
        self._throttled_ns = 0
        """How long a partition has to wait that is held to a rate."""
        self._first_truncated = -1
        """The first place that got less than there is, for want of room."""
        self._changed: dict[int, None] = {}
        self._watched: list[tuple[LeaderReplica, int]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._slot: ResponseSlot | None = None

    @property
    def size(self) -> int:
        """How many partitions it asks for."""
        return len(self._request.partitions)

    def read_partitions(self, first: tuple[str, int] | None) -> None:
        """Reads every partition once, from `first` on where it is asked for: whoever is early gets its bytes first."""
        order = list(range(self.size))
        if first is not None:
            names = [asked[:2] for asked in self._request.partitions]
            at = names.index(first) if first in names else 0
            order = order[at:] + order[:at]
        for place in order:
            self._read_partition(place)

    def is_done(self) -> bool:
        """Whether there is something to answer, an error among it."""
        return (
            self._total_bytes > 0
            or self._has_error
            or self._has_news
            or self._request.max_wait_ms <= 0
            or not self._request.partitions
        )

    def make_response(self) -> Sequence[Part]:
        """The answer with what was found. Where nothing was, it says how far the log is by now."""
        fetches = self._fetches
        fetches.context.replicated_bytes += self._total_bytes
        if self._first_truncated >= 0:
            fetches.first_partitions[self._request.node_id] = self._request.partitions[self._first_truncated][:2]
        told: list[tuple[bytes, list[PartitionResult | bytes]]] = []
        now, at = asyncio.get_running_loop().time(), 0
        for echo, count in self._request.topics:
            founds = [self._results[place] or self._encode_idle(place, now) for place in range(at, at + count)]
            some = [found for found in founds if found]
            if some:
                told.append((echo, some))
            at += count
        return frames.encode_response(replica_frames.VERSION, self._correlation_id, told, len(told))

    def _encode_idle(self, place: int, now: float) -> bytes:
        """How far a log is of which there is nothing more; nothing when the follower knows."""
        replica, told = self._replicas[place], self._last_replies
        assert replica is not None
        ends = replica.high_watermark, replica.manifest, replica.local_start_offset
        before = told.get(replica)
        if before is None or before.ends != ends or now - before.replied_at > LAST_REPLY_SECONDS:
            told[replica] = LastReply(self._request.partitions[place], ends, now)
            return replica_frames.encode_idle(
                replica.partition, ends[0], replica.log_start_offset, ends[2], replica.cold_end_offset
            )
        return b""

    def _read_partition(self, place: int) -> None:
        asked = self._request.partitions[place]
        replica = self._replicas[place]
        try:
            if replica is None or replica.is_stopped:
                replica = self._replicas[place] = self._fetches.find_replica(asked)
            told, ask = self._last_replies.get(replica), self._request
            if (
                told is not None
                and told.request == asked
                and replica.handle_repeated_fetch(ask.node_id, ask.incarnation, asked.offset, self._now_ns)
            ):
                self._results[place] = None
                if replica.reads.follower_reads_enabled or replica.pending_deletions:
                    self._check_news(replica)
                return
            room = min(self._request.partition_max_bytes[place], self._bytes_left)
            if not self._total_bytes:
                room = max(room, 1)  # one batch at least, however large
            at_end = asked.offset == replica.log.end_offset
            throttled = None if at_end else self._fetches.throttle_of(replica, ask.node_id, self._now_ns)
            held_ns, most = throttled or (0, room)
            room = 0 if at_end or held_ns else max(min(room, most), 0)
            copied = replica.handle_follower_fetch(ask.node_id, ask.incarnation, asked, room)
        except Refused as refused:
            self._has_error = True
            self._results[place] = PartitionResult(asked.partition, refused.code.number)
            if replica is not None:
                self._last_replies.pop(replica, None)
            return
        if copied.diverging is not None or copied.code is not Code.NONE:
            self._has_error = True
        elif at_end:
            self._last_replies[replica] = LastReply(asked, None, 0.0)
            self._results[place] = None
            if replica.reads.follower_reads_enabled or replica.pending_deletions:
                self._check_news(replica)
            return
        elif held_ns:
            self._throttled_ns = max(self._throttled_ns, held_ns)
        elif not copied.size or (self._total_bytes and copied.size > room):
            copied = copied._replace(data=b"")
            if self._first_truncated < 0:
                self._first_truncated = place
        self._last_replies.pop(replica, None)
        if copied.size:
            self._fetches.record_sent(replica, ask.node_id, copied.size, self._now_ns)
        self._total_bytes += copied.size
        self._bytes_left -= copied.size
        self._results[place] = _make_result(asked.partition, copied)

    def _check_news(self, replica: LeaderReplica) -> None:
        told = self._last_replies.get(replica)
        if told is None or told.ends != (replica.high_watermark, replica.manifest, replica.local_start_offset):
            self._has_news = True

    # -- waiting ------------------------------------------------------------------------------------------------------

    def park(self) -> None:
        """Keeps the answer's place, and answers when there is something or the time is up."""
        fetches = self._fetches
        self._slot = self._connection.reserve_slot(self.unpark)
        fetches.parked_fetches[self] = None
        fetches.parked_partitions += self.size
        seconds = min(self._request.max_wait_ms, WAIT_MAX_MS) / 1000
        if self._throttled_ns:
            seconds = min(seconds, self._throttled_ns / 1e9)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, fetches.run_guarded, self._connection, self.complete, NAME)
        try:
            for place, replica in enumerate(self._replicas):
                if replica is not None:
                    replica.reads.add_end_listener(self, place)
                    if replica.reads.follower_reads_enabled:
                        replica.reads.add_listener(self, place)
                    self._watched.append((replica, place))
        except Refused:
            self._has_error = True
            loop.call_soon(fetches.run_guarded, self._connection, self.complete, NAME)

    def unpark(self) -> None:
        """Waits no more; nobody is there to be answered."""
        fetches = self._fetches
        if self in fetches.parked_fetches:
            del fetches.parked_fetches[self]
            fetches.parked_partitions -= self.size
        for replica, place in self._watched:
            replica.reads.remove_end_listener(self, place)
            replica.reads.remove_listener(self, place)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._slot = None

    def complete(self) -> None:
        """Answers with what there is."""
        slot = self._slot
        if slot is not None:
            self.unpark()
            self._connection.send_response(slot, self.make_response())

    def on_progress(self, index: int) -> None:
        """There may be more of that partition."""
        if not self._changed:
            loop = asyncio.get_running_loop()
            loop.call_soon(self._fetches.run_guarded, self._connection, self._reread, NAME)
        self._changed[index] = None

    def _reread(self) -> None:
        dirty, self._changed = self._changed, {}
        slot = self._slot
        if slot is None:
            return
        stranger = self._fetches.check_sender(self._request)
        if stranger is not None:
            self.unpark()
            self._connection.send_response(slot, self._fetches.encode_refusal(self._correlation_id, stranger))
            return
        self._now_ns = self._fetches.context.clock.mono_ns()
        for place in dirty:
            self._read_partition(place)
        if self.is_done():
            self.complete()


def _make_result(index: int, copied: FollowerReadResult) -> PartitionResult:
    return PartitionResult(
        index,
        copied.code.number,
        copied.high_watermark,
        replica_frames.NO_OFFSET_OR_REPLICA,
        copied.log_start_offset,
        copied.data,
        replica_frames.encode_tags(copied.local_start_offset, copied.cold_end_offset, copied.diverging),
    )
