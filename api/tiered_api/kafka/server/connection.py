"""One connection: frames in, answers out in the order of their requests, as few system calls as may be.

Small frames are read into a scratch buffer that all connections share, and are dealt with before the next event:
nothing of them is kept. All answers that are ready by then leave in one call. Reading stops while answers are not
taken, while five requests wait for theirs, and while the broker as a whole has too much to do: what a client may ask of
our memory is what it reads and waits for.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING

from tiered.errors import Unavailable
from tiered.ports import FileSlice, Stream
from tiered_api.kafka.server.request_buffers import Frame
from tiered_api.kafka.server.socket_writer import Part, in_memory, send_some
from tiered_api.kafka.server.wrong_protocol import size_in_words

if TYPE_CHECKING:
    from tiered_api.kafka.server.produce.sequence_gaps import RefusedSequences
    from tiered_api.kafka.server.server import KafkaServer

IN_FLIGHT = 5
"""Requests of one connection that may wait for their answers, as many as clients send by themselves."""
SMALL = 32 << 10
"""Larger frames get a buffer of their own."""
CORKED_BYTES = 16 << 10
"""A larger answer leaves at once: only if it does is the next request looked at."""
REQUESTS_PER_EVENT = 64
READS_PER_EVENT = 8
"""After so much of one connection the others get their turn."""
HEADER_BYTES = 10
HELD_SHARE = 4

_SIZE = Struct(">i")
_HEADER = Struct(">hhih")


class Slot:
    """The place of an answer that is not there yet. `drop` ends what works on it when the connection is gone."""

    __slots__ = ("drop", "key", "parts", "since_ns")

    def __init__(self, key: int = 0, since_ns: int = 0) -> None:
        self.key = key
        self.since_ns = since_ns
        self.parts: Sequence[Part] | None = None
        self.drop: Callable[[], object] | None = None


class Connection:
    """One client. `take` of the dispatch gets every request; answers come back from it, or through `answer`."""

    __slots__ = (
        "_blocked",
        "_finishing",
        "_frame",
        "_held",
        "_loop",
        "_out",
        "_parked",
        "_queue",
        "_reading",
        "_rest",
        "_resuming",
        "_scratch",
        "_server",
        "_stream",
        "_take",
        "_taken",
        "_unsent",
        "_waits",
        "closed",
        "fetch_head",
        "frame_since",
        "host",
        "key",
        "listener",
        "peer",
        "produce_head",
        "refused",
        "seen",
        "since_ns",
        "taken_since",
        "turn",
    )

    def __init__(self, server: KafkaServer, stream: Stream, listener: str, loop: AbstractEventLoop) -> None:
        self._server = server
        self._stream = stream
        self._loop = loop
        self._scratch = server.scratch
        self._take = server.dispatch.take
        self._rest = b""
        self._frame: Frame | None = None
        self._queue: deque[Slot] = deque()
        self._out: list[Part] = []
        self._reading = False
        self._blocked = False
        self._resuming = False
        self._unsent = 0
        self._parked = False
        self._held = False
        self._taken: Frame | None = None
        """The large frame that is dealt with."""
        self._waits = False
        """True while a whole large frame waits for its turn, or a request is dealt with in pieces."""
        self._finishing = False
        self.closed = False
        self.listener = listener
        self.peer = stream.peer
        self.host = stream.peer.rpartition(":")[0]
        self.seen = server.now
        """When something came last; all times are those of the server's last look at its clock."""
        self.frame_since = -1.0
        """Since when a frame is not whole, -1 when there is none such."""
        self.taken_since = -1.0
        """Since when the client takes nothing of what it is sent, -1 when nothing waits."""
        self.refused: RefusedSequences | None = None
        self.produce_head = 0
        """Where the first records of the last produce request began."""
        self.fetch_head = 0
        """Where the partitions of the last fetch began."""
        self.key = 0
        """Of the request that is dealt with."""
        self.since_ns = 0
        """When that began, by the monotonic clock."""
        self.turn = 0
        """Fetches that could not give all that there was."""

    def open(self) -> None:
        """Begins to read."""
        self._reading = True
        self._stream.on_readable(self._readable)

    @property
    def pending(self) -> int:
        """Requests whose answers are not there yet, or wait for those before them."""
        return len(self._queue)

    @property
    def reading(self) -> bool:
        """Whether it is the client's turn."""
        return self._reading

    @property
    def may_hold(self) -> bool:
        """Whether answers may be copied to memory from the files that they are slices of: not when much waits there."""
        return self._server.unsent * HELD_SHARE < self._server.unsent_max

    def stalls(self, least: int) -> bool:
        """Whether a large frame is under way, has memory, and fewer than `least` bytes came since the last look."""
        frame = self._frame
        if frame is None:
            return False
        if self._parked or self._waits:
            frame.looked_at = -1
            return False
        before, frame.looked_at = frame.looked_at, frame.filled
        return before >= 0 and frame.filled - before < least

    # -- in -----------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._frame is not None:
            self._read_frame(self._frame)
            return
        scratch, start = self._scratch, len(self._rest)
        try:
            if start:
                scratch[:start] = self._rest
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
        self.seen = self._server.now
        size = got - 4
        if start or self._queue or size < HEADER_BYTES or size != _SIZE.unpack_from(scratch)[0]:
            self._parse(start + got)
        elif size <= self._server.request_bytes:
            self._only_request(scratch[4:got])  # exactly one frame, as mostly
        else:
            self.refuse("frame_size", size_in_words(size))

    def _read_frame(self, frame: Frame) -> None:
        """Goes on with a large frame; of it alone, so that what follows stays where it is until its turn."""
        for _ in range(READS_PER_EVENT):
            room = frame.room()
            if room is None:
                self._parked = True
                self._stop_reading()
                self._server.buffers.park(self._unpark, self.host)
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
            self.seen = self._server.now
            frame.filled += got
            if frame.filled == frame.size:
                self.frame_since = -1.0
                turns = self._server.site.turns
                if turns.is_free():
                    self._take_frame(frame)
                else:
                    self._waits = True
                    self._stop_reading()
                    turns.soon(partial(self._server.dispatch.guard, self, self._turn_of_frame, "large frame"))
                return

    def _turn_of_frame(self) -> None:
        self._waits = False
        if self._frame is not None:
            self._take_frame(self._frame)

    def _take_frame(self, frame: Frame) -> None:
        """Takes a large frame that is whole."""
        self._frame, self._taken = None, frame
        try:
            self._request(frame.view)
        finally:
            if not self._waits:
                self._release_taken()
        self._settle()

    def hold(self, frame: memoryview) -> memoryview:
        """The request that is dealt with, to be kept beyond this turn. The next one is taken after `go_on`: until then
        what the client sends stays where it is."""
        self._waits = True
        self._stop_reading()
        return frame if self._taken is not None else memoryview(bytearray(frame))

    def go_on(self) -> None:
        """The request that was held is not needed any more."""
        self._waits = False
        self._release_taken()
        self._resume_soon()

    def _release_taken(self) -> None:
        if self._taken is not None:
            self._taken.release()
            self._taken = None

    def _parse(self, end: int) -> None:
        """Takes the whole frames of `scratch[:end]`, keeps the rest, sends what is answered."""
        scratch, at, taken = self._scratch, 0, 0
        while end - at >= 4:
            if taken == REQUESTS_PER_EVENT or self._blocked or self._waits or (self._queue and self._is_full()):
                self._held = True
                break
            (size,) = _SIZE.unpack_from(scratch, at)
            begin = at + 4
            if not HEADER_BYTES <= size <= self._server.request_bytes:
                self.refuse("frame_size", size_in_words(size))
                return
            if end - begin < size:
                if size > SMALL:
                    self._frame = self._server.buffers.frame(size, scratch[begin:end], self.host)
                    at = end
                break
            at = begin + size
            taken += 1
            self._request(scratch[begin:at])
            if self.closed:
                return
        self._rest = bytes(scratch[at:end]) if at != end else b""
        if at == end and self._frame is None:
            self.frame_since = -1.0
        elif self.frame_since < 0 or taken:
            self.frame_since = self._server.now
        self._settle()

    def _only_request(self, frame: memoryview) -> None:
        """Takes a request while no other waits; an answer that is there at once and small goes with those of others."""
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
        answer = self._take(
            self, frame, key, version, correlation_id, HEADER_BYTES + size if size > 0 else HEADER_BYTES
        )
        if answer is not None:
            first = answer[0]
            self._out += answer
            if (
                len(answer) == 1
                and not self._queue
                and not isinstance(first, FileSlice)
                and len(first) <= CORKED_BYTES
                and self._server.send_soon(self)
            ):
                return
        self._settle()

    def _request(self, frame: memoryview) -> None:
        key, version, correlation_id, size = _HEADER.unpack_from(frame)
        answer = self._take(
            self, frame, key, version, correlation_id, HEADER_BYTES + size if size > 0 else HEADER_BYTES
        )
        if answer is None:
            return
        if self._queue:
            slot = Slot()
            slot.parts = answer
            self._enqueue(slot)
        else:
            self._out += answer
            first = answer[0]
            if len(answer) > 1 or isinstance(first, FileSlice) or len(first) > CORKED_BYTES:
                self._send()

    def _is_full(self) -> bool:
        waiting = len(self._queue)
        return waiting >= IN_FLIGHT or self._server.pending >= self._server.pending_max

    # -- out ----------------------------------------------------------------------------------------------------------

    def reserve(self, drop: Callable[[], object] | None = None) -> Slot:
        """Keeps the place of an answer that comes later, in the order of the requests."""
        slot = Slot(self.key, self.since_ns)
        slot.drop = drop
        self._enqueue(slot)
        return slot

    def answer(self, slot: Slot, parts: Sequence[Part]) -> None:
        """The answer is there; it leaves when those before it are there too."""
        slot.parts, slot.drop = parts, None
        self._server.dispatch.answered(slot)
        if not self.closed and self._queue[0] is slot:
            self._settle()

    def _enqueue(self, slot: Slot) -> None:
        self._queue.append(slot)
        self._server.pending += 1

    def _settle(self) -> None:
        """Sends what is ready, and reads on or stops reading, whatever the state asks for now."""
        queue, out = self._queue, self._out
        while queue and queue[0].parts is not None:
            out += queue.popleft().parts or ()
            self._server.pending -= 1
        if out and not self._blocked:
            self._send()
        if self.closed:
            return
        if self._finishing:
            if not queue and not out:
                self.close()
        elif self._blocked or (queue and self._is_full()):
            self._stop_reading()
        elif self._held or not self._reading:
            self._stop_reading()
            self._resume_soon()

    def send(self) -> None:
        """Sends what was left for the end of the turn, unless it is gone already or has to wait."""
        if self._out and not self._blocked:
            self._send()
            if self._blocked or self._finishing:
                self._settle()

    def _send(self) -> None:
        try:
            done = send_some(self._stream, self._out)
        except Unavailable:
            self.close()
            return
        if done == self._blocked:
            self._blocked = not done
            self._stream.on_writable(self._writable if not done else None)
            self.taken_since = -1.0 if done else self._server.now
            self._hold(0 if done else in_memory(self._out))

    def _hold(self, unsent: int) -> None:
        """So much of what is to be sent stays in memory. All that nobody reads has a bound: who goes over it goes."""
        server = self._server
        server.unsent += unsent - self._unsent
        self._unsent = unsent
        if unsent and server.unsent > server.unsent_max:
            self.refuse("unsent", f"{server.unsent} bytes of answers that nobody takes")

    def _writable(self) -> None:
        self.taken_since = self._server.now
        self._send()
        if not self.closed and not self._blocked:
            self._settle()

    # -- reading on and off -------------------------------------------------------------------------------------------

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._stream.on_readable(None)

    def _resume_soon(self) -> None:
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume)

    def _unpark(self) -> None:
        """There may be memory for the frame."""
        self._parked = False
        self._resume_soon()

    def _resume(self) -> None:
        """Reads on, first of all what came already."""
        self._resuming = False
        if self.closed or self._finishing or self._parked or self._waits or self._blocked:
            return
        if self._queue and self._is_full():
            return
        self._held, rest = False, self._rest
        self.frame_since = self._server.now if rest or self._frame is not None else -1.0
        if not self._reading:
            self.open()
        if rest and self._frame is None:
            self._scratch[: len(rest)] = rest
            self._parse(len(rest))

    # -- the end ------------------------------------------------------------------------------------------------------

    def refuse(self, reason: str, why: str = "") -> None:
        """Ends the connection, and says so."""
        self._server.site.refusals.note(reason, self.peer, why)
        self.close()

    def finish(self) -> None:
        """Takes no more requests, and ends once those that were taken are answered."""
        self._finishing = True
        self._stop_reading()
        self._settle()

    def close(self) -> None:
        """Ends the connection and whatever works for it."""
        if self.closed:
            return
        self.closed = True
        self._stream.close()
        self._server.forget(self)
        if self._frame is not None:
            self._frame.release()
            self._frame = None
        self._release_taken()
        queue, self._queue = self._queue, deque()
        self._server.pending -= len(queue)
        self._hold(0)
        self._out.clear()
        self._rest = b""
        for slot in queue:
            if slot.drop is not None:
                slot.drop()
