"""One connection: frames in, replies out in the order of the requests, with as few system calls as possible.

All connections share a scratch buffer for small frames. These are handled before the next event, and nothing in the
buffer is kept. All replies that are ready by then leave in one call. A request begins in the order of `request_order`.
Reading stops while the client does not take its replies, while as many requests wait for replies as `request_order`
lets wait, while the next one has to wait for those before it, and while the whole broker has too much to do. So a
client's share of memory is bounded by the frames that are read and the replies that wait. A reply waits if its client
does not take it, or if an earlier reply is missing: both count as unsent bytes (I30).
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import NamedTuple, Protocol

from tiered.errors import Unavailable
from tiered.networks import network_of
from tiered.ports import FileSlice, Stream
from tiered.security.principal import ANONYMOUS, BROKER, Caller, Principal
from tiered_api.kafka.server.context.context import KafkaContext
from tiered_api.kafka.server.dispatch import Dispatch
from tiered_api.kafka.server.login import LOGIN_FRAME_BYTES, LOGIN_SECONDS, LoginState
from tiered_api.kafka.server.metering import Meter
from tiered_api.kafka.server.produce.sequence_gaps import RefusedSequences
from tiered_api.kafka.server.request_buffers import Frame, RequestBuffers
from tiered_api.kafka.server.slots.request_order import FETCH, PRODUCE, is_full, may_begin
from tiered_api.kafka.server.slots.response_slot import SlotCharge
from tiered_api.kafka.server.slots.socket_writer import Part, memory_bytes, send_parts
from tiered_api.kafka.server.wrong_protocol import describe_bad_size

SCRATCH_FRAME_MAX = 32 << 10
"""Larger frames get their own buffer."""
CORKED_BYTES = 16 << 10
"""A larger reply leaves at once. The next request is handled only if it has left."""
REQUESTS_PER_EVENT = 64
"""Most requests of one connection before others get their turn."""
READS_PER_EVENT = 8
"""Most reads of one connection before others get their turn."""
HELD_SECONDS_MAX = 30.0
"""A request that waits for so long in all, because its client is over a quota, ends the connection: clients do not wait
longer for a reply."""
HEADER_BYTES = 10
COPIED_SHARE = 4

KEY_BYTES = 2

_SIZE = Struct(">i")
_KEY = Struct(">h")
_HEADER = Struct(">hhih")


class ConnectionOwner(Protocol):
    """The server of a connection: limits, memory and counts that all its connections share."""

    pending_requests: int
    """Requests without a reply."""
    unsent_bytes: int
    """Bytes of replies in memory that clients do not take, or that wait for earlier replies."""

    @property
    def context(self) -> KafkaContext:
        """Surroundings of the Kafka protocol."""

    @property
    def dispatch(self) -> Dispatch:
        """Handlers of the requests."""

    @property
    def buffers(self) -> RequestBuffers:
        """Memory for large frames."""

    @property
    def scratch(self) -> memoryview:
        """Memory into which all connections read small frames; nothing in it outlives one event."""

    @property
    def now(self) -> float:
        """Time of the last sweep, in the time of the event loop."""

    @property
    def max_request_bytes(self) -> int:
        """Largest frame."""

    @property
    def pending_requests_max(self) -> int:
        """From so many pending requests on, each connection may have only one."""

    @property
    def unsent_bytes_max(self) -> int:
        """From more unsent bytes on, connections with unsent bytes are closed."""

    def end_slowest_readers(self) -> None:
        """Closes connections with unsent bytes until their sum is within its limit."""

    def schedule_flush(self, connection: ClientConnection) -> bool:
        """True if the server calls `connection.flush` later, together with other connections."""

    def uncount_broker(self, connection: ClientConnection) -> None:
        """Counts a connection for its address no longer: it has proved that a broker opened it."""

    def remove_connection(self, connection: ClientConnection) -> None:
        """Forgets a closed connection."""


class HeldRequest(NamedTuple):
    """A request that waits for the quota of its client."""

    timer: TimerHandle
    """Ends the wait."""
    frame: memoryview
    on_end: Callable[[], object] | None
    """Called once the request does not wait any more."""


class ReplySlot:
    """The place of one reply, and the reply once it is there. Implements the protocol `ResponseSlot`."""

    __slots__ = ("_connection", "api_key", "charge", "counted_bytes", "on_close", "parts", "started_ns")

    def __init__(self, connection: ClientConnection, api_key: int = 0, started_ns: int = 0) -> None:
        self._connection = connection
        self.api_key = api_key
        self.started_ns = started_ns
        self.parts: Sequence[Part] | None = None
        self.counted_bytes = 0
        """Bytes of a reply that waits for an earlier one."""
        self.charge: SlotCharge | None = None
        self.on_close: Callable[[], object] | None = None

    def reply(self, parts: Sequence[Part]) -> None:
        """Fills the slot. The reply leaves once all replies before it are there."""
        if self.charge is not None and not self._connection.closed:
            parts = self.charge.settle(parts)
        self.parts, self.on_close = parts, None
        if self.charge is None:
            self._connection.on_reply(self)
        else:
            self.charge.charge_sending(partial(self._connection.on_reply, self))


class ClientConnection:
    """One client. Its dispatch gets every request, and returns the reply at once or fills a slot later."""

    __slots__ = (
        "_current_frame",
        "_dispatch_request",
        "_finishing",
        "_frame",
        "_held",
        "_held_since",
        "_is_busy",
        "_is_served",
        "_loop",
        "_max_request_bytes",
        "_muted",
        "_parse_paused",
        "_reading",
        "_resuming",
        "_scratch",
        "_send_queue",
        "_server",
        "_slots",
        "_stream",
        "_unparsed",
        "_waiting_bytes",
        "_waiting_key",
        "_waits_for_memory",
        "_waits_for_replies",
        "_write_blocked",
        "api_key",
        "caller",
        "closed",
        "counted_as",
        "fetch_prefix_end",
        "fetch_rotation",
        "frame_started",
        "holder",
        "host",
        "is_acting",
        "is_broker",
        "is_counted",
        "last_activity",
        "listener",
        "login",
        "login_ends",
        "meter",
        "peer",
        "produce_cache",
        "produce_prefix_end",
        "read_sources",
        "refused_sequences",
        "started_ns",
        "turn_share",
        "unsent_bytes",
        "write_blocked_since",
    )

    def __init__(
        self,
        server: ConnectionOwner,
        stream: Stream,
        listener: str,
        loop: AbstractEventLoop,
        requires_login: bool = False,
        principal: Principal = ANONYMOUS,
    ) -> None:
        self._server = server
        self._stream = stream
        self._loop = loop
        self._scratch = server.scratch
        self._dispatch_request = server.dispatch.serve_request
        self._max_request_bytes = server.max_request_bytes
        self._unparsed = b""
        self._frame: Frame | None = None
        self._slots: deque[ReplySlot] = deque()
        self._send_queue: list[Part] = []
        self._reading = False
        self._write_blocked = False
        self._resuming = False
        self.unsent_bytes = 0
        """Bytes of replies in memory that the client does not take, or that wait for earlier replies."""
        self._waiting_bytes = 0
        """The part of them that waits for earlier replies."""
        self._waits_for_memory = False
        self._parse_paused = False
        self._waiting_key = 0
        """API key of the last request whose reply came later. While requests wait, those of a client have this key."""
        self._waits_for_replies = False
        """True while the next request has to wait for the replies to those before it."""
        self._current_frame: Frame | None = None
        """The large frame that is handled now."""
        self._is_busy = False
        """True while a whole large frame waits for its turn, or a request is handled in pieces."""
        self._muted: TimerHandle | None = None
        """Ends the pause in which the broker reads nothing."""
        self._held: HeldRequest | None = None
        """A request that waits for the quota of its client."""
        self._held_since = -1.0
        """Time since when it waits, -1 if none does."""
        self._finishing = False
        self.closed = False
        self.meter: Meter | None = None
        self.is_acting = False
        """True if a broker sends requests of its HTTP clients."""
        self.is_broker = False
        """True if a request has proved by its credential that a broker sends the requests."""
        self.listener = listener
        self.peer = stream.peer
        self.host = stream.peer.rpartition(":")[0]
        self.counted_as = network_of(self.host)
        """The address or network that the connection counts for."""
        self.is_counted = True
        """False once a broker has proved itself: `max.connections.per.ip` is for clients."""
        self.turn_share = server.context.turns.make_share(self.counted_as)
        self.act_for(Caller(principal, self.host))
        self.login: LoginState | None = None
        self.login_ends = -1.0
        """Time by which the client has to log in, or to log in again; -1 if it need not."""
        self._is_served = not requires_login
        """False while the client may do nothing but log in."""
        if requires_login:
            self._dispatch_request = server.dispatch.login_handler.handle_request
            self._max_request_bytes = LOGIN_FRAME_BYTES
            self.login = LoginState()
        self.last_activity = server.now
        """Time of the last received bytes. All times are those of the server's last sweep."""
        self.frame_started = -1.0
        """Time since when a frame is incomplete, -1 if none is."""
        self.write_blocked_since = -1.0
        """Time since when the client takes no bytes of its replies, -1 if no bytes wait."""
        self.refused_sequences: RefusedSequences | None = None
        self.produce_prefix_end = 0
        """Position of the first records in the last Produce request."""
        self.fetch_prefix_end = 0
        """Position of the partitions in the last Fetch request."""
        self.api_key = 0
        """API key of the request that is handled now."""
        self.started_ns = 0
        """Time at which that request began, by the monotonic clock."""
        self.fetch_rotation = 0
        """Number of fetches that left out records for want of room."""

    def on_login(self, caller: Caller, lifetime_seconds: float) -> None:
        """Serves the requests of a caller from now on. A lifetime above 0 is the time until the next login."""
        if caller != self.caller:
            self.act_for(caller)
        if caller.principal.kind == BROKER:
            self._server.uncount_broker(self)
        self._dispatch_request, self._is_served = self._server.dispatch.serve_request, True
        self._max_request_bytes = self._server.max_request_bytes
        self.login_ends = self._loop.time() + lifetime_seconds if lifetime_seconds > 0 else -1.0

    def end_login_within(self, seconds: float) -> None:
        """Ends the time of a login that ends anyway after so many seconds, unless it ends earlier."""
        self.login_ends = min(self.login_ends, self._loop.time() + seconds)

    def on_login_end(self) -> None:
        """Ends a connection whose first login did not come in time. Once it has logged in, another login is all that it
        may do from now on: requests that wait for replies get them (KIP-368)."""
        if self.login is None or self.login.principal is None:
            self.refuse("login_timeout", "it did not log in in time")
            return
        self._dispatch_request, self._is_served = self._server.dispatch.handle_expired, False
        self.login_ends = -1.0

    def act_for(self, caller: Caller) -> None:
        """Serves the requests that follow as those of this caller."""
        self.caller = caller
        self.holder = caller.holder
        self.produce_cache = self._server.dispatch.produce_handler.caches.find(caller)
        self.read_sources = self._server.dispatch.fetch_handler.fetches.sources.find(caller)

    def on_credential(self) -> None:
        """Counts the requests against no quota and no share from now on: a broker sends them."""
        self.is_broker = True
        self._server.uncount_broker(self)
        if not self.is_acting:
            self.holder = ""

    def on_quotas(self) -> None:
        """Serves the requests that follow under other quotas, and ends a pause."""
        self.on_dispatch()
        self._unmute()
        if self._held is not None:
            self._held.timer.cancel()
            self._loop.call_soon(self.serve_held)

    def on_dispatch(self) -> None:
        """Serves the requests that follow as the dispatch has them served now."""
        if self._is_served:
            self._dispatch_request = self._server.dispatch.serve_request

    def mute(self, seconds: float) -> None:
        """Reads nothing for so long, or until the quotas change. Replies leave meanwhile."""
        ends = self._loop.time() + seconds
        if self.closed or (self._muted is not None and self._muted.when() >= ends):
            return
        if self._muted is not None:
            self._muted.cancel()
        self._muted = self._loop.call_at(ends, self._unmute)
        self._stop_reading()

    def hold_request(self, frame: memoryview, seconds: float, on_end: Callable[[], object] | None = None) -> None:
        """Handles the request that is handled now after so long, or once the quotas change. Replies to earlier requests
        leave meanwhile. `on_end` is called once the request does not wait any more."""
        now = self._loop.time()
        if self._held_since < 0:
            self._held_since = now
        left = self._held_since + HELD_SECONDS_MAX - now
        if left <= 0:
            self.refuse("over_quota", f"a request waited {HELD_SECONDS_MAX:g} s for the quota of its client")
            return
        held = self.retain_request(frame)
        timer = self._loop.call_later(min(seconds, left), self.serve_held)
        self._held = HeldRequest(timer, held, on_end)

    def serve_held(self) -> None:
        """Handles the request that waits for the quota of its client, if any does."""
        held = self._end_hold()
        if held is None or self.closed:
            return
        self._is_busy = False
        self._server.dispatch.run_guarded(self, partial(self._handle_held_frame, held.frame), "held request")

    def _end_hold(self) -> HeldRequest | None:
        held, self._held = self._held, None
        if held is not None:
            held.timer.cancel()
            if held.on_end is not None:
                held.on_end()
        return held

    def _handle_held_frame(self, frame: memoryview) -> None:
        try:
            self._handle_request(frame)
        finally:
            if self._held is None:
                self._held_since = -1.0
            if not self._is_busy:
                self._release_frame()
        if not self.closed:
            self._update_io()

    def _unmute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            if not self.closed:
                self._resume_soon()

    def open(self) -> None:
        """Starts to read, and begins the time of a login."""
        if not self._is_served:
            self.login_ends = self._loop.time() + LOGIN_SECONDS
        self.start_reading()

    def start_reading(self) -> None:
        """Starts to read."""
        self._reading = True
        self._stream.on_readable(self._on_readable)

    @property
    def pending(self) -> int:
        """Number of requests whose replies are missing, or wait for earlier replies."""
        return len(self._slots)

    @property
    def oldest_slot(self) -> ReplySlot:
        """Place of the reply that leaves next, while any is pending."""
        return self._slots[0]

    @property
    def is_muted(self) -> bool:
        """True during a pause. The connection idles meanwhile, as in Kafka."""
        return self._muted is not None

    @property
    def newest_slot(self) -> ReplySlot:
        """Place of the reply that leaves last, while any is pending."""
        return self._slots[-1]

    @property
    def is_reading(self) -> bool:
        """True if the connection reads requests now."""
        return self._reading

    @property
    def can_copy_slices(self) -> bool:
        """True if replies may copy file slices to memory: few unsent bytes wait there."""
        return self._server.unsent_bytes * COPIED_SHARE < self._server.unsent_bytes_max

    def close_if_left(self) -> bool:
        """Closes the connection of a client that has left, if it reads nothing now: its requests wait for replies that
        nobody reads, or it is in a pause. A Produce is done first, since it may be one without a reply. Returns True if
        it closed the connection."""
        if self._reading or self._write_blocked or not self._stream.has_ended():
            return False
        is_full_of_fetches = self._waiting_key == FETCH and bool(self._slots) and self._is_full()
        if self._waits_for_replies or is_full_of_fetches or (self._is_busy and self._waiting_key != PRODUCE):
            self.close()
        elif self._muted is not None and not (self._unparsed or self._slots or self._is_busy) and self._frame is None:
            self._read_in_pause()
        return self.closed

    def _read_in_pause(self) -> None:
        """Closes the connection if nothing more was received. Keeps what was for the end of the pause."""
        try:
            got = self._stream.recv_into(self._scratch)
        except Unavailable:
            got = 0
        if got == 0:
            self.close()
        elif got is not None:
            self._unparsed, self._parse_paused = bytes(self._scratch[:got]), True

    def has_stalled(self, min_bytes: int) -> bool:
        """True if a large frame is incomplete, has memory, and received fewer than `min_bytes` since the last sweep."""
        frame = self._frame
        if frame is None:
            return False
        if self._waits_for_memory or self._is_busy:
            frame.filled_at_check = -1
            return False
        before, frame.filled_at_check = frame.filled_at_check, frame.filled
        return before >= 0 and frame.filled - before < min_bytes

    # -- in -----------------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._frame is not None:
            self._read_frame(self._frame)
            return
        scratch, start = self._scratch, len(self._unparsed)
        try:
            if start:
                scratch[:start] = self._unparsed
                got = self._stream.recv_into(scratch[start:])
            else:
                got = self._stream.recv_into(scratch)
        except Unavailable:
            self.close()
            return
        if got is None:
            return
        if not got:
            self.close()
            return
        self.last_activity = self._server.now
        size = got - 4
        if start or self._slots or size < HEADER_BYTES or size != _SIZE.unpack_from(scratch)[0]:
            self._parse(start + got)
        elif size <= self._max_request_bytes:
            self._handle_single_request(scratch[4:got])  # the usual case: exactly one frame
        else:
            self.refuse("frame_size", describe_bad_size(size))

    def _read_frame(self, frame: Frame) -> None:
        """Reads on into a large frame only, so that the bytes after the frame stay in the socket."""
        for _ in range(READS_PER_EVENT):
            room = frame.next_space()
            if room is None:
                self._waits_for_memory = True
                self._stop_reading()
                self._server.buffers.park(self._on_memory_free, self.host)
                return
            try:
                got = self._stream.recv_into(room)
            except Unavailable:
                got = 0
            if got is None:
                return
            if not got:
                self.close()
                return
            self.last_activity = self._server.now
            frame.filled += got
            if frame.filled == frame.size:
                self.frame_started = -1.0
                turns = self._server.context.turns
                if turns.has_time():
                    self._handle_frame(frame)
                else:
                    self._is_busy = True
                    self._stop_reading()
                    turns.run_later(
                        partial(self._server.dispatch.run_guarded, self, self._handle_waiting_frame, "large frame"),
                        self.turn_share,
                    )
                return

    def _handle_waiting_frame(self) -> None:
        self._is_busy = False
        if self._frame is not None:
            self._handle_frame(self._frame)

    def _handle_frame(self, frame: Frame) -> None:
        """Handles a complete large frame."""
        self._frame, self._current_frame = None, frame
        try:
            self._handle_request(frame.view)
        finally:
            if not self._is_busy:
                self._release_frame()
        self._update_io()

    def retain_request(self, frame: memoryview) -> memoryview:
        """Returns the request that is handled now, to be kept beyond this turn. The connection reads no further
        requests before `release_request`."""
        self._is_busy = True
        self._stop_reading()
        return frame if self._current_frame is not None else memoryview(bytearray(frame))

    def release_request(self) -> None:
        """Releases the retained request, and reads on."""
        self._is_busy = False
        self._release_frame()
        self._resume_soon()

    def _release_frame(self) -> None:
        if self._current_frame is not None:
            self._current_frame.release()
            self._current_frame = None

    def _parse(self, end: int) -> None:
        """Handles the complete frames in `scratch[:end]`, keeps the rest, and sends the replies."""
        scratch, at, taken = self._scratch, 0, 0
        while end - at >= 4:
            if (
                taken == REQUESTS_PER_EVENT
                or self._write_blocked
                or self._is_busy
                or self._muted is not None
                or self._finishing
                or (self._slots and self._is_full())
            ):
                self._parse_paused = True
                break
            (size,) = _SIZE.unpack_from(scratch, at)
            begin = at + 4
            if not HEADER_BYTES <= size <= self._max_request_bytes:
                self.refuse("frame_size", describe_bad_size(size))
                return
            has_key, is_whole = end - begin >= KEY_BYTES, end - begin >= size
            if (
                self._slots
                and (is_whole or (has_key and size > SCRATCH_FRAME_MAX))
                and not self._may_begin(_KEY.unpack_from(scratch, begin)[0])
            ):
                self._parse_paused = self._waits_for_replies = True
                break
            if not is_whole:
                if size > SCRATCH_FRAME_MAX and (has_key or not self._slots):
                    self._frame = self._server.buffers.new_frame(size, scratch[begin:end], self.host)
                    at = end
                break
            at = begin + size
            taken += 1
            self._handle_request(scratch[begin:at])
            if self.closed:
                return
        self._unparsed = bytes(scratch[at:end]) if at != end else b""
        if at == end and self._frame is None:
            self.frame_started = -1.0
        elif self.frame_started < 0 or taken:
            self.frame_started = self._server.now
        self._update_io()

    def _handle_single_request(self, frame: memoryview) -> None:
        """Handles a request while no other waits. A small immediate reply leaves together with those of other
        connections."""
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
        reply = self._dispatch_request(
            self, frame, key, version, correlation_id, HEADER_BYTES + size if size > 0 else HEADER_BYTES
        )
        if reply is None:
            self._waiting_key = key
        else:
            first = reply[0]
            self._send_queue += reply
            if (
                len(reply) == 1
                and not self._slots
                and not isinstance(first, FileSlice)
                and len(first) <= CORKED_BYTES
                and self._server.schedule_flush(self)
            ):
                return
        self._update_io()

    def _handle_request(self, frame: memoryview) -> None:
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
        reply = self._dispatch_request(
            self, frame, key, version, correlation_id, HEADER_BYTES + size if size > 0 else HEADER_BYTES
        )
        if reply is None:
            self._waiting_key = key
            return
        if self._slots:
            slot = ReplySlot(self)
            slot.parts = reply
            self._enqueue(slot)
            self._count_waiting(slot)
        else:
            self._send_queue += reply
            first = reply[0]
            if len(reply) > 1 or isinstance(first, FileSlice) or len(first) > CORKED_BYTES:
                self._send()

    def _may_begin(self, key: int) -> bool:
        is_broker = self.is_broker or self.is_acting or self.caller.principal.kind == BROKER
        return may_begin(key, self._waiting_key, is_broker)

    def _is_full(self) -> bool:
        server = self._server
        return is_full(len(self._slots), self._waiting_key, server.pending_requests, server.pending_requests_max)

    # -- out ----------------------------------------------------------------------------------------------------------

    def reserve_slot(self, on_close: Callable[[], object] | None = None) -> ReplySlot:
        """Reserves the place of a reply that comes later, in the order of the requests."""
        slot = ReplySlot(self, self.api_key, self.started_ns)
        slot.on_close = on_close
        self._enqueue(slot)
        return slot

    def on_reply(self, slot: ReplySlot) -> None:
        """Sends the reply in `slot` if all replies before it are there too."""
        self._server.dispatch.on_response(slot)
        if self.closed:
            return
        if self._slots[0] is slot:
            self._update_io()
        else:
            self._count_waiting(slot)

    def _enqueue(self, slot: ReplySlot) -> None:
        self._slots.append(slot)
        self._server.pending_requests += 1

    def _update_io(self) -> None:
        """Sends the replies that are ready. Then reads on or stops reading, as the state requires."""
        queue, out, has_moved = self._slots, self._send_queue, False
        while queue and queue[0].parts is not None:
            slot = queue.popleft()
            out += slot.parts or ()
            self._waiting_bytes -= slot.counted_bytes
            has_moved = True
            self._server.pending_requests -= 1
        if out and not self._write_blocked:
            self._send()
        if has_moved and self.unsent_bytes + self._waiting_bytes + self._write_blocked:
            self._count_unsent(memory_bytes(out))
        if self.closed:
            return
        if self._finishing:
            if not queue and not out:
                self.close()
        elif self._write_blocked or (queue and (self._waits_for_replies or self._is_full())):
            self._stop_reading()
        elif self._parse_paused or not self._reading:
            self._stop_reading()
            self._resume_soon()

    def flush(self) -> None:
        """Sends what was left for the end of the turn, unless it has left already or the socket is full."""
        if self._send_queue and not self._write_blocked:
            self._send()
            if self._write_blocked or self._finishing:
                self._update_io()

    def _send(self) -> None:
        try:
            done = send_parts(self._stream, self._send_queue)
        except Unavailable:
            self.close()
            return
        if done == self._write_blocked:
            self._write_blocked = not done
            self._stream.on_writable(self._on_writable if not done else None)
            self.write_blocked_since = -1.0 if done else self._server.now
            self._count_unsent(0 if done else memory_bytes(self._send_queue))

    def _count_waiting(self, slot: ReplySlot) -> None:
        """Counts a reply that waits for an earlier one."""
        slot.counted_bytes = memory_bytes(slot.parts or ())
        self._waiting_bytes += slot.counted_bytes
        self._count_unsent(self.unsent_bytes - self._waiting_bytes + slot.counted_bytes)

    def _count_unsent(self, queued: int) -> None:
        """Counts the queued bytes in memory, and those of replies that wait for earlier ones. If the server's sum
        exceeds its limit, connections end."""
        server, unsent = self._server, queued + self._waiting_bytes
        server.unsent_bytes += unsent - self.unsent_bytes
        self.unsent_bytes = unsent
        if unsent and server.unsent_bytes > server.unsent_bytes_max:
            server.end_slowest_readers()

    def _on_writable(self) -> None:
        self.write_blocked_since = self._server.now
        self._send()
        if not self.closed and not self._write_blocked:
            self._update_io()

    # -- reading on and off -------------------------------------------------------------------------------------------

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._stream.on_readable(None)

    def _resume_soon(self) -> None:
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _on_memory_free(self) -> None:
        """Resumes soon: there may be memory for the frame."""
        self._waits_for_memory = False
        self._resume_soon()

    def _resume(self) -> None:
        """Reads on, beginning with bytes that were received already."""
        self._resuming = False
        if self.closed or self._finishing or self._waits_for_memory or self._is_busy or self._write_blocked:
            return
        if self._muted is not None:
            return
        if self._slots and (self._waits_for_replies or self._is_full()):
            return
        self._parse_paused = self._waits_for_replies = False
        rest = self._unparsed
        self.frame_started = self._server.now if rest or self._frame is not None else -1.0
        if not self._reading:
            self.start_reading()
        if rest and self._frame is None:
            self._scratch[: len(rest)] = rest
            self._parse(len(rest))

    # -- closing ------------------------------------------------------------------------------------------------------

    def refuse(self, reason: str, why: str = "") -> None:
        """Closes the connection, counts the reason and logs it."""
        self._server.context.refusals.record(reason, self.peer, why, self.listener)
        self.close()

    def drain(self) -> None:
        """Handles no more requests, and closes the connection once all pending replies are sent."""
        self._finishing = True
        self._stop_reading()
        self._update_io()

    def close(self) -> None:
        """Closes the connection and ends all work for it."""
        if self.closed:
            return
        self.closed = True
        if self._muted is not None:
            self._muted.cancel()
        self._end_hold()
        self._stream.close()
        self._server.remove_connection(self)
        if self._frame is not None:
            self._frame.release()
            self._frame = None
        self._release_frame()
        queue, self._slots = self._slots, deque()
        self._server.pending_requests -= len(queue)
        self._waiting_bytes = 0
        self._count_unsent(0)
        self._send_queue.clear()
        self._unparsed = b""
        for slot in queue:
            if slot.charge is not None and slot.parts is None:
                slot.charge.settle(())
            if slot.on_close is not None:
                slot.on_close()
