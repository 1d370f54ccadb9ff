"""One follower fetch from its first read until its reply.

A follower's fetch offset proves that the follower has all records below it. So the leader records the offset of each
partition, even if the reply has no room for its records. Followers read up to the log end, consumers only up to the
high watermark. Progress of a partition only marks the partition: the fetch reads marked partitions once per turn of the
event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tiered.errors import Code, Refused
from tiered.replication.leader_replica import LeaderReplica
from tiered.replication.read_result import FollowerReadResult
from tiered_api.kafka.server.fetch import frames, replica_frames
from tiered_api.kafka.server.fetch.follower_states import FollowerStates, LastReply
from tiered_api.kafka.server.fetch.frames import PartitionResult
from tiered_api.kafka.server.fetch.parking import CLOSE_LISTENERS, ParkedFetches, Parking
from tiered_api.kafka.server.fetch.replica_frames import ParsedReplicaFetch
from tiered_api.kafka.server.slots.response_slot import RequestConnection, ResponseSlot
from tiered_api.kafka.server.slots.socket_writer import Part

WAIT_MAX_MS = 60_000
LAST_REPLY_SECONDS = 5.0
"""Time after which a follower gets the same offsets again, because a reply may have been lost."""


class DelayedReplicaFetch:
    """One follower Fetch request. Each partition has the same place in the request, `_replicas` and `_results`."""

    __slots__ = (
        "_bytes_left",
        "_changed",
        "_correlation_id",
        "_first_truncated",
        "_followers",
        "_has_error",
        "_has_news",
        "_last_replies",
        "_now_ns",
        "_parking",
        "_replicas",
        "_request",
        "_results",
        "_throttled_ns",
        "_total_bytes",
        "_watched",
    )

    def __init__(
        self,
        followers: FollowerStates,
        parked: ParkedFetches,
        connection: RequestConnection,
        correlation_id: int,
        request: ParsedReplicaFetch,
        max_bytes: int,
    ) -> None:
        self._followers = followers
        self._parking = Parking(parked, connection, "Fetch of a follower")
        self._correlation_id = correlation_id
        self._request = request
        count = len(request.partitions)
        self._results: list[PartitionResult | None] = [None] * count
        self._replicas: list[LeaderReplica | None] = [None] * count
        self._bytes_left = max_bytes
        self._total_bytes = 0
        self._has_error = False
        self._has_news = False
        """True if the follower needs new offsets at once, without records: its consumers may read further, or a record
        deletion waits until the follower knows the log start offset."""
        self._last_replies = followers.last_replies(request)
        self._now_ns = followers.context.clock.mono_ns()
        self._throttled_ns = 0
        """Longest pause of a throttled partition."""
        self._first_truncated = -1
        """First place whose records were left out for want of room, -1 for none."""
        self._changed: dict[int, None] = {}
        self._watched: list[tuple[LeaderReplica, int]] = []

    @property
    def size(self) -> int:
        """Number of requested partitions."""
        return len(self._request.partitions)

    def read_partitions(self, first: tuple[str, int] | None) -> None:
        """Reads every partition once, beginning with `first` if it was requested: early partitions get the room."""
        order = list(range(self.size))
        if first is not None:
            names = [each[:2] for each in self._request.partitions]
            at = names.index(first) if first in names else 0
            order = order[at:] + order[:at]
        for place in order:
            self._read_partition(place)

    def is_done(self) -> bool:
        """True if there is something to send: records, an error or new offsets."""
        return (
            self._total_bytes > 0
            or self._has_error
            or self._has_news
            or self._request.max_wait_ms <= 0
            or not self._request.partitions
        )

    def make_response(self) -> Sequence[Part]:
        """Returns the reply with what was read, and the current offsets of partitions without records."""
        followers = self._followers
        followers.context.replicated_bytes += self._total_bytes
        if self._first_truncated >= 0:
            followers.first_partitions[self._request.node_id] = self._request.partitions[self._first_truncated][:2]
        by_topic: list[tuple[bytes, list[PartitionResult | bytes]]] = []
        now, at = asyncio.get_running_loop().time(), 0
        for echo, count in self._request.topics:
            results = [self._results[place] or self._encode_idle(place, now) for place in range(at, at + count)]
            sent = [result for result in results if result]
            if sent:
                by_topic.append((echo, sent))
            at += count
        return frames.encode_response(replica_frames.VERSION, self._correlation_id, by_topic, len(by_topic))

    def _encode_idle(self, place: int, now: float) -> bytes:
        """Returns the offsets of a partition without new records; nothing if the follower knows them."""
        replica, last_replies = self._replicas[place], self._last_replies
        assert replica is not None
        ends = replica.high_watermark, replica.manifest, replica.local_start_offset
        before = last_replies.get(replica)
        if before is None or before.ends != ends or now - before.replied_at > LAST_REPLY_SECONDS:
            last_replies[replica] = LastReply(self._request.partitions[place], ends, now)
            return replica_frames.encode_idle(
                replica.partition, ends[0], replica.log_start_offset, ends[2], replica.cold_end_offset
            )
        return b""

    def _read_partition(self, place: int) -> None:
        asked = self._request.partitions[place]
        replica = self._replicas[place]
        try:
            if replica is None or replica.is_stopped:
                replica = self._replicas[place] = self._followers.find_replica(asked)
            last, request = self._last_replies.get(replica), self._request
            if (
                last is not None
                and last.request == asked
                and replica.handle_repeated_fetch(request.node_id, request.incarnation, asked.offset, self._now_ns)
            ):
                self._results[place] = None
                if replica.reads.follower_reads_enabled or replica.deletion.waiting:
                    self._check_news(replica)
                return
            room = min(self._request.partition_max_bytes[place], self._bytes_left)
            if not self._total_bytes:
                room = max(room, 1)  # at least one batch, however large
            at_end = asked.offset == replica.log.end_offset
            throttled = None if at_end else self._followers.throttle_of(replica, request.node_id, self._now_ns)
            pause_ns, most = throttled or (0, room)
            room = 0 if at_end or pause_ns else max(min(room, most), 0)
            copied = replica.handle_follower_fetch(request.node_id, request.incarnation, asked, room)
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
            if replica.reads.follower_reads_enabled or replica.deletion.waiting:
                self._check_news(replica)
            return
        elif pause_ns:
            self._throttled_ns = max(self._throttled_ns, pause_ns)
        elif not copied.size or (self._total_bytes and copied.size > room):
            copied = copied._replace(data=b"")
            if self._first_truncated < 0:
                self._first_truncated = place
        self._last_replies.pop(replica, None)
        if copied.size:
            self._followers.record_sent(replica, request.node_id, copied.size, self._now_ns)
        self._total_bytes += copied.size
        self._bytes_left -= copied.size
        self._results[place] = _make_result(asked.partition, copied)

    def _check_news(self, replica: LeaderReplica) -> None:
        last = self._last_replies.get(replica)
        if last is None or last.ends != (replica.high_watermark, replica.manifest, replica.local_start_offset):
            self._has_news = True

    # -- waiting ------------------------------------------------------------------------------------------------------

    def park(self) -> None:
        """Waits for something to send, or the end of the wait time."""
        self._parking.park(self)
        seconds = min(self._request.max_wait_ms, WAIT_MAX_MS) / 1000
        if self._throttled_ns:
            seconds = min(seconds, self._throttled_ns / 1e9)
        loop = asyncio.get_running_loop()
        self._parking.set_deadline(self, loop.time() + seconds)
        try:
            for place, replica in enumerate(self._replicas):
                if replica is not None:
                    replica.reads.add_end_listener(self, place)
                    if replica.reads.follower_reads_enabled:
                        replica.reads.add_listener(self, place)
                    self._watched.append((replica, place))
        except Refused:
            self._has_error = True
            loop.call_soon(self._parking.run_guarded, self.complete)

    def unpark(self) -> ResponseSlot | None:
        """Stops waiting. Returns the slot of the reply, None if the fetch is not parked."""
        return self._parking.unpark(self)

    def on_close(self) -> None:
        """Stops waiting, because the connection is closed."""
        self._parking.unpark(self, CLOSE_LISTENERS)

    def remove_listeners(self, most: int) -> bool:
        """Removes the listeners of at most so many partitions. Returns True if more are left."""
        for replica, place in self._watched[-most:]:
            replica.reads.remove_end_listener(self, place)
            replica.reads.remove_listener(self, place)
        del self._watched[-most:]
        return bool(self._watched)

    def complete(self) -> None:
        """Replies with what there is."""
        slot = self.unpark()
        if slot is not None:
            slot.reply(self.make_response())

    def on_progress(self, index: int) -> None:
        """Marks the partition: it may have more records."""
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._parking.run_guarded, self._reread)
        self._changed[index] = None

    def _reread(self) -> None:
        changed, self._changed = self._changed, {}
        if self._parking.slot is None:
            return
        refused = self._followers.check_sender(self._request)
        if refused is not None:
            slot = self.unpark()
            assert slot is not None, "the fetch was parked a moment ago"
            slot.reply(replica_frames.encode_refusal(self._correlation_id, refused))
            return
        self._now_ns = self._followers.context.clock.mono_ns()
        for place in changed:
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
        replica_frames.encode_tags(
            copied.local_start_offset, copied.cold_end_offset, copied.diverging, copied.may_have_gaps
        ),
    )
